"""`metaagentx coldstart`: a teacher solves tasks, and its demonstrations are written for SFT."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import interrupts

if TYPE_CHECKING:
    from ..coldstart.collect import CollectOptions
    from ..coldstart.demonstrations import Demonstration, TeacherUsage
    from ..coldstart.teachers import Teacher
    from ..config import Config

ROWS = "coldstart.jsonl"
BATCHES = "batches"


def coldstart(  # noqa: PLR0913, PLR0917  options of a command
    out: Annotated[Path, typer.Option(help="Directory for the batches and coldstart.jsonl.")],
    tasks: Annotated[
        str | None,
        typer.Argument(help="Mixture of training tasks, such as '0.5*gsm8k + 0.5*apps'. Default: the recipe's."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe file or name: settings, tasks and held-out tasks come from it.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of a recipe, such as rollout.temperature=0.7.")
    ] = None,
    teacher: Annotated[
        str, typer.Option(help="Model name on the server, or `programmed`, or `varied`.")
    ] = "programmed",
    base_url: Annotated[str | None, typer.Option(help="URL of an OpenAI-compatible server.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Variable with the API key. Default: OPENAI_API_KEY.")] = None,
    key_env: Annotated[str | None, typer.Option(hidden=True, help="Earlier name of --api-key-env.")] = None,
    extra_body: Annotated[str | None, typer.Option(help="JSON object to add to each request.")] = None,
    count: Annotated[int, typer.Option(help="The most tasks to solve.", min=1, max=10**8)] = 1000,
    batch: Annotated[int, typer.Option(help="Tasks per batch; each finished batch is saved.", min=1)] = 256,
    designer_rows: Annotated[int | None, typer.Option(help="Designer rows to stop at. Default: all.", min=1)] = None,
    executor_rows: Annotated[int | None, typer.Option(help="Executor rows to stop at. Default: all.", min=1)] = None,
    designs: Annotated[int | None, typer.Option(help="Designs per task. Default: 1.", min=1)] = None,
    executions: Annotated[int | None, typer.Option(help="Executions per design. Default: 1.", min=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens per reply. Default: 8192.", min=1)] = None,
    price_read: Annotated[float, typer.Option(help="Price of a million prompt tokens.")] = 0.0,
    price_written: Annotated[float, typer.Option(help="Price of a million completion tokens.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of tasks and sampling. Default: the recipe's.", min=0)] = None,
) -> None:
    """Collect demonstrations from a teacher: designs and executions that solve tasks. Resumes where it stopped."""
    from ..coldstart.collect import CollectOptions, teacher_config
    from ..coldstart.teachers import Teacher
    from ..config.bundled import find_recipe
    from ..types import Role

    given = {"designs": designs, "executions": executions}
    given |= {"designer_tokens": max_tokens, "executor_tokens": max_tokens}
    rollout = [f"rollout.{key}={value}" for key, value in given.items() if value]
    path = None if recipe is None else find_recipe(recipe)
    config = teacher_config(path, tasks, [*(overrides or ()), *rollout])
    targets = {Role.DESIGNER: designer_rows, Role.EXECUTOR: executor_rows}
    chosen = Teacher(teacher, base_url, api_key_env or key_env, extra_body)
    options = CollectOptions(
        tasks=tasks or config.tasks.train,
        seed=config.seed if seed is None else seed,
        count=count,
        teacher=teacher,
        manual=not chosen.is_programmed,
        batch=batch,
        targets={role: target for role, target in targets.items() if target is not None},
    )
    work = run_cold_start(out, config, options, chosen)
    rows, usage = interrupts.run(work)
    for line in describe(out, options, rows, usage):
        typer.echo(line)
    cost = usage.cost(price_read, price_written)
    typer.echo(f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} completion tokens, cost {cost:.2f}")


async def run_cold_start(
    out: Path, config: "Config", options: "CollectOptions", teacher: "Teacher"
) -> "tuple[list[Demonstration], TeacherUsage]":
    """Collect demonstrations and write them to `out`. The same call resumes a collection that was stopped."""
    from ..atomic import exclusive_lock, friendly_io_errors
    from ..coldstart.collect import collect_settings
    from ..coldstart.demonstrations import write_rows
    from ..runs.work import check_same_settings
    from .assembly import collect_from_teacher
    from .preflight import RESUME_HINT, check_output_directory, prepare_tasks

    opened = teacher.open()
    check_output_directory(out, "choose another directory with --out")
    tasks = config.tasks.model_copy(update={"train": options.tasks})
    await prepare_tasks(config.model_copy(update={"tasks": tasks}))
    with exclusive_lock(out), friendly_io_errors(str(out), RESUME_HINT):
        done = [*sorted((out / BATCHES).glob("batch-*.jsonl")), out / ROWS]
        check_same_settings(out / "settings.json", collect_settings(config, options, teacher), "--out", done)
        async with opened as policy:
            rows, usage = await collect_from_teacher(config, policy, options, out / BATCHES)
        write_rows(out / ROWS, rows)
    return rows, usage


def describe(
    out: Path, options: "CollectOptions", rows: "Sequence[Demonstration]", usage: "TeacherUsage"
) -> Iterator[str]:
    """Yield a summary of the result, and what to do where there are too few rows."""
    from ..types import Role

    counts = {role: sum(row.role is role for row in rows) for role in Role}
    yield f"{out / ROWS}: {len(rows)} rows kept; {usage.executions} executions, {usage.solved_share:.0%} solved"
    yield f"{', '.join(f'{count} {role}' for role, count in counts.items())} rows, from {usage.tasks} tasks"
    for role, target in options.targets.items():
        if counts[role] < target:
            yield (
                f"Fewer than --{role}-rows {target}: all {options.count} tasks of --count are used. "
                "Collect more with another --seed into another --out, and concatenate the files."
            )
