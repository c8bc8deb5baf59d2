"""The plan of a step on a cluster: its arithmetic, its command, and the simulation that its host figures are from."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale import simulate
from metaagentx.backends.cluster_plan import CONSTANTS, ClusterPlan, StepWork, decode_step_seconds, plan_cluster
from metaagentx.backends.model_shape import KNOWN_SHAPES, ModelShape
from metaagentx.cli.cluster_check import step_work
from metaagentx.config import load_config
from metaagentx.config.bundled import find_recipe
from metaagentx.types import Role
from tests.trainers import Mother

GIB = 1 << 30
PAPER = step_work(load_config(find_recipe("paper_8b")))
shapes = st.sampled_from([KNOWN_SHAPES["Qwen3-4B"], KNOWN_SHAPES["Qwen3-8B"]])


works = st.builds(
    lambda tasks, **fields: replace(PAPER, designs=4 * tasks, executions=16 * tasks, **fields),
    st.integers(1, 2048),
    in_flight=st.integers(1, 50_000),
    executor_limit=st.integers(16, 16_384),
    minibatch=st.none() | st.integers(1, 5000),
    trained_roles=st.sampled_from([frozenset({role}) for role in Role] + [frozenset(Role)]),
    epochs=st.integers(1, 4),
    lora_rank=st.sampled_from([0, 16]),
)


@given(shapes, works, st.integers(1, 1023), st.integers(1, 64))
def test_more_gpus_and_hosts_never_slow_down_what_they_share(
    shape: ModelShape, work: StepWork, gpus: int, hosts: int
) -> None:
    few, more = (plan_cluster(shape, work, count, hosts, 80 * GIB) for count in (gpus, gpus + 1))
    for name in ("prefill_seconds", "decode_seconds", "tail_seconds", "rollout_seconds", "compute_seconds"):
        assert getattr(more, name) <= getattr(few, name) * (1 + 1e-9), name
    assert more.gpu_bytes <= few.gpu_bytes
    assert more.host_seconds <= few.host_seconds * (1 + 1e-9)
    assert (more.cpu_seconds, more.reply_tokens) == (few.cpu_seconds, few.reply_tokens)
    other = plan_cluster(shape, work, gpus, hosts + 1, 80 * GIB)
    assert other.host_seconds < few.host_seconds and other.cpu_seconds == few.cpu_seconds
    assert other.host_executions_per_s == pytest.approx(few.host_executions_per_s)


@given(shapes, works, st.integers(1, 1024), st.integers(1, 64))
def test_the_parts_add_up(shape: ModelShape, work: StepWork, gpus: int, hosts: int) -> None:
    plan = plan_cluster(shape, work, gpus, hosts, 80 * GIB)
    sampling = plan.prefill_seconds + plan.decode_seconds + plan.tail_seconds
    assert plan.rollout_seconds == max(sampling, plan.host_seconds)
    assert plan.update_seconds == plan.compute_seconds + plan.gradient_seconds
    assert plan.step_seconds == plan.rollout_seconds + plan.update_seconds + plan.sync_seconds
    assert plan.busy_gpus <= gpus and plan.calls == work.designs + 4 * work.executions
    assert (plan.bottleneck == "the memory of a GPU") == (not plan.fits)
    assert ("host" in plan.bottleneck) <= (plan.host_seconds > sampling)


def paper(gpus: int, hosts: int = 1, tasks: int = 8) -> ClusterPlan:
    """The paper's step with so many tasks, all executions in flight, as many optimizer steps as with eight tasks."""
    work = replace(PAPER, designs=4 * tasks, executions=16 * tasks, in_flight=16 * tasks, minibatch=2 * tasks)
    return plan_cluster(KNOWN_SHAPES["Qwen3-8B"], work, gpus, hosts, 80 * GIB)


def test_the_bottleneck_moves_from_memory_to_the_slowest_execution_to_the_host() -> None:
    assert not paper(1).fits and paper(8).fits
    assert paper(1024).bottleneck == "the slowest execution"
    assert "host" in paper(1024, tasks=1024).bottleneck
    assert "host" not in paper(1024, hosts=8, tasks=1024).bottleneck


def test_a_decode_step_reads_the_weights_once_for_all_replies() -> None:
    shape = KNOWN_SHAPES["Qwen3-8B"]
    one, many = (decode_step_seconds(shape, replies, 2000) for replies in (1, 64))
    weights = 2 * shape.parameters / (3.35e12 * 0.7)
    assert weights < one < 1.5 * weights
    assert one < many < 4 * one


def test_samples_and_optimizer_steps_are_those_of_the_recipe() -> None:
    assert (PAPER.designs, PAPER.executions, PAPER.calls) == (32, 128, 544)
    assert (PAPER.samples, PAPER.optimizer_steps) == (512, 32)


def test_every_constant_says_where_it_is_from() -> None:
    assert all(constant.origin and constant.value > 0 for constant in CONSTANTS.values())
    assert {constant.source for constant in CONSTANTS.values()} == {"measured", "published", "assumed"}


def test_the_command_plans_a_cluster(mother: Mother, tmp_path: Path) -> None:
    ended = mother.run("paper_8b", "--gpus", "1,64", command="plan", cwd=tmp_path)
    assert ended.code == 0
    assert "1 GPU, 1 host: does not fit" in ended.out and "64 GPUs, 1 host: a step takes" in ended.out
    ended = mother.run("paper_4b", "--gpus", "8", "--hosts", "2", "--json", command="plan", cwd=tmp_path)
    found = json.loads(ended.out)
    (plan,) = found["plans"]
    assert plan["gpus"] == 8 and plan["hosts"] == 2 and plan["fits"] and plan["step_seconds"] > 0
    assert found["constants"]["peak_tflops"]["source"] == "published"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "0"), "--gpus: invalid value '0', expected a number from 1 to 1024"),
        (("--gpus", "8,many"), "--gpus: invalid value '8,many', expected"),
        (("--gpus", "8", "--hosts", "0"), "--hosts: invalid value 0, expected 1 to 1024"),
        (("--hosts", "2"), "--hosts needs --gpus"),
    ],
)
def test_bad_numbers_are_one_line(mother: Mother, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    ended = mother.run("paper_8b", *words, command="plan", cwd=tmp_path)
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1


def test_a_small_simulation_loses_nothing() -> None:
    figures = asyncio.run(simulate(64, speed=100))
    assert figures["executions"] == 96 and figures["failed"] == figures["unsolved"] == 0
    assert figures["peak_runs"] >= 64 and figures["memory_mb"] > 0
    assert figures["lag_ms_p50"] <= figures["lag_ms_p99"] <= figures["lag_ms_max"]
