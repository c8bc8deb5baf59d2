"""What a person sees of a long job, on a terminal and elsewhere."""

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from metaagentx.progress import CountProgress, TrainingProgress, _duration

METRICS = {
    "reward/executor": 0.71,
    "reward/designer": 0.69,
    "solved": 0.43,
    "executions/count": 64.0,
    "tokens/total": 40_000.0,
    "seconds/step": 3.0,
}
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def plain() -> Console:
    return Console(file=io.StringIO(), width=80)


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=20, legacy_windows=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def words(console: Console) -> str:
    """Without the codes that move the cursor and set colors."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written(console))


def test_plain_output_is_one_line_a_step() -> None:
    console, now = plain(), Time()
    with TrainingProgress(200, first=11, console=console, now=now) as progress:
        progress.expect(64)
        progress.executed()
        now.seconds = 3.2
        progress.step(11, METRICS, {"executor": 5e-6})
        progress.evaluation(12, 0.5)
        now.seconds = 6.4
        progress.step(12, METRICS, {"designer": 5e-6, "executor": 5e-6})
    assert written(console).splitlines() == [
        "step 12/200 executor learns · reward 0.71 (executor) 0.69 (designer) · solved 43 % · 21 executions/s · 3.0 s"
        " · 10 min left",
        "step 12/200 evaluation 0.500",
        "step 13/200 designer and executor learn · reward 0.71 (executor) 0.69 (designer) · solved 43 %"
        " · 21 executions/s · 3.0 s · 10 min left",
    ]


def test_a_step_without_numbers() -> None:
    console, now = plain(), Time()
    with TrainingProgress(1, console=console, now=now) as progress:
        now.seconds = 2.0
        progress.step(0, {}, {})
    assert written(console) == "step 1/1 no role is trained · 2.0 s\n"


@pytest.mark.parametrize("make", [plain, terminal])
def test_nothing_to_do_prints_nothing(make: Callable[[], Console]) -> None:
    console = make()
    with TrainingProgress(0, console=console) as progress:
        progress.step(0, METRICS, {})
        progress.evaluation(1, 0.5)
    with CountProgress(0, "nothing", console=console) as counter:
        counter.advance()
    assert written(console) == ""


@pytest.mark.parametrize(("variable", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_ci_and_dumb_terminals_get_plain_lines(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    console = terminal()
    with TrainingProgress(2, console=console) as progress:
        progress.step(0, METRICS, {"executor": 1e-6})
    assert written(console).startswith("step 1/2 executor learns")
    assert written(console).count("\n") == 1


@pytest.mark.parametrize("width", [1, 10, 40, 100])
def test_a_terminal_of_any_width(width: int) -> None:
    console = terminal(width)
    with (
        TrainingProgress(200, console=console) as progress,
        CountProgress(64, "[evaluation]", console=console) as counter,
    ):
        for step in (1, 2):
            progress.expect(64)
            progress.executed()
            progress.step(step - 1, METRICS, {"executor": 5e-6})
            progress.evaluation(step, 0.512)
            counter.advance(8, solved=0.5)
            for display in (progress, counter):
                assert display._live is not None
                display._live.refresh()
    assert written(console).count(HIDE_CURSOR) == written(console).count(SHOW_CURSOR) == 1
    assert "step 2/200 executor learns" in words(console)


def test_what_the_live_display_shows() -> None:
    console, now = terminal(), Time()
    with TrainingProgress(200, console=console, now=now) as progress:
        now.seconds = 3.0
        progress.step(0, METRICS | {"reward/executor": 0.51}, {"executor": 5e-6})
        progress.step(1, METRICS, {"executor": 5e-6})
        progress.evaluation(2, 0.512)
        for _ in range(2):  # the second time for tasks that were drawn anew
            progress.expect(32)
            for _ in range(16):
                progress.executed()
        with console.capture() as capture:
            console.print(progress._draw())
    shown = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", capture.get()).splitlines()]
    drawn = "\n".join(shown)
    assert "learning: executor at 5e-06 · 32/64 executions" in drawn
    assert "reward executor 0.71 (recently 0.61), designer 0.69 (recently 0.69) · solved 43 %" in drawn
    assert "21 executions/s · 13k tokens/s · 3.0 s a step · evaluation 0.512 at step 2" in drawn
    assert re.search(r"step 2/200 .*5 min left", drawn)


@pytest.mark.parametrize("make", [plain, terminal])
def test_an_exception_leaves_a_clean_terminal_and_the_last_line(make: Callable[[], Console]) -> None:
    console = make()
    with pytest.raises(KeyboardInterrupt), TrainingProgress(9, console=console) as progress:
        progress.step(0, METRICS, {"executor": 5e-6})
        raise KeyboardInterrupt
    text = written(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR)
    assert words(console).splitlines()[-1].startswith("step 1/9 executor learns · reward 0.71")


def test_a_counter_prints_now_and_then_and_at_the_end() -> None:
    console, now = plain(), Time()
    with CountProgress(80, "cold start", console=console, now=now) as counter:
        for _ in range(80):
            now.seconds += 0.125
            counter.advance(solved_share=0.25)
    assert written(console).splitlines() == [
        "cold start 40/80 · solved share 0.25 · 8.0/s · 5.0 s left",
        "cold start 80/80 · solved share 0.25 · 8.0/s · in 10 s",
    ]


def test_a_counter_that_stops_early_says_how_far_it_came() -> None:
    console, now = plain(), Time()
    with pytest.raises(ValueError), CountProgress(100, "SFT", console=console, now=now) as counter:
        now.seconds = 1.0
        counter.advance(2, loss=1.2345)
        raise ValueError
    assert written(console) == "SFT 2/100 · loss 1.23 · 2.0/s · 49 s left\n"


def test_a_console_that_knows_few_letters() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with TrainingProgress(2, console=Console(file=file)) as progress:
        progress.step(0, METRICS, {"executor": 1e-6})
    file.seek(0)
    assert file.read().startswith("step 1/2 executor learns ? reward")


def test_numbers_that_are_none() -> None:
    console = plain()
    with TrainingProgress(2, console=console) as progress:
        progress.step(0, dict.fromkeys(METRICS, float("nan")), {"executor": 1e-6})
    assert "reward nan" in written(console)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (3.24, "3.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (200_000, "2 d 7 h"),
        (float("inf"), "? s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert _duration(seconds) == text
