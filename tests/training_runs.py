"""Training runs for tests, with any policies, real sandbox and real graders."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from metaagentx.config import Config, to_toml
from metaagentx.policy import GivesLogprobs, Policy
from metaagentx.progress import TrainingProgress
from metaagentx.rollout.tree import Resources
from metaagentx.runs import Run
from metaagentx.system.models import build_samplers
from metaagentx.training.loggers import open_loggers
from metaagentx.training.trainer import Trainer
from metaagentx.types import JSON, Role


def trainer_of(
    config: Config, policies: Mapping[Role, Policy], shared: Resources, run: Run, progress: TrainingProgress | None
) -> Trainer:
    """A trainer whose samplers are those of the configuration."""
    resources = replace(shared, samplers=build_samplers(config, policies))
    loggers = open_loggers([], run.directory, "test", {})
    return Trainer(config, policies, resources, config.load_tasks(), run, progress or TrainingProgress(0), loggers)


async def train(
    config: Config,
    policies: Mapping[Role, Policy],
    shared: Resources,
    directory: Path,
    references: Mapping[Role, GivesLogprobs] | None = None,
) -> Run:
    """Train from the beginning, or from where the run stands if it is there."""
    there = (directory / "run.json").exists()
    with Run.resume(directory) if there else Run.create(directory, to_toml(config)) as run, run.training():
        await replace(trainer_of(config, policies, shared, run, None), references=references).train()
    return run


def timeless(line: Mapping[str, JSON]) -> dict[str, JSON]:
    """The metrics of a step but for those that measure time and load."""
    return {name: value for name, value in line.items() if not name.startswith(("seconds/", "engine/"))}
