"""`metaagentx train`: a recipe in, a run directory out."""

from pathlib import Path
from typing import Annotated

import typer

from . import interrupts
from .errors import Interrupted, MetaAgentXError


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A file, or a name that `metaagentx recipes list` shows.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="The run's directory; runs/<recipe> by default.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, such as rollout.designs=8.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run instead of a new one.")] = None,
    fork: Annotated[str | None, typer.Option("--fork", help="Start from RUN@STEP instead of a recipe.")] = None,
) -> None:
    """Train Designer and Executor by a recipe. A stopped run goes on with --resume."""

    from . import session
    from .config.bundled import find_recipe
    from .runs import resume_command

    _one_of(recipe, resume, fork)
    if resume is not None:
        if overrides or run is not None:
            raise MetaAgentXError("a resumed run keeps its settings and its place: --set and --run go with --fork")
        opened, config, tasks = session.resume_run(resume)
    elif fork is not None:
        if run is None:
            raise MetaAgentXError("say where the fork goes: --run DIRECTORY")
        opened, config, tasks = session.fork_run(fork, run, overrides or [])
    else:
        assert recipe is not None
        path = find_recipe(recipe)
        opened, config, tasks = session.start_run(path, run or Path("runs") / path.stem, overrides or [])
    try:
        interrupts.run(session.train(opened, config, tasks))
    except MetaAgentXError:
        opened.discard()  # a new run that never began: the same command shall work when that is mended
        raise
    except Interrupted:
        resume_with = resume_command(opened.directory)
        raise Interrupted(f"stopped after {opened.next_step} steps; resume with: {resume_with}") from None
    best = opened.best
    chosen = f"; best on held-out tasks: step {best.step}, {best.score:.0%} solved" if best else ""
    typer.echo(f"{opened.directory}: {opened.next_step} steps done{chosen}")


def _one_of(recipe: str | None, resume: Path | None, fork: str | None) -> None:
    """A run begins in one of three ways."""
    given = [way for way, value in {"RECIPE": recipe, "--resume": resume, "--fork": fork}.items() if value is not None]
    if not given:
        raise MetaAgentXError("say what to train: a RECIPE, --resume RUN, or --fork RUN@STEP")
    if len(given) > 1:
        raise MetaAgentXError(
            f"{given[0]} and {given[1]} exclude each other: a RECIPE starts a new run, --resume goes on with a run and "
            "its own settings, --fork starts a new run from a checkpoint, with --set for other settings; give one"
        )
