"""`metaagentx quickstart`: cold start, RL, evaluation and report with one command."""

from pathlib import Path
from typing import Annotated

import typer

from . import interrupts


def quickstart(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Output directory. Default: runs/quickstart, or runs/quickstart-small with --small."
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Recipe file, or the name of a bundled recipe.")] = "tiny",
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="Check in half a minute that all parts work; nothing is learned.")
    ] = False,
) -> None:
    """Train a system from scratch on a laptop, evaluate it and write a report. Resumes where it stopped."""
    from ..config.bundled import find_recipe
    from .quickstart_parts import FULL_SIZE, SMALL, SMALL_OVERRIDES, run_quickstart

    directory = directory or Path("runs/quickstart-small" if small else "runs/quickstart")
    overrides = [*(SMALL_OVERRIDES if small else ()), f"seed={seed}"]
    interrupts.run(run_quickstart(find_recipe(recipe), directory, overrides, typer.echo, SMALL if small else FULL_SIZE))
