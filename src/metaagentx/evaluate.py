"""How well tasks are solved."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from .rollout import Resources, RolloutOptions, grow
from .types import Design, Task


async def solve_rate(tasks: Sequence[Task], resources: Resources, options: RolloutOptions, samples: int) -> float:
    """The share of executions that solve their task, one design each. The same seeds every time it is asked.

    All tasks weigh the same: a design that cannot run solves nothing, however often it would have been run.
    """
    once = replace(options, designs=1, executions=samples, full=True)
    trees = await grow(tasks, resources, once, ("evaluation",))
    shares = [share for tree in trees for design in tree.designs if (share := _share(design)) is not None]
    return fmean(shares) if shares else 0.0


def _share(design: Design) -> float | None:
    """How much of its executions solved the task; None where an infra fault left nothing to judge."""
    if design.fault is not None:
        return None if design.fault.infra else 0.0
    solved = [float(execution.reward.solved) for execution in design.executions if execution.reward]
    return fmean(solved) if solved else None
