"""Find the questions that two sets of tasks share: the check to run before training on one and testing on the other."""

from dataclasses import dataclass

from .rows import TaskError
from .taskset import TaskSet


@dataclass(frozen=True, slots=True)
class Shared:
    """One question that both sets have, with all its ids."""

    left: tuple[str, ...]
    right: tuple[str, ...]


def overlap(left: TaskSet, right: TaskSet) -> list[Shared]:
    """Return the questions whose normalized text is in both sets, in the order of the left one."""
    sides = []
    for tasks in (left, right):
        if tasks.endless:
            raise TaskError(f"{tasks.name} is endless: compare a part of it, or file by file")
        ids_of: dict[str, list[str]] = {}
        for head in tasks.heads:
            ids_of.setdefault(head.fingerprint, []).append(head.id)
        sides.append(ids_of)
    return [Shared(tuple(ids), tuple(sides[1][text])) for text, ids in sides[0].items() if text in sides[1]]
