"""Our own training pass for a LoRA on a Qwen3 or Llama model on a CPU, with gradients written by hand.

The same function as the decoder of transformers with peft around it, to rounding. Only the LoRA gets gradients; no
gradient of a frozen weight exists at any time. What makes it faster than autograd through the module:

- Products run in oneDNN, which on some processors is more than twice as fast in fp32 as the library torch takes.
- The LoRA is merged into a layer's matrices for the layer's pass, one matrix at a time, so products are not doubled.
- Everything between products runs in blocks of tokens that stay in the processor's cache. The backward pass keeps the
  inputs of products that cost much and computes norms and activations again.
- Attention runs over spans of a tree: a block of queries attends to its ancestors and itself, not to the whole row.
- The head's gradient with respect to a hidden state is computed in the forward pass, while the logits are there: for
  each node it is the trained token's embedding minus the mean embedding under the model's distribution. So logits are
  neither kept nor computed again. Their entropy follows from the same mean.

N: nodes of a micro-batch, padding left out, or the trained ones where they meet the head. H: hidden size. A: query
heads. K: key heads, or trained tokens where they meet the head. D: head size. R: LoRA rank. V: vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory_budget import LORA_PASS_HEAD_ROWS, LORA_PASS_SPAN
from .model import base_causal_lm
from .prefix_tree import AttentionSpan, MicroBatch, attention_spans, compact

_BLOCK_BYTES = (1 << 20) - 4096
"""Of the widest tensor in a block of tokens: below what a large model's memory is returned to the system for."""


@dataclass(slots=True)
class _Linear:
    """A frozen matrix and its LoRA, if it has one."""

    weight: Tensor
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    scaling: float = 1.0

    @property
    def parameters(self) -> list[Tensor]:
        return [] if self.lora_a is None or self.lora_b is None else [self.lora_a, self.lora_b]

    def merged(self) -> Tensor:
        if self.lora_a is None or self.lora_b is None:
            return self.weight
        return torch.addmm(self.weight, self.lora_b, self.lora_a, alpha=self.scaling)


@dataclass(slots=True)
class _Layer:
    query: _Linear
    key: _Linear
    value: _Linear
    output: _Linear
    gate: _Linear
    up: _Linear
    down: _Linear
    attention_norm: Tensor
    mlp_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None

    @property
    def parameters(self) -> list[Tensor]:
        linears = (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)
        return [parameter for linear in linears for parameter in linear.parameters]


@dataclass(frozen=True, slots=True)
class _Span:
    """A block of queries, the keys that it attends to, and the mask, once for each query head of a key head."""

    queries: slice
    keys: Tensor
    mask: Tensor


@dataclass(slots=True)
class _Context:
    """What all layers share in one micro-batch."""

    cos_N_1_D: Tensor
    sin_N_1_D: Tensor
    """The sign of the first half is in the sines."""
    spans: list[_Span]
    epsilon: float
    head_size: int
    block: int
    keep: bool
    """Whether the layers keep what their backward passes need, besides their inputs."""

    def blocks(self) -> Iterator[slice]:
        count = len(self.cos_N_1_D)
        return (slice(start, min(start + self.block, count)) for start in range(0, count, self.block))


@dataclass(slots=True)
class _Kept:
    """What the backward pass of a layer needs besides its input."""

    query_N: Tensor
    key_N: Tensor
    value_N: Tensor
    plain_query_N: Tensor | None
    """Before the norm of the heads, where there is one."""
    plain_key_N: Tensor | None
    attended_N: Tensor
    sums: list[Tensor]
    """Of each span, the logarithm of the attention's denominators."""
    middle_N_H: Tensor
    """Between attention and MLP."""
    gates: list[Tensor] = field(default_factory=list)
    ups: list[Tensor] = field(default_factory=list)


class LoraPass:
    """The hidden states and log-probabilities of a model with a LoRA, for training."""

    def __init__(self, module: Any, adapter: str) -> None:
        causal_lm = base_causal_lm(module)
        body, config = causal_lm.model, causal_lm.config
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._norm: Tensor = body.norm.weight.detach()
        self._head: Tensor = causal_lm.lm_head.weight.detach()
        self._rotary = body.rotary_emb
        self._epsilon: float = config.rms_norm_eps
        self._head_size: int = config.head_dim
        self._groups: int = config.num_attention_heads // config.num_key_value_heads
        widest = max(config.intermediate_size, config.hidden_size)
        self._block = max(32, _BLOCK_BYTES // (widest * self._embedding.element_size()))
        self._layers = [_layer(layer, adapter) for layer in body.layers]

    def hidden(self, batch: MicroBatch, nodes_N: Tensor, *, recompute: bool = False) -> Tensor:
        """Return the last hidden states of these nodes of a micro-batch. With `recompute`, layers keep their inputs
        only."""
        nodes = compact(batch)
        positions_1_N = torch.tensor([nodes.depths])
        cos, sin = (values[0].to(self._embedding.dtype) for values in self._rotary(self._embedding, positions_1_N))
        half = self._head_size // 2
        sin = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
        spans = [self._span(span) for span in attention_spans(nodes, LORA_PASS_SPAN)]
        keep = torch.is_grad_enabled() and not recompute
        context = _Context(cos[:, None], sin[:, None], spans, self._epsilon, self._head_size, self._block, keep)
        hidden_N_H = F.embedding(torch.tensor(nodes.tokens), self._embedding)
        apply: Callable[..., Tensor] = _LayerPass.apply
        for layer in self._layers:
            hidden_N_H = apply(layer, context, hidden_N_H, *layer.parameters)
        chosen_N_H = hidden_N_H[torch.tensor(nodes.places)[nodes_N]]
        return F.rms_norm(chosen_N_H, chosen_N_H.shape[-1:], self._norm, self._epsilon)

    def _span(self, span: AttentionSpan) -> _Span:
        keys, ends = torch.tensor(span.keys), torch.tensor(span.ends)
        queries = torch.arange(span.start, span.stop)[:, None]
        mask = torch.zeros(len(queries), len(keys), dtype=self._embedding.dtype)
        mask.masked_fill_((keys > queries) | (ends <= queries), -torch.inf)
        return _Span(slice(span.start, span.stop), keys, mask.repeat(self._groups, 1)[None, None])

    def score(self, hidden_N_H: Tensor, index_K: Tensor, tokens_K: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of each trained token, from the hidden states of the nodes before them.

        Entropies are NaN where gradients are disabled: they would cost as much as the log-probabilities.
        """
        apply: Callable[..., tuple[Tensor, Tensor]] = _HeadPass.apply
        return apply(hidden_N_H, self._head, index_K, tokens_K, temperature, torch.is_grad_enabled())


def has_lora_pass(module: Any, adapter: str | None) -> bool:
    """Return whether `LoraPass` computes what this module does: LoRAs on linear layers only, without biases."""
    from .model_runner import is_native

    if adapter is None or not is_native(module):
        return False
    causal_lm = base_causal_lm(module)
    dtype = causal_lm.lm_head.weight.dtype
    if causal_lm.device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        return False
    if causal_lm.config._attn_implementation != "sdpa":
        return False
    layers = [part for layer in causal_lm.model.layers for part in _linears(layer).values()]
    covered = {id(parameter) for part in layers for parameter in part.parameters()}
    named = causal_lm.named_parameters()
    return (
        all(id(weight) in covered for name, weight in named if "lora_" in name or weight.requires_grad)
        and all(_is_plain_lora(part, adapter) for part in layers)
        and all(weight.dtype == dtype for weight in causal_lm.parameters())
    )


def _is_plain_lora(part: Any, adapter: str) -> bool:
    base = part if type(part) is nn.Linear else getattr(part, "base_layer", None)
    if type(base) is not nn.Linear or base.bias is not None or base.weight.requires_grad:
        return False
    if base is part or adapter not in part.lora_A:
        return True
    return (
        not part.merged
        and not part.lora_variant.get(adapter)
        and type(part.lora_dropout[adapter]) is nn.Identity
        and part.lora_A[adapter].bias is None
        and part.lora_B[adapter].bias is None
    )


def _linears(layer: Any) -> dict[str, Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "query": attention.q_proj,
        "key": attention.k_proj,
        "value": attention.v_proj,
        "output": attention.o_proj,
        "gate": mlp.gate_proj,
        "up": mlp.up_proj,
        "down": mlp.down_proj,
    }


def _layer(layer: Any, adapter: str) -> _Layer:
    norms = dict(layer.self_attn.named_children())
    query_norm, key_norm = (norms[name].weight.detach() if name in norms else None for name in ("q_norm", "k_norm"))
    linears = {name: _linear(part, adapter) for name, part in _linears(layer).items()}
    return _Layer(
        **linears,
        attention_norm=layer.input_layernorm.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        query_norm=query_norm,
        key_norm=key_norm,
    )


def _linear(part: Any, adapter: str) -> _Linear:
    if type(part) is nn.Linear:
        return _Linear(part.weight.detach())
    weight = part.base_layer.weight.detach()
    if adapter not in part.lora_A:
        return _Linear(weight)
    return _Linear(weight, part.lora_A[adapter].weight, part.lora_B[adapter].weight, part.scaling[adapter])


class _LayerPass(torch.autograd.Function):
    """One layer: the input's gradient and the LoRA's."""

    @staticmethod
    def forward(ctx: Any, layer: _Layer, context: _Context, hidden_N_H: Tensor, *_: Tensor) -> Tensor:
        output_N_H, kept = _forward(layer, context, hidden_N_H, context.keep)
        ctx.layer, ctx.context, ctx.kept = layer, context, kept
        ctx.save_for_backward(hidden_N_H)
        return output_N_H

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (hidden_N_H,) = ctx.saved_tensors
        kept = ctx.kept
        if kept is None:
            _, kept = _forward(ctx.layer, ctx.context, hidden_N_H, True)
        ctx.kept = None
        sums = _LoraGradients(ctx.layer)
        gradient_N_H = _backward(ctx.layer, ctx.context, hidden_N_H, kept, gradients[0], sums)
        return None, None, gradient_N_H if ctx.needs_input_grad[2] else None, *sums.of(ctx.layer)


def _forward(layer: _Layer, context: _Context, hidden_N_H: Tensor, keep: bool) -> tuple[Tensor, _Kept | None]:
    query_N, key_N, value_N = (
        hidden_N_H.new_empty(len(hidden_N_H), len(linear.weight)) for linear in (layer.query, layer.key, layer.value)
    )
    has_norms = layer.query_norm is not None
    plain_query_N, plain_key_N = (torch.empty_like(rows) if has_norms and keep else None for rows in (query_N, key_N))
    projections = [
        (layer.query.merged(), layer.query_norm, query_N, plain_query_N),
        (layer.key.merged(), layer.key_norm, key_N, plain_key_N),
    ]
    value_weight = layer.value.merged()
    for block in context.blocks():
        normed, _ = _rms(hidden_N_H[block], layer.attention_norm, context.epsilon)
        for weight, norm, target_N, plain_N in projections:
            product = _product(normed, weight)
            if plain_N is not None:
                plain_N[block] = product
            heads = product.unflatten(1, (-1, context.head_size))
            if norm is not None:
                heads, _ = _rms(heads, norm, context.epsilon)
            _rotate(heads, context.cos_N_1_D[block], context.sin_N_1_D[block], target_N[block])
        value_N[block] = _product(normed, value_weight)
    attended_N, sums = _attend(context, query_N, key_N, value_N)
    middle_N_H, output_N_H = torch.empty_like(hidden_N_H), torch.empty_like(hidden_N_H)
    weight = layer.output.merged()
    for block in context.blocks():
        torch.add(hidden_N_H[block], _product(attended_N[block], weight), out=middle_N_H[block])
    kept = _Kept(query_N, key_N, value_N, plain_query_N, plain_key_N, attended_N, sums, middle_N_H) if keep else None
    gate_weight, up_weight, down_weight = layer.gate.merged(), layer.up.merged(), layer.down.merged()
    for block in context.blocks():
        normed, _ = _rms(middle_N_H[block], layer.mlp_norm, context.epsilon)
        gate, up = _product(normed, gate_weight), _product(normed, up_weight)
        if kept is not None:
            kept.gates.append(gate)
            kept.ups.append(up)
        active = F.silu(gate, inplace=kept is None).mul_(up)
        torch.add(middle_N_H[block], _product(active, down_weight), out=output_N_H[block])
    return output_N_H, kept


def _backward(
    layer: _Layer, context: _Context, hidden_N_H: Tensor, kept: _Kept, gradient_N_H: Tensor, sums: "_LoraGradients"
) -> Tensor:
    """Return the gradient of the layer's input, which is wrong for the first layer, whose input needs none.

    Those of its LoRAs are added to the sums.
    """
    needs_input = hidden_N_H.requires_grad
    middle_gradient_N_H = torch.empty_like(hidden_N_H)
    attended_gradient_N = torch.empty_like(kept.attended_N)
    gate_weight, up_weight, down_weight = layer.gate.merged(), layer.up.merged(), layer.down.merged()
    output_weight = layer.output.merged()
    for index, block in enumerate(context.blocks()):
        gate, up = kept.gates[index], kept.ups[index]
        kept.gates[index] = kept.ups[index] = gradient_N_H[:0]  # freed as they are used up
        gradient = gradient_N_H[block]
        active_gradient = _product(gradient, down_weight.t())
        silu = F.silu(gate)
        sums.add(layer.down, silu * up, gradient)
        gate_gradient = torch.ops.aten.silu_backward(up.mul_(active_gradient), gate)
        up_gradient = active_gradient.mul_(silu)
        normed, scale = _rms(kept.middle_N_H[block], layer.mlp_norm, context.epsilon)
        sums.add(layer.gate, normed, gate_gradient)
        sums.add(layer.up, normed, up_gradient)
        normed_gradient = _product(gate_gradient, gate_weight.t()).add_(_product(up_gradient, up_weight.t()))
        middle_gradient = _rms_backward(normed_gradient, kept.middle_N_H[block], layer.mlp_norm, scale)
        torch.add(middle_gradient, gradient, out=middle_gradient_N_H[block])
        sums.add(layer.output, kept.attended_N[block], middle_gradient_N_H[block])
        attended_gradient_N[block] = _product(middle_gradient_N_H[block], output_weight.t())
    gradients_N = _attend_backward(context, kept, attended_gradient_N)
    projections = [
        (linear, linear.merged(), norm, plain_N, rows_N)
        for linear, norm, plain_N, rows_N in zip(
            (layer.query, layer.key),
            (layer.query_norm, layer.key_norm),
            (kept.plain_query_N, kept.plain_key_N),
            gradients_N,
            strict=False,
        )
    ]
    value_weight, value_gradient_N = layer.value.merged(), gradients_N[2]
    for block in context.blocks():
        normed, scale = _rms(hidden_N_H[block], layer.attention_norm, context.epsilon)
        sums.add(layer.value, normed, value_gradient_N[block])
        normed_gradient = _product(value_gradient_N[block], value_weight.t())
        for linear, weight, norm, plain_N, rows_N in projections:
            heads = rows_N[block].unflatten(1, (-1, context.head_size))
            gradient = torch.empty_like(rows_N[block])
            _rotate(heads, context.cos_N_1_D[block], -context.sin_N_1_D[block], gradient)
            if norm is not None and plain_N is not None:
                plain = plain_N[block].unflatten(1, (-1, context.head_size))
                heads = gradient.unflatten(1, (-1, context.head_size))
                _, head_scale = _rms(plain, norm, context.epsilon)
                gradient = _rms_backward(heads, plain, norm, head_scale).flatten(1)
            sums.add(linear, normed, gradient)
            if needs_input:
                normed_gradient += _product(gradient, weight.t())
        if needs_input:
            middle_gradient_N_H[block] += _rms_backward(normed_gradient, hidden_N_H[block], layer.attention_norm, scale)
    return middle_gradient_N_H


class _LoraGradients:
    """Sums of the gradients of a layer's LoRAs over blocks of tokens."""

    def __init__(self, layer: _Layer) -> None:
        self._sums = {id(parameter): torch.zeros_like(parameter) for parameter in layer.parameters}

    def add(self, linear: _Linear, inputs: Tensor, gradient: Tensor) -> None:
        if linear.lora_a is None or linear.lora_b is None:
            return
        gradient_N_R = _product(gradient, linear.lora_b.t())
        self._sums[id(linear.lora_a)].addmm_(gradient_N_R.t(), inputs, alpha=linear.scaling)
        self._sums[id(linear.lora_b)].addmm_(gradient.t(), _product(inputs, linear.lora_a), alpha=linear.scaling)

    def of(self, layer: _Layer) -> list[Tensor]:
        return [self._sums[id(parameter)] for parameter in layer.parameters]


def _attend(context: _Context, query_N: Tensor, key_N: Tensor, value_N: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the attention's output, and the logarithms of its denominators for each span."""
    attended_N, sums = torch.empty_like(query_N), []
    size, key_heads = context.head_size, key_N.shape[1] // context.head_size
    for span in context.spans:
        output, sum_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _grouped(query_N[span.queries], key_heads, size),
            _heads(key_N[span.keys], size),
            _heads(value_N[span.keys], size),
            attn_mask=span.mask,
        )
        attended_N[span.queries] = _ungrouped(output, span.queries)
        sums.append(sum_)
    return attended_N, sums


def _attend_backward(context: _Context, kept: _Kept, gradient_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query_gradient_N = torch.empty_like(kept.query_N)
    key_gradient_N, value_gradient_N = torch.zeros_like(kept.key_N), torch.zeros_like(kept.value_N)
    size, key_heads = context.head_size, kept.key_N.shape[1] // context.head_size
    for span, sum_ in zip(context.spans, kept.sums, strict=True):
        query, key, value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _grouped(gradient_N[span.queries], key_heads, size),
            _grouped(kept.query_N[span.queries], key_heads, size),
            _heads(kept.key_N[span.keys], size),
            _heads(kept.value_N[span.keys], size),
            _grouped(kept.attended_N[span.queries], key_heads, size),
            sum_,
            0.0,
            False,
            attn_mask=span.mask,
        )
        query_gradient_N[span.queries] = _ungrouped(query, span.queries)
        key_gradient_N.index_add_(0, span.keys, key[0].transpose(0, 1).flatten(1))
        value_gradient_N.index_add_(0, span.keys, value[0].transpose(0, 1).flatten(1))
    return query_gradient_N, key_gradient_N, value_gradient_N


def _grouped(rows_N: Tensor, key_heads: int, size: int) -> Tensor:
    """Return [1, K, G * N, D]: the query heads of a key head one after the other, so that no key is repeated."""
    grouped_1_K_GN_D: Tensor = rows_N.unflatten(1, (key_heads, -1, size)).permute(1, 2, 0, 3).flatten(1, 2)[None]
    return grouped_1_K_GN_D


def _ungrouped(output_1_K_GN_D: Tensor, queries: slice) -> Tensor:
    rows = queries.stop - queries.start
    rows_N: Tensor = output_1_K_GN_D[0].unflatten(1, (-1, rows)).permute(2, 0, 1, 3).flatten(1)
    return rows_N


def _heads(rows_N: Tensor, size: int) -> Tensor:
    heads_1_K_N_D: Tensor = rows_N.unflatten(1, (-1, size)).transpose(0, 1)[None]
    return heads_1_K_N_D


class _HeadPass(torch.autograd.Function):
    """Log-probabilities at a frozen head, see the module's first lines."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917
        ctx: Any,
        normed_N_H: Tensor,
        head_V_H: Tensor,
        index_K: Tensor,
        tokens_K: Tensor,
        temperature: float,
        trains: bool,
    ) -> tuple[Tensor, Tensor]:
        count = len(normed_N_H)
        order_K = torch.argsort(index_K, stable=True)
        starts = torch.arange(0, count + LORA_PASS_HEAD_ROWS, LORA_PASS_HEAD_ROWS)
        bounds = torch.searchsorted(index_K[order_K], starts).tolist()
        logprobs_K, norms_N = normed_N_H.new_empty(len(index_K)), normed_N_H.new_empty(count)
        means_N_H = torch.empty_like(normed_N_H)
        for start, first, last in zip(starts.tolist(), bounds, bounds[1:], strict=False):
            rows, terms_K = slice(start, start + LORA_PASS_HEAD_ROWS), order_K[first:last]
            logits_N_V = _product(normed_N_H[rows], head_V_H)
            if temperature != 1:
                logits_N_V.div_(temperature)
            largest_N = logits_N_V.amax(-1)
            chosen_K = logits_N_V[index_K[terms_K] - start, tokens_K[terms_K]]
            sums_N = logits_N_V.sub_(largest_N[:, None]).exp_().sum(-1)
            norms_N[rows] = largest_N + sums_N.log()
            logprobs_K[terms_K] = chosen_K - norms_N[index_K[terms_K]]
            if trains:
                means_N_H[rows] = _product(logits_N_V, head_V_H.t()).div_(sums_N[:, None])
        entropies_K = torch.full_like(logprobs_K, torch.nan)
        if trains:
            entropies_K = (norms_N - (normed_N_H * means_N_H).sum(-1) / temperature)[index_K]
            ctx.save_for_backward(means_N_H, head_V_H, index_K, tokens_K)
            ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies_K)
        return logprobs_K, entropies_K

    @staticmethod
    def backward(ctx: Any, *gradients_K: Tensor) -> tuple[Tensor | None, ...]:
        means_N_H, head_V_H, index_K, tokens_K = ctx.saved_tensors
        gradient_K = gradients_K[0] / ctx.temperature
        totals_N = gradient_K.new_zeros(len(means_N_H)).index_add_(0, index_K, gradient_K)
        gradient_N_H = means_N_H * -totals_N[:, None]
        gradient_N_H.index_add_(0, index_K, head_V_H[tokens_K] * gradient_K[:, None])
        return gradient_N_H, None, None, None, None, None


def _product(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return `inputs @ weight.t()`."""
    if inputs.dtype == torch.float32:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")
        return result
    return F.linear(inputs, weight)


def _rms(inputs: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the norm's output, and what it multiplied each vector with before the weight."""
    norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
    scale = norm.square_().mul_(1 / inputs.shape[-1]).add_(epsilon).rsqrt_()
    return (inputs * scale).mul_(weight), scale


def _rms_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    weighted = gradient * weight
    product = (weighted * inputs).sum(-1, keepdim=True)
    product = product.mul_(scale.pow(3)).mul_(-1 / inputs.shape[-1])
    return torch.addcmul(weighted.mul_(scale), inputs, product)


def _rotate(heads_N_A_D: Tensor, cos_N_1_D: Tensor, sin_N_1_D: Tensor, target_N: Tensor) -> None:
    """Write the rotated heads to the target. With negative sines, rotate back."""
    rolled = heads_N_A_D.roll(heads_N_A_D.shape[-1] // 2, -1)
    target = target_N.unflatten(1, heads_N_A_D.shape[1:])
    torch.addcmul(heads_N_A_D * cos_N_1_D, rolled, sin_N_1_D, out=target)
