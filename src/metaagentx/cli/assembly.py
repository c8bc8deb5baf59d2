"""Build the running system from a recipe: policies, samplers, sandbox, graders and tasks.

`train`, `eval`, `coldstart` and the quickstart share it. Cheap checks come first, then the run directory is created,
then models are loaded.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..atomic import friendly_io_errors, friendly_read_errors
from ..coldstart.collect import CollectOptions, collect_demonstrations, teacher_tasks
from ..coldstart.demonstrations import Demonstration, TeacherUsage
from ..config import Config, load_recipe, portable, to_toml
from ..errors import MetaAgentXError
from ..policy import BackendError, ChatModel, GivesLogprobs, Policy
from ..progress import TrainingProgress, print_line
from ..rollout.tree import RolloutOptions
from ..runs import Run
from ..runs.run import refuse_existing
from ..system.models import load_run_recipe, open_resources
from ..tasks import Mixture
from ..training.loggers import open_loggers
from ..training.trainer import Trainer
from ..types import Role
from .memory_check import check_memory
from .preflight import prepare_training


async def train_run(run: Run, config: Config, tasks: Mixture | None = None) -> None:
    """Train a run from where it stands to its last step. `tasks` are the recipe's, if they are loaded already."""
    with run:
        if run.next_step >= config.steps:
            return
        tasks = tasks or config.load_tasks()
        async with _open_policies(run, config) as (policies, references):
            progress = TrainingProgress(config.steps, run.next_step)
            name = run.directory.resolve().name
            with open_loggers(config.run.loggers, run.directory, name, config.model_dump(mode="json")) as loggers:
                async with open_resources(config, policies, lambda execution: progress.executed()) as resources:
                    with progress, run.training():
                        trainer = Trainer(
                            config, policies, resources, tasks, run, progress, loggers, references=references
                        )
                        await trainer.train()


@asynccontextmanager
async def _open_policies(
    run: Run, config: Config
) -> AsyncIterator[tuple[Mapping[Role, Policy], Mapping[Role, GivesLogprobs] | None]]:
    """Yield the policies to train, and those that a KL term is measured against."""
    settings, with_reference = (config.model, run.directory, config.seed, config.optimizer), config.loss.kl > 0
    if config.model.backend == "local":
        from ..backends.local.build import build_policies

        for line in check_memory(config, run.directory):
            print_line(line)
        with _loading(run):
            built = build_policies(*settings, with_reference=with_reference, for_training=True)
        yield built.policies, built.references
        return
    from ..backends.tinker.build import connect_policies

    try:
        with _loading(run):
            connected = await connect_policies(*settings, with_reference=with_reference)
    except BackendError as error:
        raise MetaAgentXError(str(error)) from error
    try:
        yield connected.policies, connected.references
    finally:
        await connected.server.close()


@contextmanager
def _loading(run: Run) -> Iterator[None]:
    """Report file errors while a model is loaded in one line, also when the run directory is moved meanwhile."""
    try:
        with friendly_io_errors(str(run.directory), "free some disk space and try again"), friendly_read_errors():
            yield
    except MetaAgentXError:
        run.check_not_moved()
        raise
    run.check_not_moved()


async def collect_from_teacher(
    config: Config, model: ChatModel, options: CollectOptions, directory: Path
) -> tuple[list[Demonstration], TeacherUsage]:
    """Let a teacher play both roles with the recipe's settings, and return its demonstrations."""
    tasks = teacher_tasks(config, options)
    async with open_resources(config, dict.fromkeys(Role, model)) as resources:
        return await collect_demonstrations(tasks, resources, RolloutOptions.of(config), options, directory)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that passed every check."""

    run: Run
    config: Config
    tasks: Mixture | None
    """The training tasks; None if nothing is left to train."""


def start_run(recipe: Path, directory: Path, overrides: list[str]) -> PreparedRun:
    """Create a run from a recipe."""
    loaded = load_recipe(recipe, overrides)
    refuse_existing(directory)
    tasks = prepare_training(loaded, directory)
    run = Run.create(directory, to_toml(portable(loaded.config, directory)), recipe.stem)
    return PreparedRun(run, loaded.config, tasks)


def resume_run(directory: Path) -> PreparedRun:
    """Open a run to train on, with the resolved recipe in its directory."""
    run = Run.resume(directory)
    recipe = load_run_recipe(run)
    finished = run.next_step >= recipe.config.steps
    return PreparedRun(run, recipe.config, None if finished else prepare_training(recipe, directory))


def fork_run(source: str, directory: Path, overrides: list[str]) -> PreparedRun:
    """Create a run that starts from the checkpoint `RUN@STEP`, with the recipe of that run and the overrides."""
    origin, at, step = source.rpartition("@")
    if not at or not step.isdecimal():
        raise MetaAgentXError(f"--fork {source!r}: expected RUN@STEP, such as runs/first@40")
    run = Run.open(Path(origin))
    run.checkpoint_at(int(step))
    recipe = load_run_recipe(run, overrides)
    refuse_existing(directory)
    tasks = prepare_training(recipe, directory)
    text = to_toml(portable(recipe.config, directory))
    return PreparedRun(Run.fork(run.directory, int(step), directory, text), recipe.config, tasks)
