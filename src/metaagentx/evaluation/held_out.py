"""Held-out tasks: the seeds that training and `metaagentx eval` share for them, and the figure that training records.

Same weights, same tasks, same number of samples: both get the same figure.
"""

from collections.abc import Sequence

from ..rollout.tree import Resources, RolloutOptions
from ..types import Role, Task
from .figures import by_task, mean_over_tasks
from .methods import TRAINED, Method
from .outcomes import Outcome
from .sampling import Evaluator, SampleKey, SeedPath, check_judged


async def solve_rate(tasks: Sequence[Task], resources: Resources, options: RolloutOptions, samples: int) -> float:
    """Return the share of samples that solve their task, mean over tasks.

    A design that cannot run solves nothing. Samples with an infrastructure fault are left out.
    """
    method = Method(TRAINED, resources.samplers[Role.EXECUTOR], designer=resources.samplers[Role.DESIGNER])
    keys = [SampleKey(index, sample) for index in range(len(tasks)) for sample in range(samples)]
    seeded = [(task, seed_path(index)) for index, task in enumerate(tasks)]
    outcomes: list[Outcome] = []
    first_infra_message = await Evaluator(resources, options, len(keys)).run(method, seeded, keys, outcomes.append)
    check_judged("the held-out tasks", outcomes, first_infra_message)
    return mean_over_tasks([by_task(outcomes)], lambda outcome: outcome.solved)


def seed_path(position: int) -> SeedPath:
    """Return the seed path of the held-out task at a position."""
    return ("evaluation", position)


def training_subset(total: int, count: int) -> list[int]:
    """Return the indices of the `count` tasks, of `total` held-out ones, on which training measures the solve rate.

    They are evenly spaced, because tasks are ordered by source.
    """
    return [number * total // count for number in range(count)]


def seed_positions(total: int, count: int) -> list[int]:
    """Return the position of each of `total` held-out tasks, which `seed_path` makes its seeds from.

    The `count` tasks that training measures have the positions 0, 1, ... that they have there; the others follow.
    """
    in_training = set(training_subset(total, min(total, count)))
    order = sorted(range(total), key=lambda index: index not in in_training)
    return sorted(range(total), key=order.__getitem__)
