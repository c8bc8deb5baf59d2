"""One layer of the LoRA training pass: its output, the gradient of its input, and those of its LoRAs.

`LayerPass` is what autograd calls. Each matrix is merged with its LoRA for the layer's pass, and everything between
products runs in blocks of tokens that stay in the processor's cache. The forward pass keeps the inputs of products that
cost much, in `_Kept`, or nothing but the layer's input; the backward pass computes the rest again.

N: nodes of a micro-batch. H: hidden size. D: head size. R: LoRA rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .lora_kernels import Span, attend, attend_backward, multiply, rms_norm, rms_norm_backward, rotate


@dataclass(slots=True)
class LoraLinear:
    """A frozen matrix and its LoRA, if it has one."""

    weight: Tensor
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    scaling: float = 1.0

    @property
    def parameters(self) -> list[Tensor]:
        """The trained ones."""
        return [] if self.lora_a is None or self.lora_b is None else [self.lora_a, self.lora_b]

    def merged(self) -> Tensor:
        """Return the matrix with its LoRA added."""
        if self.lora_a is None or self.lora_b is None:
            return self.weight
        return torch.addmm(self.weight, self.lora_b, self.lora_a, alpha=self.scaling)


@dataclass(slots=True)
class LoraLayer:
    """The weights of a layer."""

    query: LoraLinear
    key: LoraLinear
    value: LoraLinear
    output: LoraLinear
    gate: LoraLinear
    up: LoraLinear
    down: LoraLinear
    attention_norm: Tensor
    mlp_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None

    @property
    def parameters(self) -> list[Tensor]:
        """The trained ones of all matrices."""
        linears = (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)
        return [parameter for linear in linears for parameter in linear.parameters]


@dataclass(slots=True)
class LayerContext:
    """What all layers share in one micro-batch."""

    cos_N_1_D: Tensor
    sin_N_1_D: Tensor
    """The sign of the first half is in the sines."""
    spans: list[Span]
    epsilon: float
    head_size: int
    block: int
    keep: bool
    """Whether the layers keep what their backward passes need, besides their inputs."""

    def blocks(self) -> Iterator[slice]:
        """Yield the blocks of tokens, in order."""
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


class LayerPass(torch.autograd.Function):
    """One layer: the input's gradient and the LoRA's."""

    @staticmethod
    def forward(ctx: Any, layer: LoraLayer, context: LayerContext, hidden_N_H: Tensor, *_: Tensor) -> Tensor:
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


def _forward(layer: LoraLayer, context: LayerContext, hidden_N_H: Tensor, keep: bool) -> tuple[Tensor, _Kept | None]:
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
        normed, _ = rms_norm(hidden_N_H[block], layer.attention_norm, context.epsilon)
        for weight, norm, target_N, plain_N in projections:
            product = multiply(normed, weight)
            if plain_N is not None:
                plain_N[block] = product
            heads = product.unflatten(1, (-1, context.head_size))
            if norm is not None:
                heads, _ = rms_norm(heads, norm, context.epsilon)
            rotate(heads, context.cos_N_1_D[block], context.sin_N_1_D[block], target_N[block])
        value_N[block] = multiply(normed, value_weight)
    attended_N, sums = attend(context.spans, context.head_size, query_N, key_N, value_N)
    middle_N_H, output_N_H = torch.empty_like(hidden_N_H), torch.empty_like(hidden_N_H)
    weight = layer.output.merged()
    for block in context.blocks():
        torch.add(hidden_N_H[block], multiply(attended_N[block], weight), out=middle_N_H[block])
    kept = _Kept(query_N, key_N, value_N, plain_query_N, plain_key_N, attended_N, sums, middle_N_H) if keep else None
    gate_weight, up_weight, down_weight = layer.gate.merged(), layer.up.merged(), layer.down.merged()
    for block in context.blocks():
        normed, _ = rms_norm(middle_N_H[block], layer.mlp_norm, context.epsilon)
        gate, up = multiply(normed, gate_weight), multiply(normed, up_weight)
        if kept is not None:
            kept.gates.append(gate)
            kept.ups.append(up)
        active = F.silu(gate, inplace=kept is None).mul_(up)
        torch.add(middle_N_H[block], multiply(active, down_weight), out=output_N_H[block])
    return output_N_H, kept


def _backward(
    layer: LoraLayer,
    context: LayerContext,
    hidden_N_H: Tensor,
    kept: _Kept,
    gradient_N_H: Tensor,
    sums: "_LoraGradients",
) -> Tensor:
    """Return the gradient of the layer's input, which is wrong for the first layer, whose input needs none.

    Those of its LoRAs are added to the sums.
    """
    middle_gradient_N_H, attended_gradient_N = _mlp_backward(layer, context, kept, gradient_N_H, sums)
    _attention_backward(layer, context, hidden_N_H, kept, attended_gradient_N, middle_gradient_N_H, sums)
    return middle_gradient_N_H


def _mlp_backward(
    layer: LoraLayer, context: LayerContext, kept: _Kept, gradient_N_H: Tensor, sums: "_LoraGradients"
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the MLP's input and of the attention's output. Uses up the kept gates."""
    middle_gradient_N_H = torch.empty_like(kept.middle_N_H)
    attended_gradient_N = torch.empty_like(kept.attended_N)
    gate_weight, up_weight, down_weight = layer.gate.merged(), layer.up.merged(), layer.down.merged()
    output_weight = layer.output.merged()
    for index, block in enumerate(context.blocks()):
        gate, up = kept.gates[index], kept.ups[index]
        kept.gates[index] = kept.ups[index] = gradient_N_H[:0]  # freed as they are used up
        gradient = gradient_N_H[block]
        active_gradient = multiply(gradient, down_weight.t())
        silu = F.silu(gate)
        sums.add(layer.down, silu * up, gradient)
        gate_gradient = torch.ops.aten.silu_backward(up.mul_(active_gradient), gate)
        up_gradient = active_gradient.mul_(silu)
        normed, scale = rms_norm(kept.middle_N_H[block], layer.mlp_norm, context.epsilon)
        sums.add(layer.gate, normed, gate_gradient)
        sums.add(layer.up, normed, up_gradient)
        normed_gradient = multiply(gate_gradient, gate_weight.t()).add_(multiply(up_gradient, up_weight.t()))
        middle_gradient = rms_norm_backward(normed_gradient, kept.middle_N_H[block], layer.mlp_norm, scale)
        torch.add(middle_gradient, gradient, out=middle_gradient_N_H[block])
        sums.add(layer.output, kept.attended_N[block], middle_gradient_N_H[block])
        attended_gradient_N[block] = multiply(middle_gradient_N_H[block], output_weight.t())
    return middle_gradient_N_H, attended_gradient_N


def _attention_backward(  # noqa: PLR0913, PLR0917
    layer: LoraLayer,
    context: LayerContext,
    hidden_N_H: Tensor,
    kept: _Kept,
    attended_gradient_N: Tensor,
    gradient_N_H: Tensor,
    sums: "_LoraGradients",
) -> None:
    """Add the attention's share to the gradient of the layer's input, if that needs one."""
    needs_input = hidden_N_H.requires_grad
    gradients_N = attend_backward(
        context.spans,
        context.head_size,
        kept.query_N,
        kept.key_N,
        kept.value_N,
        kept.attended_N,
        kept.sums,
        attended_gradient_N,
    )
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
        normed, scale = rms_norm(hidden_N_H[block], layer.attention_norm, context.epsilon)
        sums.add(layer.value, normed, value_gradient_N[block])
        normed_gradient = multiply(value_gradient_N[block], value_weight.t())
        for linear, weight, norm, plain_N, rows_N in projections:
            heads = rows_N[block].unflatten(1, (-1, context.head_size))
            gradient = torch.empty_like(rows_N[block])
            rotate(heads, context.cos_N_1_D[block], -context.sin_N_1_D[block], gradient)
            if norm is not None and plain_N is not None:
                plain = plain_N[block].unflatten(1, (-1, context.head_size))
                heads = gradient.unflatten(1, (-1, context.head_size))
                _, head_scale = rms_norm(plain, norm, context.epsilon)
                gradient = rms_norm_backward(heads, plain, norm, head_scale).flatten(1)
            sums.add(linear, normed, gradient)
            if needs_input:
                normed_gradient += multiply(gradient, weight.t())
        if needs_input:
            gradient_N_H[block] += rms_norm_backward(normed_gradient, hidden_N_H[block], layer.attention_norm, scale)


class _LoraGradients:
    """Sums of the gradients of a layer's LoRAs over blocks of tokens."""

    def __init__(self, layer: LoraLayer) -> None:
        self._sums = {id(parameter): torch.zeros_like(parameter) for parameter in layer.parameters}

    def add(self, linear: LoraLinear, inputs: Tensor, gradient: Tensor) -> None:
        if linear.lora_a is None or linear.lora_b is None:
            return
        gradient_N_R = multiply(gradient, linear.lora_b.t())
        self._sums[id(linear.lora_a)].addmm_(gradient_N_R.t(), inputs, alpha=linear.scaling)
        self._sums[id(linear.lora_b)].addmm_(gradient.t(), multiply(inputs, linear.lora_a), alpha=linear.scaling)

    def of(self, layer: LoraLayer) -> list[Tensor]:
        return [self._sums[id(parameter)] for parameter in layer.parameters]
