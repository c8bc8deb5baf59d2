"""What the layers and the head of the LoRA training pass are made of, with gradients written by hand.

Products, RMS norms, rotary positions, attention over spans of a tree, and the log-probabilities of trained tokens at a
frozen head. Each function computes on the tensors it is given and knows nothing of layers or models. Gradients of
frozen weights are not computed.

N: nodes of a micro-batch, or the trained ones where they meet the head. H: hidden size. A: query heads. K: key heads,
or trained tokens where they meet the head. G: query heads of a key head. D: head size. V: vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..memory_budget import LORA_PASS_HEAD_ROWS


@dataclass(frozen=True, slots=True)
class Span:
    """A block of queries, the keys that it attends to, and the mask, once for each query head of a key head."""

    queries: slice
    keys: Tensor
    mask: Tensor


def multiply(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return `inputs @ weight.t()`."""
    if inputs.dtype == torch.float32:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")
        return result
    return F.linear(inputs, weight)


def rms_norm(inputs: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the norm's output, and what it multiplied each vector with before the weight."""
    norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
    scale = norm.square_().mul_(1 / inputs.shape[-1]).add_(epsilon).rsqrt_()
    return (inputs * scale).mul_(weight), scale


def rms_norm_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient of the inputs."""
    weighted = gradient * weight
    product = (weighted * inputs).sum(-1, keepdim=True)
    product = product.mul_(scale.pow(3)).mul_(-1 / inputs.shape[-1])
    return torch.addcmul(weighted.mul_(scale), inputs, product)


def rotate(heads_N_A_D: Tensor, cos_N_1_D: Tensor, sin_N_1_D: Tensor, target_N: Tensor) -> None:
    """Write the rotated heads to the target. With negative sines, rotate back."""
    rolled = heads_N_A_D.roll(heads_N_A_D.shape[-1] // 2, -1)
    target = target_N.unflatten(1, heads_N_A_D.shape[1:])
    torch.addcmul(heads_N_A_D * cos_N_1_D, rolled, sin_N_1_D, out=target)


def attend(
    spans: Sequence[Span], size: int, query_N: Tensor, key_N: Tensor, value_N: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the attention's output, and the logarithms of its denominators for each span, for heads of this size."""
    attended_N, sums = torch.empty_like(query_N), []
    key_heads = key_N.shape[1] // size
    for span in spans:
        output, sum_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _grouped(query_N[span.queries], key_heads, size),
            _heads(key_N[span.keys], size),
            _heads(value_N[span.keys], size),
            attn_mask=span.mask,
        )
        attended_N[span.queries] = _ungrouped(output, span.queries)
        sums.append(sum_)
    return attended_N, sums


def attend_backward(  # noqa: PLR0913, PLR0917
    spans: Sequence[Span],
    size: int,
    query_N: Tensor,
    key_N: Tensor,
    value_N: Tensor,
    attended_N: Tensor,
    sums: Sequence[Tensor],
    gradient_N: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, from what `attend` was given and returned, and the gradient of
    its output."""
    query_gradient_N = torch.empty_like(query_N)
    key_gradient_N, value_gradient_N = torch.zeros_like(key_N), torch.zeros_like(value_N)
    key_heads = key_N.shape[1] // size
    for span, sum_ in zip(spans, sums, strict=True):
        query, key, value = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _grouped(gradient_N[span.queries], key_heads, size),
            _grouped(query_N[span.queries], key_heads, size),
            _heads(key_N[span.keys], size),
            _heads(value_N[span.keys], size),
            _grouped(attended_N[span.queries], key_heads, size),
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


class HeadPass(torch.autograd.Function):
    """Log-probability and entropy of each trained token at a frozen head.

    The gradient with respect to a hidden state is computed in the forward pass, while the logits are there: the trained
    token's embedding minus the mean embedding under the model's distribution. The entropy follows from the same mean.
    """

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
            logits_N_V = multiply(normed_N_H[rows], head_V_H)
            if temperature != 1:
                logits_N_V.div_(temperature)
            largest_N = logits_N_V.amax(-1)
            chosen_K = logits_N_V[index_K[terms_K] - start, tokens_K[terms_K]]
            sums_N = logits_N_V.sub_(largest_N[:, None]).exp_().sum(-1)
            norms_N[rows] = largest_N + sums_N.log()
            logprobs_K[terms_K] = chosen_K - norms_N[index_K[terms_K]]
            if trains:
                means_N_H[rows] = multiply(logits_N_V, head_V_H.t()).div_(sums_N[:, None])
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
