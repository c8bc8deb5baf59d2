"""The named losses as one function over terms: a term is one trained token of one datum.

Everything is normalised over the whole call, by a `Scale` made from all its data beforehand, so that micro-batches add
up to one big batch. A token that several data share has one term for each of them.

With `truncate_ratio` another engine sampled: the policy before the step is then the training pass itself, taken without
gradient, and each term weighs min(probability here / probability there, truncate_ratio).

K: terms. D: data of the micro-batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...policy import Datum, LossName, LossOptions

# A ratio beyond e^20 is the same to every clip, and its gradient must not become infinity times zero.
_LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the loss knows of the trained tokens of a micro-batch."""

    weights_K: Tensor
    scales_K: Tensor
    """What each term's loss counts for in the sum over the whole call."""
    advantages_K: Tensor
    behaviour_K: Tensor
    reference_K: Tensor
    data_K: Tensor
    """Which datum of the micro-batch, for ratios of whole sequences."""
    data_count: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How terms are normalised over all data of a call."""

    per_datum: Mapping[int, float]
    """For each datum that has something to learn from, what its weights are multiplied by."""
    tokens: int
    """Trained tokens in the call."""


def scale(data: Sequence[Datum], options: LossOptions) -> Scale:
    """The normalisation of a call, from all its data."""
    totals = {index: sum(datum.weights) for index, datum in enumerate(data) if any(datum.weights)}
    tokens = sum(weight != 0 for datum in data for weight in datum.weights)
    if not totals:
        return Scale({}, 0)
    if options.normalise == "token":
        return Scale(dict.fromkeys(totals, 1 / sum(totals.values())), tokens)
    if options.normalise == "sequence":
        return Scale({index: 1 / (total * len(totals)) for index, total in totals.items()}, tokens)
    return Scale(dict.fromkeys(totals, 1 / options.constant), tokens)


def compute_loss(
    name: LossName, options: LossOptions, logprobs_K: Tensor, terms: Terms
) -> tuple[Tensor, dict[str, Tensor]]:
    """The micro-batch's part of the loss, and of each metric the sum over its terms."""
    if name == "cross_entropy":
        return -(terms.scales_K * logprobs_K).sum(), {}
    return _policy_loss(options, logprobs_K, terms)


def _policy_loss(options: LossOptions, logprobs_K: Tensor, terms: Terms) -> tuple[Tensor, dict[str, Tensor]]:
    current_K = logprobs_K.detach()
    difference_K = current_K - terms.behaviour_K
    before_K = terms.behaviour_K if options.truncate_ratio is None else current_K
    log_ratio_K = (logprobs_K - before_K).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    if options.sequence_ratio:
        log_ratio_K = _sequence_mean(log_ratio_K, terms)
    ratio_K = log_ratio_K.exp()
    clipped_K = ratio_K.clamp(1 - options.clip_low, 1 + options.clip_high)
    advantages_K = terms.advantages_K
    gain_K = torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K)
    is_clipped_K = gain_K.detach() < (ratio_K * advantages_K).detach()
    if options.dual_clip is not None:
        floor_K = options.dual_clip * advantages_K
        is_floored_K = (advantages_K < 0) & (gain_K.detach() < floor_K)
        gain_K = torch.where(is_floored_K, floor_K, gain_K)
        is_clipped_K = is_clipped_K | is_floored_K
    if options.truncate_ratio is not None:
        gain_K = gain_K * difference_K.clamp(max=_LARGEST_LOG_RATIO).exp().clamp(max=options.truncate_ratio)
    loss_K = -gain_K
    sums = _metric_sums(difference_K, is_clipped_K, advantages_K)
    if options.kl:
        gap_K = (terms.reference_K - logprobs_K).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        divergence_K = gap_K.exp() - gap_K - 1
        loss_K = loss_K + options.kl * divergence_K
        sums["kl"] = divergence_K.detach().sum()
    return (terms.scales_K * loss_K).sum(), sums


def _sequence_mean(values_K: Tensor, terms: Terms) -> Tensor:
    """Each term gets the weighted mean of its datum."""
    sums_D = values_K.new_zeros(terms.data_count).index_add(0, terms.data_K, terms.weights_K * values_K)
    weights_D = values_K.new_zeros(terms.data_count).index_add(0, terms.data_K, terms.weights_K)
    return (sums_D / weights_D)[terms.data_K]


def _metric_sums(difference_K: Tensor, is_clipped_K: Tensor, advantages_K: Tensor) -> dict[str, Tensor]:
    log_ratio_K = difference_K.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio_K = log_ratio_K.exp()
    return {
        "ratio": ratio_K.sum(),
        "clip_share": is_clipped_K.sum(),
        # The estimator that is never negative (k3), of the sampling policy's divergence from this one.
        "approx_kl": (ratio_K - 1 - log_ratio_K).sum(),
        "advantage_mean": advantages_K.sum(),
        "advantage_square": advantages_K.square().sum(),
    }
