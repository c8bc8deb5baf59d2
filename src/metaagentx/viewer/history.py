"""The metrics of a run as series over its steps, and what changed between their ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from ..types import JSON, Role
from .metrics_file import finite

Series: TypeAlias = list[tuple[float, float]]
"""Pairs of a step and a value, in order."""


@dataclass(frozen=True, slots=True)
class Band:
    """Steps from `first` to `last` in which the same roles learn."""

    first: int
    last: int
    roles: tuple[Role, ...]


class History:
    """The content of metrics.jsonl."""

    def __init__(self, lines: Sequence[Mapping[str, JSON]]) -> None:
        self._lines = [(step, line) for line in lines if isinstance(step := line.get("step"), int)]
        self.steps = [step for step, _ in self._lines]

    def series(self, name: str) -> Series:
        """Return the values of a metric, where they are finite numbers."""
        values = ((step, finite(line.get(name))) for step, line in self._lines)
        return [(step, value) for step, value in values if value is not None]

    def group(self, prefix: str, without: Sequence[str] = ()) -> dict[str, Series]:
        """Return all series `prefix/<name>` by name, those with the largest sums first."""
        keys = dict.fromkeys(key.partition("/") for _, line in self._lines for key in line)
        names = [name for first, _, name in keys if first == prefix and name and name not in without]
        group = {name: series for name in names if (series := self.series(f"{prefix}/{name}"))}
        return dict(sorted(group.items(), key=lambda item: -sum(value for _, value in item[1])))

    def filled_group(self, prefix: str, without: Sequence[str] = ()) -> dict[str, Series]:
        """Return the same with 0 for missing values: every series has all steps that any of them has."""
        group = self.group(prefix, without)
        steps = sorted({step for series in group.values() for step, _ in series})
        values = {name: dict(series) for name, series in group.items()}
        return {name: [(step, by_step.get(step, 0.0)) for step in steps] for name, by_step in values.items()}

    def bands(self) -> list[Band]:
        """Return which roles learn when, by the recorded learning rates."""
        bands: list[Band] = []
        for step, line in self._lines:
            roles = tuple(role for role in Role if finite(line.get(f"learning_rate/{role}")))
            if bands and bands[-1].roles == roles and bands[-1].last == step - 1:
                bands[-1] = Band(bands[-1].first, step, roles)
            else:
                bands.append(Band(step, step, roles))
        return bands


@dataclass(frozen=True, slots=True)
class Change:
    """The mean over the first tenth of a series' steps, and over the last."""

    before: float
    after: float


def change(series: Series) -> Change | None:
    """Compare the ends of a series. Return None when it has fewer than two values."""
    if len(series) < 2:
        return None
    tenth = max(1, len(series) // 10)
    values = [value for _, value in series]
    return Change(fmean(values[:tenth]), fmean(values[-tenth:]))
