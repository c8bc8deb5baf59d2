"""The tinker backend on a fake server; tests/cluster runs the same expectations on a real one."""

import asyncio
import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("tinker")

import torch

from metaagentx.backends.tinker.build import connect_policies
from metaagentx.backends.tinker.server import Server
from metaagentx.config import load_config
from metaagentx.config.bundled import find_recipe
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import BackendError, Datum, SamplingParams
from metaagentx.types import Role
from tests.backends import tinker_expectations as expect
from tests.backends.fake_tinker import FakeTinker, serve
from tests.backends.tinker_expectations import Target, connected, some_data, train_a_little
from tests.commands import command
from tests.tiny_model import school_once, write_recipe
from tests.trainers import Mother


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return school_once(tmp_path_factory)


@pytest.fixture
def fake(model: Path) -> FakeTinker:
    return FakeTinker(model)


@pytest.fixture
def target(fake: FakeTinker) -> Iterator[Target]:
    with serve(fake) as url:
        yield Target(url, fake.path)


def test_log_probabilities_agree(target: Target, tmp_path: Path) -> None:
    asyncio.run(expect.logprobs_agree(target, tmp_path))


def test_a_role_learns_alone(target: Target, tmp_path: Path) -> None:
    asyncio.run(expect.learns_and_leaves_the_other_alone(target, tmp_path))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_are_those_of_the_local_backend(
    model: Path, tmp_path: Path, reduction: Literal["mean", "sum"]
) -> None:
    with serve(FakeTinker(model, reduction=reduction)) as url:
        asyncio.run(expect.gradients_are_the_local_ones(Target(url, model), tmp_path))


@pytest.mark.parametrize("sharing", ["lora", "shared"])
def test_training_resumes(target: Target, tmp_path: Path, sharing: Literal["lora", "shared"]) -> None:
    asyncio.run(expect.resumes(target, tmp_path, sharing))


def test_counts_are_multiples_of_the_micro_batch(target: Target, fake: FakeTinker, tmp_path: Path) -> None:
    async def run() -> None:
        async with connected(target, tmp_path) as built:
            policy = built.policies[Role.DESIGNER]
            await train_a_little(policy, await some_data(policy, 5), 1)

    asyncio.run(run())
    assert {count % target.micro_batch for count in fake.counts} == {0}


def test_a_step_waits_for_samples_that_nobody_waits_for(target: Target, fake: FakeTinker, tmp_path: Path) -> None:
    async def run() -> None:
        async with connected(target, tmp_path) as built:
            policy = built.policies[Role.DESIGNER]
            data = await some_data(policy)
            fake.sample_seconds = 1.5
            prompt = policy.tokenizer.encode_chat([{"role": "user", "content": "?"}])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(policy.sample(prompt, SamplingParams(4)), 0.3)
            losses = await train_a_little(policy, data, 3, rate=5e-4)
            # A sample from the old weights would have put them back.
            await policy.sample(prompt, SamplingParams(4))
            assert (await policy.forward_backward(data, "cross_entropy"))["loss"] < losses[-1]
            assert policy.stats()["sampled_tokens"] > 0

    asyncio.run(run())
    assert not fake.stepped_while_sampling


def test_both_roles_may_learn_in_one_step_on_one_lora(target: Target, tmp_path: Path) -> None:
    async def run() -> None:
        async with connected(target, tmp_path, sharing="shared") as built:
            designer, executor = built.policies[Role.DESIGNER], built.policies[Role.EXECUTOR]
            data = await some_data(designer)
            await designer.forward_backward(data[:2], "cross_entropy")
            await executor.forward_backward(data[2:], "cross_entropy")
            assert (await designer.optim_step(1e-3))["grad_norm"] > 0
            assert (await executor.optim_step(1e-3))["grad_norm"] > 0
            assert (await executor.optim_step(1e-3))["grad_norm"] == 0  # nothing is left

    asyncio.run(run())


def test_adapters_of_a_killed_process_are_freed(model: Path, tmp_path: Path) -> None:
    fake = FakeTinker(model, max_adapters=3)  # room for two

    async def run(url: str) -> None:
        await connect_policies(Target(url, model).options(), tmp_path, 0)  # and never closed
        assert len(fake.loras) == 2
        async with connected(Target(url, model), tmp_path):
            assert len(fake.loras) == 2
        with pytest.raises(MetaAgentXError, match=r"no free adapter.*larger max_lora_adapters"):
            await connect_policies(Target(url, model).options(), tmp_path / "a", 0)
            await connect_policies(Target(url, model).options(), tmp_path / "b", 0)

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serve(fake) as url:
        asyncio.run(run(url))


async def _connect(target: Target, directory: Path, **changes: Any) -> None:
    async with connected(target, directory, **changes):
        pass


def test_what_is_wrong_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(FakeTinker(model, key="tml-right")) as url:
        target = Target(url, model)
        with pytest.raises(MetaAgentXError, match="refuses access with no key; put one in TINKER_API_KEY"):
            asyncio.run(_connect(target, tmp_path))
        monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
        with pytest.raises(MetaAgentXError, match="refuses access with the key in TINKER_API_KEY"):
            asyncio.run(_connect(target, tmp_path))
        monkeypatch.setenv("TINKER_API_KEY", "sk-other")
        with pytest.raises(MetaAgentXError, match="start with tml-"):
            asyncio.run(_connect(target, tmp_path))
        monkeypatch.setenv("TINKER_API_KEY", "tml-right")
        with pytest.raises(MetaAgentXError, match=r"has no model 'Qwen/Qwen3-8B', only .*base_model"):
            asyncio.run(_connect(target, tmp_path, base_model="Qwen/Qwen3-8B"))
        with pytest.raises(MetaAgentXError, match=r"lora_rank.*between 1 and 16"):
            asyncio.run(_connect(target, tmp_path, lora_rank=64))
    with pytest.raises(MetaAgentXError, match=r"cannot be reached .*cluster command"):
        asyncio.run(_connect(target, tmp_path))
    monkeypatch.setattr("tinker.__version__", "0.30.0")
    with pytest.raises(MetaAgentXError, match=r"tinker 0\.30\.0 does not work.*pip install"):
        Server(target.options())


def test_prompts_that_the_server_would_not_answer_are_refused(target: Target, tmp_path: Path) -> None:
    async def run() -> None:
        async with connected(target, tmp_path) as built:
            policy = built.policies[Role.EXECUTOR]
            for prompt, match in [([10**6], "expected one or more tokens from 0"), ([], "invalid prompt")]:
                with pytest.raises(MetaAgentXError, match=match):
                    await policy.sample(prompt, SamplingParams(4))
            with pytest.raises(MetaAgentXError, match="leaves no room for a reply"):
                await policy.sample([1] * policy.context_length, SamplingParams(4))
            with pytest.raises(MetaAgentXError, match="exceed the model's context"):
                length = policy.context_length + 1
                await policy.forward_backward([Datum((1,) * length, (0.0, *(1.0,) * (length - 1)))], "cross_entropy")
            with pytest.raises(MetaAgentXError, match="temperature 1 only"):
                await policy.forward_backward([], "ppo", temperature=0.7)

    asyncio.run(run())


@pytest.mark.parametrize("fault", [pytest.param("hangs", marks=pytest.mark.slow), "fails"])
def test_requests_that_hang_or_fail_end_in_a_line(target: Target, fake: FakeTinker, tmp_path: Path, fault: str) -> None:
    async def run() -> None:
        async with connected(target, tmp_path, server_seconds=2.0) as built:
            policy = built.policies[Role.DESIGNER]
            data = await some_data(policy)
            for kind in ("forward", "optim_step", "save_weights", "asample"):
                setattr(fake, fault, kind)
                started = time.monotonic()
                with pytest.raises(BackendError, match="did not finish" if fault == "hangs" else "out of memory"):
                    if kind == "save_weights":
                        await policy.save(tmp_path / "checkpoint")
                    elif kind == "asample":
                        await policy.sample(data[0].tokens, SamplingParams(4))
                    else:
                        await train_a_little(policy, data, 1)
                assert time.monotonic() - started < 10
                setattr(fake, fault, "")

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["forward", "save_weights"])
def test_what_fails_once_and_changes_nothing_is_asked_again(
    target: Target, fake: FakeTinker, tmp_path: Path, kind: str
) -> None:
    async def run() -> None:
        async with connected(target, tmp_path) as built:
            policy = built.policies[Role.DESIGNER]
            data = await some_data(policy)
            fake.fails, fake.failures_left = kind, 1
            await train_a_little(policy, data, 1)
            await policy.save(tmp_path / "checkpoint")
            assert fake.failures_left == 0

    asyncio.run(run())


def _recipe(directory: Path, target: Target, steps: int = 4) -> tuple[Path, list[str]]:
    recipe = write_recipe(
        directory, target.model, steps=steps, stages="{ steps = 1, executor = 1e-3 }, { steps = 1, designer = 1e-3 }"
    )
    settings = {
        "model.backend": '"tinker"',
        "model.base_url": f'"{target.url}"',
        "model.lora_rank": 8,
        "model.sharing": '"lora"',
        "model.micro_batch": 4,
        "tasks.per_step": 2,
        "rollout.designs": 2,
        "rollout.executions": 4,
        "run.checkpoint_every": 1,
    }
    return recipe, [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _metrics(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k and not k.startswith("engine/")} for row in rows]


@pytest.mark.slow
def test_a_run_that_is_killed_on_either_side_goes_on(fake: FakeTinker, tmp_path: Path, mother: Mother) -> None:
    with serve(fake) as url:
        recipe, settings = _recipe(tmp_path, Target(url, fake.path))
        whole = mother.run(recipe, "--run", tmp_path / "whole", *settings)
        assert whole.code == 0, whole.err
        assert not fake.loras  # given back at the end
        assert any(row.get("executor/grad_norm") for row in _metrics(tmp_path / "whole"))
        trainer = mother.start(recipe, "--run", tmp_path / "killed", *settings)
        _wait_for(tmp_path / "killed" / "checkpoints" / "000002" / "state.json")
        mother.kill(trainer, signal.SIGKILL)
        assert len(fake.loras) == 2  # left behind
        port = int(url.rpartition(":")[2])
    # The server is restarted as well: its adapters are gone, its saved states are not.
    fake.restart()
    gone = mother.run("--resume", tmp_path / "killed")
    assert gone.code == 2
    assert f"the server at {url} cannot be reached" in gone.err
    with serve(fake, port):
        ended = mother.run("--resume", tmp_path / "killed")
        assert ended.code == 0, ended.err
        assert _metrics(tmp_path / "killed") == _metrics(tmp_path / "whole")
        _check_export(tmp_path, fake.path)
        fake.saved.clear()
        forgot = mother.run("--fork", f"{tmp_path / 'killed'}@3", "--run", tmp_path / "fork")
        assert forgot.code == 2
        assert f"the server at {url} does not have the state tinker://" in forgot.err
        assert "--checkpoints-base" in forgot.err
        assert not fake.loras


def _check_export(directory: Path, model: Path) -> None:
    """The LoRA loads with peft, the merged model with transformers, and both are the same model, not the base."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    for words in (["--out", directory / "lora"], ["--out", directory / "whole-model", "--merged"]):
        done = command("export", directory / "killed", "--checkpoint", "last", *words)
        assert done.returncode == 0, done.stderr
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        base: Any = AutoModelForCausalLM.from_pretrained(model)
        untrained = base(tokens).logits
        lora = PeftModel.from_pretrained(base, directory / "lora" / "executor")(tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(directory / "whole-model" / "executor")(tokens).logits
    assert float((lora - merged).abs().max()) < 1e-4
    assert float((lora - untrained).abs().max()) > 1e-4
    done = command("export", directory / "killed", "--out", directory / "lora")
    assert done.returncode == 2
    assert "exists already" in done.stderr


def _wait_for(file: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("rollout.temperature=0.7", "train at temperature 1 only"),
        ("model.lora_rank=0", "trains a LoRA, not the full weights"),
        ('model.sharing="separate"', "a server has one"),
        ('model.path="preset:tiny"', "needs the directory of a model"),
        ('model.base_url="localhost:8000"', "is not a URL"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_training(tmp_path: Path, setting: str, line: str) -> None:
    recipe, settings = _recipe(tmp_path, Target("http://127.0.0.1:9", tmp_path))
    done = command("train", recipe, "--run", tmp_path / "run", *settings, "--set", setting)
    assert done.returncode == 2
    assert line in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_port_where_nobody_listens_leaves_no_run_half_made(model: Path, tmp_path: Path) -> None:
    recipe, settings = _recipe(tmp_path, Target("http://127.0.0.1:9", model))
    done = command("train", recipe, "--run", tmp_path / "run", *settings)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "cannot be reached" in done.stderr
    assert os.environ.get("TINKER_API_KEY", "tml-") not in done.stderr or not os.environ.get("TINKER_API_KEY")


@pytest.mark.parametrize("engine", ["fsdp", "megatron", "jax"])
def test_the_command_for_a_cluster_fits_the_recipe(engine: str) -> None:
    done = command("cluster", "command", "paper_4b", "--nodes", 2, "--engine", engine)
    assert done.returncode == 0, done.stderr
    server = next(line for line in done.stdout.splitlines() if "skyrl.tinker.api" in line)
    settings = json.loads(shlex.split(server)[-1])
    expected = {"jax": ("fully_sharded_data_parallel_size", 16)}
    key, value = expected.get(engine, ("trainer.placement.policy_num_nodes", 2))
    assert settings[key] == value
    train = shlex.split(done.stdout.splitlines()[-1])
    changes = [word for flag, word in pairwise(train) if flag == "--set"]
    config = load_config(find_recipe("paper_4b"), changes)  # what it prints is a recipe that can be trained
    assert config.model.backend == "tinker"


def test_one_lora_is_all_that_fsdp_has(tmp_path: Path) -> None:
    recipe, _ = _recipe(tmp_path, Target("http://127.0.0.1:9", tmp_path))
    recipe.write_text(recipe.read_text().replace("deterministic", 'sharing = "lora", lora_rank = 4, deterministic'))
    done = command("cluster", "command", recipe)
    assert done.returncode == 2
    assert "FSDP has one" in done.stderr
    done = command("cluster", "command", recipe, "--engine", "megatron")
    assert '"trainer.policy.model.lora.max_loras": 2' in done.stdout
