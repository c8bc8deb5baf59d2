"""From a recipe to running machinery: policies, speakers, sandbox, graders and tasks, and their end.

What `train`, `eval` and the quickstart have in common. What is cheap to check is checked first, then the run directory
is made, then models are loaded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from .calls import Speaker
from .coldstart import Bill, Row, Teaching, collect
from .config import Config, Recipe, load_recipe, portable, to_toml
from .errors import MetaAgentXError
from .loggers import open_loggers
from .policy import Policy
from .preflight import prepare_training
from .progress import TrainingProgress
from .rewards.graders import Graders
from .rollout import Resources
from .runs import Run
from .runs.files import directory_appears, explained, explained_reading
from .runs.run import refuse_existing
from .sandbox import Sandbox
from .settings import mixture_of, rollout_options
from .sft import SftOptions, teach
from .tasks import Mixture
from .trainer import Trainer
from .types import Execution, Role, Task

TAUGHT_FROM = 10**8
"""Where in the stream of tasks a teacher's are, far from those that training begins with."""
TEACHER_ROLLOUT = {
    "designs": 1,
    "executions": 1,
    "designer_tokens": 8192,
    "executor_tokens": 8192,
    "execution_seconds": 2400.0,  # a reply of that length may take minutes
}
"""For a teacher, in place of what a recipe says of these keys: that is about the student's training."""


def speakers_of(config: Config, policies: Mapping[Role, Policy]) -> dict[Role, Speaker]:
    """How each role is asked."""
    wanted = config.rollout
    most = {Role.DESIGNER: wanted.designer_tokens, Role.EXECUTOR: wanted.executor_tokens}
    return {
        role: Speaker(role, policy, most[role], wanted.temperature, wanted.try_seconds, wanted.retries)
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


async def train(run: Run, config: Config, tasks: Mixture | None = None) -> None:
    """Train a run to its last step, from where it stands. `tasks` are the recipe's, if they were made before."""
    with run:
        if run.next_step >= config.steps:
            return
        tasks = tasks or mixture_of(config)
        from .backends.local.build import build_policies

        with _loading(run):
            built = build_policies(config, run.directory, learns=True)
        progress = TrainingProgress(config.steps, run.next_step)
        name = run.directory.resolve().name
        with open_loggers(config.run.loggers, run.directory, name, config.model_dump(mode="json")) as loggers:
            async with open_resources(config, built.policies, lambda execution: progress.executed()) as resources:
                with progress, run.training():
                    trainer = Trainer(config, built.policies, resources, tasks, run, progress, loggers)
                    await replace(trainer, references=built.references).train()


@contextmanager
def _loading(run: Run) -> Iterator[None]:
    """What goes wrong with files while a model is loaded becomes one line, also when the run is moved meanwhile."""
    try:
        with explained(str(run.directory), "make room and try again"), explained_reading():
            yield
    except MetaAgentXError:
        run.must_be_here()
        raise
    run.must_be_here()


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a teacher is asked."""

    count: int
    """Tasks."""
    teacher: str
    """Its name, kept with every row."""
    manual: bool = True
    """Whether it reads the language's manual."""
    tasks: str | None = None
    """A mixture; None: the recipe's training tasks."""
    seed: int | None = None
    """Of the order of tasks and the teacher's draws; None: the recipe's."""
    batch: int = 256
    """Tasks that are done together and written down."""
    targets: Mapping[Role, int] = field(default_factory=dict)
    """How many rows of a role are enough."""


def teacher_tasks(config: Config, lesson: Lesson) -> Sequence[Task]:
    """What the teacher solves: nothing that training by this recipe holds out."""
    training = mixture_of(config)
    tasks, seed = lesson.tasks or config.tasks.train, config.seed if lesson.seed is None else lesson.seed
    if (tasks, seed) == (config.tasks.train, config.seed):
        return training.stretch(TAUGHT_FROM, lesson.count)
    mixture = Mixture(tasks, seed, data_dir=config.tasks.data_dir, excluded=training.held_fingerprints)
    return mixture.stretch(TAUGHT_FROM, lesson.count)


async def ask_teacher(config: Config, policy: Policy, lesson: Lesson, directory: Path) -> tuple[list[Row], Bill]:
    """What a teacher's rollouts, with the recipe's settings, are worth keeping."""
    tasks = teacher_tasks(config, lesson)
    async with open_resources(config, dict.fromkeys(Role, policy)) as resources:
        teaching = Teaching(
            tasks,
            resources,
            rollout_options(config),
            lesson.teacher,
            lesson.manual,
            config.seed if lesson.seed is None else lesson.seed,
            lesson.batch,
            lesson.targets,
        )
        return await collect(teaching, directory)


async def teach_model(rows: Sequence[Row], model: str, out: Path, options: SftOptions, work: Path) -> list[float]:
    """A model that has learnt both roles on shared weights. `work` keeps what is needed to go on after a stop.

    `preset:micro` and the like make a new model, with a tokenizer for these rows.
    """
    from .backends.local import LocalPolicy, TrainingOptions, load_model, new_model
    from .backends.local.build import use_threads

    use_threads(options.threads)
    path = Path(model)
    if model.startswith("preset:"):
        path = work / "new"
        if not path.exists():
            texts = [message["content"] for row in rows for message in row.messages]
            work.mkdir(parents=True, exist_ok=True)
            with directory_appears(path) as unfinished:
                new_model(unfinished, model.removeprefix("preset:"), options.seed, texts)
    loaded = load_model(path)
    training = TrainingOptions(token_budget=16384, betas=(0.9, 0.99))
    policies = {role: LocalPolicy(loaded, role, options=training) for role in Role}
    policies[Role.DESIGNER].ensure_trainable()
    losses = await teach(policies, rows, options, work / "sft")
    await policies[Role.DESIGNER].save(out)
    return losses


Prepared: TypeAlias = tuple[Run, Config, Mixture | None]
"""A run, its config, and its training tasks unless nothing is left to train."""


def start_run(recipe: Path, directory: Path, overrides: list[str]) -> Prepared:
    """A new run with a recipe."""
    loaded = load_recipe(recipe, overrides)
    refuse_existing(directory)
    tasks = prepare_training(loaded, directory)
    return Run.create(directory, to_toml(portable(loaded.config, directory)), recipe.stem), loaded.config, tasks


def resume_run(directory: Path) -> Prepared:
    """A run as it stands, with its own resolved recipe."""
    run = Run.resume(directory)
    recipe = run_recipe(run)
    finished = run.next_step >= recipe.config.steps
    return run, recipe.config, None if finished else prepare_training(recipe, directory)


def fork_run(source: str, directory: Path, overrides: list[str]) -> Prepared:
    """A new run that goes on from `RUN@STEP`, with other settings where overrides say so."""
    origin, at, step = source.rpartition("@")
    if not at or not step.isdecimal():
        raise MetaAgentXError(f"{source!r} names no step to fork from: write RUN@STEP, such as runs/first@40")
    run = Run.open(Path(origin))
    run.checkpoint_at(int(step))
    recipe = run_recipe(run, overrides)
    refuse_existing(directory)
    tasks = prepare_training(recipe, directory)
    text = to_toml(portable(recipe.config, directory))
    return Run.fork(run.directory, int(step), directory, text), recipe.config, tasks


def run_recipe(run: Run, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a run directory. What it names by relative paths moves with the run; where it did not, it is
    looked for from where the run was made, and from the working directory, which older runs mean.
    """
    here = run.directory
    bases = [here, here.resolve(), *([run.made_at] if run.made_at else []), Path.cwd()]
    return load_recipe(here / "config.toml", overrides, bases)
