"""The losses, as functions over terms: a term is one trained token of one datum.

Everything is normalized over the whole call, by a `Normalization` computed from all its data beforehand, so that
micro-batches add up to one large batch. A token that several data share has one term for each of them.

With `truncate_ratio`, another engine sampled the data: the old policy is then the training pass itself, without
gradient, and each term is weighted by min(probability here / probability there, truncate_ratio).

K: terms. D: data of the micro-batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..options import LossConfig
from ..policy import Datum, LossName

# A ratio beyond e^20 is clipped the same in any case, and its gradient must not become infinity times zero.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Terms:
    """The inputs of the loss besides log-probabilities, for the trained tokens of a micro-batch."""

    weights_K: Tensor
    scales_K: Tensor
    """The factor of each term's loss in the sum over the whole call."""
    advantages_K: Tensor
    behavior_K: Tensor
    reference_K: Tensor
    data_K: Tensor
    """The index of each term's datum in the micro-batch, for ratios of whole sequences."""
    data_count: int


@dataclass(frozen=True, slots=True)
class Normalization:
    """How terms are normalized over all data of a call."""

    per_datum: Mapping[int, float]
    """The factor of the weights of each datum that has trained tokens."""
    tokens: int
    """The number of trained tokens in the call."""


def normalization_of(data: Sequence[Datum], options: LossConfig) -> Normalization:
    """Return the normalization of a call, from all its data."""
    totals = {index: sum(datum.weights) for index, datum in enumerate(data) if any(datum.weights)}
    tokens = sum(weight != 0 for datum in data for weight in datum.weights)
    if not totals:
        return Normalization({}, 0)
    if options.normalize == "token":
        return Normalization(dict.fromkeys(totals, 1 / sum(totals.values())), tokens)
    if options.normalize == "sequence":
        return Normalization({index: 1 / (total * len(totals)) for index, total in totals.items()}, tokens)
    return Normalization(dict.fromkeys(totals, 1 / options.constant), tokens)


def terms_of(
    data: Mapping[int, Datum], normalization: Normalization, device: torch.device, dtype: torch.dtype
) -> Terms:
    """Return what the loss needs of the trained tokens of these data, by their index in the call, in their order."""
    rows: list[tuple[float, ...]] = []
    for owner, (index, datum) in enumerate(data.items()):
        zeros = (0.0,) * len(datum.tokens)
        behavior, reference = datum.logprobs or zeros, datum.reference_logprobs or zeros
        for position, weight in enumerate(datum.weights):
            if weight:
                scale, logprobs = normalization.per_datum[index] * weight, (behavior[position], reference[position])
                rows.append((owner, weight, scale, datum.advantage, *logprobs))
    owners, *floats = zip(*rows, strict=True)
    weights_K, scales_K, advantages_K, behavior_K, reference_K = (
        torch.tensor(values, dtype=dtype, device=device) for values in floats
    )
    data_K = torch.tensor(owners, device=device)
    return Terms(weights_K, scales_K, advantages_K, behavior_K, reference_K, data_K, len(data))


def compute_loss(
    name: LossName, options: LossConfig, logprobs_K: Tensor, terms: Terms
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the micro-batch's part of the loss, and the sum of each metric over its terms."""
    if name == "cross_entropy":
        return -(terms.scales_K * logprobs_K).sum(), {}
    return _policy_loss(options, logprobs_K, terms)


def _policy_loss(options: LossConfig, logprobs_K: Tensor, terms: Terms) -> tuple[Tensor, dict[str, Tensor]]:
    current_K = logprobs_K.detach()
    difference_K = current_K - terms.behavior_K
    before_K = terms.behavior_K if options.truncate_ratio is None else current_K
    log_ratio_K = (logprobs_K - before_K).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if options.sequence_ratio:
        log_ratio_K = _sequence_mean(log_ratio_K, terms)
    ratio_K = log_ratio_K.exp()
    clipped_K = ratio_K.clamp(1 - options.clip_low, 1 + options.clip_high)
    advantages_K = terms.advantages_K
    gain_K = torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K)
    is_clipped_K = gain_K.detach() < (ratio_K * advantages_K).detach()
    if options.dual_clip:
        floor_K = options.dual_clip * advantages_K
        is_floored_K = (advantages_K < 0) & (gain_K.detach() < floor_K)
        gain_K = torch.where(is_floored_K, floor_K, gain_K)
        is_clipped_K = is_clipped_K | is_floored_K
    if options.truncate_ratio is not None:
        gain_K = gain_K * difference_K.clamp(max=_MAX_LOG_RATIO).exp().clamp(max=options.truncate_ratio)
    loss_K = -gain_K
    sums = _metric_sums(difference_K, is_clipped_K, advantages_K)
    if options.kl:
        gap_K = (terms.reference_K - logprobs_K).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        divergence_K = gap_K.exp() - gap_K - 1
        loss_K = loss_K + options.kl * divergence_K
        sums["kl"] = divergence_K.detach().sum()
    return (terms.scales_K * loss_K).sum(), sums


def _sequence_mean(values_K: Tensor, terms: Terms) -> Tensor:
    """Return for each term the weighted mean over its datum."""
    sums_D = values_K.new_zeros(terms.data_count).index_add(0, terms.data_K, terms.weights_K * values_K)
    weights_D = values_K.new_zeros(terms.data_count).index_add(0, terms.data_K, terms.weights_K)
    return (sums_D / weights_D)[terms.data_K]


def _metric_sums(difference_K: Tensor, is_clipped_K: Tensor, advantages_K: Tensor) -> dict[str, Tensor]:
    log_ratio_K = difference_K.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio_K = log_ratio_K.exp()
    return {
        "ratio": ratio_K.sum(),
        "clip_share": is_clipped_K.sum(),
        # The k3 estimator, which is never negative, of the KL divergence of the sampling policy from this one.
        "approx_kl": (ratio_K - 1 - log_ratio_K).sum(),
        "advantage_mean": advantages_K.sum(),
        "advantage_square": advantages_K.square().sum(),
    }


def loss_metrics(sums: Mapping[str, float], sequences: int, tokens: int) -> dict[str, float]:
    """Return the metrics of a call from sums over all its terms."""
    totals = ("loss", "packed_tokens")
    metrics = {name: value if name in totals else value / tokens for name, value in sums.items()}
    if "advantage_square" in metrics:
        variance = metrics.pop("advantage_square") - metrics["advantage_mean"] ** 2
        metrics["advantage_std"] = math.sqrt(max(0.0, variance))
    return metrics | {"tokens": float(tokens), "sequences": float(sequences)}
