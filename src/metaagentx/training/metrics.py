"""The metrics of a training step, as one flat mapping of names to floats.

`step_metrics` is a pure function of the rollouts after rewards and credit are assigned. docs/metrics.md explains each
name, and a test compares the two. Infrastructure faults are counted as faults and are in no other metric. A metric that
does not exist in a step (a share of nothing) is left out, never NaN. `Clock` measures the time of each phase of a step.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev

from ..types import Call, Design, Execution, Fault, Reward, Rollout

OptionalMetrics = Mapping[str, float | None]
"""None: the metric does not exist in this step."""
_COUNTS = ("tokens", "sequences", "packed_tokens")
"""The metrics of an update that are counts."""


def step_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return all metrics of a step's rollouts."""
    designs = [design for rollout in rollouts for design in _designs(rollout)]
    executions = [execution for rollout in rollouts for execution in _executions(rollout)]
    metrics = {
        # First, so that a source with the name of a reward term cannot replace that term.
        **_by_source(rollouts),
        **_rewards(designs, executions),
        **_diversity(rollouts, designs),
        **_faults(rollouts, designs, executions),
        **_spreads(rollouts, designs),
        **_advantages(rollouts),
        **_sizes(designs, executions),
    }
    return {name: value for name, value in metrics.items() if value is not None}


def summarize_updates(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of the updates of a role in one step: totals of what counts, and means of all else."""
    if not updates:
        return {}
    columns = {name: [update[name] for update in updates] for name in updates[0]}
    summary = {name: sum(values) if name in _COUNTS else fmean(values) for name, values in columns.items()}
    return {**summary, "updates": float(len(updates))}


class Clock:
    """The time of one step, by phase. It starts when it is created."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._started = now()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to this phase."""
        started = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - started

    def metrics(self) -> dict[str, float]:
        """Return `seconds/<phase>` for each phase, and `seconds/step` for the time since the clock was created."""
        phases = {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}
        return {**phases, "seconds/step": self._now() - self._started}


def _by_source(rollouts: Sequence[Rollout]) -> OptionalMetrics:
    rewards: defaultdict[str, list[Reward]] = defaultdict(list)
    for rollout in rollouts:
        rewards[_name(rollout.task.source)] += _scored(_executions(rollout))
    metrics: dict[str, float | None] = {}
    for source, source_rewards in rewards.items():
        metrics[f"solved/{source}"] = _mean(reward.solved for reward in source_rewards)
        metrics[f"reward/{source}"] = _mean(reward.total for reward in source_rewards)
    return metrics


def _rewards(designs: Sequence[Design], executions: Sequence[Execution]) -> OptionalMetrics:
    rewards = _scored(executions)
    return {
        "reward/executor": _mean(reward.total for reward in rewards),
        "reward/designer": _mean(design.reward for design in designs if design.reward is not None),
        "reward/outcome": _mean(reward.outcome for reward in rewards),
        "reward/solution": _mean(reward.solution for reward in rewards),
        "reward/delivery": _mean(reward.delivery for reward in rewards),
        "reward/cost": _mean(reward.cost for reward in rewards),
        "solved": _mean(reward.solved for reward in rewards),
    }


def _diversity(rollouts: Sequence[Rollout], designs: Sequence[Design]) -> OptionalMetrics:
    groups = [group for rollout in rollouts if (group := _designs(rollout))]
    valid = [design for design in designs if _is_valid(design)]
    shares = _shares(_pattern(design) for design in designs)
    return {
        "designs/valid": _mean(_is_valid(design) for design in designs),
        "designs/distinct": _mean(
            len({d.script for d in group if d.script is not None}) / len(group) for group in groups
        ),
        "designs/entropy": sum(-share * math.log(share) for share in shares.values()) if shares else None,
        **{f"pattern/{pattern}": share for pattern, share in _shares(_pattern(design) for design in valid).items()},
    }


def _faults(rollouts: Sequence[Rollout], designs: Sequence[Design], executions: Sequence[Execution]) -> OptionalMetrics:
    all_designs = [design for rollout in rollouts for design in rollout.designs]
    faults = [design.fault for design in all_designs]
    faults += [execution.fault for design in all_designs for execution in design.executions]
    counts = Counter(_name(fault.kind) for fault in faults if fault)
    return {
        "faults/infra": 0.0,
        **{f"faults/{kind}": float(count) for kind, count in counts.items()},
        "faults/designs": _mean(design.fault is not None for design in designs),
        "faults/executions": _mean(execution.fault is not None for execution in executions),
        "answers/fed": _mean(execution.fed is not None for execution in executions),
    }


def _spreads(rollouts: Sequence[Rollout], designs: Sequence[Design]) -> OptionalMetrics:
    """Measure spreads of groups of two and more: a group of one has no spread, which differs from a spread of 0."""
    between = [[d.reward for d in _designs(rollout) if d.reward is not None] for rollout in rollouts]
    within = [[reward.total for reward in _scored(_without_infra(design.executions))] for design in designs]
    return {
        "spread/between": _mean(pstdev(group) for group in between if len(group) > 1),
        "spread/within": _mean(pstdev(group) for group in within if len(group) > 1),
    }


def _advantages(rollouts: Sequence[Rollout]) -> OptionalMetrics:
    designers = [[design.call for design in _designs(rollout)] for rollout in rollouts if _designs(rollout)]
    executors = [_calls(_executions(rollout)) for rollout in rollouts if _executions(rollout)]
    return {
        "groups/designer_flat": _mean(not any(call.advantage for call in group) for group in designers),
        "groups/executor_flat": _mean(not any(call.advantage for call in group) for group in executors),
        "advantage/designer_abs": _mean(_absolute(designers)),
        "advantage/executor_abs": _mean(_absolute(executors)),
    }


def _sizes(designs: Sequence[Design], executions: Sequence[Execution]) -> OptionalMetrics:
    designer_calls, executor_calls = [design.call for design in designs], _calls(executions)
    calls = designer_calls + executor_calls
    return {
        "calls/per_execution": _mean(len(execution.calls) for execution in executions),
        "tokens/per_execution": _mean(sum(call.tokens for call in execution.calls) for execution in executions),
        "tokens/per_design": _mean(call.tokens for call in designer_calls),
        "tokens/total": float(sum(call.tokens for call in calls)),
        "replies/cut": _mean(call.finish == "length" for call in calls),
        "executions/count": float(len(executions)),
        "seconds/execution": _mean(execution.seconds for execution in executions),
    }


def _designs(rollout: Rollout) -> list[Design]:
    return [design for design in rollout.designs if not _is_infra(design.fault)]


def _executions(rollout: Rollout) -> list[Execution]:
    return [execution for design in _designs(rollout) for execution in _without_infra(design.executions)]


def _without_infra(executions: Iterable[Execution]) -> list[Execution]:
    return [execution for execution in executions if not _is_infra(execution.fault)]


def _is_infra(fault: Fault | None) -> bool:
    return fault is not None and fault.infra


def _is_valid(design: Design) -> bool:
    return design.script is not None and design.fault is None


def _scored(executions: Iterable[Execution]) -> list[Reward]:
    return [execution.reward for execution in executions if execution.reward is not None]


def _calls(executions: Iterable[Execution]) -> list[Call]:
    return [call for execution in executions for call in execution.calls]


def _absolute(groups: Iterable[Sequence[Call]]) -> list[float]:
    return [abs(call.advantage) for group in groups for call in group if call.advantage is not None]


def _pattern(design: Design) -> str:
    return _name(design.pattern) or "none"


def _shares(names: Iterable[str]) -> dict[str, float]:
    counts = Counter(names)
    return {name: count / counts.total() for name, count in counts.items()}


def _name(text: str) -> str:
    """Return a text as the last part of a metric's name."""
    return "_".join(text.split())


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None
