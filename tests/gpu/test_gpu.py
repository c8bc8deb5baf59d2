"""What only a GPU can show: `make test-gpu`. Not part of `make test`.

METAAGENTX_TEST_DEVICE=cpu runs the same tests on a CPU, as a check of the tests themselves; bf16 products may need
ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 there.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch

from benchmarks.memory_plan import TOLERANCE, run_case
from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.model import load_model
from metaagentx.backends.local.policy import LocalPolicy
from metaagentx.backends.local.presets import new_model
from metaagentx.policy import Completion, Datum, SamplingParams
from metaagentx.runs import Run
from tests.tiny_model import school_once, write_recipe
from tests.trainers import Mother

DEVICE = os.environ.get("METAAGENTX_TEST_DEVICE", "cuda")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 10 million parameters."""
    path: Path = tmp_path_factory.mktemp("models") / "10m"
    new_model(path, "10m")
    return path


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def policy_of(directory: Path, dtype: str, **engine: Any) -> LocalPolicy:
    model = load_model(directory, device=DEVICE, dtype=dtype)
    return LocalPolicy(model, "executor", Engine(model, **engine))


async def sample(policy: LocalPolicy, count: int, tokens: int = 48) -> list[tuple[list[int], Completion]]:
    prompts = [policy.tokenizer.encode_chat([{"role": "user", "content": f"Question {n}"}]) for n in range(count)]
    params = [SamplingParams(tokens, seed=number) for number in range(count)]
    completions = await asyncio.gather(*(policy.sample(*pair) for pair in zip(prompts, params, strict=True)))
    return list(zip(prompts, completions, strict=True))


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-3), ("bfloat16", 0.25)])
def test_what_was_sampled_has_the_probability_that_training_sees(
    directory: Path, loop: asyncio.Runner, dtype: str, most: float
) -> None:
    policy = policy_of(directory, dtype, compiled=False)
    sampled = loop.run(sample(policy, 24))
    data = [
        Datum((*prompt, *reply.tokens), (0.0,) * len(prompt) + (1.0,) * len(reply.tokens)) for prompt, reply in sampled
    ]
    trained = loop.run(policy.logprobs(data))
    differences = [
        abs(now - then)
        for (prompt, reply), row in zip(sampled, trained, strict=True)
        for now, then in zip(row[len(prompt) :], reply.logprobs, strict=True)
    ]
    assert max(differences) < most and sum(differences) / len(differences) < most / 5


def test_a_request_gives_the_same_tokens_alone_and_in_a_batch(directory: Path, loop: asyncio.Runner) -> None:
    policy = policy_of(directory, "float32", compiled=False)
    together = [reply.tokens for _, reply in loop.run(sample(policy, 16))]
    alone = []
    for number in range(16):
        prompt = policy.tokenizer.encode_chat([{"role": "user", "content": f"Question {number}"}])
        alone.append(loop.run(policy.sample(prompt, SamplingParams(48, seed=number))).tokens)
    equal = sum(left == right for left, right in zip(together, alone, strict=True))
    assert equal >= 15, "but for a draw that falls between two tokens"


def test_small_updates_of_bf16_weights_add_up(directory: Path, loop: asyncio.Runner) -> None:
    falls = {}
    for dtype in ("float32", "bfloat16"):
        policy = policy_of(directory, dtype)
        text = policy.tokenizer.encode_reply("The workflow has one agent, and the answer is 42.")
        data = [Datum((1, *text), (0.0, *(1.0 for _ in text)))] * 4
        before = {name: weight.detach().clone() for name, weight in policy.model.module.named_parameters()}
        losses = []
        for _ in range(20):
            losses.append(loop.run(policy.forward_backward(data, "cross_entropy"))["loss"])
            loop.run(policy.optim_step(5e-6))
        falls[dtype] = losses[0] - losses[-1]
        if dtype == "bfloat16":
            masters = policy.model.masters
            moved = sum(int((masters[name] != before[name].float()).sum()) for name in masters)
            assert {master.dtype for master in masters.values()} == {torch.float32}
            # Rows of the embedding that no token uses have no gradient.
            assert moved > 0.5 * sum(master.numel() for master in masters.values())
    assert falls["bfloat16"] == pytest.approx(falls["float32"], rel=0.5) and falls["float32"] > 0


@pytest.mark.parametrize("case", ["full weights", "activation checkpointing", "LoRA"])
def test_a_memory_plan_is_right(tmp_path: Path, case: str) -> None:
    assert abs(run_case(case, tmp_path, DEVICE).error) < TOLERANCE


def test_ten_steps_of_training(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    mother = Mother(tmp_path / "command")
    stages = "{ steps = 1, designer = 1e-3 }, { steps = 1, executor = 1e-3 }"
    recipe = write_recipe(tmp_path, school_once(tmp_path_factory), steps=10, stages=stages, tasks=8)
    settings = [f"model.device={DEVICE}", "model.deterministic=false", "tasks.per_step=4"]
    ended = mother.run(recipe, "--run", tmp_path / "run", *(word for one in settings for word in ("--set", one)))
    mother.close()
    assert ended.code == 0, ended.err
    metrics = [*Run.open(tmp_path / "run").metrics()]
    assert len(metrics) == 10
    ratios = [line[name] for line in metrics for name in ("designer/ratio", "executor/ratio") if name in line]
    assert ratios and all(isinstance(ratio, float) and abs(ratio - 1) < 0.05 for ratio in ratios), (
        "sampler and learner agree"
    )
