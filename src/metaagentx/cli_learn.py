"""`metaagentx coldstart`, `metaagentx sft` and `metaagentx quickstart`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import interrupts
from .errors import MetaAgentXError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .coldstart import Bill, Row
    from .policy import Policy


def coldstart(  # noqa: PLR0913, PLR0917  options of a command
    tasks: Annotated[str, typer.Argument(help="A mixture of training tasks, such as '0.5*gsm8k + 0.5*apps'.")],
    out: Annotated[Path, typer.Option(help="A directory for the batches and coldstart.jsonl.")],
    teacher: Annotated[str, typer.Option(help="A model's name on the server, or `programmed`.")] = "programmed",
    base_url: Annotated[str | None, typer.Option(help="Of an OpenAI-compatible server.")] = None,
    count: Annotated[int, typer.Option(help="How many tasks.", min=1)] = 1000,
    designs: Annotated[int, typer.Option(help="For each task.", min=1)] = 1,
    executions: Annotated[int, typer.Option(help="For each design.", min=1)] = 1,
    max_tokens: Annotated[int, typer.Option(help="Of one reply.", min=1)] = 8192,
    price_read: Annotated[float, typer.Option(help="For a million tokens that the teacher reads.")] = 0.0,
    price_written: Annotated[float, typer.Option(help="For a million tokens that it writes.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of tasks and draws.")] = 0,
) -> None:
    """Let a teacher design and execute, and keep what solved its task. A stopped one goes on by the same command."""
    from .coldstart import write_rows
    from .config import Config
    from .runs.files import held
    from .session import Lesson, ask_teacher

    config = Config.model_validate(
        {
            "seed": seed,
            "steps": 1,
            "model": {"path": "none"},
            "tasks": {"train": tasks, "held_out": 0},
            "rollout": {"execution_seconds": 2400.0},  # a reply of 8192 tokens may take minutes: 10 for each try
            "stages": [{"steps": 1, "executor": 1.0}],
        }
    )
    lesson = Lesson(count, teacher, teacher != "programmed", max_tokens, designs, executions)

    async def ask() -> "tuple[list[Row], Bill]":
        async with _teacher(teacher, base_url) as policy:
            return await ask_teacher(config, policy, lesson, out / "batches")

    with held(out):
        rows, bill = interrupts.run(ask())
        write_rows(out / "coldstart.jsonl", rows)
    solved = bill.solved / max(1, bill.executions)
    cost = bill.cost(price_read, price_written)
    typer.echo(f"{out / 'coldstart.jsonl'}: {len(rows)} chats kept; {bill.executions} executions, {solved:.0%} solved")
    typer.echo(f"{bill.prompt_tokens} tokens read, {bill.completion_tokens} written, {cost:.2f} spent")


def _teacher(name: str, base_url: str | None) -> "AbstractAsyncContextManager[Policy]":
    from contextlib import nullcontext

    if name == "programmed":
        from .teacher import ProgrammedTeacher

        return nullcontext(ProgrammedTeacher())
    from .backends.openai import OpenAIPolicy

    return OpenAIPolicy(name, base_url)


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
    from .runs.files import held
    from .session import teach_model
    from .sft import SftOptions

    if out.exists():
        raise MetaAgentXError(f"{out} is there already: remove it or choose another place")
    options = SftOptions(
        steps=steps,
        rows_per_step=rows_per_step,
        designer_share=designer_share,
        learning_rate=learning_rate,
        warmup_steps=min(10, steps),
        seed=seed,
    )
    work = out.with_name(f"{out.name}.work")
    with held(work):
        losses = interrupts.run(teach_model(read_rows(rows), model, out, options, work))
    typer.echo(f"{out}: loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last, {len(losses)} steps")


def quickstart(
    directory: Annotated[Path, typer.Option("--dir", help="Where everything goes.")] = Path("runs/quickstart"),
    recipe: Annotated[str, typer.Option(help="How to train: a file, or the name of a bundled recipe.")] = "tiny",
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
) -> None:
    """From nothing to a trained system, a report and what to try next, on a laptop. Stopped, it goes on."""
    from .config.bundled import find_recipe
    from .quickstart import everything

    interrupts.run(everything(find_recipe(recipe), directory, [f"seed={seed}"], typer.echo))
