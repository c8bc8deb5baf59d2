"""From a recipe to running machinery: policies, speakers, sandbox, graders and tasks, and their end.

What `train`, `eval` and the quickstart have in common. Models are loaded first: a bad path costs no time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from .calls import Speaker
from .config import Config, load_config, to_toml
from .errors import MetaAgentXError
from .loggers import open_loggers
from .policy import Policy
from .progress import TrainingProgress
from .rewards.graders import Graders
from .rollout import Resources
from .runs import Run
from .sandbox import Sandbox
from .tasks import Mixture
from .trainer import Trainer
from .types import Execution, Role


def speakers_of(config: Config, policies: Mapping[Role, Policy]) -> dict[Role, Speaker]:
    """How each role is asked."""
    wanted = config.rollout
    most = {Role.DESIGNER: wanted.designer_tokens, Role.EXECUTOR: wanted.executor_tokens}
    return {
        role: Speaker(role, policy, most[role], wanted.temperature, wanted.sample_seconds, wanted.retries)
        for role, policy in policies.items()
    }


@asynccontextmanager
async def open_resources(
    config: Config, policies: Mapping[Role, Policy], on_execution: Callable[[Execution], None] = lambda execution: None
) -> AsyncIterator[Resources]:
    """Sandbox and graders for these policies."""
    in_flight = config.rollout.in_flight
    async with Sandbox(max_runs=in_flight + 64) as sandbox, Graders() as graders:
        speakers = speakers_of(config, policies)
        yield Resources(speakers, sandbox, graders, asyncio.Semaphore(in_flight), on_execution)


def mixture_of(config: Config) -> Mixture:
    """The training tasks."""
    return Mixture(config.tasks.train, config.seed, config.tasks.held_out, data_dir=config.tasks.data_dir)


async def train(run: Run, config: Config) -> None:
    """Train a run to its last step, from where it stands."""
    from .backends.local.build import build_policies

    with run:
        if run.next_step >= config.steps:
            return
        built = build_policies(config, run.directory)
        tasks = mixture_of(config)
        progress = TrainingProgress(config.steps, run.next_step)
        name = run.directory.resolve().name
        with open_loggers(config.run.loggers, run.directory, name, config.model_dump(mode="json")) as loggers:
            async with open_resources(config, built.policies, lambda execution: progress.executed()) as resources:
                with progress:
                    trainer = Trainer(config, built.policies, resources, tasks, run, progress, loggers)
                    await replace(trainer, references=built.references).train()


def start_run(recipe: Path, directory: Path, overrides: list[str]) -> tuple[Run, Config]:
    """A new run with a recipe."""
    config = load_config(recipe, overrides)
    return Run.create(directory, to_toml(config)), config


def resume_run(directory: Path) -> tuple[Run, Config]:
    """A run as it stands, with its own resolved recipe."""
    run = Run.resume(directory)
    return run, load_config(directory / "config.toml")


def fork_run(source: str, directory: Path, overrides: list[str]) -> tuple[Run, Config]:
    """A new run that goes on from `RUN@STEP`, with other settings where overrides say so."""
    origin, at, step = source.rpartition("@")
    if not at or not step.isdecimal():
        raise MetaAgentXError(f"{source!r} names no step to fork from: write RUN@STEP, such as runs/first@40")
    config = load_config(Path(origin) / "config.toml", overrides)
    return Run.fork(Path(origin), int(step), directory, to_toml(config)), config
