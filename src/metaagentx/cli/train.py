"""`metaagentx train`: train a run from a recipe, resume one, or fork one."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import Interrupted, MetaAgentXError
from . import interrupts


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe file, or a name that `metaagentx recipes list` shows.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run directory. Default: runs/<recipe>.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, such as rollout.designs=8.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Resume this run.")] = None,
    fork: Annotated[str | None, typer.Option("--fork", help="Start a new run from the checkpoint RUN@STEP.")] = None,
) -> None:
    """Train Designer and Executor with a recipe. --resume continues a run that was stopped."""
    from ..config.bundled import find_recipe
    from ..runs import resume_command
    from . import assembly

    given = [
        name for name, value in {"RECIPE": recipe, "--resume": resume, "--fork": fork}.items() if value is not None
    ]
    if len(given) > 1:
        raise MetaAgentXError(
            f"{given[0]} and {given[1]} exclude each other: RECIPE starts a new run, --resume continues a run with its "
            "own settings, --fork starts a new run from a checkpoint, with --set to change settings; give one of them"
        )
    if resume is not None:
        if overrides or run is not None:
            raise MetaAgentXError("a resumed run keeps its settings and its directory: use --set and --run with --fork")
        prepared = assembly.resume_run(resume)
    elif fork is not None:
        if run is None:
            raise MetaAgentXError("--fork needs the directory of the new run: --run DIRECTORY")
        prepared = assembly.fork_run(fork, run, overrides or [])
    elif recipe is not None:
        path = find_recipe(recipe)
        prepared = assembly.start_run(path, run or Path("runs") / path.stem, overrides or [])
    else:
        raise MetaAgentXError("nothing to train: give a RECIPE, --resume RUN, or --fork RUN@STEP")
    opened = prepared.run
    try:
        interrupts.run(assembly.train_run(opened, prepared.config, prepared.tasks))
    except MetaAgentXError:
        opened.discard()  # a new run without a finished step: the same command must work once the cause is fixed
        raise
    except Interrupted:
        resume_with = resume_command(opened.directory)
        raise Interrupted(f"stopped after {opened.next_step} steps; resume with: {resume_with}") from None
    best = opened.best
    chosen = f"; best on held-out tasks: step {best.step}, {best.score:.0%} solved" if best else ""
    typer.echo(f"{opened.directory}: {opened.next_step} steps done{chosen}")
