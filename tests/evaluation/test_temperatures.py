"""Each role is sampled at its own temperature, in training and in evaluation, and trained at the one of training."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from metaagentx.config import load_config
from metaagentx.options import LossConfig
from metaagentx.policy import DEFAULT_LOSS, Datum, LossName
from metaagentx.rewards.graders import Graders
from metaagentx.sandbox import Sandbox
from metaagentx.types import Role
from tests.rollout_helpers import RIGHT, SINGLE, WRONG, Actor, Reply, design, resources
from tests.tiny_model import write_recipe
from tests.training_runs import train


class Pupil(Actor):
    """Keeps the temperatures at which it was trained."""

    def __init__(self, reply: Reply | str) -> None:
        super().__init__(reply)
        self.trained_at: set[float] = set()

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Mapping[str, float]:
        self.trained_at.add(temperature)
        return await super().forward_backward(data, loss, options, temperature)


@pytest.mark.parametrize(
    ("settings", "trained", "evaluated"),
    [
        ([], (1.0, 1.0), (1.0, 1.0)),
        (["rollout.temperature=0.7"], (0.7, 0.7), (0.7, 0.7)),
        (["rollout.executor_temperature=0.5", "evaluation.temperature=0"], (1.0, 0.5), (0.0, 0.0)),
        (["rollout.designer_temperature=1.2", "evaluation.executor_temperature=0"], (1.2, 1.0), (1.2, 0.0)),
    ],
)
def test_temperatures_by_role(
    settings: list[str],
    trained: tuple[float, float],
    evaluated: tuple[float, float],
    tmp_path: Path,
    runner: asyncio.Runner,
    sandbox: Sandbox,
    graders: Graders,
) -> None:
    stages = "{ steps = 1, designer = 1e-3, executor = 1e-3 }"
    recipe = write_recipe(tmp_path, "preset:nano", steps=1, stages=stages)
    sizes = ["tasks.per_step=3", "tasks.held_out=1", "evaluation.every=1", "evaluation.tasks=1"]
    sizes += ["rollout.designer_tokens=4096", "rollout.executor_tokens=4096"]
    config = load_config(recipe, [*sizes, *settings])

    def by_seed(conversation: list[dict[str, str]], seed: int) -> str:
        return RIGHT if seed % 2 else WRONG

    pupils = {Role.DESIGNER: Pupil(design(SINGLE)), Role.EXECUTOR: Pupil(by_seed)}
    shared = resources(Actor(""), Actor(""), sandbox, graders)
    runner.run(train(config, pupils, shared, tmp_path / "run"))
    for role, at_training, at_evaluation in zip(pupils, trained, evaluated, strict=True):
        asked = [params.temperature for params in pupils[role].asked]
        assert set(asked) == {at_training, at_evaluation} and asked[-1] == at_evaluation
        assert pupils[role].trained_at == {at_training}
