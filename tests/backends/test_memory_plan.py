"""The memory plan: exact counts from headers, phases that are not added up, and settings that do fit."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
from benchmarks.memory_plan import TOLERANCE, run_case
from metaagentx.backends import memory_plan
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.memory_plan import Workload, plan_memory
from metaagentx.backends.model_shape import KNOWN_SHAPES, preset_shape, read_shape
from metaagentx.cli.memory_check import change, parse_size, plan_recipe, suggest
from metaagentx.config import Config, load_config
from metaagentx.config.bundled import bundled_recipe
from metaagentx.errors import MetaAgentXError
from metaagentx.options import ModelConfig, OptimizerConfig
from tests.commands import command
from tests.trainers import Mother

GIB = 1 << 30
ONE = Workload(learners=1, learners_at_once=1, reference=False, reply_tokens=2048, replies_at_once=64)
PAPER = load_config(bundled_recipe("paper_8b"), ["model.path=Qwen/Qwen3-8B", "model.device=cuda:0"])
QWEN = KNOWN_SHAPES["Qwen3-8B"]


def parts(device: str = "cuda:0", work: Workload = ONE, budget: int = 8192, **model: object) -> dict[str, int]:
    settings = ModelConfig.model_validate({"path": "x", "kv_budget_tokens": 1000, **model})
    plan = plan_memory(QWEN, settings, OptimizerConfig(token_budget=budget), work, device)
    return {part.name: part.bytes for part in plan.parts}


def test_parameters_are_those_of_the_files(tmp_path: Path) -> None:
    for preset in ("nano", "micro", "small"):
        parameters = new_model(tmp_path / preset, preset)
        shape = read_shape(tmp_path / preset)
        assert shape == preset_shape(preset) and shape.parameters == parameters
    assert {name: shape.parameters for name, shape in KNOWN_SHAPES.items()} == {
        "Qwen3-0.6B": 596_049_920,
        "Qwen3-1.7B": 1_720_574_976,
        "Qwen3-4B": 4_022_468_096,
        "Qwen3-8B": 8_190_735_360,
        "SmolLM2-135M-Instruct": 134_515_008,
    }


def test_a_model_of_unknown_keys_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"n_embd": 8}')
    assert read_shape(tmp_path) is None


def test_what_lies_there_by_hand() -> None:
    count = QWEN.parameters
    full = parts()
    assert full["weights"] == 2 * count and full["float32 master weights"] == 4 * count
    assert full["gradients"] == 4 * count and full["AdamW moments"] == 8 * count
    assert full["KV cache"] + full["cached prefixes"] == 1000 * 2 * 36 * 8 * 128 * 2
    assert "LoRA" not in full and "reference model" not in full and "copies for decoding" not in full
    lora = parts(lora_rank=16, sharing="lora")
    adapter = 16 * 36 * (4 * 4096 + 2 * (4096 + 1024) + 3 * (4096 + 12288))
    assert lora["LoRA"] == 2 * 4 * adapter and lora["AdamW moments"] == 8 * adapter
    assert "float32 master weights" not in lora
    both = parts(work=replace(ONE, learners=2, learners_at_once=2, reference=True), sharing="separate")
    assert both["weights"] == 4 * count and both["AdamW moments"] == 16 * count and both["gradients"] == 8 * count
    assert both["reference model"] == 2 * count
    wide = parts("cpu")
    assert wide["weights"] == 4 * count and "float32 master weights" not in wide


def test_bf16_copies_count_only_where_there_are_such_copies() -> None:
    shape, optimizer = KNOWN_SHAPES["SmolLM2-135M-Instruct"], OptimizerConfig()

    def sampled(device: str, dtype: str, sampling_dtype: str) -> int:
        model = ModelConfig.model_validate(
            {"path": "x", "kv_budget_tokens": 1000, "dtype": dtype, "sampling_dtype": sampling_dtype}
        )
        found = plan_memory(shape, model, optimizer, ONE, device).parts
        return sum(part.bytes for part in found if part.name in ("copies for decoding", "KV cache", "cached prefixes"))

    assert sampled("cpu", "float32", "bfloat16") < 0.7 * sampled("cpu", "float32", "auto")
    assert sampled("cuda:0", "float32", "bfloat16") == sampled("cuda:0", "float32", "auto")
    assert sampled("cpu", "bfloat16", "bfloat16") == sampled("cpu", "bfloat16", "auto")


def test_phases_are_not_added_up() -> None:
    plan = plan_recipe(PAPER, QWEN, {"cpu": 500 * GIB, "cuda:0": 300 * GIB})
    sampling, update = (plan.total("cuda:0", phase) for phase in memory_plan.RUNNING)
    everything = sum(part.bytes for part in plan.parts if part.device == "cuda:0")
    assert sampling < update == plan.peak("cuda:0") < everything


def test_moments_wait_in_main_memory_where_the_device_is_short() -> None:
    work = replace(ONE, learners=2)
    optimizer = OptimizerConfig(token_budget=1024)
    places = []
    for memory in (300 * GIB, 150 * GIB):
        plan = plan_memory(QWEN, ModelConfig(path="x"), optimizer, work, "cuda:0", memory)
        places += [part.device for part in plan.parts if part.name == "AdamW moments of the other role"]
    assert places == ["cuda:0", "cpu"]


def test_the_cache_takes_half_of_what_is_free_at_most() -> None:
    tokens = [
        plan_memory(QWEN, ModelConfig(path="x"), OptimizerConfig(), ONE, "cuda:0", memory * GIB).kv_tokens
        for memory in (80, 124, 140, 1000)
    ]
    longest = 2048 + memory_plan.PROMPT_TOKENS
    assert tokens == sorted(tokens) and tokens[0] == longest and tokens[-1] == 64 * longest


SETTINGS = st.fixed_dictionaries(
    {
        "optimizer.token_budget": st.integers(1, 10**6),
        "optimizer.activation_checkpointing": st.sampled_from([True, False, "auto"]),
        "model.lora_rank": st.sampled_from([0, 8, 64]),
        "model.sharing": st.sampled_from(["shared", "separate"]),
        "model.dtype": st.sampled_from(["auto", "float32", "bfloat16"]),
        "model.kv_budget_tokens": st.one_of(st.none(), st.integers(1, 10**7)),
        "loss.kl": st.sampled_from([0.0, 0.1]),
    }
)


@given(SETTINGS, st.integers(1, 400), st.sampled_from(sorted(KNOWN_SHAPES)), st.sampled_from(["cpu", "cuda:0"]))
def test_what_is_suggested_fits(settings: dict[str, object], memory: int, name: str, device: str) -> None:
    config: Config = change(PAPER, settings | {"model.device": device})
    sizes = {"cpu": memory * GIB, device: memory * GIB}
    plan = plan_recipe(config, KNOWN_SHAPES[name], sizes)
    for changes, changed in suggest(config, KNOWN_SHAPES[name], sizes) if not plan.fits(sizes) else []:
        assert changed.fits(sizes) and changes
        assert plan_recipe(change(config, changes), KNOWN_SHAPES[name], sizes) == changed
    smaller = plan_recipe(change(config, {"optimizer.token_budget": 1}), KNOWN_SHAPES[name], sizes)
    # Where the smaller micro-batch leaves room, the moments of the other role stay on the device.
    assert smaller.peak(device) <= max(plan.peak(device), sizes[device])


@pytest.mark.parametrize(("text", "size"), [("80GiB", 80 * GIB), ("1.5G", 3 * GIB // 2), ("512 MiB", GIB // 2)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    for wrong in ("", "GiB", "-1GiB", "0", "80 apples"):
        with pytest.raises(MetaAgentXError, match="expected a number with a unit"):
            parse_size(wrong)


def test_the_command_plans_for_another_machine(mother: Mother, tmp_path: Path) -> None:
    words = ["paper_8b", "--device-memory", "80GiB", "--memory", "200GiB"]
    ended = mother.run(*words, command="plan", cwd=tmp_path)
    assert ended.code == 2
    assert "8,190.7 million parameters in bfloat16" in ended.out and "at once of 80.0 GiB" in ended.out
    assert "metaagentx: the recipe needs " in ended.err and "and 80.0 GiB are free: this fits: --set " in ended.err
    ended = mother.run(*words, "--json", command="plan", cwd=tmp_path)
    plan = json.loads(ended.out)
    assert ended.code == 2 and plan["fits"] is False and plan["device"] == "cuda:0"
    fix = plan["suggestions"][0]["set"]
    sets = [word for key, value in fix.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    ended = mother.run(*words, *sets, "--json", command="plan", cwd=tmp_path)
    assert ended.code == 0 and json.loads(ended.out)["fits"] is True
    ended = mother.run("tiny", "--set", "model.path=acme/unknown", command="plan", cwd=tmp_path)
    assert ended.code == 2 and "no plan for acme/unknown: expected" in ended.err


def test_planning_imports_no_torch() -> None:
    ended = command("plan", "tiny", "--set", "model.path=preset:tiny")
    assert ended.returncode == 0 and "0.8 million parameters in float32" in ended.stdout, ended.stderr
    code = "import sys, metaagentx.cli.memory_check as m; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_plans_are_right_within_fifteen_percent(tmp_path: Path) -> None:
    for name in ("both roles at once", "LoRA", "activation checkpointing"):
        row = run_case(name, tmp_path)
        assert abs(row.error) <= TOLERANCE, row
