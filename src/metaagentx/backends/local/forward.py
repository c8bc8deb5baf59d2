"""Packed trees through a causal LM of transformers: the log-probability of each trained token.

Works with any decoder that takes a 4D attention mask and positions and whose logits are its head on its last hidden
states; that is tried out once, on a small tree, and a model of another kind is refused. Logits exist only for nodes
that something is learnt after, and no more than `_MOST_LOGITS` of them at once: the rest is computed again in the
backward pass.

B: rows. T: places in a row. N: nodes with a trained token after them. K: terms, a trained token of a datum each.
H: hidden size. V: vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import MetaAgentXError
from ...policy import Datum
from .losses import Scale, Terms
from .tree import MicroBatch, plan

_MOST_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class Targets:
    """Which token is to follow which node."""

    nodes_N: Tensor
    nodes_K: Tensor
    """The place in `nodes_N` of the node before each term's token."""
    tokens_K: Tensor


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of each term's token, and entropy (without gradient) of what it was one of."""

    logprobs_K: Tensor
    entropies_K: Tensor


class Network:
    """A causal LM, taken apart into its decoder and its head."""

    def __init__(self, module: Any) -> None:
        from peft import PeftModel

        base: Any = module.get_base_model() if isinstance(module, PeftModel) else module
        self.decoder = base.get_decoder()
        self.head = base.get_output_embeddings()
        self.config = base.config
        self.device = base.device
        self._check(base)

    @property
    def span(self) -> float:
        """How many attended tokens cost as much as the rest of the network does for one token."""
        embedding = self.decoder.get_input_embeddings()
        weights = sum(weight.numel() for weight in self.decoder.parameters()) - embedding.weight.numel()
        # Half of what counting operations gives: attention does fewer of them in a second, and some twice.
        return float(max(1.0, weights / (4 * self.config.hidden_size * self.config.num_hidden_layers)))

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows."""
        return int(self.head.weight.shape[0])

    @property
    def number_type(self) -> torch.dtype:
        """What losses are computed in: at least fp32."""
        dtype: torch.dtype = self.head.weight.dtype
        return torch.promote_types(dtype, torch.float32)

    def token_logprobs(self, batch: MicroBatch, targets: Targets, temperature: float = 1.0) -> TokenLogprobs:
        """One pass over a micro-batch: the probabilities with which tokens are drawn at this temperature."""
        hidden_N_H = self._hidden(batch).flatten(0, 1)[targets.nodes_N]
        most = max(1, _MOST_LOGITS // self.vocabulary)
        if len(hidden_N_H) <= most:
            return TokenLogprobs(*self._read_off(hidden_N_H, targets.nodes_K, targets.tokens_K, temperature))
        order_K = torch.argsort(targets.nodes_K, stable=True)
        nodes_K, tokens_K = targets.nodes_K[order_K], targets.tokens_K[order_K]
        parts = []
        for start in range(0, len(hidden_N_H), most):
            first, last = torch.searchsorted(nodes_K, nodes_K.new_tensor([start, start + most])).tolist()
            part = (hidden_N_H[start : start + most], nodes_K[first:last] - start, tokens_K[first:last], temperature)
            parts.append(checkpoint(self._read_off, *part, use_reentrant=False))
        logprobs_K, entropies_K = (torch.cat(pieces)[torch.argsort(order_K)] for pieces in zip(*parts, strict=True))
        return TokenLogprobs(logprobs_K, entropies_K)

    def _hidden(self, batch: MicroBatch) -> Tensor:
        shape = (batch.rows, batch.length)
        tokens_B_T = torch.tensor(batch.tokens, device=self.device).view(shape)
        positions_B_T = torch.tensor(batch.depths, device=self.device).view(shape)
        mask = None if batch.chains else self._mask(batch)
        output = self.decoder(input_ids=tokens_B_T, attention_mask=mask, position_ids=positions_B_T, use_cache=False)
        hidden_B_T_H: Tensor = output.last_hidden_state
        return hidden_B_T_H

    def _mask(self, batch: MicroBatch) -> Tensor:
        window = self.config.to_dict().get("sliding_window")
        if window is not None and max(batch.depths) >= window:
            raise MetaAgentXError(
                f"a sequence of {max(batch.depths) + 1} tokens is longer than the model's attention window of {window} "
                "tokens, and training does not know windows: use shorter sequences or another model"
            )
        ends_B_1_T = torch.tensor(batch.ends, device=self.device).view(batch.rows, 1, batch.length)
        place_T = torch.arange(batch.length, device=self.device)
        seen_B_T_T = (place_T <= place_T[:, None]) & (place_T[:, None] < ends_B_1_T)
        dtype = self.head.weight.dtype
        mask_B_T_T = torch.zeros(seen_B_T_T.shape, dtype=dtype, device=self.device)
        return mask_B_T_T.masked_fill_(~seen_B_T_T, torch.finfo(dtype).min).unsqueeze(1)

    def _read_off(
        self, hidden_N_H: Tensor, nodes_K: Tensor, tokens_K: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logits_N_V: Tensor = self.head(hidden_N_H).to(self.number_type)
        all_N_V = (logits_N_V if temperature == 1 else logits_N_V / temperature).log_softmax(-1)
        with torch.no_grad():
            entropies_N = -all_N_V.exp().mul_(all_N_V).sum(-1)
        return all_N_V[nodes_K, tokens_K], entropies_N[nodes_K]

    def _check(self, base: Any) -> None:
        """Some architectures treat what their head gives, or know no such masks: they would learn something else."""
        a, b, c, d, e, f = torch.linspace(0, self.vocabulary - 1, 6).long().tolist()
        sequences = {0: (a, b, c, d), 1: (a, b, e, f)}
        (batch,) = plan(sequences, token_budget=6, span=math.inf)
        tolerance = 1e-3 if self.head.weight.dtype == self.number_type else 5e-2
        with torch.no_grad():
            packed_T_V = self.head(self._hidden(batch)[0])
            for index, tokens in sequences.items():
                alone_T_V = base(input_ids=torch.tensor([tokens], device=self.device), use_cache=False).logits[0]
                if not torch.allclose(packed_T_V[batch.paths[index]], alone_T_V, tolerance, tolerance):
                    raise MetaAgentXError(
                        f"{type(base).__name__} gives other logits in a packed tree than alone, and cannot be trained "
                        "here: use a model of another architecture (Qwen3 and Llama are tested)"
                    )


def gather_terms(
    batch: MicroBatch, data: Sequence[Datum], scaling: Scale, device: torch.device, dtype: torch.dtype
) -> tuple[Targets, Terms]:
    """The trained tokens of a micro-batch's data: where they are, and what the loss knows of them."""
    columns: dict[str, list[Any]] = {name: [] for name in ("nodes", "tokens", "weights", "scales", "advantages")}
    behaviour: list[float] = []
    reference: list[float] = []
    owners: list[int] = []
    for owner, (index, path) in enumerate(batch.paths.items()):
        datum = data[index]
        weights = [weight for weight in datum.weights if weight]
        columns["nodes"] += compress(path, datum.weights[1:])
        columns["tokens"] += compress(datum.tokens, datum.weights)
        columns["weights"] += weights
        columns["scales"] += [scaling.per_datum[index] * weight for weight in weights]
        columns["advantages"] += [datum.advantage] * len(weights)
        behaviour += compress(datum.logprobs or [0.0] * len(datum.tokens), datum.weights)
        reference += compress(datum.reference_logprobs or [0.0] * len(datum.tokens), datum.weights)
        owners += [owner] * len(weights)

    def numbers(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    nodes_N, nodes_K = torch.unique(torch.tensor(columns["nodes"], device=device), return_inverse=True)
    targets = Targets(nodes_N, nodes_K, torch.tensor(columns["tokens"], device=device))
    terms = Terms(
        numbers(columns["weights"]),
        numbers(columns["scales"]),
        numbers(columns["advantages"]),
        numbers(behaviour),
        numbers(reference),
        torch.tensor(owners, device=device),
        len(batch.paths),
    )
    return targets, terms
