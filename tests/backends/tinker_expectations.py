"""What must hold of the tinker backend on a server: tests/backends runs it on a fake, tests/cluster on a real one."""

import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch
from safetensors.torch import load_file
from tinker import types

from metaagentx.backends.local.model import LoraOptions, load_model
from metaagentx.backends.local.policy import LocalPolicy
from metaagentx.backends.tinker.build import TinkerPolicies, connect_policies
from metaagentx.backends.tinker.policy import TinkerPolicy
from metaagentx.options import LossConfig, ModelConfig, OptimizerConfig
from metaagentx.policy import Datum, LossName, SamplingParams
from metaagentx.types import Role

RANK = 8
LOSSES: dict[str, tuple[LossName, LossConfig]] = {
    "cross-entropy": ("cross_entropy", LossConfig()),
    "the paper's": ("ppo", LossConfig()),
    "no dual clip": ("ppo", LossConfig(dual_clip=False)),
    "clip higher": ("ppo", LossConfig(clip_low=0.1, clip_high=0.4)),
    "mean of sequence means": ("ppo", LossConfig(normalize="sequence")),
    "sum by a constant": ("ppo", LossConfig(normalize="constant", constant=50.0)),
    "one ratio for a sequence": ("ppo", LossConfig(sequence_ratio=True)),
    "KL term": ("ppo", LossConfig(kl=0.3)),
    "truncated importance sampling": ("ppo", LossConfig(truncate_ratio=1.1)),
    "all at once": (
        "ppo",
        LossConfig(normalize="sequence", sequence_ratio=True, kl=0.1, truncate_ratio=1.5, clip_high=0.3, dual_clip=2.0),
    ),
}


@dataclass(frozen=True)
class Target:
    """A server and its model."""

    url: str
    model: Path
    micro_batch: int = 4

    def options(self, **changes: Any) -> ModelConfig:
        settings = {"backend": "tinker", "path": str(self.model), "base_url": self.url, "lora_rank": RANK}
        settings |= {"sharing": "lora", "micro_batch": self.micro_batch, "server_seconds": 120.0}
        return ModelConfig.model_validate(settings | changes)


@asynccontextmanager
async def connected(target: Target, directory: Path, **changes: Any) -> AsyncIterator[TinkerPolicies]:
    """The policies of a run; its adapters are freed at the end."""
    built = await connect_policies(target.options(**changes), directory, 0, OptimizerConfig())
    try:
        yield built
    finally:
        await built.server.close()


async def some_data(policy: TinkerPolicy, count: int = 5) -> list[Datum]:
    """Replies of the model with advantages of both signs; their log-probabilities are off, so that ratios clip."""
    numbers, data = random.Random(0), []
    for index in range(count):
        prompt = policy.tokenizer.encode_chat([{"role": "user", "content": f"{index} + 1?"}])
        reply = await policy.sample(prompt, SamplingParams(8 + index, seed=index))
        zeros = (0.0,) * len(prompt)
        behavior = tuple(value + numbers.uniform(-0.6, 0.6) for value in reply.logprobs)
        reference = tuple(value + numbers.uniform(-0.3, 0.3) for value in reply.logprobs)
        data.append(
            Datum(
                (*prompt, *reply.tokens),
                zeros + (1.0,) * len(reply.tokens),
                numbers.uniform(-1, 1) if index else -2.0,
                zeros + behavior,
                zeros + reference,
            )
        )
    # One token so much likelier than when it was sampled that dual clip holds it back.
    first = data[0]
    assert first.logprobs is not None
    data[0] = replace(first, logprobs=(*first.logprobs[:-1], first.logprobs[-1] - 2.0))
    return data


async def train_a_little(policy: TinkerPolicy, data: list[Datum], steps: int = 3, rate: float = 3e-3) -> list[float]:
    """Steps of cross-entropy; return the losses."""
    losses = []
    for _ in range(steps):
        losses.append((await policy.forward_backward(data, "cross_entropy"))["loss"])
        await policy.optim_step(rate)
    return losses


def load_locally(checkpoint: Path, model: Path) -> LocalPolicy:
    """The checkpoint's LoRA in the local backend."""
    return LocalPolicy(load_model(model, device="cpu", lora=LoraOptions(RANK, 32)), "local")


async def logprobs_agree(target: Target, directory: Path) -> None:
    """Trainer, sampler and local backend give the same log-probabilities of a LoRA that was trained."""
    async with connected(target, directory) as built:
        policy = built.policies[Role.DESIGNER]
        await train_a_little(policy, await some_data(policy))
        prompt = policy.tokenizer.encode_chat([{"role": "user", "content": "2 + 2?"}])
        reply = await policy.sample(prompt, SamplingParams(12, seed=1))
        datum = Datum((*prompt, *reply.tokens), (0.0,) * len(prompt) + (1.0,) * len(reply.tokens))
        (trainer,) = await policy.logprobs([datum])
        await policy.save(directory / "designer")
        local = load_locally(directory / "designer", target.model)
        (untrained,) = await local.logprobs([datum])
        await local.load_weights(directory / "designer")
        (here,) = await local.logprobs([datum])
    sampler = [*(0.0 for _ in prompt), *reply.logprobs]
    assert difference(trainer, sampler) < 1e-4
    assert difference(trainer, here) < 1e-4
    assert difference(trainer, untrained) > 1e-2  # the LoRA makes a difference


def difference(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


async def learns_and_leaves_the_other_alone(target: Target, directory: Path) -> None:
    """Cross-entropy on a fixed batch falls, and the other role's LoRA stays the same to the bit."""
    async with connected(target, directory) as built:
        designer, executor = built.policies[Role.DESIGNER], built.policies[Role.EXECUTOR]
        asked = designer.tokenizer.encode_chat([{"role": "user", "content": "How?"}])
        replies = [designer.tokenizer.encode_reply(text) for text in ("green", "42", "a board of squares", "no")]
        data = [Datum((*asked, *reply), (0.0,) * len(asked) + (1.0,) * len(reply)) for reply in replies]
        await train_a_little(executor, data, steps=1)
        await executor.save(directory / "before" / "executor")
        losses = await train_a_little(designer, data, steps=8, rate=1e-2)
        executor.lora.version += 1  # or it would not be saved again
        await executor.save(directory / "after" / "executor")
    assert losses[-1] < 0.7 * losses[0]
    before, after = (
        load_file(directory / name / "executor" / "adapter_model.safetensors") for name in ("before", "after")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


async def gradients_are_the_local_ones(target: Target, directory: Path) -> None:
    """For every loss: the gradient on the server is the local backend's, on the same LoRA."""
    async with connected(target, directory) as built:
        policy = built.policies[Role.DESIGNER]
        data = await some_data(policy)
        await train_a_little(policy, data)
        await policy.save(directory / "start")
        start = await policy.lora.save()
        local = load_locally(directory / "start", target.model)
        await local.load_weights(directory / "start")
        weights = load_file(directory / "start" / "adapter_model.safetensors")
        for name, (loss, options) in LOSSES.items():
            metrics = await policy.forward_backward(data, loss, options)
            (gradient,) = policy._gradients
            policy._gradients = []
            # With an epsilon that is far larger than the gradient, Adam's first step is the gradient times a constant.
            adam = types.AdamParams(learning_rate=1e7, eps=1e4, beta1=0.0, beta2=0.0)
            if name == "cross-entropy":
                fresh = start.state
            norm = await policy.lora._step(gradient.parts, adam)
            policy.lora.version += 1
            await policy.save(directory / "moved")
            moved = load_file(directory / "moved" / "adapter_model.safetensors")
            await policy.lora.load(fresh)
            here = await local.forward_backward(data, loss, options)
            expected = {_file_name(key): value for key, value in local._get_learner().gradients.items()}
            local._get_learner().gradients = {}
            expected = _sum_tied(expected, weights)
            ratio, cosine = compare({key: (weights[key] - moved[key]) / 1e3 for key in expected}, expected)
            assert abs(ratio - 1) < 0.01 and cosine > 0.99, f"{name}: ratio {ratio:.4f}, cosine {cosine:.4f}"
            if norm is not None:
                total = math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
                assert abs(norm / total - 1) < 0.01, name
            for key in metrics:
                assert math.isclose(metrics[key], here[key], rel_tol=1e-3, abs_tol=1e-4) or key == "packed_tokens", key


def _sum_tied(gradients: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradient where equal matrices are one: JAX has one lora_A for q, k and v, and one for gate and up."""
    tied: dict[bytes, str] = {}
    sums: dict[str, torch.Tensor] = {}
    for name, gradient in gradients.items():
        first = tied.setdefault(weights[name].numpy().tobytes(), name)
        sums[first] = sums[first] + gradient if first in sums else gradient
    return sums


def _file_name(name: str) -> str:
    return name.replace(".default.", ".")


def compare(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """The ratio of the norms of two gradients, and their cosine."""
    assert found.keys() == expected.keys()
    left = torch.cat([found[name].flatten() for name in expected]).double()
    right = torch.cat([expected[name].flatten() for name in expected]).double()
    return float(left.norm() / right.norm()), float(left @ right / (left.norm() * right.norm()))


async def resumes(target: Target, directory: Path, sharing: Literal["lora", "shared"]) -> None:
    """A new process goes on from a checkpoint as if there had been none; both roles on one LoRA save it once."""
    async with connected(target, directory, sharing=sharing) as built:
        policies = built.policies
        data = await some_data(policies[Role.DESIGNER])
        await train_a_little(policies[Role.EXECUTOR], data)
        for role, policy in policies.items():
            await policy.save(directory / "checkpoint" / role)
        expected = await train_a_little(policies[Role.EXECUTOR], data)
    assert (directory / "checkpoint" / "executor" / "shared.json").exists() == (sharing == "shared")
    async with connected(target, directory, sharing=sharing) as built:
        for role, policy in built.policies.items():
            await policy.load(directory / "checkpoint" / role)
        again = await train_a_little(built.policies[Role.EXECUTOR], data)
    assert difference(expected, again) < 1e-4, (expected, again)
