"""Collect demonstrations: a teacher solves tasks, and what solved its task is kept for SFT.

The teacher reads the long prompt, with the manual of the language, and goes through the same rollout as training does.
Tasks are processed in batches, and each finished batch is written to a file. A collection that was stopped resumes with
the next batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import progress
from ..config import Config, load_config
from ..config.toml import quote
from ..errors import MetaAgentXError
from ..policy import SamplerStats
from ..rollout.tree import Resources, RolloutOptions, rollout_batch
from ..tasks import Mixture
from ..types import Role, Task
from .demonstrations import (
    Demonstration,
    TeacherUsage,
    balance,
    deduplicate,
    demonstrations_of,
    read_batch,
    task_digest,
    trim,
    write_batch,
)
from .teachers import PROGRAMMED, Teacher

TEACHER_TASK_OFFSET = 10**8
"""Index of the teacher's first task in the task stream, far from the tasks that training begins with."""
TEACHER_ROLLOUT = {
    "designs": 1,
    "executions": 1,
    "designer_tokens": 8192,
    "executor_tokens": 8192,
    "execution_seconds": 2400.0,  # a reply of that length may take minutes
}
"""Values of `rollout` for a teacher. They replace the recipe's, which are meant for the student."""
NO_RECIPE = ("steps=1", 'model.path="none"', "stages=[{steps=1, executor=1.0}]")
"""The keys that every recipe needs, besides `tasks.train`, for commands that need no recipe."""
_ROLLOUT_KEYS = {"designs", "executions", "temperature", "designer_tokens", "executor_tokens", "calls", "tokens"}
_ROLLOUT_KEYS |= {"cpu_seconds"}
"""Keys of `rollout` that change the demonstrations. Deadlines, retries and concurrency do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    """What a teacher is asked to do."""

    tasks: str
    """The mixture of tasks that the teacher solves."""
    seed: int
    """Seed of the order of tasks and of the teacher's sampling."""
    count: int = 1000
    """The most tasks."""
    teacher: str = PROGRAMMED
    """Name of the teacher, stored with every demonstration."""
    manual: bool = True
    """Whether the teacher reads the language's manual."""
    batch: int = 256
    """Tasks per batch: the most that a stop can lose, and how often `targets` are checked."""
    targets: Mapping[Role, int] = field(default_factory=dict)
    """How many demonstrations of a role are enough. Collection ends when all targets are reached."""


def teacher_config(recipe: Path | None, tasks: str | None, overrides: Sequence[str]) -> Config:
    """Load the recipe, or defaults where there is none, with the teacher's rollout settings and the overrides."""
    settings = [] if recipe else [*NO_RECIPE]
    if recipe is None and tasks is not None:
        settings.append(f"tasks.train={quote(tasks)}")
    elif recipe is None and "tasks.train" not in {text.partition("=")[0].strip() for text in overrides}:
        raise MetaAgentXError("no tasks for the teacher: give TASKS, or --recipe to use the tasks of a recipe")
    settings += [f"rollout.{key}={value}" for key, value in TEACHER_ROLLOUT.items()]
    return load_config(recipe, [*settings, *overrides], require_peers=False)


def teacher_tasks(config: Config, options: CollectOptions) -> Sequence[Task]:
    """Return the tasks that the teacher solves; none of them is held out by training with this recipe."""
    training = config.load_tasks()
    if (options.tasks, options.seed) == (config.tasks.train, config.seed):
        return training.tasks_from(TEACHER_TASK_OFFSET, options.count)
    mixture = Mixture(options.tasks, options.seed, data_dir=config.tasks.data_dir, excluded=training.held_fingerprints)
    return mixture.tasks_from(TEACHER_TASK_OFFSET, options.count)


def collect_settings(config: Config, options: CollectOptions, teacher: Teacher) -> dict[str, object]:
    """Return everything the batches depend on, for `check_same_settings`."""
    # Keys that this version added only where they are set, so that a collection of an earlier version can be resumed.
    rollout = config.rollout.model_dump(include=_ROLLOUT_KEYS) | config.rollout.model_dump(
        include={"designer_temperature", "executor_temperature", "dialect"}, exclude_defaults=True
    )
    prompts = config.prompts.model_dump(exclude_defaults=True)
    tools = config.tools.model_dump(exclude_defaults=True) if config.tools.offered else {}
    return {
        "tasks": options.tasks,
        "count": options.count,
        "seed": options.seed,
        "teacher": teacher.model,
        "base_url": teacher.base_url and teacher.base_url.rstrip("/"),
        "extra_body": teacher.body(),
        "manual": options.manual,
        "batch": options.batch,
        "recipe": {"seed": config.seed, "tasks.train": config.tasks.train, "tasks.held_out": config.tasks.held_out},
        "rollout": rollout,
        "reward": {"allow_hard_coded": config.reward.allow_hard_coded}
        | ({"allow_fed": True} if config.reward.allow_fed else {}),
        **({"prompts": prompts} if prompts else {}),
        **({"tools": tools} if tools else {}),
    }


async def collect_demonstrations(
    tasks: Sequence[Task], resources: Resources, rollout: RolloutOptions, options: CollectOptions, directory: Path
) -> tuple[list[Demonstration], TeacherUsage]:
    """Return the demonstrations of all tasks, or of as many tasks as reach the targets.

    `directory` holds the batches. Call it again after a stop to resume.
    """
    directory.mkdir(parents=True, exist_ok=True)
    unique: dict[bytes, Demonstration] = {}
    rows: list[Demonstration] = []
    usage, targets = TeacherUsage(), options.targets
    with progress.CountProgress(len(tasks), "the teacher solves tasks") as counter:
        for index, start in enumerate(range(0, len(tasks), options.batch)):
            batch = tasks[start : start + options.batch]
            file = directory / f"batch-{index:05d}.jsonl"
            if not file.exists():
                write_batch(file, *await _run_batch(index, batch, resources, rollout, options), task_digest(batch))
            batch_rows, batch_usage = read_batch(file, task_digest(batch))
            rows = balance(deduplicate(batch_rows, unique))
            usage += batch_usage
            counts = Counter(row.role for row in rows)
            figures = {
                f"{role}_rows": f"{counts[role]} of {targets[role]}" if role in targets else str(counts[role])
                for role in Role
            }
            counter.advance(len(batch), solved=usage.solved_share, **figures)
            if targets and all(counts[role] >= target for role, target in targets.items()):
                break
    return trim(rows, targets), usage


async def _run_batch(
    index: int, tasks: Sequence[Task], resources: Resources, rollout: RolloutOptions, options: CollectOptions
) -> tuple[list[Demonstration], TeacherUsage]:
    rollout = replace(rollout, manual=options.manual, strict=True)
    before = _server_tokens(resources)
    trees = await rollout_batch(tasks, resources, rollout, (options.seed, "coldstart", index))
    after = _server_tokens(resources)
    executions = [execution for tree in trees for design in tree.designs for execution in design.executions]
    usage = TeacherUsage(
        tasks=len(tasks),
        executions=len(executions),
        solved=sum(execution.reward is not None and execution.reward.solved for execution in executions),
        prompt_tokens=after[0] - before[0],
        completion_tokens=after[1] - before[1],
    )
    rows = (demonstrations_of(tree, options.teacher, rollout.prompts, resources.tool_specs) for tree in trees)
    return [row for of_tree in rows for row in of_tree], usage


def _server_tokens(resources: Resources) -> tuple[int, int]:
    """Return the prompt and completion tokens that the teacher's server has counted; 0 without a server."""
    policy = resources.samplers[Role.DESIGNER].policy
    stats = policy.stats() if isinstance(policy, SamplerStats) else {}
    return int(stats.get("prompt_tokens", 0)), int(stats.get("completion_tokens", 0))
