"""Progress of long jobs: a live display on a terminal, plain lines everywhere else (a file, CI, a dumb terminal).

`TrainingProgress` is for training, `Counter` for jobs that count up to a number. Both are context managers that remove
their display at the end, also after an exception, and leave the last line behind. They write to standard error, so that
what a command prints can be piped. A total of 0 prints nothing.
"""

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

RECENT_STEPS = 10
PLAIN_SECONDS = 5.0
"""A CountProgress prints at most one plain line in this time."""


class _Display(ABC):
    """Shows a job: live, in plain lines, or, when there is nothing to do, not at all."""

    def __init__(self, total: int, console: Console | None, now: Callable[[], float]) -> None:
        self._total = total
        self._done = 0
        self._now = now
        self._start = now()
        self._console = console or _stderr()
        self._live: Live | None = None
        self._summary = ""
        """A line that is not printed yet; it is left behind at the end."""

    @abstractmethod
    def _draw(self) -> RenderableType:
        """Return the live display. Another thread calls this, so it must not change anything."""

    def __enter__(self) -> Self:
        self._start = self._now()
        console = self._console
        if self._total > 0 and console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI"):
            # Prints appear above the display; standard output that goes to a pipe stays untouched.
            redirect = sys.stdout.isatty()
            self._live = Live(get_renderable=self._draw, console=console, transient=True, redirect_stdout=redirect)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._summary:
            self._print(self._summary)

    def _plain(self, text: str, due: bool = True) -> bool:
        """Print a line if it is due, without a live display; return whether it was printed."""
        printed = due and self._live is None
        if printed:
            self._print(text)
        return printed

    def _print(self, text: str) -> None:
        if self._total > 0:
            encoding = self._console.encoding
            text = text.encode(encoding, "replace").decode(encoding)
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


class TrainingProgress(_Display):
    """Shows the steps of a training run, counted from 0 and shown from 1; a resumed run has a later `first`."""

    def __init__(
        self, total: int, first: int = 0, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(total, console, now)
        self._done = first
        self._executed = self._expected = 0
        self._durations: deque[float] = deque(maxlen=RECENT_STEPS)
        self._recent = {role: deque[float](maxlen=RECENT_STEPS) for role in ("executor", "designer")}
        self._time_left = self._learning = self._rewards = self._speed = self._score = ""

    def expect(self, executions: int) -> None:
        """Add to the number of executions that this step will have."""
        self._expected += executions

    def executed(self) -> None:
        """Count one more finished execution of this step."""
        self._executed += 1

    def evaluation(self, done: int, score: float) -> None:
        """Show the score of an evaluation after `done` steps."""
        self._score = f"evaluation {score:.3f} at step {done}"
        self._plain(f"step {done}/{self._total} evaluation {score:.3f}")

    def warn(self, text: str) -> None:
        """Print a warning, above the live display if there is one."""
        self._print(text)

    def step(self, step: int, metrics: Mapping[str, float], learning: Mapping[str, float]) -> None:
        """Show a finished step: its metrics, and the learning rates of the roles that learned in it."""
        now = self._now()
        self._durations.append(now - self._start)
        self._start = now
        self._done = step + 1
        self._executed = self._expected = 0
        steps_left = self._total - self._done
        self._time_left = f"{_duration(fmean(self._durations) * steps_left)} left" if steps_left > 0 else ""
        seconds = metrics.get("seconds/step", self._durations[-1])
        speeds = _speeds(metrics, seconds)
        solved = f"solved {100 * metrics['solved']:.0f} %" if "solved" in metrics else ""
        rewards = {role: metrics[f"reward/{role}"] for role in self._recent if f"reward/{role}" in metrics}
        for role, reward in rewards.items():
            self._recent[role].append(reward)
        recent = [f"{role} {reward:.2f} (recently {fmean(self._recent[role]):.2f})" for role, reward in rewards.items()]
        rates = [f"{role} at {rate:g}" for role, rate in learning.items() if rate > 0]
        self._learning = f"learning: {', '.join(rates)}" if rates else "no role is trained"
        self._rewards = _joined(f"reward {', '.join(recent)}" if recent else "", solved)
        self._speed = _joined(*speeds, f"{_duration(seconds)} a step")
        by_role = " ".join(f"{reward:.2f} ({role})" for role, reward in rewards.items())
        learners = [str(role) for role, rate in learning.items() if rate > 0]
        training = f"{' and '.join(learners)} learn{'s' if len(learners) == 1 else ''}"
        line = _joined(
            f"step {self._done}/{self._total} {training if learners else 'no role is trained'}",
            by_role and f"reward {by_role}",
            solved,
            *speeds[:1],
            _duration(seconds),
            self._time_left,
        )
        self._summary = "" if self._plain(line) else line

    def _draw(self) -> RenderableType:
        executions = f"{self._executed}/{self._expected} executions" if self._expected else ""
        lines = [_joined(self._learning, executions), self._rewards, _joined(self._speed, self._score)]
        bar = _bar(f"step {self._done}/{self._total}", self._done, self._total, self._time_left)
        return Group(bar, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines if line))


class CountProgress(_Display):
    """Shows how many of `total` parts of a job are done."""

    def __init__(
        self, total: int, description: str, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(total, console, now)
        self._description = description
        self._printed: float | None = None
        self._figures: dict[str, float | str] = {}
        self._state = ""

    def advance(self, n: int = 1, **figures: float | str) -> None:
        """Count `n` more, and show these figures with those given before."""
        self._done += n
        self._figures |= figures
        now = self._now()
        self._state = self._describe(now - self._start)
        line = _joined(f"{self._description} {self._done}/{self._total}", self._state)
        last = self._start if self._printed is None else self._printed
        due = self._done >= self._total or now - last >= PLAIN_SECONDS
        if due:
            self._printed = now
        self._summary = "" if self._plain(line, due) else line

    def _describe(self, seconds: float) -> str:
        figures = [
            f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.3g}'}"
            for name, value in self._figures.items()
        ]
        if seconds <= 0 or self._done <= 0:
            return _joined(*figures)
        left = (self._total - self._done) * seconds / self._done
        time_left = f"{_duration(left)} left" if left > 0 else f"in {_duration(seconds)}"
        return _joined(*figures, f"{_number(self._done / seconds)}/s", time_left)

    def _draw(self) -> RenderableType:
        bar = _bar(self._description, self._done, self._total, f"{self._done}/{self._total}")
        return Group(bar, Text(self._state, no_wrap=True, overflow="ellipsis"))


@cache
def _stderr() -> Console:
    """Return one console for all displays, so that nested ones know of each other."""
    return Console(stderr=True)


def print_line(text: str) -> None:
    """Print a line to standard error, above a display if there is one."""
    _stderr().print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _bar(left: str, done: int, total: int, right: str) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(ratio=1, min_width=4)
    grid.add_column(no_wrap=True, overflow="ellipsis", justify="right")
    grid.add_row(Text(left), ProgressBar(total=total, completed=min(done, total)), Text(right))
    return grid


def _speeds(metrics: Mapping[str, float], seconds: float) -> list[str]:
    counts = {"executions": "executions/count", "tokens": "tokens/total"}
    if seconds <= 0:
        return []
    return [f"{_number(metrics[name] / seconds)} {unit}/s" for unit, name in counts.items() if name in metrics]


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "? s"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
