"""`metaagentx eval`: a run against its own beginning, fixed designs and single agents, on the same tasks."""

from pathlib import Path
from typing import Annotated

import typer

from . import interrupts


def evaluate_command(  # noqa: PLR0913, PLR0917  the options of a command are its parameters
    run: Annotated[Path, typer.Argument(help="A run's directory, such as runs/tiny.")],
    against: Annotated[
        Path | None, typer.Option(help="The model before RL; by default the one that the run began from.")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="A source such as aime24, or `paper` for its six benchmarks; the held-out tasks by default."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of the sources; test by default.")] = "",
    limit: Annotated[int, typer.Option(help="The most tasks of each source; 0: all.", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="Of each task, by each method.", min=1)] = 1,
    methods: Annotated[str, typer.Option(help="metaagentx,cold-start,self-consistency,...; all by default.")] = "",
    script: Annotated[
        list[Path] | None, typer.Option(help="A file with a further fixed design; it is measured in any case.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where results go; RUN/evaluation/<step> by default. `report` shows what is below RUN/evaluation."
        ),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="best, last, or a step.")] = "best",
) -> None:
    """Measure a run against other methods: same tasks, same seeds, equal budgets. Stopped, the same command goes on."""
    from .evaluation.request import Request, evaluate_run

    request = Request(
        run=run,
        against=against,
        tasks=tuple(tasks or ()),
        split=split,
        limit=limit,
        samples=samples,
        methods=tuple(name for name in methods.split(",") if name.strip()),
        scripts=tuple(script or ()),
        out=out,
        checkpoint=checkpoint,
    )
    answer = interrupts.run(evaluate_run(request))
    typer.echo(answer.found.to_markdown())
    if answer.missing is not None:
        typer.echo(f"Left out: methods with the model from before the training, for there is none at {answer.missing}.")
        typer.echo("Name it with --against.")
    typer.echo(f"{answer.directory / 'evaluation.json'}, {answer.directory / 'evaluation.md'}")
