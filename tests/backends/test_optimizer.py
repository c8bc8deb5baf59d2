"""Muon: orthogonal updates for hidden matrices, AdamW for all else, saved and loaded to the bit."""

import asyncio
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.backends.local import LocalPolicy, load_model, new_model
from metaagentx.backends.local.optimizer import MUON_RATE, Muon, is_hidden, orthogonalized
from metaagentx.backends.local.training import Learner
from metaagentx.options import OptimizerConfig
from metaagentx.policy import Datum
from metaagentx.types import Role

MUON = OptimizerConfig(method="muon", beta2=0.99)


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 10**6))
def test_updates_are_nearly_orthogonal(rows: int, columns: int, seed: int) -> None:
    matrices = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed))
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    update = orthogonalized(matrices)
    assert update.shape == matrices.shape
    large = values > 0.05 * values[:, :1]  # five iterations do not raise the smallest ones to 1
    projected = torch.diagonal(left.mT @ update @ right.mT, dim1=1, dim2=2)
    assert bool(((projected[large] > 0.3) & (projected[large] < 1.3)).all())


def policy(path: Path, options: OptimizerConfig = MUON) -> LocalPolicy:
    if not path.exists():
        new_model(path, "nano", 0, ["What is 2 + 2? The answer is 4."])
    made = LocalPolicy(load_model(path), Role.DESIGNER, options=options)
    made.ensure_trainable()
    return made


def data(made: LocalPolicy) -> list[Datum]:
    tokens = tuple(made.tokenizer.encode_reply("What is 2 + 2? The answer is 4."))
    return [Datum(tokens, (0.0, *(1.0 for _ in tokens[1:])))]


def learner_of(made: LocalPolicy) -> Learner:
    assert made._learner is not None
    return made._learner


async def learn(made: LocalPolicy, steps: int, rate: float = 3e-3) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append((await made.forward_backward(data(made), "cross_entropy"))["loss"])
        await made.optim_step(rate)
    return losses


def test_only_matrices_within_the_layers_are_moved_by_muon(tmp_path: Path) -> None:
    learner = learner_of(policy(tmp_path / "model"))
    optimizer = learner.optimizer
    assert isinstance(optimizer, Muon)
    hidden = {id(weight) for weight in optimizer.param_groups[1]["params"]}
    names = {name for name, weight in learner.weights.items() if id(weight) in hidden}
    assert names and all(".layers." in name and name.endswith("_proj.weight") for name in names)
    assert not is_hidden("model.embed_tokens.weight", torch.zeros(2, 2))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(learner.weights)


def test_a_loaded_checkpoint_continues_bit_for_bit(runner: asyncio.Runner, tmp_path: Path) -> None:
    whole = policy(tmp_path / "model")
    losses = runner.run(learn(whole, 6))
    assert losses[-1] < losses[0] / 2
    assert [group["lr"] for group in learner_of(whole).optimizer.param_groups] == [3e-3, 3e-3 * MUON_RATE]

    first = policy(tmp_path / "model")
    assert runner.run(learn(first, 3)) == losses[:3]
    runner.run(first.save(tmp_path / "saved"))
    second = policy(tmp_path / "model")
    runner.run(second.load(tmp_path / "saved"))
    assert runner.run(learn(second, 3)) == losses[3:]
    ours, theirs = (made.model.module.state_dict() for made in (whole, second))
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_adamw_remains_the_default(tmp_path: Path) -> None:
    optimizer = learner_of(policy(tmp_path / "model", OptimizerConfig())).optimizer
    assert type(optimizer) is torch.optim.AdamW


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_a_rate_of_zero_changes_nothing(rate: float, runner: asyncio.Runner, tmp_path: Path) -> None:
    made = policy(tmp_path / "model")
    before = {name: weight.clone() for name, weight in made.model.module.state_dict().items()}
    runner.run(learn(made, 1, rate))
    after = made.model.module.state_dict()
    assert all(bool((before[name] == after[name]).all()) for name in before) == (rate == 0)
