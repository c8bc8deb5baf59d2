"""Statistics of outcomes: averages, pass@k, confidence intervals and paired differences. Pure functions.

A set of tasks is a stratum. Over several strata every figure is the mean over the strata, whatever their sizes, as in
published tables; resampling is done within each stratum.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, quantiles
from typing import TypeAlias

from .outcomes import Outcome

RESAMPLES = 2000
Outcomes: TypeAlias = Sequence[Outcome]
TaskOutcomes: TypeAlias = Mapping[str, Outcomes]
"""The judged samples of each task, by its id."""


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """The figures of a method on one set, or over several: a row of the tables."""

    method: str
    tasks: int
    """Tasks with at least one judged sample: samples with an infrastructure fault are not judged."""
    average: float
    """avg@k: the share of samples that solve their task, mean over tasks."""
    low: float
    high: float
    passes: dict[int, float]
    """pass@k: the chance that at least one of k samples solves a task."""
    tokens: float
    """Tokens of a sample, written by both roles; mean over tasks, as are calls and seconds."""
    calls: float
    seconds: float
    faults: float
    """Share of samples with a fault of the model."""
    fault_kinds: dict[str, int]
    infra: int
    """Samples with an infrastructure fault; they are in no other figure."""
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


@dataclass(frozen=True, slots=True)
class DesignFigures:
    """What a Designer writes."""

    designs: int
    scripts: int
    """Different scripts among those that can run."""
    invalid: float
    """Share of designs that cannot run: there is no script, or not a valid one."""


def design_figures(outcomes: Outcomes) -> DesignFigures | None:
    """Count scripts; None where an earlier version wrote the outcomes, without scripts."""
    scripts = [outcome.script for outcome in outcomes if outcome.judged and outcome.script is not None]
    if not scripts:
        return None
    valid = [script for script in scripts if script]
    return DesignFigures(len(scripts), len(set(valid)), 1 - len(valid) / len(scripts))


def summarize(method: str, strata: Sequence[Outcomes]) -> MethodFigures:
    """Compute all figures of a method. Each stratum has at least one judged outcome."""
    judged = [by_task(stratum) for stratum in strata]
    solved = [[fmean(map(_solved, samples)) for samples in tasks.values()] for tasks in judged]
    low, high = interval(solved)
    flat = [[outcome for samples in tasks.values() for outcome in samples] for tasks in judged]
    kinds = Counter(outcome.fault for stratum in flat for outcome in stratum if outcome.fault)
    return MethodFigures(
        method=method,
        tasks=sum(map(len, judged)),
        average=mean_over_tasks(judged, _solved),
        low=low,
        high=high,
        passes=_passes(judged),
        tokens=mean_over_tasks(judged, lambda outcome: outcome.tokens),
        calls=mean_over_tasks(judged, lambda outcome: outcome.calls),
        seconds=mean_over_tasks(judged, lambda outcome: outcome.seconds),
        faults=fmean(fmean(bool(outcome.fault) for outcome in stratum) for stratum in flat),
        fault_kinds=dict(sorted(kinds.items())),
        infra=sum(not outcome.judged for stratum in strata for outcome in stratum),
        patterns=_patterns(flat),
    )


def compare(names: tuple[str, str], strata: Sequence[tuple[Outcomes, Outcomes]]) -> Comparison:
    """Subtract the second method's solve rates from the first's, task by task, where both have one."""
    differences: list[list[float]] = []
    for ours, theirs in strata:
        first, second = by_task(ours), by_task(theirs)
        common = [task for task in first if task in second]
        differences.append([fmean(map(_solved, first[task])) - fmean(map(_solved, second[task])) for task in common])
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


def interval(strata: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the bounds of the 95 % bootstrap interval of the mean over strata of the mean over their values."""
    if not strata:
        return 0.0, 0.0
    draw = random.Random(0).choices
    means = [
        sum(sum(draw(values, k=len(values))) / len(values) for values in strata) / len(strata) for _ in range(RESAMPLES)
    ]
    cuts = quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def pass_at(k: int, count: int, solved: int) -> float:
    """Return the chance that at least one of k samples, drawn from `count` with `solved` right ones, is right."""
    return 1.0 - comb(count - solved, k) / comb(count, k)


def mean_tokens(outcomes: Outcomes) -> float:
    """Return the tokens of a sample, mean over tasks."""
    return mean_over_tasks([by_task(outcomes)], lambda outcome: outcome.tokens)


def by_task(outcomes: Outcomes) -> dict[str, list[Outcome]]:
    """Group the judged outcomes by task."""
    tasks: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.judged:
            tasks[outcome.task].append(outcome)
    return dict(tasks)


def mean_over_tasks(strata: Sequence[TaskOutcomes], value: Callable[[Outcome], float]) -> float:
    """Return the mean over strata of the mean over tasks of the mean over samples."""
    return fmean(fmean(fmean(map(value, samples)) for samples in tasks.values()) for tasks in strata)


def _passes(strata: Sequence[TaskOutcomes]) -> dict[int, float]:
    """Compute pass@k for 1, 2, 4, ... and all samples. A task with fewer than k judged samples is left out."""
    most = min(max(map(len, tasks.values())) for tasks in strata)
    sizes = sorted({2**power for power in range(most.bit_length())} | {most})
    return {
        k: fmean(
            fmean(
                pass_at(k, len(samples), sum(map(_solved, samples))) for samples in tasks.values() if len(samples) >= k
            )
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


def _solved(outcome: Outcome) -> int:
    return int(outcome.solved)
