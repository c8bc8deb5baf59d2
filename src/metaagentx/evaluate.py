"""How well tasks are solved."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from .rollout import Resources, RolloutOptions, grow
from .types import Task


async def solve_rate(tasks: Sequence[Task], resources: Resources, options: RolloutOptions, samples: int) -> float:
    """The share of executions that solve their task, one design each. The same seeds every time it is asked."""
    once = replace(options, designs=1, executions=samples, full=True)
    trees = await grow(tasks, resources, once, ("evaluation",))
    solved: list[float] = []
    for tree in trees:
        for design in tree.designs:
            if design.fault is not None and not design.fault.infra:
                solved.append(0.0)
            solved += [float(execution.reward.solved) for execution in design.executions if execution.reward]
    return fmean(solved) if solved else 0.0
