"""A run that is killed, however often and whenever, ends as if it had not been: the same metrics, the same weights.

Each life is the command line itself in a process of its own, forked from one that has imported everything: importing
torch would otherwise take most of the time.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaagentx.runs import Run
from tests.schooled import THINK, VOTE, school, write_recipe
from tests.training import timeless

KILLS = 10
STEPS, EVERY = 12, 2
STAGES = "{ steps = 1, designer = 1e-3 }, { steps = 2, executor = 1e-3 }"
SETTINGS = [
    "rollout.designs=2", "rollout.executions=2", "rollout.designer_tokens=64", "tasks.per_step=2", "tasks.held_out=2",
    f"run.checkpoint_every={EVERY}", "run.keep_checkpoints=8", "evaluation.every=4", "evaluation.tasks=2",
]  # fmt: skip

# Reads a command a line, runs it in a fork and says the number of the process, then how it ended.
MOTHER = """
import json, os, sys
import metaagentx.backends.local.build, metaagentx.session
import peft, transformers.models.qwen3.modeling_qwen3
from metaagentx import cli
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv = ["metaagentx", *json.loads(line)]
        try:
            cli.main()
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(int(ended.code or 0))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Mother:
    """Starts trainers quickly."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", MOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        assert self._line() == "ready"

    def start(self, *words: object) -> int:
        assert self._process.stdin
        self._process.stdin.write(json.dumps([str(word) for word in ("train", *words)]) + "\n")
        self._process.stdin.flush()
        while not (line := self._line()).isdecimal():
            pass  # what an earlier trainer printed
        return int(line)

    def ended(self) -> int:
        while not re.fullmatch(r"-?\d+", line := self._line()):
            pass
        return int(line)

    def run(self, *words: object) -> None:
        self.start(*words)
        assert self.ended() == 0, self.log.read_text()

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        return line.strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where recipe and model are: a model that writes a single agent or a vote of three, who speak at once."""
    directory = tmp_path_factory.mktemp("resume")
    write_recipe(directory, school(directory / "model", (THINK, VOTE)), steps=STEPS, stages=STAGES, tasks=8)
    return directory


@pytest.fixture(scope="module")
def mother(place: Path) -> Iterator[Mother]:
    mother = Mother(place / "log")
    yield mother
    mother.close()


def begin(place: Path, name: str) -> list[object]:
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    return [place / "recipe.toml", "--run", place / name, *sets]


@pytest.fixture(scope="module")
def undisturbed(place: Path, mother: Mother) -> Path:
    mother.run(*begin(place, "undisturbed"))
    return place / "undisturbed"


def remembered(directory: Path, first: int = 0) -> dict[str, object]:
    """All that must not depend on how often a run was stopped; rollouts from a step on."""
    run = Run.open(directory)
    assert run.checkpoint is not None and run.next_step == STEPS
    files = [path for path in sorted(run.checkpoint.rglob("*")) if path.is_file()]
    rollouts = [path for path in sorted((directory / "rollouts").iterdir()) if int(path.stem) >= first]
    assert len(rollouts) == STEPS - first
    return {
        "metrics": [timeless(line) for line in run.metrics()],
        "rollouts": [re.sub(r'"seconds": [\d.e-]+', "", path.read_text()) for path in rollouts],
        "checkpoints": list(run.checkpoints),
        "newest": {str(path.relative_to(directory)): path.read_bytes() for path in files},
        "best": run.best,
        "remains": [path.name for path in directory.rglob(".*")],
    }


def lives(directory: Path) -> int:
    """How often training began."""
    log = directory / "log.txt"
    return log.read_text().count("goes on") if log.exists() else 0


def wait_for_a_moment(directory: Path, before: int, chance: random.Random) -> None:
    """Some fraction of a step after some step of this life, or while it writes a checkpoint."""
    end = time.monotonic() + 60
    while lives(directory) == before:
        assert time.monotonic() < end, "it never began"
        time.sleep(0.001)
    run = Run.open(directory)
    last = run.next_step >= STEPS - EVERY
    writing = not last and chance.random() < 0.4
    wanted = run.next_step + (0 if last else chance.randrange(EVERY + 1))
    while not any((directory / "checkpoints").glob(".*.unfinished")) if writing else len(run.metrics()) < wanted:
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.02 if writing else 0.3))


def test_ten_kills_leave_no_trace(place: Path, mother: Mother, undisturbed: Path) -> None:
    chance = random.Random(7)
    directory = place / "killed"
    during = 0
    for kill in range(KILLS):
        before = lives(directory)
        trainer = mother.start(*(["--resume", directory] if kill else begin(place, "killed")))
        wait_for_a_moment(directory, before, chance)
        os.kill(trainer, signal.SIGKILL)
        assert mother.ended() == -signal.SIGKILL
        during += any((directory / "checkpoints").glob(".*.unfinished"))
    assert during, "no checkpoint was hit while it was written"
    mother.run("--resume", directory)
    assert remembered(directory) == remembered(undisturbed)


def test_a_fork_goes_on_as_the_original_did(place: Path, mother: Mother, undisturbed: Path) -> None:
    mother.run("--fork", f"{undisturbed}@4", "--run", place / "forked")
    original, fork = remembered(undisturbed, first=4), remembered(place / "forked", first=4)
    assert fork.pop("checkpoints") == [step for step in Run.open(undisturbed).checkpoints if step >= 4]
    assert original.pop("checkpoints")
    assert fork == original


def test_a_fork_goes_its_own_way_where_it_is_told_to(place: Path, mother: Mother, undisturbed: Path) -> None:
    mother.run("--fork", f"{undisturbed}@4", "--run", place / "other", "--set", "steps=6", "--set", "seed=5")
    fork, original = Run.open(place / "other"), Run.open(undisturbed)
    assert fork.next_step == 6
    assert fork.metrics()[:4] == original.metrics()[:4]
    assert timeless(fork.metrics()[4]) != timeless(original.metrics()[4])


def test_a_finished_run_is_left_as_it_is(mother: Mother, undisturbed: Path) -> None:
    before = {path: path.read_bytes() for path in undisturbed.rglob("*") if path.is_file() and path.name != "lock"}
    mother.run("--resume", undisturbed)
    assert before == {path: path.read_bytes() for path in before}
