"""Copies of the metrics: what is missing is said at once, what fails later stops nothing, no step is logged twice."""

import importlib
import importlib.util
import json
import logging
import sqlite3
import struct
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metaagentx.errors import MetaAgentXError
from metaagentx.training.loggers import PACKAGES, WRITERS, Loggers, _mlflow_name, check_loggers, open_loggers

CONFIG = {"train": {"lr": 5e-6, "tasks": ["gsm8k"]}, "directory": "runs"}
METRICS = {"solved": 0.5, "reward/gym:chain_sum?max_terms=4": 0.25}


def installed(name: str) -> bool:
    return importlib.util.find_spec(PACKAGES.get(name, name)) is not None


def open_one(name: str, directory: Path) -> Loggers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the packages' own, which differ from version to version
        return open_loggers([name], directory, "my-run", CONFIG)


def log_steps(name: str, directory: Path, steps: Mapping[int, float]) -> None:
    with open_one(name, directory) as loggers:
        for step, solved in steps.items():
            loggers.log(step, METRICS | {"solved": solved})


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not installed(name), reason=f"{name} is not installed")


def test_a_name_that_is_none() -> None:
    with pytest.raises(MetaAgentXError, match="unknown logger 'tensorbord', expected one of tensorboard, wandb"):
        open_loggers(["tensorbord"], Path("nowhere"), "my-run", {})


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_package_is_one_line_with_the_fix(name: str, tmp_path: Path) -> None:
    if installed(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(MetaAgentXError) as caught:
        open_loggers([name], tmp_path, "my-run", {})
    assert str(caught.value).endswith(f"pip install 'metaagentx[{name}]'")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_none_at_all_leave_no_trace(tmp_path: Path) -> None:
    with open_loggers([], tmp_path, "my-run", CONFIG) as loggers:
        loggers.log(1, METRICS)
    assert list(tmp_path.iterdir()) == []


class Recorder:
    """A tool that keeps what it is given, or fails."""

    id = "abc"

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.steps: list[int] = []
        self.ended: list[bool] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.broken:
            raise ConnectionError("no route to host\nand a long story")
        self.steps.append(step)

    def close(self, failed: bool) -> None:
        self.ended.append(failed)
        if self.broken:
            raise ConnectionError("no route to host")


def test_one_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Recorder(broken=True), Recorder()
    with caplog.at_level(logging.WARNING), Loggers({"a": broken, "b": sound}, tmp_path / "loggers.json") as loggers:
        for step in (1, 2, 3):
            loggers.log(step, METRICS)
    assert sound.steps == [1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "the logger a failed at step 1, training continues: no route to host",
        "the logger a could not be closed: no route to host",
    ]


def test_steps_done_again_are_passed_over(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    with Loggers({"a": first}, tmp_path / "loggers.json") as loggers:
        for step in (1, 2, 2, 3):  # a second time in the same step: an evaluation, say
            loggers.log(step, METRICS)
    with pytest.raises(KeyboardInterrupt), Loggers({"a": second}, tmp_path / "loggers.json") as loggers:
        for step in (2, 3, 4, 4):
            loggers.log(step, METRICS)
        raise KeyboardInterrupt
    assert (first.steps, second.steps) == ([1, 2, 2, 3], [4, 4])
    assert (first.ended, second.ended) == ([False], [True])


@needs("tensorboard")
def test_tensorboard_files_read_back(tmp_path: Path) -> None:
    log_steps("tensorboard", tmp_path, {1: 0.1, 2: 0.2, 3: 0.3})
    log_steps("tensorboard", tmp_path, {3: 0.5, 4: 0.6})
    first, second = [events(file) for file in sorted((tmp_path / "tensorboard").iterdir())]
    assert solved(first) == {1: 0.1, 2: 0.2, 3: 0.3}
    assert solved(second) == {3: 0.5, 4: 0.6}
    # The start of a session voids what older files say of this step and later ones.
    assert next(event.step for event in second if event.HasField("session_log")) == 3
    tags = {value.tag for event in first for value in event.summary.value}
    assert tags == {"solved", "reward/gym_chain_sum_max_terms_4"}


def events(file: Path) -> list[Any]:
    event = importlib.import_module("tensorboardX.proto.event_pb2").Event
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def solved(found: list[Any]) -> dict[int, float]:
    values = [(event.step, value) for event in found for value in event.summary.value if value.tag == "solved"]
    return {step: round(value.simple_value, 6) for step, value in values}


@needs("mlflow")
def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    log_steps("mlflow", tmp_path, {1: 0.1, 2: 0.2})
    log_steps("mlflow", tmp_path, {2: 0.9, 3: 0.3})
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(json.loads((tmp_path / "loggers.json").read_text())["ids"]["mlflow"])
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "solved")] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
    assert run.data.params == {"train.lr": "5e-06", "train.tasks": '["gsm8k"]', "directory": "runs"}
    assert run.data.metrics["reward/gym:chain_sum_max_terms_4"] == 0.25
    assert (run.info.run_name, run.info.status) == ("my-run", "FINISHED")


@needs("wandb")
def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    log_steps("wandb", tmp_path, {1: 0.1})
    run_id = json.loads((tmp_path / "loggers.json").read_text())["ids"]["wandb"]
    log_steps("wandb", tmp_path, {2: 0.2})
    assert {file.name for file in (tmp_path / "wandb").glob("offline-run-*/*.wandb")} == {f"run-{run_id}.wandb"}


@needs("trackio")
def test_trackio_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when the package is imported
    code = (
        "from pathlib import Path; from metaagentx.training.loggers import open_loggers; import sys\n"
        "with open_loggers(['trackio'], Path(sys.argv[1]), 'my-run', {}) as loggers:\n"
        "    [loggers.log(step, {'solved': 0.5}) for step in eval(sys.argv[2])]\n"
    )
    for steps in ("1, 2", "2, 3"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path), steps], check=True, timeout=120)
    with closing(sqlite3.connect(tmp_path / "trackio" / "metaagentx.db")) as database:
        rows = database.execute("SELECT run_name, step FROM metrics ORDER BY step").fetchall()
    assert [step for _, step in rows] == [1, 2, 3]
    assert len({name for name, _ in rows}) == 1


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("reward/executor", "reward/executor"),
        ("solved/jsonl:../a/b.jsonl", "solved/jsonl:../a/b.jsonl"),
        ("solved//a?b", "solved/a_b"),
        ("solved/../../x", "solved/x"),
    ],
)
def test_names_for_mlflow(name: str, allowed: str) -> None:
    assert _mlflow_name(name) == allowed


@needs("tensorboard")
@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"ids": {}}', '{"ids": {"a": 1}, "steps": {}}', "[" * 100_000]
)
def test_a_damaged_memory_is_one_line_with_the_fix(tmp_path: Path, damage: str) -> None:
    (tmp_path / "loggers.json").write_text(damage)
    with pytest.raises(MetaAgentXError) as refused:
        check_loggers(["tensorboard"], tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'loggers.json'} is damaged: remove it")
    check_loggers([], tmp_path)
