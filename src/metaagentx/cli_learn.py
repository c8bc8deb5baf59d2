"""`metaagentx coldstart`, `metaagentx sft` and `metaagentx quickstart`."""

from pathlib import Path
from typing import Annotated

import typer

from . import interrupts


def coldstart(  # noqa: PLR0913, PLR0917  options of a command
    out: Annotated[Path, typer.Option(help="A directory for the batches and coldstart.jsonl.")],
    tasks: Annotated[
        str | None,
        typer.Argument(help="A mixture of training tasks, such as '0.5*gsm8k + 0.5*apps'; the recipe's by default."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Settings, tasks and held-out tasks of a file or a bundled recipe.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of a recipe, such as rollout.temperature=0.7.")
    ] = None,
    teacher: Annotated[str, typer.Option(help="A model's name on the server, or `programmed`.")] = "programmed",
    base_url: Annotated[str | None, typer.Option(help="Of an OpenAI-compatible server.")] = None,
    key_env: Annotated[str | None, typer.Option(help="The variable with its key; OPENAI_API_KEY by default.")] = None,
    extra_body: Annotated[str | None, typer.Option(help="A JSON object that goes into each request.")] = None,
    count: Annotated[int, typer.Option(help="The most tasks.", min=1, max=10**8)] = 1000,
    batch: Annotated[int, typer.Option(help="Tasks that are done together and written down.", min=1)] = 256,
    designer_rows: Annotated[int | None, typer.Option(help="Enough of the Designer; all by default.", min=1)] = None,
    executor_rows: Annotated[int | None, typer.Option(help="Enough of the Executor; all by default.", min=1)] = None,
    designs: Annotated[int | None, typer.Option(help="For each task; 1 by default.", min=1)] = None,
    executions: Annotated[int | None, typer.Option(help="For each design; 1 by default.", min=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one reply; 8192 by default.", min=1)] = None,
    price_read: Annotated[float, typer.Option(help="For a million tokens that the teacher reads.")] = 0.0,
    price_written: Annotated[float, typer.Option(help="For a million tokens that it writes.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of tasks and draws; the recipe's by default.", min=0)] = None,
) -> None:
    """Let a teacher design and execute, and keep what solved its task. A stopped one goes on by the same command."""
    from .collection import ColdStart, Teacher, describe, row_targets, run_cold_start
    from .config.bundled import find_recipe

    given = {"designs": designs, "executions": executions}
    given |= {"designer_tokens": max_tokens, "executor_tokens": max_tokens}
    request = ColdStart(
        out=out,
        tasks=tasks,
        recipe=None if recipe is None else find_recipe(recipe),
        overrides=(*(overrides or ()), *(f"rollout.{key}={value}" for key, value in given.items() if value)),
        teacher=Teacher(teacher, base_url, key_env, extra_body),
        count=count,
        batch=batch,
        seed=seed,
        targets=row_targets(designer_rows, executor_rows),
    )
    rows, bill = interrupts.run(run_cold_start(request))
    for line in describe(request, rows, bill):
        typer.echo(line)
    cost = bill.cost(price_read, price_written)
    typer.echo(f"{bill.prompt_tokens} tokens read, {bill.completion_tokens} written, {cost:.2f} spent")


def sft(  # noqa: PLR0913, PLR0917  options of a command
    rows: Annotated[Path, typer.Argument(help="Chats as JSON Lines, as coldstart writes them.")],
    model: Annotated[str, typer.Option(help="A model directory, or preset:micro and the like for a new one.")],
    out: Annotated[Path, typer.Option(help="Where the taught model goes, in Hugging Face format.")],
    steps: Annotated[int, typer.Option(min=1)] = 200,
    rows_per_step: Annotated[int, typer.Option(min=1)] = 64,
    learning_rate: Annotated[float, typer.Option()] = 1e-5,
    designer_share: Annotated[float, typer.Option(help="Of the rows of a step.", min=0.0, max=1.0)] = 0.5,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Teach both roles, on shared weights, with loss on the replies only. A stopped one goes on by the same command."""
    from .coldstart import read_rows
    from .preflight import check_model_setting, check_new
    from .runs.files import explained, held
    from .runs.work import same_settings
    from .session import teach_model
    from .sft import SftOptions, sft_settings

    check_new(out)
    check_model_setting(model)
    chats = read_rows(rows)
    options = SftOptions(
        steps=steps,
        rows_per_step=rows_per_step,
        designer_share=designer_share,
        learning_rate=learning_rate,
        warmup_steps=min(10, steps),
        seed=seed,
    )
    work = out.with_name(f"{out.name}.work")
    with held(work), explained(str(work), "make room, and the same command goes on"):
        settings = sft_settings(chats, model, options)
        same_settings(work / "settings.json", settings, "--out", [work / "new", work / "sft" / "state.json"])
        losses = interrupts.run(teach_model(chats, model, out, options, work))
    typer.echo(f"{out}: loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last, {len(losses)} steps")


def quickstart(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where everything goes; runs/quickstart by default.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="How to train: a file, or the name of a bundled recipe.")] = "tiny",
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="Half a minute: check that all parts work; nothing is learned.")
    ] = False,
) -> None:
    """From nothing to a trained system, a report and what to try next, on a laptop. Stopped, it goes on."""
    from .config.bundled import find_recipe
    from .quickstart import SMALL, SMALL_OVERRIDES, WHOLE, everything

    directory = directory or Path("runs/quickstart-small" if small else "runs/quickstart")
    overrides = [*(SMALL_OVERRIDES if small else ()), f"seed={seed}"]
    interrupts.run(everything(find_recipe(recipe), directory, overrides, typer.echo, SMALL if small else WHOLE))
