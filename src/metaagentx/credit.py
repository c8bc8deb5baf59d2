"""Who is compared with whom.

A design is worth the mean of its executions and is compared with the other designs of its task. An execution is
compared with its peers: all executions of its task (the paper), or the siblings of its own design. Groups weigh
executions, not calls: every call has the advantage of the execution or design it belongs to. A group without spread
teaches nothing: its advantages stay None. What an infra fault spoilt is in no group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Literal

from .types import Call, Design, Execution, Rollout

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class CreditOptions:
    """The paper's by default."""

    executor_peers: Literal["task", "design"] = "task"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    divide_by_std: bool = True


def assign_credit(rollout: Rollout, options: CreditOptions) -> None:
    """Write rewards on designs and advantages on calls."""
    for design in rollout.designs:
        design.reward = design_reward(design)
    judged = [(design.reward, [design.call]) for design in rollout.designs if design.reward is not None]
    _compare(judged, options)
    families = [_scored(design.executions) for design in rollout.designs]
    if options.executor_peers == "task":
        families = [[execution for family in families for execution in family]]
    for family in families:
        _compare(family, options)


def design_reward(design: Design) -> float | None:
    """The mean of its executions; 0 for a script that could not run; None where an infra fault left nothing."""
    if design.fault is not None:
        return None if design.fault.infra else 0.0
    rewards = [reward for reward, _ in _scored(design.executions)]
    return fmean(rewards) if rewards else None


def advantages(rewards: Sequence[float], options: CreditOptions) -> list[float] | None:
    """How much better each is than the baseline; None when there is nothing to tell apart."""
    count = len(rewards)
    if count < 2 or max(rewards) - min(rewards) < EPSILON:
        return None
    mean = fmean(rewards)
    # Against the mean of the others, a difference is the same one times n / (n - 1).
    scale = count / (count - 1) if options.baseline == "leave_one_out" else 1.0
    if options.divide_by_std:
        scale /= sqrt(fmean((reward - mean) ** 2 for reward in rewards)) + EPSILON
    return [(reward - mean) * scale for reward in rewards]


def _scored(executions: Iterable[Execution]) -> list[tuple[float, list[Call]]]:
    return [(execution.reward.total, execution.calls) for execution in executions if execution.reward is not None]


def _compare(group: Sequence[tuple[float, list[Call]]], options: CreditOptions) -> None:
    found = advantages([reward for reward, _ in group], options)
    for place, (_, calls) in enumerate(group):
        for call in calls:
            call.advantage = found[place] if found else None
