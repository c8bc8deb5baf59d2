"""Numbers from outcomes: averages, pass@k, intervals and paired differences. Pure functions.

A set of tasks is a stratum. Over several sets every figure is the mean over the sets, whatever their sizes, as
published tables have it; resampling is done within each set.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, quantiles
from typing import NamedTuple, TypeAlias

from .outcomes import Outcome

RESAMPLES = 2000
Outcomes: TypeAlias = Sequence[Outcome]


class Interval(NamedTuple):
    """Where 95 % of resamples lie."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """A method on one set, or over several."""

    method: str
    tasks: int
    """Judged: a task that the machinery spoilt every sample of is not."""
    average: float
    """avg@k: the share of samples that solve their task, mean over tasks."""
    low: float
    high: float
    passes: dict[int, float]
    """pass@k: the chance that at least one of k samples solves a task."""
    tokens: float
    """Written for a sample by both roles, as calls and seconds the mean over tasks."""
    calls: float
    seconds: float
    faults: float
    """Share of samples that ended in a fault of the model's."""
    fault_kinds: dict[str, int]
    infra: int
    """Samples that the machinery spoilt: in no other figure."""
    patterns: dict[str, float]
    """Shares of the designs' patterns; `none` where there was no valid design."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much better a method is than another one on the same tasks."""

    method: str
    against: str
    tasks: int
    difference: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int


def summarise(method: str, strata: Sequence[Outcomes]) -> Row:
    """All figures of a method; each stratum has at least one outcome that was judged."""
    judged = [by_task(stratum) for stratum in strata]
    solved = [[_mean(samples, _solved) for samples in tasks.values()] for tasks in judged]
    low, high = interval(solved)
    flat = [[outcome for samples in tasks.values() for outcome in samples] for tasks in judged]
    kinds = Counter(outcome.fault for stratum in flat for outcome in stratum if outcome.fault)
    return Row(
        method=method,
        tasks=sum(map(len, judged)),
        average=fmean(map(fmean, solved)),
        low=low,
        high=high,
        passes=_passes(judged),
        tokens=_per_task(judged, lambda outcome: outcome.tokens),
        calls=_per_task(judged, lambda outcome: outcome.calls),
        seconds=_per_task(judged, lambda outcome: outcome.seconds),
        faults=fmean(_mean(stratum, lambda outcome: bool(outcome.fault)) for stratum in flat),
        fault_kinds=dict(sorted(kinds.items())),
        infra=sum(not outcome.judged for stratum in strata for outcome in stratum),
        patterns=_patterns(flat),
    )


def compare(names: tuple[str, str], strata: Sequence[tuple[Outcomes, Outcomes]]) -> Comparison:
    """The first method's outcomes less the second's, task by task, where both have one."""
    differences: list[list[float]] = []
    for ours, theirs in strata:
        mine, other = by_task(ours), by_task(theirs)
        common = [task for task in mine if task in other]
        differences.append([_mean(mine[task], _solved) - _mean(other[task], _solved) for task in common])
    differences = [stratum for stratum in differences if stratum]
    flat = [value for stratum in differences for value in stratum]
    low, high = interval(differences)
    return Comparison(
        *names,
        tasks=len(flat),
        difference=fmean(map(fmean, differences)) if differences else 0.0,
        low=low,
        high=high,
        wins=sum(value > 0 for value in flat),
        losses=sum(value < 0 for value in flat),
        ties=flat.count(0.0),
    )


def interval(strata: Sequence[Sequence[float]]) -> Interval:
    """The 95 % bootstrap interval of the mean over strata of the mean over their values."""
    if not strata:
        return Interval(0.0, 0.0)
    draw = random.Random(0).choices
    means = [
        sum(sum(draw(values, k=len(values))) / len(values) for values in strata) / len(strata) for _ in range(RESAMPLES)
    ]
    cuts = quantiles(means, n=40, method="inclusive")
    return Interval(cuts[0], cuts[-1])


def pass_at(k: int, count: int, solved: int) -> float:
    """The chance that of k samples, drawn from `count` of which some solved the task, at least one did."""
    return 1.0 - comb(count - solved, k) / comb(count, k)


def mean_tokens(outcomes: Outcomes) -> float:
    """Tokens written for a sample, mean over tasks."""
    return _per_task([by_task(outcomes)], lambda outcome: outcome.tokens)


def by_task(outcomes: Outcomes) -> dict[str, list[Outcome]]:
    """The samples of each task that were judged."""
    tasks: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.judged:
            tasks[outcome.task].append(outcome)
    return dict(tasks)


def _passes(strata: Sequence[dict[str, list[Outcome]]]) -> dict[int, float]:
    """For 1, 2, 4, ... and all samples. A task with fewer samples judged than k is left out of pass@k."""
    most = min(max(map(len, tasks.values())) for tasks in strata)
    sizes = sorted({2**power for power in range(most.bit_length())} | {most})
    return {
        k: fmean(
            fmean(pass_at(k, len(own), sum(map(_solved, own))) for own in tasks.values() if len(own) >= k)
            for tasks in strata
        )
        for k in sizes
    }


def _patterns(strata: Sequence[Outcomes]) -> dict[str, float]:
    shares: defaultdict[str, float] = defaultdict(float)
    for stratum in strata:
        for outcome in stratum:
            shares[outcome.pattern or "none"] += 1 / len(stratum) / len(strata)
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _per_task(strata: Sequence[dict[str, list[Outcome]]], value: Callable[[Outcome], float]) -> float:
    return fmean(fmean(_mean(samples, value) for samples in tasks.values()) for tasks in strata)


def _mean(outcomes: Outcomes, value: Callable[[Outcome], float]) -> float:
    return fmean(map(value, outcomes))


def _solved(outcome: Outcome) -> int:
    return int(outcome.solved)
