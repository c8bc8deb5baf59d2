"""`metaagentx train`: a recipe in, a run directory out."""

from pathlib import Path
from typing import Annotated

import typer

from .errors import MetaAgentXError


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
    import asyncio

    from . import session
    from .config.bundled import find_recipe
    from .runs import resume_command

    if sum(given is not None for given in (recipe, resume, fork)) != 1:
        raise MetaAgentXError("say what to train: a RECIPE, --resume RUN, or --fork RUN@STEP")
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
        asyncio.run(session.train(opened, config, tasks))
    except MetaAgentXError:
        opened.discard()  # a new run that never began: the same command shall work when that is mended
        raise
    except KeyboardInterrupt:
        raise MetaAgentXError(f"stopped; go on with: {resume_command(opened.directory)}") from None
    best = opened.best
    chosen = f"; best on held-out tasks: step {best.step}, {best.score:.0%} solved" if best else ""
    typer.echo(f"{opened.directory}: {opened.next_step} steps done{chosen}")
