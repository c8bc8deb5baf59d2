"""The quickstart's own path, small: from nothing to a report."""

import asyncio
import json
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from metaagentx.atomic import exclusive_lock
from metaagentx.cli.quickstart_parts import SMALL, SMALL_OVERRIDES, quickstart_size, run_quickstart, size_notes
from metaagentx.errors import MetaAgentXError
from metaagentx.runs import Run
from tests.commands import COMMAND

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
OVERRIDES = [*SMALL_OVERRIDES]


def test_a_recipe_of_your_own_says_which_sizes_and_model_it_has(tmp_path: Path) -> None:
    notes = [
        size_notes(path, quickstart_size(path, small=False))
        for path in (
            RECIPE,
            RECIPE.with_name("smollm2.toml"),
            RECIPE.with_name("separate.toml"),
            tmp_path / "my_smollm2.toml",
            tmp_path / "smollm2.toml",
        )
    ]
    assert notes[:2] == [[], []]
    new = "cold start and evaluation as for tiny, from a new model preset:micro; SmolLM2-135M-Instruct is for a recipe "
    assert notes[2:4] == [[f"{name}: {new}smollm2.toml"] for name in ("separate.toml", "my_smollm2.toml")]
    assert notes[4][0].startswith("smollm2.toml: cold start and evaluation as for smollm2, from SmolLM2-135M-Instruct;")


def test_everything_runs_goes_on_after_a_stop_and_gives_the_same_numbers(
    runner: asyncio.Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    root = tmp_path / "a run with a space"
    found = runner.run(run_quickstart(RECIPE, root, OVERRIDES, said.append, SMALL))
    run = Run.open(root / "run")
    assert run.next_step == 2
    assert (root / "run" / "report.html").read_text().startswith("<!")
    for words in (
        "Report: ",
        "Try next",
        "the Designer has",
        "the Executor has",
        " points with",
        "The designs",
        "cannot run",
        "in hindsight ",
    ):
        assert any(words in line for line in said), words
    (again,) = [line for line in said if "metaagentx eval" in line]
    assert shlex.split(again)[2] == str(root / "run"), "the command can be copied"
    assert {"metaagentx", "cold start", "single agent", "self-consistency"} <= set(found.methods)
    before = (root / "run" / "metrics.jsonl").read_bytes()
    root = root.rename(tmp_path / 'moved, and called "run"')
    repeated = runner.run(run_quickstart(RECIPE, root, OVERRIDES, said.append, SMALL))
    assert (root / "run" / "metrics.jsonl").read_bytes() == before
    assert repeated.to_json() == found.to_json()
    with exclusive_lock(root), pytest.raises(MetaAgentXError, match="is in use by process"):
        runner.run(run_quickstart(RECIPE, root, OVERRIDES, said.append, SMALL))
    with pytest.raises(MetaAgentXError, match="was made with seed = 0, now 1: use the same or another --dir"):
        runner.run(run_quickstart(RECIPE, root, [*OVERRIDES, "seed=1"], said.append, SMALL))
    for lie in ("[", "[]", "[" * 100_000, "\\xff", None):
        (root / "settings.json").unlink()
        (root / "settings.json").mkdir() if lie is None else (root / "settings.json").write_text(lie)
        with pytest.raises(MetaAgentXError, match=r"settings\.json is damaged: remove"):
            runner.run(run_quickstart(RECIPE, root, OVERRIDES, said.append, SMALL))


@pytest.mark.slow
def test_killed_in_every_part_it_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    def start(root: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([COMMAND, "quickstart", "--small", "--dir", root], stdout=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait(timeout=300) == 0
    for sign in ("teacher", "new", "sft", "run/run.json", "run/metrics.jsonl", "run/evaluation"):
        process = start(tmp_path / "killed")
        deadline = time.monotonic() + 300
        try:
            while not (tmp_path / "killed" / sign).exists():
                assert process.poll() is None, f"it ended before {sign} appeared"
                assert time.monotonic() < deadline, f"{sign} has not appeared"
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
    assert start(tmp_path / "killed").wait(timeout=300) == 0
    for name in ("coldstart.jsonl", "student/model.safetensors", "run/checkpoints/000002/designer/model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert _figures(tmp_path / "killed") == _figures(tmp_path / "whole")


def _figures(root: Path) -> object:
    """All that does not depend on the clock."""
    found = json.loads((root / "run" / "evaluation" / "000002" / "evaluation.json").read_text())
    rows = [[row["method"], row["average"], row["tokens"], row["calls"]] for row in found["overall"]["rows"]]
    steps = [json.loads(line) for line in (root / "run" / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds/", "engine/busy")
    return rows, [{key: value for key, value in step.items() if not key.startswith(timed)} for step in steps]
