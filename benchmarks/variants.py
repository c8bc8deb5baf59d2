"""What `benchmarks.compare` trains: the recipe as it stands, and variants of it.

Variants are made from the recipe's own stages, so their learning rates and epochs are the recipe's. `Variant.counts`
says what a variant costs, so that every comparison can state what is equal: executions, and updates of each role (an
update is one optimizer step). A joint step updates both roles, and a stagewise step one of them, so at equal executions
joint training makes twice the updates, and at equal updates half the executions. Halving the epochs makes both equal.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

from metaagentx.cli.quickstart_parts import FULL_SIZE, SMALL, SMALL_OVERRIDES, QuickstartSize
from metaagentx.config import Config, StageConfig, load_config
from metaagentx.errors import MetaAgentXError
from metaagentx.training.stages import stage_at
from metaagentx.types import Role

RECIPE = Path("recipes/tiny.toml")
STEPS = 36
"""Steps of a variant, at least: the default is the next multiple of what the stages of all variants need."""
LORA_RANK, LORA_RATE = 16, 4.0
"""LoRAs have this rank and this many times the recipe's learning rates: they need larger ones than full weights."""
WHOLE, COLD = "recipe", "cold start"
DESIGNER_ONLY, EXECUTOR_ONLY = "designer only", "executor only"
STAGES, ALTERNATION = "stages", "one-step alternation"
JOINT, JOINT_STEPS, JOINT_EPOCHS = "joint", "joint, half the steps", "joint, half the epochs"
SHORT, LONG = "short stages", "long stages"
BY_TASK, BY_DESIGN = "executor peers: task", "executor peers: design"
NO_ANCHOR = "no anchor"
ONE_LORA, TWO_LORAS, SEPARATE = "one LoRA", "a LoRA for each role", "separate weights"


class Counts(NamedTuple):
    """What a training costs. A step in which no reward differs makes fewer updates."""

    steps: int
    executions: int
    designer_updates: int
    executor_updates: int


@dataclass(frozen=True, slots=True)
class Variant:
    """A change of the recipe, and what it is measured against."""

    name: str
    overrides: tuple[str, ...]
    against: str
    config: Config

    @property
    def counts(self) -> Counts:
        """Return the steps, the executions and the updates of each role."""
        config, steps = self.config, self.config.steps
        updates = dict.fromkeys(Role, 0)
        for step in range(steps):
            stage = stage_at(step, config.stages)
            for role in stage.learning_rates:
                updates[role] += stage.epochs * config.optimizer.updates_per_step
        executions = steps * config.tasks.per_step * config.rollout.designs * config.rollout.executions
        return Counts(steps, executions, updates[Role.DESIGNER], updates[Role.EXECUTOR])


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a comparison."""

    small: bool = False
    """Every part in seconds: shows that everything works, and learns nothing."""
    steps: int | None = None
    """Of a variant; None for the default."""
    tasks: int | None = None
    """Of each family in the evaluation; None for as many as the quickstart has."""

    @property
    def base(self) -> tuple[str, ...]:
        """Return the overrides of the recipe that all trainings share. A variant that collapses is measured, too."""
        return (*(SMALL_OVERRIDES if self.small else ()), "evaluation.every=0", "run.stop_after_failed_steps=0")

    @property
    def size(self) -> QuickstartSize:
        """Return the size of the cold start and of the evaluation."""
        size = SMALL if self.small else FULL_SIZE
        return size if self.tasks is None else replace(size, test_tasks=self.tasks)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the options of the command that make this plan."""
        numbers = {"--steps": self.steps, "--tasks": self.tasks}
        given = [word for name, number in numbers.items() if number is not None for word in (name, str(number))]
        return (*(("--small",) if self.small else ()), *given)


def variants(plan: Plan) -> dict[str, Variant]:
    """Return the recipe and its variants by name: two as long as the recipe, the others as long as the plan says."""
    recipe = load_config(RECIPE, plan.base)
    stages, cycle = recipe.stages, sum(stage.steps for stage in recipe.stages)
    if sorted(len(stage.learning_rates) for stage in stages) != [1, 1] or _roles(stages) != set(Role):
        raise MetaAgentXError(f"{RECIPE}: the variants are made from one stage for each role, got {len(stages)} stages")
    least = 2 * cycle  # stages of twice the length
    steps = plan.steps or -(-(1 if plan.small else STEPS) // least) * least
    if steps % least:
        raise MetaAgentXError(f"--steps {steps}: expected a multiple of {least}, so that both roles learn equally long")
    base = WHOLE if steps == recipe.steps else STAGES
    made: dict[str, Variant] = {}

    def add(name: str, against: str, *changes: str, steps: int = steps) -> None:
        overrides = (*changes, f"steps={steps}")
        made[name] = Variant(name, overrides, against, load_config(RECIPE, [*plan.base, *overrides]))

    first, second = stages
    designer, executor = sorted(stages, key=lambda stage: stage.designer is None)
    add(WHOLE, "", steps=recipe.steps)
    add(DESIGNER_ONLY, WHOLE, _set_stages(designer), steps=recipe.steps)
    add(EXECUTOR_ONLY, WHOLE, _set_stages(executor), steps=recipe.steps)
    if base == STAGES:
        add(STAGES, "")
    # An anchor acts only where one role learns on shared weights: what cannot have one is compared with none.
    loose = [stage.model_copy(update={"anchor": 0.0}) for stage in stages]
    plain = base
    if any(stage.anchor for stage in stages):
        plain = NO_ANCHOR
        add(NO_ANCHOR, base, _set_stages(*loose))
    both = executor.model_copy(update={"steps": 1, "designer": designer.designer, "anchor": 0.0})
    add(JOINT, plain, _set_stages(both))
    add(JOINT_STEPS, plain, _set_stages(both), steps=steps * executor.steps // cycle)
    if half := both.epochs // 2:
        parts = [both.model_copy(update={"epochs": epochs}) for epochs in (half, both.epochs - half)]
        add(JOINT_EPOCHS, plain, _set_stages(*parts))
    add(ALTERNATION, base, _set_stages(*_alternate(first, second)))
    if min(stage.steps for stage in stages) >= 3:
        add(SHORT, base, _set_stages(*(_lasting(stage, stage.steps // 3) for stage in stages)))
    add(LONG, base, _set_stages(*(_lasting(stage, 2 * stage.steps) for stage in stages)))
    other = BY_DESIGN if recipe.credit.executor_peers == "task" else BY_TASK
    add(other, base, f'credit.executor_peers="{other.rpartition(" ")[2]}"')
    total = recipe.rollout.designs * recipe.rollout.executions
    for executions in range(recipe.rollout.executions - 1, 0, -1):
        if total % executions == 0:
            shape = [f"rollout.designs={total // executions}", f"rollout.executions={executions}"]
            # The only execution of a design has no peers among its siblings.
            alone = executions == 1 and other == BY_TASK
            add(
                f"{total // executions} designs x {executions}",
                BY_TASK if alone else base,
                *shape,
                *(('credit.executor_peers="task"',) if alone else ()),
            )
    rates = [_faster(stage) for stage in loose]
    lora = (f"model.lora_rank={LORA_RANK}", _set_stages(*rates))
    add(ONE_LORA, plain, *lora)
    add(TWO_LORAS, ONE_LORA, 'model.sharing="lora"', *lora)
    add(SEPARATE, plain, 'model.sharing="separate"', _set_stages(*loose))
    return made


def _roles(stages: Sequence[StageConfig]) -> set[Role]:
    return {role for stage in stages for role in stage.learning_rates}


def _lasting(stage: StageConfig, steps: int) -> StageConfig:
    return stage.model_copy(update={"steps": steps})


def _faster(stage: StageConfig) -> StageConfig:
    return stage.model_copy(update={str(role): rate * LORA_RATE for role, rate in stage.learning_rates.items()})


def _alternate(first: StageConfig, second: StageConfig) -> list[StageConfig]:
    """Return stages of one step, as many of each role as before, spread evenly."""
    common = gcd(first.steps, second.steps)
    share, count = second.steps // common, (first.steps + second.steps) // common
    turns = [(step + 1) * share // count > step * share // count for step in range(count)]
    return [_lasting(second if turn else first, 1) for turn in turns]


def _set_stages(*stages: StageConfig) -> str:
    """Return the override that sets the stages."""
    tables = (stage.model_dump(mode="json", exclude_none=True) for stage in stages)
    return f"stages=[{', '.join(map(_inline_table, tables))}]"


def _inline_table(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}={json.dumps(value)}" for key, value in values.items()) + "}"
