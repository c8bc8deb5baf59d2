"""A cold start as a user asks for it: which teacher, on which tasks, with which settings, and how much of it."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from .coldstart import Bill, Row, write_rows
from .config import Config, load_config
from .config.toml import quote
from .errors import MetaAgentXError
from .policy import Policy
from .preflight import check_place, prepare_tasks
from .runs.files import explained, held
from .runs.work import same_settings
from .session import TEACHER_ROLLOUT, Lesson, ask_teacher
from .types import Role

PROGRAMMED = "programmed"
"""The name of the teacher that needs no server."""
_NO_RECIPE = ("steps=1", 'model.path="none"', "stages=[{steps=1, executor=1.0}]")
_SETTLED = {"designs", "executions", "temperature", "designer_tokens", "executor_tokens", "calls", "tokens"}
_SETTLED |= {"cpu_seconds"}
"""Keys of `rollout` that change the rows. Deadlines, retries and how much is done at once do not."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """Who is asked."""

    model: str = PROGRAMMED
    base_url: str | None = None
    key_env: str | None = None
    """The variable that holds the key."""
    extra_body: str | None = None
    """A JSON object that goes into each request."""

    def body(self) -> dict[str, object]:
        """The extra body, parsed."""
        example = """'{"top_p": 0.95}'"""
        try:
            body = json.loads(self.extra_body or "{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise MetaAgentXError(f"--extra-body is not JSON ({error}): write an object, such as {example}") from None
        if not isinstance(body, dict):
            raise MetaAgentXError(f"--extra-body is not a JSON object: write one, such as {example}")
        return body

    def open(self) -> AbstractAsyncContextManager[Policy]:
        """The policy; what is wrong with its key or address is found now."""
        body = self.body()
        if self.model == PROGRAMMED:
            given = {"base-url": self.base_url, "key-env": self.key_env, "extra-body": self.extra_body}
            for option in (name for name, value in given.items() if value is not None):
                raise MetaAgentXError(f"--{option} is for a teacher on a server: name its model with --teacher")
            from .teacher import ProgrammedTeacher

            return nullcontext(ProgrammedTeacher())
        if self.key_env is not None and not os.environ.get(self.key_env, "").strip():
            raise MetaAgentXError(f"--key-env {self.key_env}: this variable is not set or empty: put the key in it")
        from .backends.openai import OpenAIPolicy

        return OpenAIPolicy(self.model, self.base_url, self.key_env or "OPENAI_API_KEY", body)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """What a person asks for on the command line."""

    out: Path
    tasks: str | None = None
    """A mixture; None: the recipe's training tasks."""
    recipe: Path | None = None
    overrides: Sequence[str] = ()
    """`key=value` for keys of a recipe."""
    teacher: Teacher = Teacher()
    count: int = 1000
    batch: int = 256
    seed: int | None = None
    """Of the order of tasks and the teacher's draws; None: the recipe's."""
    targets: Mapping[Role, int] = field(default_factory=dict)
    """How many rows of a role are enough."""

    @property
    def rows(self) -> Path:
        """What comes of it."""
        return self.out / "coldstart.jsonl"

    @property
    def batches(self) -> Path:
        """The work."""
        return self.out / "batches"


def row_targets(designer: int | None, executor: int | None) -> dict[Role, int]:
    """How many rows of a role are enough, of those for which that is said."""
    wanted = {Role.DESIGNER: designer, Role.EXECUTOR: executor}
    return {role: count for role, count in wanted.items() if count is not None}


async def run_cold_start(request: ColdStart) -> tuple[list[Row], Bill]:
    """Collect what the teacher solves and write it down. Stopped, the same request goes on."""
    config, teacher = teacher_config(request), request.teacher.open()
    lesson = Lesson(
        count=request.count,
        teacher=request.teacher.model,
        manual=request.teacher.model != PROGRAMMED,
        tasks=request.tasks,
        seed=request.seed,
        batch=request.batch,
        targets=request.targets,
    )
    check_place(request.out, "choose another directory with --out")
    tasks = config.tasks.model_copy(update={"train": request.tasks or config.tasks.train})
    await prepare_tasks(config.model_copy(update={"tasks": tasks}))
    with held(request.out), explained(str(request.out), "make room, and the same command goes on"):
        work = [*sorted(request.batches.glob("batch-*.jsonl")), request.rows]
        same_settings(request.out / "settings.json", _settings(config, lesson, request.teacher), "--out", work)
        async with teacher as policy:
            rows, bill = await ask_teacher(config, policy, lesson, request.batches)
        write_rows(request.rows, rows)
    return rows, bill


def teacher_config(request: ColdStart) -> Config:
    """The recipe, or none, with what is set on top of it."""
    known = [] if request.recipe else [*_NO_RECIPE]
    if request.recipe is None and request.tasks is not None:
        known.append(f"tasks.train={quote(request.tasks)}")
    elif request.recipe is None and "tasks.train" not in {text.partition("=")[0].strip() for text in request.overrides}:
        raise MetaAgentXError("say which tasks the teacher solves: TASKS, or --recipe to take a recipe's")
    known += [f"rollout.{key}={value}" for key, value in TEACHER_ROLLOUT.items()]
    return load_config(request.recipe, [*known, *request.overrides], trained=False)


def _settings(config: Config, lesson: Lesson, teacher: Teacher) -> dict[str, object]:
    """What the batches are made with."""
    return {
        "tasks": lesson.tasks or config.tasks.train,
        "count": lesson.count,
        "seed": config.seed if lesson.seed is None else lesson.seed,
        "teacher": teacher.model,
        "base_url": teacher.base_url and teacher.base_url.rstrip("/"),
        "extra_body": teacher.body(),
        "manual": lesson.manual,
        "batch": lesson.batch,
        "recipe": {"seed": config.seed, "tasks.train": config.tasks.train, "tasks.held_out": config.tasks.held_out},
        "rollout": config.rollout.model_dump(include=_SETTLED),
        "reward": {"allow_hard_coded": config.reward.allow_hard_coded}
        | ({"allow_fed": True} if config.reward.allow_fed else {}),
    }


def describe(request: ColdStart, rows: Sequence[Row], bill: Bill) -> Iterator[str]:
    """What came of it, and what to do where that is not enough."""
    solved = bill.solved / max(1, bill.executions)
    counts = {role: sum(row.role is role for row in rows) for role in Role}
    yield f"{request.rows}: {len(rows)} chats kept; {bill.executions} executions, {solved:.0%} solved"
    yield f"{', '.join(f'{count} of the {role}' for role, count in counts.items())}, from {bill.tasks} tasks"
    for role, target in request.targets.items():
        if counts[role] < target:
            yield (
                f"That is fewer than --{role}-rows {target}, with all of --count {request.count} tasks used. "
                "Collect more with another --seed into another --out, and put the files together."
            )
