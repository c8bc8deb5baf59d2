"""Routers over fixed designs: each set of tasks is given to one design, chosen by what the designs solve of its tasks.

`cross_fit` chooses on one half of the tasks and scores on the other, both ways, so no task helps to choose its own
design. `hindsight` chooses on the tasks that it scores: no router of this kind solves more of them, an upper bound.
Pure functions of one set: what each design solves, task by task, in the same order of the tasks for all.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from .figures import by_task
from .methods import SINGLE
from .outcomes import Outcome

ROUTER = "router"
HINDSIGHT = "router in hindsight"


def is_fixed(method: str) -> bool:
    """Return whether a method is one of the fixed designs that a router chooses from, by its name."""
    return method == SINGLE or method.startswith("fixed: ")


def route(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, list[float]]:
    """Return the share that each router solves of each task of one set; nothing if there are fewer than two tasks.

    `outcomes` are those of all methods, by name. Tasks that a design has no judged outcome of are left out.
    """
    designs = {name: by_task(samples) for name, samples in outcomes.items() if is_fixed(name)}
    tasks = sorted(set.intersection(*map(set, designs.values()))) if designs else []
    if len(tasks) < 2:
        return {}
    solved = {
        name: [fmean(outcome.solved for outcome in samples[task]) for task in tasks]
        for name, samples in designs.items()
    }
    return {ROUTER: cross_fit(solved), HINDSIGHT: hindsight(solved)}


def cross_fit(designs: Mapping[str, Sequence[float]]) -> list[float]:
    """Return what is solved of each task by the design that is best on the half that the task is not in.

    Tasks are in the one or the other half in turn. Among equal designs the first is chosen.
    """
    count = len(next(iter(designs.values())))
    if count < 2:
        raise ValueError(f"a router needs at least two tasks to choose and to score on, got {count}")
    chosen = [max(designs.values(), key=lambda solved: fmean(solved[1 - half :: 2])) for half in (0, 1)]
    return [chosen[task % 2][task] for task in range(count)]


def hindsight(designs: Mapping[str, Sequence[float]]) -> list[float]:
    """Return what is solved of each task by the design that is best on all of these tasks."""
    return list(max(designs.values(), key=fmean))
