"""The metrics of a run as series over its steps, and what is read off them before anything is drawn."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TypeAlias

from ..types import JSON, Role

Series: TypeAlias = list[tuple[float, float]]
"""Steps with their values, in order."""


@dataclass(frozen=True, slots=True)
class Band:
    """Steps from `first` to `last` in which the same roles learn."""

    first: int
    last: int
    roles: tuple[Role, ...]


class History:
    """What `metrics.jsonl` says."""

    def __init__(self, lines: Sequence[Mapping[str, JSON]]) -> None:
        self._lines = [(step, line) for line in lines if isinstance(step := line.get("step"), int)]
        self.steps = [step for step, _ in self._lines]

    def series(self, name: str) -> Series:
        """The steps that have it, where it is a number."""
        found = ((step, _number(line.get(name))) for step, line in self._lines)
        return [(step, value) for step, value in found if value is not None]

    def under(self, prefix: str, without: Sequence[str] = ()) -> dict[str, Series]:
        """All series `prefix/<name>` by name, those with the largest sums first."""
        names = dict.fromkeys(key.partition("/") for _, line in self._lines for key in line)
        wanted = [rest for first, _, rest in names if first == prefix and rest and rest not in without]
        found = {name: series for name in wanted if (series := self.series(f"{prefix}/{name}"))}
        return dict(sorted(found.items(), key=lambda item: -sum(value for _, value in item[1])))

    def whole(self, prefix: str, without: Sequence[str] = ()) -> dict[str, Series]:
        """The same where absent means 0: every series has all steps in which there is one at all."""
        found = self.under(prefix, without)
        steps = sorted({step for series in found.values() for step, _ in series})
        values = {name: dict(series) for name, series in found.items()}
        return {name: [(step, own.get(step, 0.0)) for step in steps] for name, own in values.items()}

    def bands(self) -> list[Band]:
        """Who learns when, by the learning rates that were written down."""
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
    """None when there are not two values to compare."""
    if len(series) < 2:
        return None
    tenth = max(1, len(series) // 10)
    values = [value for _, value in series]
    return Change(fmean(values[:tenth]), fmean(values[-tenth:]))


def window_of(steps: int) -> int:
    """How many steps a moving average spans: a twelfth of the run, an odd number; 1 for short runs."""
    return 1 if steps < 20 else max(3, steps // 12 | 1)


def smooth(series: Series, window: int) -> Series:
    """The moving average around each value; at the ends of those there are."""
    values, reach = [value for _, value in series], window // 2
    return [(step, fmean(values[max(0, place - reach) : place + reach + 1])) for place, (step, _) in enumerate(series)]


def thin(series: Series, most: int = 400) -> Series:
    """At most so many points, each the mean of neighbours: more than a screen has pixels is not to be seen."""
    size = math.ceil(len(series) / most)
    if size < 2:
        return series
    parts = [series[start : start + size] for start in range(0, len(series), size)]
    return [(fmean(step for step, _ in part), fmean(value for _, value in part)) for part in parts]


def averaged(series: Series, window: int) -> Series:
    """The moving average of a thinned series, over as many steps."""
    few = thin(series)
    return smooth(few, max(1, window * len(few) // len(series)))


def pieces(series: Series) -> Iterator[Series]:
    """Cut where values are missing for long, such as those of a role in stages in which it does not learn."""
    gaps = [after[0] - before[0] for before, after in pairwise(series)]
    usual = median(gaps) if gaps else 1
    start = 0
    for place, gap in enumerate(gaps, start=1):
        if gap > 5 * usual:
            yield series[start:place]
            start = place
    if series:
        yield series[start:]


def short_names(sources: Sequence[str]) -> dict[str, str]:
    """Sources by a name for a small space: `gym:products?min_digits=2` is `products`, while no other is."""
    short = {source: source.partition("?")[0].rpartition(":")[2].rpartition("/")[2] or source for source in sources}
    shared = {name for name in short.values() if list(short.values()).count(name) > 1}
    return {source: source if name in shared else name for source, name in short.items()}


def _number(value: JSON) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
