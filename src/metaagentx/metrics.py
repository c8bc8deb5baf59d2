"""What a training step's trees say, in numbers: one flat mapping of names to floats.

`measure` is a pure function of the rollouts after rewards and credit were written on them; docs/metrics.md says what
each name means, and a test holds the two together. What failed by our own fault is counted as a fault and nowhere else.
A quantity that does not exist in a step (the share of nothing) is left out, never NaN. `Clock` measures where a step's
time went.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev

from .types import Call, Design, Execution, Fault, Reward, Rollout


def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """All metrics of a step."""
    designs = [design for rollout in rollouts for design in _designs(rollout)]
    executions = [execution for rollout in rollouts for execution in _executions(rollout)]
    found: dict[str, float | None] = {
        # First, so that a source of such a name cannot stand in for a part of the reward.
        **_by_source(rollouts),
        **_rewards(designs, executions),
        **_diversity(rollouts, designs),
        **_faults(rollouts, designs, executions),
        **_spreads(rollouts, designs),
        **_advantages(rollouts),
        **_sizes(designs, executions),
    }
    return {name: value for name, value in found.items() if value is not None}


class Clock:
    """Where a step's seconds went, by phase. One clock a step: it starts when it is made."""

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
        """`seconds/<phase>` for each phase there was, and `seconds/step` for all since the clock was made."""
        phases = {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}
        return {**phases, "seconds/step": self._now() - self._started}


def _by_source(rollouts: Sequence[Rollout]) -> dict[str, float | None]:
    rewards: defaultdict[str, list[Reward]] = defaultdict(list)
    for rollout in rollouts:
        rewards[_name(rollout.task.source)] += _scored(_executions(rollout))
    metrics: dict[str, float | None] = {}
    for source, own in rewards.items():
        metrics[f"solved/{source}"] = _mean(reward.solved for reward in own)
        metrics[f"reward/{source}"] = _mean(reward.total for reward in own)
    return metrics


def _rewards(designs: Sequence[Design], executions: Sequence[Execution]) -> Mapping[str, float | None]:
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


def _diversity(rollouts: Sequence[Rollout], designs: Sequence[Design]) -> dict[str, float | None]:
    groups = [group for rollout in rollouts if (group := _designs(rollout))]
    distinct = [len({d.script for d in group if d.script is not None}) / len(group) for group in groups]
    valid = [design for design in designs if _valid(design)]
    shares = _shares(_pattern(design) for design in designs)
    metrics: dict[str, float | None] = {
        "designs/valid": _mean(_valid(design) for design in designs),
        "designs/distinct": _mean(distinct),
        "designs/entropy": sum(-share * math.log(share) for share in shares.values()) if shares else None,
    }
    for pattern, share in _shares(_pattern(design) for design in valid).items():
        metrics[f"pattern/{pattern}"] = share
    return metrics


def _faults(
    rollouts: Sequence[Rollout], designs: Sequence[Design], executions: Sequence[Execution]
) -> dict[str, float | None]:
    every = [design for rollout in rollouts for design in rollout.designs]
    faults = [design.fault for design in every] + [run.fault for design in every for run in design.executions]
    counts = Counter(_name(fault.kind) for fault in faults if fault)
    return {
        "faults/infra": 0.0,
        **{f"faults/{kind}": float(count) for kind, count in counts.items()},
        "faults/designs": _mean(design.fault is not None for design in designs),
        "faults/executions": _mean(execution.fault is not None for execution in executions),
        "answers/fed": _mean(execution.fed is not None for execution in executions),
    }


def _spreads(rollouts: Sequence[Rollout], designs: Sequence[Design]) -> Mapping[str, float | None]:
    """Of groups of two and more: one alone has no spread, which is another thing than a spread of 0."""
    between = [[d.reward for d in _designs(rollout) if d.reward is not None] for rollout in rollouts]
    within = [[reward.total for reward in _scored(_sound(design.executions))] for design in designs]
    return {
        "spread/between": _mean(pstdev(group) for group in between if len(group) > 1),
        "spread/within": _mean(pstdev(group) for group in within if len(group) > 1),
    }


def _advantages(rollouts: Sequence[Rollout]) -> Mapping[str, float | None]:
    designers = [[design.call for design in _designs(rollout)] for rollout in rollouts if _designs(rollout)]
    executors = [_calls(_executions(rollout)) for rollout in rollouts if _executions(rollout)]
    return {
        "groups/designer_flat": _mean(not any(call.advantage for call in group) for group in designers),
        "groups/executor_flat": _mean(not any(call.advantage for call in group) for group in executors),
        "advantage/designer_abs": _mean(_absolute(designers)),
        "advantage/executor_abs": _mean(_absolute(executors)),
    }


def _sizes(designs: Sequence[Design], executions: Sequence[Execution]) -> Mapping[str, float | None]:
    designing = [design.call for design in designs]
    executing = _calls(executions)
    return {
        "calls/per_execution": _mean(len(execution.calls) for execution in executions),
        "tokens/per_execution": _mean(sum(call.tokens for call in execution.calls) for execution in executions),
        "tokens/per_design": _mean(call.tokens for call in designing),
        "tokens/total": float(sum(call.tokens for call in designing + executing)),
        "replies/cut": _mean(call.finish == "length" for call in designing + executing),
        "executions/count": float(len(executions)),
        "seconds/execution": _mean(execution.seconds for execution in executions),
    }


def _designs(rollout: Rollout) -> list[Design]:
    return [design for design in rollout.designs if not _infra(design.fault)]


def _executions(rollout: Rollout) -> list[Execution]:
    return [execution for design in _designs(rollout) for execution in _sound(design.executions)]


def _sound(executions: Iterable[Execution]) -> list[Execution]:
    return [execution for execution in executions if not _infra(execution.fault)]


def _infra(fault: Fault | None) -> bool:
    return fault is not None and fault.infra


def _valid(design: Design) -> bool:
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
    """As the last part of a metric's name."""
    return "_".join(text.split())


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return fmean(values) if values else None
