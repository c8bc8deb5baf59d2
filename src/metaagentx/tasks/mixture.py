"""A weighted mixture of training sources. The batch of a step is a function of the seed and the step alone.

So the position of a run is one integer, its step. Sources take turns in a fixed cycle with exact shares (half math
and half code puts one of each into every pair). Within a finite source the order is shuffled by the seed and nothing
comes twice before all have come once. Tasks held out for selection share no question with any training source.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, isfinite, lcm
from pathlib import Path

from ..types import Task
from .load import load
from .rows import TaskError
from .taskset import TaskSet

LONGEST_CYCLE = 1000
"""Shares are exact down to one in a thousand."""

Part = tuple[str | TaskSet, float]


class Mixture:
    """Training tasks from several sources: `Mixture("0.5*gsm8k + 0.5*codecontests", seed=0)`."""

    def __init__(
        self,
        parts: str | Sequence[Part],
        seed: int,
        held_out: int = 0,
        split: str = "train",
        data_dir: Path | None = None,
    ) -> None:
        chosen = parse_mixture(parts) if isinstance(parts, str) else list(parts)
        counts = cycle_counts([weight for _, weight in chosen])
        names = [part for part, _ in chosen if isinstance(part, str)]
        sets = [load(part, split, data_dir, names) if isinstance(part, str) else part for part, _ in chosen]
        for tasks in sets:
            if tasks.split != split:
                raise TaskError(f"{tasks.name} is of split {tasks.split}, and the mixture of {split}")
        self.seed = seed
        self.graders = tuple(grader for tasks in sets for grader in tasks.graders)
        """Users' own functions that grade these tasks, each with the data of a task."""
        held = _hold_out(sets, counts, held_out, seed)
        self.held_out = tuple(task for tasks in held for task in tasks)
        """For choosing between checkpoints. Never in a batch."""
        self.sets = _without(sets, held)
        self._counts = counts
        self._turns = _take_turns(counts)
        self._before = _count_before(self._turns, len(counts))

    def batch(self, step: int, size: int) -> list[Task]:
        """The tasks of a step."""
        return [self.task(position) for position in range(step * size, (step + 1) * size)]

    def task(self, position: int) -> Task:
        """The task at a position of the endless stream that batches are cut from."""
        cycle, turn = divmod(position, len(self._turns))
        which = self._turns[turn]
        return self.sets[which].drawn(self.seed, cycle * self._counts[which] + self._before[turn])


def _hold_out(sets: Sequence[TaskSet], counts: Sequence[int], total: int, seed: int) -> list[TaskSet]:
    """Each source's share of the tasks to hold out."""
    shares = [total * count // sum(counts) for count in counts]
    for index in range(total - sum(shares)):
        shares[index] += 1
    return [tasks.held_out(share, seed)[1] for tasks, share in zip(sets, shares, strict=True) if share]


def _without(sets: Sequence[TaskSet], held: Sequence[TaskSet]) -> list[TaskSet]:
    """No source keeps a question that it or another one gave."""
    taken = {head.fingerprint for tasks in held for head in tasks.heads}
    if not taken:
        return list(sets)
    return [tasks.keep(lambda head: head.fingerprint not in taken, "holding out") for tasks in sets]


def parse_mixture(text: str) -> list[Part]:
    """`0.5*gsm8k + 0.25*apps + 0.25*codecontests`. The plus has spaces around it; a missing weight is 1."""
    parts: list[Part] = []
    for term in re.split(r"\s\+\s", text.strip()):
        match = re.fullmatch(r"(?:([0-9.]+)\s*\*)?\s*([A-Za-z].*?)\s*", term)
        try:
            if match is None:
                raise ValueError
            parts.append((match[2], float(match[1] or 1)))
        except ValueError:
            raise TaskError(f"{term!r} is no part of a mixture: write 0.5*gsm8k + 0.5*codecontests") from None
    return parts


def cycle_counts(weights: Sequence[float]) -> list[int]:
    """How often each part comes in a cycle: the shortest cycle with these shares, or the nearest of LONGEST_CYCLE."""
    if not weights or not all(isfinite(weight) and weight > 0 for weight in weights):
        raise TaskError("a mixture needs parts, and each a weight above 0")
    shares = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(share.denominator for share in shares))
    counts = [int(share * scale) for share in shares]
    counts = [count // gcd(*counts) for count in counts]
    if sum(counts) > LONGEST_CYCLE:
        counts = [max(1, round(count * LONGEST_CYCLE / sum(counts))) for count in counts]
    return counts


def _take_turns(counts: Sequence[int]) -> tuple[int, ...]:
    """Each part as often as it should come, spread evenly: smooth weighted round robin."""
    credit = [0] * len(counts)
    turns = []
    for _ in range(sum(counts)):
        credit = [have + count for have, count in zip(credit, counts, strict=True)]
        which = max(range(len(counts)), key=credit.__getitem__)
        credit[which] -= sum(counts)
        turns.append(which)
    return tuple(turns)


def _count_before(turns: Sequence[int], parts: int) -> list[int]:
    """For each turn, how many earlier turns of the cycle were the same part's."""
    seen = [0] * parts
    before = []
    for which in turns:
        before.append(seen[which])
        seen[which] += 1
    return before
