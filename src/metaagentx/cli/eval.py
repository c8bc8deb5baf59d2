"""`metaagentx eval`: compare a run with its initial model, fixed designs and single agents on the same tasks."""

from pathlib import Path
from typing import Annotated

import typer

from . import interrupts


def evaluate_command(  # noqa: PLR0913, PLR0917  the options of a command are its parameters
    run: Annotated[Path, typer.Argument(help="The run directory, such as runs/tiny.")],
    initial_model: Annotated[
        Path | None, typer.Option(help="The model before RL. Default: the model that the run started from.")
    ] = None,
    against: Annotated[Path | None, typer.Option(hidden=True, help="Earlier name of --initial-model.")] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="A source such as aime24, or `paper` for its six benchmarks. May be repeated. Default: the run's "
            "held-out tasks; with --split, its training sources."
        ),
    ] = None,
    public_tests: Annotated[bool, typer.Option("--public-tests", help="Of `paper`: public tests only.")] = False,
    split: Annotated[str, typer.Option(help="Split of the sources. Default: test if --tasks is given.")] = "",
    limit: Annotated[int, typer.Option(help="The most tasks of each source; 0: all.", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="Samples of each task, by each method.", min=1)] = 1,
    methods: Annotated[str, typer.Option(help="metaagentx,cold-start,self-consistency,... Default: all.")] = "",
    script: Annotated[
        list[Path] | None, typer.Option(help="A file with another fixed design, measured in addition to --methods.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The directory for results. Default: RUN/evaluation/<step>. `report` shows all of RUN/evaluation."
        ),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="best, last, or a step.")] = "best",
    temperature: Annotated[
        float | None,
        typer.Option(help="Sampling temperature of both roles, 0 for greedy decoding. Default: the run's.", min=0),
    ] = None,
) -> None:
    """Measure a run against other methods: same tasks, same seeds, equal budgets. The same command resumes."""
    from .evaluation_request import EvalRequest, evaluate_run

    request = EvalRequest(
        run=run,
        initial_model=initial_model or against,
        tasks=tuple(tasks or ()),
        public_tests=public_tests,
        split=split,
        limit=limit,
        samples=samples,
        methods=tuple(name for name in methods.split(",") if name.strip()),
        scripts=tuple(script or ()),
        out=out,
        checkpoint=checkpoint,
        temperature=temperature,
    )
    result = interrupts.run(evaluate_run(request))
    typer.echo(result.evaluation.to_markdown())
    if result.missing is not None:
        typer.echo(f"Left out: methods with the initial model, because no model at {result.missing}.")
        typer.echo("Name its directory with --initial-model.")
    typer.echo(f"{result.directory / 'evaluation.json'}, {result.directory / 'evaluation.md'}")
