"""The tinker backend on SkyRL's server: the expectations that the fake meets, and deaths on both sides."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tinker")

from tests.backends import tinker_expectations as expect
from tests.backends.tinker_expectations import Target
from tests.cluster.server import SkyRLServer
from tests.tiny_model import school_once, write_recipe
from tests.trainers import Mother

ENVIRONMENT = Path(os.environ.get("CLUSTER_ENVIRONMENT", ".venv-cluster"))

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="`make test-cluster` makes the server's environment"),
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRLServer]:
    server = SkyRLServer(ENVIRONMENT, tmp_path_factory.mktemp("server"), school_once(tmp_path_factory))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def target(server: SkyRLServer) -> Target:
    return Target(server.url, server.model, server.micro_batch)


def test_log_probabilities_agree(target: Target, tmp_path: Path) -> None:
    asyncio.run(expect.logprobs_agree(target, tmp_path))


def test_a_role_learns_alone(target: Target, tmp_path: Path) -> None:
    asyncio.run(expect.learns_and_leaves_the_other_alone(target, tmp_path))


def test_gradients_are_those_of_the_local_backend(target: Target, tmp_path: Path) -> None:
    asyncio.run(expect.gradients_are_the_local_ones(target, tmp_path))


def test_training_resumes(target: Target, tmp_path: Path) -> None:
    asyncio.run(expect.resumes(target, tmp_path, "lora"))


def test_the_server_refuses_as_the_fake_does(target: Target, tmp_path: Path) -> None:
    async def connect(**changes: object) -> None:
        async with expect.connected(target, tmp_path, **changes):
            pass

    with pytest.raises(Exception, match="has no model 'other'"):
        asyncio.run(connect(base_model="other"))
    with pytest.raises(Exception, match=r"lora_rank.*between 1 and 16"):
        asyncio.run(connect(lora_rank=64))


def _start(mother: Mother, directory: Path, name: str, target: Target) -> tuple[int, Path]:
    stages = "{ steps = 1, executor = 1e-3 }, { steps = 1, designer = 1e-3 }"
    recipe = write_recipe(directory, target.model, steps=4, stages=stages)
    settings = {
        "model.backend": '"tinker"',
        "model.base_url": f'"{target.url}"',
        "model.lora_rank": 8,
        "model.sharing": '"lora"',
        "model.micro_batch": target.micro_batch,
        "tasks.per_step": 2,
        "rollout.designs": 2,
        "rollout.executions": 4,
        "run.checkpoint_every": 1,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return mother.start(recipe, "--run", directory / name, *words), directory / name


def _metrics(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k and not k.startswith("engine/")} for row in rows]


def _same(run: Path, whole: Path) -> None:
    for ours, theirs in zip(_metrics(run), _metrics(whole), strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def _wait_in_log(server: SkyRLServer, text: str, seen: int) -> None:
    deadline = time.monotonic() + 120
    while server.log.count(text) <= seen:
        assert time.monotonic() < deadline, f"{text!r} did not appear in the server's log"
        time.sleep(0.01)


def test_deaths_on_both_sides(server: SkyRLServer, target: Target, tmp_path: Path, mother: Mother) -> None:
    _, whole = _start(mother, tmp_path, "whole", target)
    done = mother.wait()
    assert done.code == 0, done.err
    # Our side is killed: its adapters are freed when it resumes.
    trainer, run = _start(mother, tmp_path, "killed", target)
    while not (run / "checkpoints" / "000002" / "state.json").exists():
        time.sleep(0.02)
    mother.kill(trainer, signal.SIGKILL)
    ended = mother.run("--resume", run)
    assert ended.code == 0, ended.err
    _same(run, whole)
    for adapter in re.findall(r"Created LoRA model (model_\w+)", server.log):
        _wait_in_log(server, f"Unloaded model {adapter}", 0)  # none is left
    # The server is killed while it samples, updates and saves.
    moments = {
        "sampling": "Loading LoRA sampler checkpoint",
        "update": "Applied optimizer step",
        "saving": "Saved trimmed training checkpoint",
    }
    for name, text in moments.items():
        seen = server.log.count(text) + (3 if name == "update" else 1)
        _, run = _start(mother, tmp_path, name, target)
        _wait_in_log(server, text, seen)
        server.kill()
        killed = time.monotonic()
        ended = mother.wait()
        assert ended.code == 2, ended.err
        assert time.monotonic() - killed < 90
        line = ended.err.strip().splitlines()[-1]
        assert f"the server at {server.url}" in line, ended.err
        assert "resume with" in line, ended.err
        server.start()
        ended = mother.run("--resume", run)
        assert ended.code == 0, ended.err
        _same(run, whole)
