"""Which questions two sets of tasks share. The check to run before training on one and testing on the other."""

from dataclasses import dataclass

from .rows import TaskError
from .taskset import TaskSet


@dataclass(frozen=True, slots=True)
class Shared:
    """One question that both sets have, with every id it goes by."""

    left: tuple[str, ...]
    right: tuple[str, ...]


def overlap(left: TaskSet, right: TaskSet) -> list[Shared]:
    """Questions whose normalised text is in both sets, in the order of the left one."""
    sides = []
    for tasks in (left, right):
        if tasks.endless:
            raise TaskError(f"{tasks.name} is endless: compare a part of it, or file by file")
        by_mark: dict[str, list[str]] = {}
        for head in tasks.heads:
            by_mark.setdefault(head.fingerprint, []).append(head.id)
        sides.append(by_mark)
    return [Shared(tuple(ids), tuple(sides[1][mark])) for mark, ids in sides[0].items() if mark in sides[1]]
