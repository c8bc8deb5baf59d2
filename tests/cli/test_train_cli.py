"""`metaagentx train` as a user meets it, on real weights: killed and resumed, forked, refused, out of room."""

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaagentx.backends.model_files import model_directory
from metaagentx.runs import Run
from tests.backends.learners import write_untrainable
from tests.tiny_model import THINK, VOTE, school, write_recipe
from tests.trainers import Mother
from tests.training_runs import timeless

STEPS, EVERY = 12, 2
STAGES = "{ steps = 1, designer = 1e-3 }, { steps = 2, executor = 1e-3 }"
SETTINGS = [
    "rollout.designs=2", "rollout.executions=2", "rollout.designer_tokens=64", "tasks.per_step=2", "tasks.held_out=2",
    f"run.checkpoint_every={EVERY}", "run.keep_checkpoints=8", "evaluation.every=4", "evaluation.tasks=2",
    "run.stop_after_failed_steps=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where recipe and model are: a model that writes a single agent or a vote of three, who speak at once."""
    directory = tmp_path_factory.mktemp("place")
    write_untrainable(directory / "cohere")
    write_recipe(directory, school(directory / "model", (THINK, VOTE)), steps=STEPS, stages=STAGES, tasks=8)
    return directory


def begin(place: Path, name: str, *settings: str) -> list[object]:
    sets = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    return [place / "recipe.toml", "--run", place / name, *sets]


@pytest.fixture(scope="module")
def undisturbed(place: Path, mother: Mother) -> Path:
    ended = mother.run(*begin(place, "undisturbed"))
    assert ended.code == 0, ended.err
    memory, *lines = [line for line in ended.err.splitlines() if not line.startswith("no design of step")]  # may fail
    assert re.fullmatch(r"memory on cpu: [\d.]+ .iB of [\d.]+ GiB; update: \w+ .*, activations \d+ MiB, .*", memory)
    assert [line.split(" · ")[0] for line in lines[:2]] == ["step 1/12 designer learns", "step 2/12 executor learns"]
    assert re.fullmatch(r"step 4/12 evaluation [01]\.\d{3}", lines[3])
    assert len(lines) == STEPS + 3
    said = rf"{place}/undisturbed: 12 steps done; best on held-out tasks: step (4|8|12), \d+% solved\n"
    assert re.fullmatch(said, ended.out)
    return place / "undisturbed"


def remembered(directory: Path, first: int = 0) -> dict[str, Any]:
    """All that must not depend on how often a run was stopped; rollouts from a step on."""
    run = Run.open(directory)
    assert run.checkpoint is not None and run.next_step == STEPS
    files = [path for path in sorted(run.checkpoint.rglob("*")) if path.is_file()]
    rollouts = [path for path in sorted((directory / "rollouts").iterdir()) if int(path.stem) >= first]
    assert len(rollouts) == STEPS - first
    return {
        "metrics": [timeless(line) for line in run.metrics()],
        "rollouts": [re.sub(r'"(seconds|started)": [\d.e-]+', "", path.read_text()) for path in rollouts],
        "checkpoints": [step for step in run.checkpoints if step >= first],
        "newest": {str(path.relative_to(directory)): path.read_bytes() for path in files},
        "remains": [path.name for path in directory.rglob(".*")],
    }


# Killed and resumed


def lives(directory: Path) -> int:
    """How often training began."""
    log = directory / "log.txt"
    return log.read_text().count("training from step") if log.exists() else 0


def wait_until_it_trains(directory: Path, before: int = 0) -> None:
    end = time.monotonic() + 60
    while lives(directory) == before:
        assert time.monotonic() < end, "it never began"
        time.sleep(0.001)


def wait_for_a_moment(directory: Path, writing: bool, chance: random.Random) -> None:
    """Some fraction of a step after some step of this life, or while it writes a checkpoint."""
    run = Run.open(directory)
    wanted = run.next_step + (chance.randrange(EVERY + 1) if run.next_step < STEPS - EVERY else 0)
    end = time.monotonic() + 60
    while not any((directory / "checkpoints").glob(".*.unfinished")) if writing else len(run.metrics()) < wanted:
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.02 if writing else 0.3))


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_leave_no_trace(kills: int, place: Path, mother: Mother, undisturbed: Path) -> None:
    chance = random.Random(kills)
    directory = place / f"killed-{kills}"
    hit = 0
    for kill in range(kills):
        before = lives(directory)
        trainer = mother.start(*(["--resume", directory] if kill else begin(place, directory.name)))
        wait_until_it_trains(directory, before)
        writing = kill % 3 == 1 and Run.open(directory).next_step < STEPS - EVERY
        wait_for_a_moment(directory, writing, chance)
        assert mother.kill(trainer, signal.SIGKILL).code == -signal.SIGKILL
        hit += any((directory / "checkpoints").glob(".*.unfinished"))
    assert hit, "no checkpoint was hit while it was written"
    ended = mother.run("--resume", directory)
    assert ended.code == 0, ended.err
    assert remembered(directory) == remembered(undisturbed)
    assert Run.open(directory).best == Run.open(undisturbed).best


def test_a_fork_goes_on_as_the_original_did(place: Path, mother: Mother, undisturbed: Path) -> None:
    ended = mother.run("--fork", f"{undisturbed}@8", "--run", place / "forked")
    assert ended.code == 0, ended.err
    fork, original = remembered(place / "forked", first=8), remembered(undisturbed, first=8)
    for state in (fork, original):  # a fork knows of no best checkpoint that it does not have
        state["newest"] = {
            name: data for name, data in state["newest"].items() if not name.endswith("/000012/state.json")
        }
    assert fork == original


def test_mini_batches_are_the_same_when_a_run_goes_on(place: Path, mother: Mother) -> None:
    settings = ["optimizer.minibatch=3", "rollout.designs=4", "steps=4", "evaluation.every=0"]
    assert mother.run(*begin(place, "mini", *settings)).code == 0
    assert mother.run("--fork", f"{place / 'mini'}@2", "--run", place / "mini-again").code == 0
    original, forked = (
        [timeless(line) for line in Run.open(place / name).metrics()] for name in ("mini", "mini-again")
    )
    assert original == forked and len(original) == 4
    updates = [float(str(value)) for line in original for name, value in line.items() if name.endswith("/updates")]
    assert updates and max(updates) > 1
    refused = mother.run(*begin(place, "both", *settings, "optimizer.updates_per_step=2"))
    assert (refused.code, refused.err.count("\n")) == (2, 1) and "remove one of them" in refused.err


def test_a_fork_goes_its_own_way_where_it_is_told_to(place: Path, mother: Mother, undisturbed: Path) -> None:
    settings = ["--set", "steps=10", "--set", "seed=5", "--set", "optimizer.token_budget=300"]
    ended = mother.run("--fork", f"{undisturbed}@8", "--run", place / "other", *settings)
    assert ended.code == 0, ended.err
    fork, original = Run.open(place / "other"), Run.open(undisturbed)
    assert fork.next_step == 10
    assert fork.metrics()[:8] == original.metrics()[:8]
    assert timeless(fork.metrics()[8]) != timeless(original.metrics()[8])
    for run, budget in ((original, 8192), (fork, 300)):
        for role in ("designer", "executor"):
            state = json.loads((run.checkpoint_at(10) / role / "training" / "state.json").read_text())
            assert (state["token_budget"], state["configured_token_budget"]) == (budget, budget)


def test_the_weights_of_a_checkpoint_are_one_file_for_both_roles_and_of_the_usual_mode(
    place: Path, mother: Mother, undisturbed: Path
) -> None:
    """In a run and in its fork."""
    assert mother.run("--fork", f"{undisturbed}@8", "--run", place / "fork", "--set", "steps=9").code == 0
    forked = place / "fork" / "checkpoints"
    for checkpoint in (undisturbed / "checkpoints/000008", forked / "000008", forked / "000009"):
        assert [path.parent.name for path in checkpoint.rglob("model.safetensors")] == ["designer"]
        assert model_directory(checkpoint / "executor") == checkpoint / "designer"
        modes = {path.stat().st_mode & 0o777 for path in checkpoint.rglob("*") if path.is_file()}
        assert modes == {(undisturbed / "config.toml").stat().st_mode & 0o777}


def test_a_run_is_evaluated_and_its_report_shows_the_tables(mother: Mother, undisturbed: Path) -> None:
    run = undisturbed.with_name("evaluated")
    shutil.copytree(undisturbed, run)
    best = Run.open(run).best
    assert best is not None
    measured = mother.run(run, "--methods", "metaagentx,single-agent", command="eval")
    assert measured.code == 0, measured.err
    assert f"{run}/evaluation/{best.step:06d}/evaluation.md" in measured.out
    written = mother.run(run, command="report")
    assert (written.code, written.out) == (0, f"{run / 'report.html'}\n"), written.err
    page = (run / "report.html").read_text()
    assert f"<title>MetaAgent-X run evaluated: recipe, {STEPS} steps</title>" in page
    (data,) = re.findall(r'id="answers">(.*)</script>\n<script>', page)
    (shown,) = json.loads(data)["answers"]["evaluations?run=."]["evaluations"]
    assert (shown["step"], shown["location"]) == (best.step, f"evaluation/{best.step:06d}")
    assert re.fullmatch(r"2 held-out tasks of \S+", shown["tasks"]) and shown["samples"] == "1 sample"
    assert {"metaagentx", "single agent"} <= {row[0] for table in shown["tables"] for row in table["rows"]}


def test_a_finished_run_is_left_as_it_is(mother: Mother, undisturbed: Path) -> None:
    before = {path: path.read_bytes() for path in undisturbed.rglob("*") if path.is_file() and path.name != "lock"}
    ended = mother.run("--resume", undisturbed)
    assert (ended.code, ended.err) == (0, "")
    assert before == {path: path.read_bytes() for path in before}


# Stopped


def shortened(undisturbed: Path, name: str) -> Path:
    """A copy of the run as it stood after eight steps."""
    copy = undisturbed.with_name(name)
    shutil.copytree(undisturbed, copy)
    for step in (10, 12):
        shutil.rmtree(copy / "checkpoints" / f"{step:06d}")
    return copy


def test_a_full_disk_stops_the_run_with_one_line_and_it_goes_on_when_there_is_room(
    mother: Mother, undisturbed: Path
) -> None:
    directory = shortened(undisturbed, "full")
    ended = mother.run("--resume", directory, largest_file=200_000)
    assert ended.code == 2
    said = (
        f"metaagentx: {directory}/checkpoints/000010 could not be written (File too large): the last good state is "
        f"step 8. Fix the cause, then resume with: metaagentx train --resume {directory}"
    )
    assert ended.err.splitlines()[-1] == said
    assert "Traceback" not in ended.err
    assert Run.open(directory).next_step == 8
    assert mother.run("--resume", directory).code == 0
    assert remembered(directory) == remembered(undisturbed)


def test_a_second_trainer_is_refused_and_the_first_can_be_interrupted(mother: Mother, undisturbed: Path) -> None:
    directory = shortened(undisturbed, "busy")
    trainer = mother.start("--resume", directory)
    wait_until_it_trains(directory, lives(undisturbed))
    second = subprocess.run(
        [Path(sys.executable).parent / "metaagentx", "train", "--resume", directory],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    first = mother.kill(trainer, signal.SIGINT)
    process = f"process {trainer} on {socket.gethostname()}"
    assert second.stderr == f"metaagentx: {directory} is in use by {process}: wait for it or stop it\n"
    assert second.returncode == 2
    if first.code:  # it may have finished meanwhile
        done = Run.open(directory).next_step
        said = f"metaagentx: stopped after {done} steps; resume with: metaagentx train --resume {directory}"
        assert (first.code, first.err.splitlines()[-1]) == (130, said)
        assert mother.run("--resume", directory).code == 0
    found, whole = remembered(directory), remembered(undisturbed)
    assert found.pop("checkpoints")[-1:] == whole.pop("checkpoints")[-1:]  # an interrupted run may have one more
    assert found == whole


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.002)


def weights(checkpoint: Path) -> dict[str, bytes]:
    """All of a checkpoint but what it knows of the best one."""
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "state.json"]
    return {str(path.relative_to(checkpoint)): path.read_bytes() for path in files}


def test_a_run_that_is_stopped_keeps_every_finished_step(place: Path, mother: Mother, undisturbed: Path) -> None:
    """Its first checkpoint would be due after 100 steps. Neither signal changes what comes out in the end."""
    directory = place / "stopped"
    words = begin(place, "stopped", "run.checkpoint_every=100", "evaluation.every=0", "steps=8")
    for number, steps in ((signal.SIGTERM, 1), (signal.SIGINT, 3)):
        before = lives(directory)
        trainer = mother.start(*words)
        wait_until_it_trains(directory, before)
        wait_until(lambda steps=steps: len(Run.open(directory).metrics()) >= steps)  # type: ignore[misc]
        ended = mother.kill(trainer, number)
        done = len(Run.open(directory).metrics())
        said = f"metaagentx: stopped after {done} steps; resume with: metaagentx train --resume {directory}"
        assert (ended.code, ended.err.splitlines()[-1]) == (130, said)
        assert "Traceback" not in ended.err and not list(directory.rglob(".*"))
        assert Run.open(directory).next_step == done >= steps
        assert f"stopped after {done} steps" in (directory / "log.txt").read_text()
        words = ["--resume", directory]
    assert mother.run(*words).code == 0
    run, whole = Run.open(directory), Run.open(undisturbed)
    lines = [{k: v for k, v in timeless(line).items() if k != "evaluation/solved"} for line in whole.metrics()[:8]]
    assert [timeless(line) for line in run.metrics()] == lines
    assert weights(run.checkpoint_at(8)) == weights(whole.checkpoint_at(8))


def test_every_long_command_ends_in_the_same_way(place: Path, mother: Mother, undisturbed: Path) -> None:
    rows = place / "rows.jsonl"
    chat = '{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}'
    rows.write_text("".join(f'{{"messages": [{chat}], "role": "{role}"}}\n' for role in ("designer", "executor")))
    commands: list[tuple[list[object], Path]] = [
        (["coldstart", "gym:gcd", "--count", 10**4, "--out", place / "cold"], place / "cold" / "lock"),
        (["sft", rows, "--model", "preset:nano", "--steps", 10**6, "--out", place / "m"], place / "m.work" / "lock"),
        (["eval", undisturbed, "--samples", 10**4, "--out", place / "eval"], place / "eval" / "lock"),
        (["quickstart", "--dir", place / "quick"], place / "quick" / "settings.json"),
    ]
    for words, there in commands:
        process = mother.start_command(*words)
        wait_until(there.exists)
        ended = mother.kill(process, signal.SIGTERM)
        said = "metaagentx: stopped; run the same command again to continue"
        assert (words[0], ended.code, ended.err.splitlines()[-1]) == (words[0], 130, said)
        assert "Traceback" not in ended.err


# Refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to train: give a RECIPE, --resume RUN, or --fork RUN@STEP"),
        (["recipe.toml", "--resume", "undisturbed"], "RECIPE and --resume exclude each other: RECIPE starts .*"),
        (["recipe.toml", "--fork", "undisturbed@8"], "RECIPE and --fork exclude each other: RECIPE starts .*"),
        (["--resume", "undisturbed", "--fork", "undisturbed@8"], "--resume and --fork exclude each other: .*"),
        (
            ["recipe.toml", "--set", f"steps={10**26}"],
            rf".*steps: invalid value {10**26}, expected an integer >= 1 and <= 1_000_000_000",
        ),
        (["nothing.toml"], r"\S*nothing\.toml cannot be read \(No such file or directory\): .*"),
        (["recipe.toml", "--set", "rollout.desings=3"], r".*rollout\.desings.*did you mean.*designs.*"),
        (
            ["recipe.toml", "--set", "model.path='missing'"],
            r"no model at .+/missing \(.*\): create .* `metaagentx model .*",
        ),
        (["recipe.toml", "--set", "model.path='preset:giant'"], "unknown preset giant: choose one of nano, .*"),
        (
            ["recipe.toml", "--set", "model.path='{place}/cohere'"],
            "CohereForCausalLM gives .* cannot be trained here.*",
        ),
        (["recipe.toml", "--set", "tasks.train='gsm9k'"], ".*gsm9k.*"),
        (["--fork", "undisturbed@7"], r"\S*undisturbed has no checkpoint of step 7; steps with one: 2, 4, .*"),
        (["--fork", "undisturbed"], "--fork '.*': expected RUN@STEP, .*"),
        (["--fork", "undisturbed@8", "--set", "model.path='missing'"], r"no model at .+/missing \(.*\): .*"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_leaves_nothing(
    words: list[str], said: str, place: Path, mother: Mother, undisturbed: Path
) -> None:
    words = [word.format(place=place) for word in words]
    named = [place / word if (place / word.partition("@")[0]).exists() else word for word in words]
    ended = mother.run(*named, "--run", place / "runs" / "new")
    assert ended.code == 2
    assert re.fullmatch(rf"(memory on cpu: .*\n)?metaagentx: {said}\n", ended.err), ended.err
    assert not (place / "runs").exists() or not list((place / "runs").iterdir())


def test_a_run_is_not_begun_twice_and_nothing_else_is_resumed(place: Path, mother: Mother, undisturbed: Path) -> None:
    again = mother.run(*begin(place, "undisturbed"))
    assert (again.code, Run.open(undisturbed).next_step) == (2, STEPS)
    assert "undisturbed is already a run: resume it with `metaagentx train --resume" in again.err
    nothing = mother.run("--resume", place / "nothing")
    assert (nothing.code, nothing.err) == (2, f"metaagentx: {place / 'nothing'} does not exist\n")
    settings = mother.run("--resume", undisturbed, "--set", "steps=20")
    assert settings.code == 2 and "use --set and --run with --fork" in settings.err
