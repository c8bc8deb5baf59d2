"""Runs packed prefix trees through a causal LM of transformers and returns the log-probability of each trained token.

Works with any decoder that takes a 4D attention mask and positions and whose logits are its head on its last hidden
states; `PackedModel` checks that once, on a small tree, and raises for a model of another kind. Logits are computed
only for nodes that precede a trained token. More than `MAX_LOGITS` of them are computed in chunks, and again in the
backward pass. With `recompute`, layers keep their inputs only, and are computed again in the backward pass.

B: rows. T: positions in a row. N: nodes with a trained token after them. K: trained tokens, counted per datum.
H: hidden size. V: vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import MetaAgentXError
from ...policy import Datum
from ..losses import Normalization, Terms, terms_of
from ..memory_budget import MAX_LOGITS
from .lora_pass import LoraPass, has_lora_pass
from .memory import is_out_of_memory
from .model import base_causal_lm
from .prefix_tree import MicroBatch, pack


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

    def __init__(self, module: Any, *, recompute: bool = False, adapter: str | None = None) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        causal_lm = base_causal_lm(module)
        self.decoder = causal_lm.get_decoder()
        self.head = causal_lm.get_output_embeddings()
        self.config = causal_lm.config
        self.device = causal_lm.device
        self.recompute = recompute
        self._lora_pass = LoraPass(module, adapter) if adapter is not None and has_lora_pass(module, adapter) else None
        self._layers = [layer for layer in self.decoder.modules() if isinstance(layer, GradientCheckpointingLayer)]
        if recompute and not self.can_recompute:
            raise MetaAgentXError(
                f"the layers of {type(causal_lm).__name__} cannot be recomputed: set "
                "optimizer.activation_checkpointing to false"
            )
        if not _is_plain_head(causal_lm, self.decoder, self.head) or not self._keeps_branches_apart(causal_lm):
            raise MetaAgentXError(
                f"{type(causal_lm).__name__} gives other logits in a packed tree than alone, and cannot be trained "
                "here: use a model of another architecture (Qwen3 and Llama are tested)"
            )

    @property
    def can_recompute(self) -> bool:
        """Whether the model has layers that `recompute` applies to."""
        return bool(self._layers)

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
        if self._lora_pass is not None:
            hidden_N_H = self._lora_pass.hidden(batch, targets.nodes_N, recompute=self.recompute)
            scores = self._lora_pass.score(hidden_N_H, targets.node_index_K, targets.tokens_K, temperature)
            return TokenLogprobs(*scores)
        hidden_N_H = self._hidden(batch).flatten(0, 1)[targets.nodes_N]
        max_nodes = max(1, MAX_LOGITS // self.vocabulary)
        if len(hidden_N_H) <= max_nodes:
            return TokenLogprobs(*self._score(hidden_N_H, targets.node_index_K, targets.tokens_K, temperature))
        order_K = torch.argsort(targets.node_index_K, stable=True)
        index_K, tokens_K = targets.node_index_K[order_K], targets.tokens_K[order_K]
        starts = torch.arange(0, len(hidden_N_H) + max_nodes, max_nodes, device=index_K.device)
        bounds = torch.searchsorted(index_K, starts).tolist()
        chunks = [
            _Chunk(
                slice(start, start + max_nodes), slice(first, last), index_K[first:last] - start, tokens_K[first:last]
            )
            for start, first, last in zip(starts.tolist(), bounds, bounds[1:], strict=False)
        ]
        weights = [weight for weight in self.head.parameters() if weight.requires_grad]
        apply: Any = _ScoreInChunks.apply
        scores = apply(self, chunks, temperature, hidden_N_H, *weights)
        return TokenLogprobs(*(values_K[torch.argsort(order_K)] for values_K in scores))

    def _hidden(self, batch: MicroBatch) -> Tensor:
        shape = (batch.rows, batch.length)
        tokens_B_T = torch.tensor(batch.tokens, device=self.device).view(shape)
        positions_B_T = torch.tensor(batch.depths, device=self.device).view(shape)
        mask_B_1_T_T = None if batch.chains else self._mask(batch)
        with self._recomputed_layers() if self.recompute and torch.is_grad_enabled() else nullcontext():
            output = self.decoder(
                input_ids=tokens_B_T, attention_mask=mask_B_1_T_T, position_ids=positions_B_T, use_cache=False
            )
        hidden_B_T_H: Tensor = output.last_hidden_state
        return hidden_B_T_H

    @contextmanager
    def _recomputed_layers(self) -> Iterator[None]:
        """Let the layers that run inside keep their inputs only. The module stays in evaluation mode: no dropout."""
        for layer in self._layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward

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

    def _keeps_branches_apart(self, causal_lm: Any) -> bool:
        """Return whether the branches of a tree are computed as if each were alone, on a tree of eight branches.

        What the branches would see of each other without the mask is the measure: an ignored mask causes all of that
        difference, rounding a small part. Where rounding to bf16 hides the answer, fp32 gives it.
        """
        with torch.no_grad():
            error, effect, size = self._packing_error()
            if self.head.weight.dtype == self.loss_dtype:
                return error <= 0.01 * effect + 1e-4 * size
            if error <= 0.1 * effect:
                return True
            try:
                with _in_fp32(causal_lm):
                    error, effect, size = self._packing_error()
                return error <= 0.01 * effect + 1e-4 * size
            except (RuntimeError, MemoryError) as failure:
                if not is_out_of_memory(failure):
                    raise
                return error <= 0.5 * effect

    def _packing_error(self) -> tuple[float, float, float]:
        """Return norms: packed minus alone, unmasked minus alone, and alone."""
        step = max(1, (self.vocabulary - 1) // 24)
        tokens = [(1 + step * count) % self.vocabulary for count in range(24)]
        branches = {index: (0, *tokens[3 * index : 3 * index + 3]) for index in range(8)}
        (batch,) = pack(branches, token_budget=32, break_even=math.inf)
        nodes_S_T = torch.tensor([batch.paths[index] for index in branches], device=self.device)
        tokens_S_T = torch.tensor(list(branches.values()), device=self.device)
        alone = self.decoder(input_ids=tokens_S_T, use_cache=False).last_hidden_state.double()
        unmasked = replace(batch, ends=[batch.length] * batch.length)
        errors = [(self._hidden(tree)[0][nodes_S_T].double() - alone).norm() for tree in (batch, unmasked)]
        return float(errors[0]), float(errors[1]), float(alone.norm())


def _is_plain_head(causal_lm: Any, decoder: Any, head: Any) -> bool:
    """Return whether logits are the head's product with the last hidden states, also where they are large."""
    logits = []

    def enlarge(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state *= 100 / head(output.last_hidden_state).abs().max().clamp_min(1e-6)
        logits.append(head(output.last_hidden_state))
        return output

    hook = decoder.register_forward_hook(enlarge)
    try:
        with torch.no_grad():
            tokens_1_T = torch.tensor([[0, 1, 2, 1]], device=causal_lm.device)
            logits.append(causal_lm(input_ids=tokens_1_T, use_cache=False).logits)
    finally:
        hook.remove()
    return len(logits) == 2 and bool((logits[0] - logits[1]).abs().max() <= 1)


@contextmanager
def _in_fp32(module: Any) -> Iterator[None]:
    """Compute in fp32 inside. The narrower tensors stay in memory and return: others may refer to them."""
    tensors = [*module.parameters(), *module.buffers()]
    originals = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, original in zip(tensors, originals, strict=True):
            tensor.data = original


class _Chunk(NamedTuple):
    """Adjacent nodes and the trained tokens after them."""

    nodes: slice
    terms: slice
    index_K: Tensor
    """The node of each term, counted in the chunk."""
    tokens_K: Tensor


class _ScoreInChunks(torch.autograd.Function):
    """`PackedModel._score` chunk by chunk: each pass holds at most two fp32 matrices of one chunk's logits."""

    @staticmethod
    def forward(
        ctx: Any, model: PackedModel, chunks: list[_Chunk], temperature: float, hidden_N_H: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.model, ctx.chunks, ctx.temperature = model, chunks, temperature
        ctx.save_for_backward(hidden_N_H, *weights)
        count = chunks[-1].terms.stop
        logprobs_K = torch.empty(count, dtype=model.loss_dtype, device=model.device)
        entropies_K = torch.empty_like(logprobs_K)
        for chunk in chunks:
            logits_N_V = _shifted(model.head(hidden_N_H[chunk.nodes]), model.loss_dtype, temperature)
            shares_N_V = logits_N_V.exp()
            sums_N = shares_N_V.sum(-1)
            entropies_N = sums_N.log() - shares_N_V.mul_(logits_N_V).sum(-1) / sums_N
            logprobs_K[chunk.terms] = logits_N_V[chunk.index_K, chunk.tokens_K] - sums_N.log()[chunk.index_K]
            entropies_K[chunk.terms] = entropies_N[chunk.index_K]
        ctx.mark_non_differentiable(entropies_K)
        return logprobs_K, entropies_K

    @staticmethod
    def backward(ctx: Any, *gradients_K: Tensor) -> tuple[Tensor | None, ...]:
        gradient_K = gradients_K[0]
        model = ctx.model
        hidden_N_H, *weights = ctx.saved_tensors
        hidden_gradient_N_H = torch.empty_like(hidden_N_H)
        sums: list[Tensor] = [torch.zeros_like(weight, dtype=model.loss_dtype) for weight in weights]
        for chunk in ctx.chunks:
            with torch.enable_grad():
                part_N_H = hidden_N_H[chunk.nodes].detach().requires_grad_()
                logits_N_V = model.head(part_N_H)
            matrix_N_V = _shifted(logits_N_V.detach(), model.loss_dtype, ctx.temperature).exp_()
            part_K = gradient_K[chunk.terms]
            totals_N = part_K.new_zeros(len(matrix_N_V)).index_add_(0, chunk.index_K, part_K)
            matrix_N_V.mul_(-(totals_N / matrix_N_V.sum(-1))[:, None])
            matrix_N_V.index_put_((chunk.index_K, chunk.tokens_K), part_K, accumulate=True)
            matrix_N_V = matrix_N_V.div_(ctx.temperature).to(logits_N_V.dtype)
            found = torch.autograd.grad(logits_N_V, [part_N_H, *weights], matrix_N_V)
            hidden_gradient_N_H[chunk.nodes] = found[0]
            for total, gradient in zip(sums, found[1:], strict=True):
                total += gradient
        results = [total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True)]
        return None, None, None, hidden_gradient_N_H, *results


def _shifted(logits_N_V: Tensor, dtype: torch.dtype, temperature: float) -> Tensor:
    """Return logits at a temperature, minus the largest of their row. The memory of logits of this type is reused."""
    logits_N_V = logits_N_V.to(dtype).div_(temperature)
    return logits_N_V.sub_(logits_N_V.amax(-1, keepdim=True))


def gather_terms(
    batch: MicroBatch, data: Sequence[Datum], normalization: Normalization, device: torch.device, dtype: torch.dtype
) -> tuple[Targets, Terms]:
    """Return the trained tokens of a micro-batch's data, and what the loss needs of them."""
    rows = [
        (path[position - 1], data[index].tokens[position])
        for index, path in batch.paths.items()
        for position, weight in enumerate(data[index].weights)
        if weight
    ]
    nodes, tokens = zip(*rows, strict=True)
    nodes_N, node_index_K = torch.unique(torch.tensor(nodes, device=device), return_inverse=True)
    targets = Targets(nodes_N, node_index_K, torch.tensor(tokens, device=device))
    return targets, terms_of({index: data[index] for index in batch.paths}, normalization, device, dtype)
