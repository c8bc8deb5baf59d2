"""The metrics of a run as series over its steps, smoothed and thinned for drawing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TypeAlias

from ..types import JSON, Role

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
        values = ((step, _number(line.get(name))) for step, line in self._lines)
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
            roles = tuple(role for role in Role if _number(line.get(f"learning_rate/{role}")))
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


def smoothing_window(steps: int) -> int:
    """Return how many steps a moving average spans: a twelfth of the run, an odd number; 1 for short runs."""
    return 1 if steps < 20 else max(3, steps // 12 | 1)


def smooth(series: Series, window: int) -> Series:
    """Return the centered moving average; at the ends the window is cut."""
    values, reach = [value for _, value in series], window // 2
    return [(step, fmean(values[max(0, index - reach) : index + reach + 1])) for index, (step, _) in enumerate(series)]


def thin(series: Series, most: int = 400) -> Series:
    """Return at most `most` points, each the mean of adjacent ones: a screen has no pixels for more."""
    size = math.ceil(len(series) / most)
    if size < 2:
        return series
    parts = [series[start : start + size] for start in range(0, len(series), size)]
    return [(fmean(step for step, _ in part), fmean(value for _, value in part)) for part in parts]


def averaged(series: Series, window: int) -> Series:
    """Return the moving average of a thinned series, over the same number of steps."""
    thinned = thin(series)
    return smooth(thinned, max(1, window * len(thinned) // len(series)))


def pieces(series: Series) -> Iterator[Series]:
    """Split a series at long gaps, such as the stages in which a role does not learn."""
    gaps = [after[0] - before[0] for before, after in pairwise(series)]
    usual = median(gaps) if gaps else 1
    start = 0
    for index, gap in enumerate(gaps, start=1):
        if gap > 5 * usual:
            yield series[start:index]
            start = index
    if series:
        yield series[start:]


def _number(value: JSON) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
