"""Both roles learn: from a fixed seed the reward rises, and with the advantage's sign turned round it does not."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from metaagentx.backends.local.build import build_policies
from metaagentx.backends.local.policy import LocalPolicy
from metaagentx.config import load_config
from metaagentx.options import LossConfig
from metaagentx.policy import DEFAULT_LOSS, Datum, LossName, Metrics
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import Resources
from metaagentx.runs import Run
from metaagentx.sandbox import Sandbox
from metaagentx.types import Role, Rollout
from tests.rollout_helpers import Actor, resources
from tests.tiny_model import school_once, write_recipe
from tests.training_runs import train

STEPS, STAGE = 20, 4
STAGES = f"{{ steps = {STAGE}, designer = 1.5e-3 }}, {{ steps = {STAGE}, executor = 1.5e-3 }}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return school_once(tmp_path_factory)


class Turned(LocalPolicy):
    """Learns to do what was worse than the others."""

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Metrics:
        turned = [replace(datum, advantage=-datum.advantage) for datum in data]
        return await super().forward_backward(turned, loss, options, temperature)


def learn(directory: Path, model: Path, shared: Resources, sign: int) -> Coroutine[None, None, Run]:
    # What the turned one unlearns at last is the language itself.
    recipe = write_recipe(directory, model, steps=STEPS, stages=STAGES)
    config = load_config(recipe, ["run.stop_after_failed_steps=0"])
    built = build_policies(config.model, directory, config.seed)
    kind = LocalPolicy if sign > 0 else Turned
    policies = {role: kind(policy.model, role, policy.engine) for role, policy in built.policies.items()}
    return train(config, policies, shared, directory / "run")


def thinking(rollouts: Sequence[Rollout]) -> float:
    """The share of designs whose agent thinks: what the Designer has to find out."""
    scripts = [design.script or "" for tree in rollouts for design in tree.designs]
    return fmean("Think." in script for script in scripts)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_reward_of_both_roles_rises(
    sign: int, model: Path, tmp_path: Path, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    run = runner.run(learn(tmp_path, model, resources(Actor(""), Actor(""), sandbox, graders), sign))
    # Where no script can run any more nothing is executed, and that is worth nothing.
    rewards = {role: [float(str(line.get(f"reward/{role}", 0.0))) for line in run.metrics()] for role in Role}
    risen = {role: fmean(found[-4:]) - fmean(found[:2]) for role, found in rewards.items()}
    chosen = thinking(run.rollouts(STAGE)) - thinking(run.rollouts(0))  # the Executor has not learnt anything yet
    if sign > 0:
        assert all(rise > 0.3 for rise in risen.values()), risen
        assert chosen > 0.2
    else:
        assert all(rise < -0.2 for rise in risen.values()), risen
        assert chosen < -0.2


def test_ratios_begin_at_one_whatever_the_temperature(
    model: Path, tmp_path: Path, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    stages = "{ steps = 1, designer = 1e-9, executor = 1e-9 }"
    recipe = write_recipe(tmp_path, model, steps=1, stages=stages)
    config = load_config(recipe, ["rollout.temperature=0.6", "loss.kl=0.1"])
    built = build_policies(config.model, tmp_path, config.seed, config.optimizer, with_reference=True)
    shared = resources(Actor(""), Actor(""), sandbox, graders)
    run = runner.run(train(config, built.policies, shared, tmp_path / "run", references=built.references))
    (found,) = run.metrics()
    for role in Role:
        assert found[f"{role}/ratio"] == pytest.approx(1, abs=1e-3)
        assert found[f"{role}/kl"] == pytest.approx(0, abs=1e-6)  # the reference is the model itself
