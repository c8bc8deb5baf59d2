"""A set of tasks, by index.

A finite set holds a `Head` of each task and makes the whole task when it is asked for. An endless set has no length: it
generates tasks, tries again where one does not pass its filters, and is as reproducible as a finite one. Sets are
immutable: `filtered` and `held_out` return new ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..types import CodeTests, CustomGrader, Task
from .fingerprint import digest
from .rows import TaskError

MAX_ATTEMPTS = 1000
"""How often an endless set tries to find a task that passes its filters before it raises."""
_SEED_STRIDE = 0x9E3779B1
"""Odd and large, so that consecutive seeds start far apart."""
HELD_OUT_SHARE = 8
"""In an endless set one question of eight can be held out."""


@dataclass(frozen=True, slots=True)
class Head:
    """What filters and comparisons need of a task."""

    id: str
    position: int
    """The number by which the set makes the task."""
    chars: int
    """Length of the question."""
    fingerprint: str
    difficulty: float | None
    special_judge: bool


Make = Callable[[int, int], tuple[Head, Task]]
"""From (position, attempt) to a task; a finite set has one attempt."""
Keep = Callable[[Head], bool]


def head_of(task: Task, position: int, fingerprint: str) -> Head:
    """Return the head of a task."""
    special = isinstance(task.grading, CodeTests) and task.grading.special_judge
    return Head(task.id, position, len(task.question), fingerprint, task.difficulty, special)


class TaskSet:
    """Tasks of one source and split."""

    def __init__(
        self,
        name: str,
        split: str,
        make: Make,
        heads: Sequence[Head] | None,
        problems: Sequence[str] = (),
        graders: Sequence[CustomGrader] = (),
    ) -> None:
        self.name = name
        self.split = split
        self.problems = tuple(problems)
        """Rows that could not be used, each with file, line and reason."""
        self.graders = tuple(graders)
        """Each user's function that grades tasks of this set, with the data of its first task."""
        self._make = make
        self._heads = None if heads is None else tuple(heads)
        self._keep: tuple[Keep, ...] = ()
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @property
    def endless(self) -> bool:
        """Whether tasks are generated without end."""
        return self._heads is None

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads of a finite set."""
        if self._heads is None:
            raise TypeError(f"{self.name} is endless")
        return self._heads

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, index: int) -> Task:
        """Return the task at an index; an endless set takes any index >= 0."""
        if self._heads is not None:
            return self._make(self._heads[index].position, 0)[1]
        if index < 0:
            raise IndexError(f"{self.name} is endless: it has no task {index}")
        return self._search(index)[1]

    def __iter__(self) -> Iterator[Task]:
        index = 0
        while self.endless or index < len(self):
            yield self[index]
            index += 1

    def _search(self, index: int) -> tuple[Head, Task]:
        for attempt in range(MAX_ATTEMPTS):
            head, task = self._make(index, attempt)
            if all(keep(head) for keep in self._keep):
                return head, task
        raise TaskError(f"{self.name} ({self.split}): no task passes the filters in {MAX_ATTEMPTS} attempts")

    def drawn(self, seed: int, number: int) -> Task:
        """Return task `number` of the endless order of a seed.

        A finite set is reshuffled for each epoch and repeats nothing within one; an endless set starts at an index that
        depends on the seed.
        """
        if self.endless:
            return self[seed * _SEED_STRIDE % 2**31 + number]
        epoch, index = divmod(number, len(self))
        return self[self._order(seed, epoch)[index]]

    def _shuffled(self, seed: int, epoch: int) -> list[int]:
        """Return an order that depends on the tasks themselves, not on the order of rows or the path of the file."""
        return sorted(range(len(self)), key=lambda index: digest(seed, epoch, *self._names(self.heads[index])))

    def _names(self, head: Head) -> tuple[str, str]:
        """Return what identifies a task in its set: its question, and its id without the name of the set."""
        return head.fingerprint, head.id.removeprefix(f"{self.name}/{self.split}/")

    def keep(self, keep: Keep, why: str) -> "TaskSet":
        """Return the tasks that pass; raise TaskError if none does."""
        heads = None if self._heads is None else [head for head in self._heads if keep(head)]
        if heads == []:
            raise TaskError(f"{self.name} ({self.split}): none of {len(self)} tasks is left by {why}")
        chosen = self._with(heads)
        chosen._keep = (*self._keep, keep)
        return chosen

    def _with(self, heads: Sequence[Head] | None) -> "TaskSet":
        return TaskSet(self.name, self.split, self._make, heads, self.problems, self.graders)

    def filtered(
        self,
        chars: tuple[float, float] | None = None,
        difficulty: tuple[float, float] | None = None,
        special_judge: bool | None = None,
    ) -> "TaskSet":
        """Return the tasks within these ranges of question length and difficulty (a task of unknown difficulty is in no
        range), and which need a special judge or do not.
        """

        def keep(head: Head) -> bool:
            if chars and not chars[0] <= head.chars <= chars[1]:
                return False
            if difficulty and (head.difficulty is None or not difficulty[0] <= head.difficulty <= difficulty[1]):
                return False
            return special_judge is None or head.special_judge == special_judge

        return self.keep(keep, f"the filter chars={chars} difficulty={difficulty} special_judge={special_judge}")

    def held_out(self, count: int, seed: int) -> tuple["TaskSet", "TaskSet"]:
        """Return two sets without a common question: one for training, and `count` tasks for selection."""
        if self._heads is not None:
            ranked = sorted(self._heads, key=lambda head: digest(seed, "held out", *self._names(head)))
            if not 0 < count < len(ranked):
                total = f"{count} of {len(ranked)} tasks"
                raise TaskError(f"{self.name} ({self.split}): cannot hold out {total}: lower tasks.held_out")
            chosen = {head.fingerprint for head in ranked[:count]}
            held = self._with(ranked[:count])
            return self.keep(lambda head: head.fingerprint not in chosen, "holding out the others"), held

        def apart(head: Head) -> bool:
            return int(digest(seed, "held out", head.fingerprint)[:8], 16) % HELD_OUT_SHARE == 0

        return self.keep(lambda head: not apart(head), "holding out"), self.keep(apart, "holding out").first(count)

    def first(self, count: int) -> "TaskSet":
        """Return a finite set of `count` tasks; of an endless set the first `count` different ones."""
        if self._heads is not None:
            return self._with(self._heads[:count])
        made: dict[str, tuple[Head, Task]] = {}
        for index in range(count + MAX_ATTEMPTS):
            if len(made) == count:
                break
            head, task = self._search(index)
            made.setdefault(head.fingerprint, (head, task))
        else:
            raise TaskError(f"{self.name} ({self.split}): fewer than {count} different tasks")
        by_position = {head.position: (head, task) for head, task in made.values()}
        heads = [head for head, _ in made.values()]
        return TaskSet(self.name, self.split, lambda position, attempt: by_position[position], heads, self.problems)
