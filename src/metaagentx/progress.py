"""How far a long job is: a live display on a terminal, plain lines everywhere else (a file, CI, a dumb terminal).

`TrainingProgress` is for training, `Counter` for jobs that count up to a number. Both are context managers that take
their display away when they are left, by an exception too, and leave the last line behind. They write to standard
error, so that what a command prints can be piped. A total of 0 prints nothing.
"""

import math
import os
import sys
import time
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
"""A Counter prints no more than one plain line in this time."""


class TrainingProgress:
    """Shows the steps of a training run, numbered from 0 and shown from 1; a resumed run has a later `first`."""

    def __init__(
        self, total: int, first: int = 0, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._done = first
        self._executed = self._expected = 0
        self._now = now
        self._step_began = now()
        self._durations: deque[float] = deque(maxlen=RECENT_STEPS)
        self._recent = {name: deque[float](maxlen=RECENT_STEPS) for name in ("executor", "designer")}
        # The display is drawn by another thread, so it reads finished texts only.
        self._texts = {
            "left": "",
            "stage": "",
            "learning": "",
            "executions": "",
            "rewards": "",
            "speed": "",
            "evaluation": "",
        }
        self._screen = _Screen(total, console, self._draw)

    def __enter__(self) -> Self:
        self._step_began = self._now()
        self._screen.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._screen.close()

    def stage(self, text: str) -> None:
        """Say what goes on, in place of who learnt last. Only the live display shows it: plain lines are one a step."""
        self._texts["stage"] = text

    def executions(self, done: int, total: int) -> None:
        """Say how far the step's executions are."""
        self._executed, self._expected = done, total
        self._texts["executions"] = f"{done}/{total} executions" if total else ""

    def expect(self, executions: int) -> None:
        """Say that so many more executions are to come in this step."""
        self.executions(self._executed, self._expected + executions)

    def executed(self) -> None:
        """Count one more finished execution of this step."""
        self.executions(self._executed + 1, self._expected)

    def evaluation(self, done: int, score: float) -> None:
        """Show the score of an evaluation after so many steps."""
        self._texts["evaluation"] = f"evaluation {score:.3f} at step {done}"
        self._screen.line(f"step {done}/{self._total} evaluation {score:.3f}")

    def warn(self, text: str) -> None:
        """Show a line that must not be missed, above the live display if there is one."""
        self._screen.warn(text)

    def step(self, step: int, metrics: Mapping[str, float], learning: Mapping[str, float]) -> None:
        """Show a finished step: its metrics, and the learning rates of the roles that learnt in it."""
        now = self._now()
        self._durations.append(now - self._step_began)
        self._step_began = now
        self._done = step + 1
        self.executions(0, 0)
        left = self._time_left()
        seconds = metrics.get("seconds/step", self._durations[-1])
        speeds = _speeds(metrics, seconds)
        self._texts.update(
            left=left,
            learning=_who_learns(learning, rates=True),
            rewards=_joined(self._rewards(metrics), _solved(metrics)),
            speed=_joined(*speeds, f"{_duration(seconds)} a step"),
        )
        head = f"step {self._done}/{self._total} {_who_learns(learning)}"
        rewards = [f"{metrics[f'reward/{role}']:.2f} ({role})" for role in self._recent if f"reward/{role}" in metrics]
        reward = f"reward {' '.join(rewards)}" if rewards else ""
        line = _joined(head, reward, _solved(metrics), *speeds[:1], _duration(seconds), left)
        self._screen.line(line, summary=True)

    def _rewards(self, metrics: Mapping[str, float]) -> str:
        """The step's, with the mean of the recent ones, which jumps less."""
        parts = []
        for role, recent in self._recent.items():
            if f"reward/{role}" in metrics:
                recent.append(metrics[f"reward/{role}"])
                parts.append(f"{role} {recent[-1]:.2f} (recently {fmean(recent):.2f})")
        return f"reward {', '.join(parts)}" if parts else ""

    def _time_left(self) -> str:
        steps = self._total - self._done
        return f"{_duration(fmean(self._durations) * steps)} left" if steps > 0 else ""

    def _draw(self) -> RenderableType:
        texts = self._texts
        lines = [
            _joined(texts["stage"] or texts["learning"], texts["executions"]),
            texts["rewards"],
            _joined(texts["speed"], texts["evaluation"]),
        ]
        bar = _bar(f"step {self._done}/{self._total}", self._done, self._total, texts["left"])
        return Group(bar, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines if line))


class Counter:
    """Shows how far a job of `total` like parts is."""

    def __init__(
        self, total: int, description: str, console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._description = description
        self._now = now
        self._began = self._printed = now()
        self._done = 0
        self._figures: dict[str, float | str] = {}
        self._state = ""
        self._screen = _Screen(total, console, self._draw)

    def __enter__(self) -> Self:
        self._began = self._printed = self._now()
        self._screen.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._screen.close()

    def advance(self, n: int = 1, **figures: float | str) -> None:
        """Count `n` more, and show these figures with those given before."""
        self._done += n
        self._figures.update(figures)
        now = self._now()
        self._state = self._describe(now - self._began)
        line = _joined(f"{self._description} {self._done}/{self._total}", self._state)
        due = self._done >= self._total or now - self._printed >= PLAIN_SECONDS
        if due:
            self._printed = now
        self._screen.line(line, summary=True, due=due)

    def _describe(self, seconds: float) -> str:
        figures = [
            f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.3g}'}"
            for name, value in self._figures.items()
        ]
        if seconds <= 0 or self._done <= 0:
            return _joined(*figures)
        left = (self._total - self._done) * seconds / self._done
        ending = f"{_duration(left)} left" if left > 0 else f"in {_duration(seconds)}"
        return _joined(*figures, f"{_number(self._done / seconds)}/s", ending)

    def _draw(self) -> RenderableType:
        bar = _bar(self._description, self._done, self._total, f"{self._done}/{self._total}")
        return Group(bar, Text(self._state, no_wrap=True, overflow="ellipsis"))


class _Screen:
    """Where it is shown: live, in plain lines, or, with nothing to do, not at all."""

    def __init__(self, total: int, console: Console | None, draw: Callable[[], RenderableType]) -> None:
        self._console = console or _console()
        self._silent = total <= 0
        self._draw = draw
        self._live: Live | None = None
        self._last = ""

    def open(self) -> None:
        console = self._console
        if self._silent or not console.is_terminal or console.is_dumb_terminal or os.environ.get("CI"):
            return
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            transient=True,
            # Prints appear above the display; but what goes to a pipe goes on to the pipe.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start()

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._last:
            self._print(self._last)

    def line(self, text: str, summary: bool = False, due: bool = True) -> None:
        """Print it in plain mode, if it is due; a summary that was not printed is left behind at the end."""
        plain = self._live is None
        if plain and due:
            self._print(text)
        if summary:
            self._last = "" if plain and due else text

    def warn(self, text: str) -> None:
        """Print it in any mode."""
        self._print(text)

    def _print(self, text: str) -> None:
        if not self._silent:
            encoding = self._console.encoding
            text = text.encode(encoding, "replace").decode(encoding)
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


@cache
def _console() -> Console:
    """One for all, so that a display inside another knows of it."""
    return Console(stderr=True)


def _bar(left: str, done: int, total: int, right: str) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(ratio=1, min_width=4)
    grid.add_column(no_wrap=True, overflow="ellipsis", justify="right")
    grid.add_row(Text(left), ProgressBar(total=total, completed=min(done, total)), Text(right))
    return grid


def _who_learns(learning: Mapping[str, float], rates: bool = False) -> str:
    names = [f"{role} at {rate:g}" if rates else str(role) for role, rate in learning.items() if rate > 0]
    if rates:
        return f"learning: {', '.join(names) or 'nobody'}"
    return f"{' and '.join(names) or 'nobody'} {'learn' if len(names) > 1 else 'learns'}"


def _solved(metrics: Mapping[str, float]) -> str:
    return f"solved {100 * metrics['solved']:.0f} %" if "solved" in metrics else ""


def _speeds(metrics: Mapping[str, float], seconds: float) -> list[str]:
    counted = {"executions": "executions/count", "tokens": "tokens/total"}
    if seconds <= 0:
        return []
    return [f"{_number(metrics[name] / seconds)} {unit}/s" for unit, name in counted.items() if name in metrics]


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
