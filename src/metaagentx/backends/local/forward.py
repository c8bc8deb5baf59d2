"""Runs packed prefix trees through a causal LM of transformers and returns the log-probability of each trained token.

Works with any decoder that takes a 4D attention mask and positions and whose logits are its head on its last hidden
states; `PackedModel` checks that once, on a small tree, and raises for a model of another kind. Logits are computed
only for nodes that precede a trained token, and at most `_MAX_LOGITS` at once: the rest is recomputed in the backward
pass.

B: rows. T: positions in a row. N: nodes with a trained token after them. K: trained tokens, counted per datum.
H: hidden size. V: vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import MetaAgentXError
from ...policy import Datum
from .losses import Normalization, Terms
from .model import base_causal_lm
from .prefix_tree import MicroBatch, pack

_MAX_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class Targets:
    """The trained tokens of a micro-batch and the nodes that predict them."""

    nodes_N: Tensor
    node_index_K: Tensor
    """The index in `nodes_N` of the node before each trained token."""
    tokens_K: Tensor


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of each trained token, and entropy (without gradient) of its distribution."""

    logprobs_K: Tensor
    entropies_K: Tensor


class PackedModel:
    """A causal LM, split into its decoder and its head, that runs micro-batches of packed trees."""

    def __init__(self, module: Any) -> None:
        causal_lm = base_causal_lm(module)
        self.decoder = causal_lm.get_decoder()
        self.head = causal_lm.get_output_embeddings()
        self.config = causal_lm.config
        self.device = causal_lm.device
        self._check_packing(causal_lm)

    @property
    def break_even(self) -> float:
        """How many attended tokens cost as much as the rest of the network does for one token."""
        embedding = self.decoder.get_input_embeddings()
        weights = sum(weight.numel() for weight in self.decoder.parameters()) - embedding.weight.numel()
        # Half of what counting operations gives: attention runs fewer of them per second, and some twice.
        return float(max(1.0, weights / (4 * self.config.hidden_size * self.config.num_hidden_layers)))

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary."""
        return int(self.head.weight.shape[0])

    @property
    def loss_dtype(self) -> torch.dtype:
        """The type that losses are computed in: at least fp32."""
        dtype: torch.dtype = self.head.weight.dtype
        return torch.promote_types(dtype, torch.float32)

    def token_logprobs(self, batch: MicroBatch, targets: Targets, temperature: float = 1.0) -> TokenLogprobs:
        """Run a micro-batch and return the log-probabilities of its trained tokens at this temperature."""
        hidden_N_H = self._hidden(batch).flatten(0, 1)[targets.nodes_N]
        max_nodes = max(1, _MAX_LOGITS // self.vocabulary)
        if len(hidden_N_H) <= max_nodes:
            return TokenLogprobs(*self._score(hidden_N_H, targets.node_index_K, targets.tokens_K, temperature))
        order_K = torch.argsort(targets.node_index_K, stable=True)
        index_K, tokens_K = targets.node_index_K[order_K], targets.tokens_K[order_K]
        parts = []
        for start in range(0, len(hidden_N_H), max_nodes):
            stop = start + max_nodes
            first, last = torch.searchsorted(index_K, index_K.new_tensor([start, stop])).tolist()
            part = (hidden_N_H[start:stop], index_K[first:last] - start, tokens_K[first:last], temperature)
            parts.append(checkpoint(self._score, *part, use_reentrant=False))
        logprobs_K, entropies_K = (torch.cat(pieces)[torch.argsort(order_K)] for pieces in zip(*parts, strict=True))
        return TokenLogprobs(logprobs_K, entropies_K)

    def _hidden(self, batch: MicroBatch) -> Tensor:
        shape = (batch.rows, batch.length)
        tokens_B_T = torch.tensor(batch.tokens, device=self.device).view(shape)
        positions_B_T = torch.tensor(batch.depths, device=self.device).view(shape)
        mask_B_1_T_T = None if batch.chains else self._mask(batch)
        output = self.decoder(
            input_ids=tokens_B_T, attention_mask=mask_B_1_T_T, position_ids=positions_B_T, use_cache=False
        )
        hidden_B_T_H: Tensor = output.last_hidden_state
        return hidden_B_T_H

    def _mask(self, batch: MicroBatch) -> Tensor:
        window = self.config.to_dict().get("sliding_window")
        if window is not None and max(batch.depths) >= window:
            raise MetaAgentXError(
                f"a sequence of {max(batch.depths) + 1} tokens is longer than the model's attention window of {window} "
                "tokens, which training does not support: use shorter sequences or another model"
            )
        ends_B_1_T = torch.tensor(batch.ends, device=self.device).view(batch.rows, 1, batch.length)
        position_T = torch.arange(batch.length, device=self.device)
        seen_B_T_T = (position_T <= position_T[:, None]) & (position_T[:, None] < ends_B_1_T)
        dtype = self.head.weight.dtype
        mask_B_T_T = torch.zeros(seen_B_T_T.shape, dtype=dtype, device=self.device)
        return mask_B_T_T.masked_fill_(~seen_B_T_T, torch.finfo(dtype).min).unsqueeze(1)

    def _score(
        self, hidden_N_H: Tensor, index_K: Tensor, tokens_K: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logits_N_V: Tensor = self.head(hidden_N_H).to(self.loss_dtype)
        logprobs_N_V = (logits_N_V if temperature == 1 else logits_N_V / temperature).log_softmax(-1)
        with torch.no_grad():
            entropies_N = -logprobs_N_V.exp().mul_(logprobs_N_V).sum(-1)
        return logprobs_N_V[index_K, tokens_K], entropies_N[index_K]

    def _check_packing(self, causal_lm: Any) -> None:
        """Raise for architectures that modify the head's logits or ignore such masks: they would train wrongly."""
        a, b, c, d, e, f = torch.linspace(0, self.vocabulary - 1, 6).long().tolist()
        sequences = {0: (a, b, c, d), 1: (a, b, e, f)}
        (batch,) = pack(sequences, token_budget=6, break_even=math.inf)
        tolerance = 1e-3 if self.head.weight.dtype == self.loss_dtype else 5e-2
        with torch.no_grad():
            packed_T_V = self.head(self._hidden(batch)[0])
            for index, tokens in sequences.items():
                alone_T_V = causal_lm(input_ids=torch.tensor([tokens], device=self.device), use_cache=False).logits[0]
                if not torch.allclose(packed_T_V[batch.paths[index]], alone_T_V, tolerance, tolerance):
                    raise MetaAgentXError(
                        f"{type(causal_lm).__name__} gives other logits in a packed tree than alone, and cannot be "
                        "trained here: use a model of another architecture (Qwen3 and Llama are tested)"
                    )


def gather_terms(
    batch: MicroBatch, data: Sequence[Datum], normalization: Normalization, device: torch.device, dtype: torch.dtype
) -> tuple[Targets, Terms]:
    """Return the trained tokens of a micro-batch's data, and what the loss needs of them."""
    rows: list[tuple[Any, ...]] = []
    for owner, (index, path) in enumerate(batch.paths.items()):
        datum = data[index]
        zeros = (0.0,) * len(datum.tokens)
        behavior, reference = datum.logprobs or zeros, datum.reference_logprobs or zeros
        for position, weight in enumerate(datum.weights):
            if weight:
                node, token, scale = path[position - 1], datum.tokens[position], normalization.per_datum[index] * weight
                logprobs = behavior[position], reference[position]
                rows.append((node, token, owner, weight, scale, datum.advantage, *logprobs))
    nodes, tokens, owners, *floats = zip(*rows, strict=True)
    nodes_N, node_index_K = torch.unique(torch.tensor(nodes, device=device), return_inverse=True)
    targets = Targets(nodes_N, node_index_K, torch.tensor(tokens, device=device))
    weights_K, scales_K, advantages_K, behavior_K, reference_K = (
        torch.tensor(values, dtype=dtype, device=device) for values in floats
    )
    data_K = torch.tensor(owners, device=device)
    return targets, Terms(weights_K, scales_K, advantages_K, behavior_K, reference_K, data_K, len(batch.paths))
