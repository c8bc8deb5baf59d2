"""bf16 weights on a CPU, in processes of their own: without this variable, bf16 products kill them on some machines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from metaagentx.runs import Run
from tests.tiny_model import school_once, write_recipe
from tests.trainers import Mother
from tests.training_runs import timeless

PRODUCTS = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
SETTINGS = ["model.dtype=bfloat16", "rollout.designs=2", "rollout.executions=2", "tasks.per_step=2", "tasks.held_out=2"]
SETTINGS += ["run.checkpoint_every=2", "run.keep_checkpoints=8"]


def test_what_holds_for_bf16_weights() -> None:
    tests = Path(__file__).with_name("in_bf16.py")
    words = [sys.executable, "-m", "pytest", str(tests), "-p", "no:xdist", "--no-header"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= [PRODUCTS]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_a_run_in_bf16_is_killed_resumed_and_evaluated(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both roles on shared weights, at a learning rate that bf16 alone would lose."""
    monkeypatch.setenv(*PRODUCTS)
    mother = Mother(tmp_path / "command")
    stages = "{ steps = 1, designer = 5e-6 }, { steps = 1, executor = 5e-6 }"
    recipe = write_recipe(tmp_path, school_once(tmp_path_factory), steps=6, stages=stages, tasks=8)
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    ended = mother.run(recipe, "--run", tmp_path / "whole", *sets)
    assert ended.code == 0, ended.err
    trainer = mother.start(recipe, "--run", tmp_path / "killed", *sets)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / "checkpoints" / "000002").exists():
        assert time.monotonic() < deadline, "it never saved a checkpoint"
        time.sleep(0.01)
    assert mother.kill(trainer, signal.SIGKILL).code == -signal.SIGKILL
    ended = mother.run("--resume", tmp_path / "killed")
    assert ended.code == 0, ended.err
    runs = [Run.open(tmp_path / name) for name in ("whole", "killed")]
    whole, killed = ([timeless(line) for line in run.metrics()] for run in runs)
    assert whole == killed
    for path in (tmp_path / "whole" / "checkpoints" / "000006").rglob("*.safetensors"):
        assert path.read_bytes() == Path(str(path).replace("/whole/", "/killed/")).read_bytes(), path
    newest = tmp_path / "killed" / "checkpoints" / "000006" / "designer"
    with safe_open(newest / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    with safe_open(newest / "training" / "masters.safetensors", "pt") as masters:
        assert {masters.get_slice(name).get_dtype() for name in masters.keys()} == {"F32"}  # noqa: SIM118
    ended = mother.run(tmp_path / "killed", "--methods", "metaagentx", "--limit", "1", command="eval")
    assert ended.code == 0, ended.err
    mother.close()
