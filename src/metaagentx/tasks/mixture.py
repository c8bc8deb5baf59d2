"""A weighted mixture of training sources. The batch of a step is a function of the seed and the step alone.

So the position of a run is one integer, its step. Sources take turns in a fixed cycle with exact shares (half math
and half code puts one of each into every pair). A finite source is shuffled by the seed, and each of its tasks comes
once before any comes again. Tasks held out for selection share no question with any training source.
"""

import re
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from math import gcd, isfinite, lcm
from pathlib import Path
from typing import overload

from ..types import Task
from .load import load
from .rows import TaskError
from .taskset import TaskSet

LONGEST_CYCLE = 1000
"""Shares are exact to one in a thousand."""

Part = tuple[str | TaskSet, float]

_PLUS = re.compile(r"(\s\+\s)")
_TERM = re.compile(r"(?:([0-9.]+)\s*\*)?\s*([A-Za-z].*?)\s*")
_PATH = re.compile(r"jsonl:([^?]+)|(?!gym:)[^?]*\?(?:[^&]*&)*?file=([^&]+)")
"""The file that a source names."""


class Mixture:
    """Training tasks from several sources: `Mixture("0.5*gsm8k + 0.5*codecontests", seed=0)`."""

    def __init__(
        self,
        parts: str | Sequence[Part],
        seed: int,
        held_out: int = 0,
        split: str = "train",
        data_dir: Path | None = None,
        excluded: Collection[str] = (),
    ) -> None:
        """Load sources. `excluded`: fingerprints of questions to leave out, such as those another mixture holds out."""
        weighted = parse_mixture(parts) if isinstance(parts, str) else list(parts)
        counts = cycle_counts([weight for _, weight in weighted])
        names = [part for part, _ in weighted if isinstance(part, str)]
        sets = [load(part, split, data_dir, names) if isinstance(part, str) else part for part, _ in weighted]
        for tasks in sets:
            if tasks.split != split:
                raise TaskError(f"{tasks.name} is of split {tasks.split}, but the mixture is of split {split}")
        self.seed = seed
        self.graders = tuple(grader for tasks in sets for grader in tasks.graders)
        """Users' functions that grade these tasks, each with the data of one task."""
        held = _hold_out(sets, counts, held_out, seed)
        self.held_out = tuple(task for tasks in held for task in tasks)
        """Tasks for choosing between checkpoints; never in a batch."""
        self.held_fingerprints = frozenset(head.fingerprint for tasks in held for head in tasks.heads)
        self.sets = _without(sets, self.held_fingerprints.union(excluded))
        self._counts = counts
        self._turns = _take_turns(counts)

    def batch(self, step: int, size: int) -> list[Task]:
        """Return the tasks of a step."""
        return [self.task(position) for position in range(step * size, (step + 1) * size)]

    def task(self, position: int) -> Task:
        """Return the task at a position of the endless stream that batches are cut from."""
        which, number = self._draw(position)
        return self.sets[which].drawn(self.seed, number)

    def tasks_from(self, position: int, count: int) -> Sequence[Task]:
        """Return `count` tasks from a position on, each made when it is accessed.

        A finite source begins an epoch there: each of its tasks comes once before any comes again.
        """
        drawn: dict[int, int] = {}
        for at in range(position, position + len(self._turns)):
            which, number = self._draw(at)
            drawn.setdefault(which, number)

        def task(at: int) -> Task:
            which, number = self._draw(at)
            tasks = self.sets[which]
            return tasks.drawn(self.seed, number + (0 if tasks.endless else -drawn[which] % len(tasks)))

        return _TaskRange(task, range(position, position + count))

    def _draw(self, position: int) -> tuple[int, int]:
        """Return which part's turn it is, and how many tasks of that part came before."""
        cycle, turn = divmod(position, len(self._turns))
        which, before = self._turns[turn]
        return which, cycle * self._counts[which] + before


class _TaskRange(Sequence[Task]):
    """Tasks at consecutive positions."""

    def __init__(self, task: Callable[[int], Task], positions: range) -> None:
        self._task = task
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        positions = self._positions[index]
        return self._task(positions) if isinstance(positions, int) else [self._task(at) for at in positions]


def _hold_out(sets: Sequence[TaskSet], counts: Sequence[int], total: int, seed: int) -> list[TaskSet]:
    """Return the tasks to hold out, of each source its share."""
    shares = [total * count // sum(counts) for count in counts]
    for index in range(total - sum(shares)):
        shares[index] += 1
    return [tasks.held_out(share, seed)[1] for tasks, share in zip(sets, shares, strict=True) if share]


def _without(sets: Sequence[TaskSet], taken: Collection[str]) -> list[TaskSet]:
    """Return the sets without the questions that are held out or excluded."""
    if not taken:
        return list(sets)
    return [tasks.keep(lambda head: head.fingerprint not in taken, "holding out") for tasks in sets]


def parse_mixture(text: str) -> list[Part]:
    """Parse `0.5*gsm8k + 0.25*apps + 0.25*codecontests`. The plus has spaces around it; a missing weight is 1."""
    parts: list[Part] = []
    for term in _PLUS.split(text.strip())[::2]:
        match = _TERM.fullmatch(term)
        try:
            if match is None:
                raise ValueError
            parts.append((match[2], float(match[1] or 1)))
        except ValueError:
            raise TaskError(f"{term!r} is not a part of a mixture; expected: 0.5*gsm8k + 0.5*codecontests") from None
    return parts


def replace_paths(text: str, candidates: Callable[[str], Sequence[str]]) -> str:
    """Return a mixture with every path in it replaced by the first of its candidates that a mixture can contain.

    The rest of the text stays as it is, and so does a term that cannot be parsed.
    """
    pieces = _PLUS.split(text.strip())
    pieces[::2] = [_replace_path(term, candidates) for term in pieces[::2]]
    return "".join(pieces)


def _replace_path(term: str, candidates: Callable[[str], Sequence[str]]) -> str:
    span = _path_span(term)
    if span is None:
        return term
    start, end = span
    paths = candidates(term[start:end])
    for path in paths:
        replaced = term[:start] + path + term[end:]
        if not _PLUS.search(replaced) and _path_span(replaced) == (start, start + len(path)):  # it parses back
            return replaced
    raise TaskError(f"a mixture cannot contain the path {paths[0]!r}: rename it without + ? & and line breaks")


def _path_span(term: str) -> tuple[int, int] | None:
    """Return where the path of a term is."""
    source = _TERM.fullmatch(term)
    match = source and _PATH.match(term, *source.span(2))
    return match.span(match.lastindex or 0) if match else None


def cycle_counts(weights: Sequence[float]) -> list[int]:
    """Return how often each part comes in the shortest cycle with these shares, or in one of about LONGEST_CYCLE."""
    if not weights or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise TaskError(f"a mixture needs at least one part, and each a weight above 0, got {[*weights]}")
    shares = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(share.denominator for share in shares))
    counts = [int(share * scale) for share in shares]
    counts = [count // gcd(*counts) for count in counts]
    if sum(counts) > LONGEST_CYCLE:
        counts = [max(1, round(count * LONGEST_CYCLE / sum(counts))) for count in counts]
    return counts


def _take_turns(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the turns of a cycle: which part, and how many earlier turns of the cycle it had.

    Each part comes as often as `counts` says, evenly spread: smooth weighted round robin.
    """
    credit = [0] * len(counts)
    taken = [0] * len(counts)
    turns = []
    for _ in range(sum(counts)):
        credit = [have + count for have, count in zip(credit, counts, strict=True)]
        which = max(range(len(counts)), key=credit.__getitem__)
        credit[which] -= sum(counts)
        turns.append((which, taken[which]))
        taken[which] += 1
    return turns
