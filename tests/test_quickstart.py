"""The quickstart's own path, small: from nothing to a report."""

import asyncio
from pathlib import Path

import pytest

from metaagentx.quickstart import Size, everything
from metaagentx.runs import Run
from metaagentx.sft import SftOptions

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny.toml"
SMALL = Size(taught=24, sft=SftOptions(steps=6, rows_per_step=8, learning_rate=3e-3, warmup_steps=2), tested=2)
OVERRIDES = ["steps=2", "tasks.per_step=2", "tasks.held_out=4", "evaluation.tasks=4", "evaluation.every=2"]


def test_everything_runs_goes_on_after_a_stop_and_gives_the_same_numbers(
    runner: asyncio.Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    root = tmp_path / "a run with a space"
    found = runner.run(everything(RECIPE, root, OVERRIDES, said.append, SMALL))
    run = Run.open(root / "run")
    assert run.next_step == 2
    assert (root / "run" / "report.html").read_text().startswith("<!")
    assert any("Report: " in line for line in said) and any("Try next" in line for line in said)
    assert {"metaagentx", "cold start", "single agent", "self-consistency"} <= set(found.methods)
    before = (root / "run" / "metrics.jsonl").read_bytes()
    again = runner.run(everything(RECIPE, root, OVERRIDES, said.append, SMALL))
    assert (root / "run" / "metrics.jsonl").read_bytes() == before
    assert again.to_json() == found.to_json()
