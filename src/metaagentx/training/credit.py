"""Credit assignment: rewards become advantages within groups of designs and of executions.

A design's reward is the mean of its executions' rewards, and its group is the designs of its task. The group of an
execution is all executions of its task (the paper) or those of its design. Groups count executions, not calls: every
call gets the advantage of the execution or design it belongs to. A group without spread gives no training signal, and
its advantages stay None. What failed by an infrastructure fault is in no group.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean

from ..config import CreditConfig
from ..types import Call, Design, Execution, Rollout

EPSILON = 1e-6


def assign_credit(rollout: Rollout, config: CreditConfig) -> None:
    """Write rewards on designs and advantages on calls."""
    for design in rollout.designs:
        design.reward = design_reward(design)
    designs = [(design.reward, [design.call]) for design in rollout.designs if design.reward is not None]
    _write_advantages(designs, config)
    groups = [_scored(design.executions) for design in rollout.designs]
    if config.executor_peers == "task":
        groups = [[execution for group in groups for execution in group]]
    for group in groups:
        _write_advantages(group, config)


def design_reward(design: Design) -> float | None:
    """Return the mean of its executions, 0 if the script could not run, None if infrastructure faults left none."""
    if design.fault is not None:
        return None if design.fault.infra else 0.0
    rewards = [reward for reward, _ in _scored(design.executions)]
    return fmean(rewards) if rewards else None


def advantages(rewards: Sequence[float], config: CreditConfig) -> list[float] | None:
    """Return how much better each reward is than the baseline, or None for a group without spread."""
    count = len(rewards)
    if count < 2 or max(rewards) - min(rewards) < EPSILON:
        return None
    mean = fmean(rewards)
    # The difference from the mean of the others is the difference from the mean times n / (n - 1).
    scale = count / (count - 1) if config.baseline == "leave_one_out" else 1.0
    if config.divide_by_std:
        scale /= sqrt(fmean((reward - mean) ** 2 for reward in rewards)) + EPSILON
    return [(reward - mean) * scale for reward in rewards]


def _scored(executions: Iterable[Execution]) -> list[tuple[float, list[Call]]]:
    return [(execution.reward.total, execution.calls) for execution in executions if execution.reward is not None]


def _write_advantages(group: Sequence[tuple[float, list[Call]]], config: CreditConfig) -> None:
    values = advantages([reward for reward, _ in group], config)
    for index, (_, calls) in enumerate(group):
        for call in calls:
            call.advantage = values[index] if values else None
