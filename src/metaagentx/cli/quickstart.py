"""`metaagentx quickstart`: cold start, RL, evaluation and report with one command."""

from pathlib import Path
from typing import Annotated

import typer

from . import interrupts


def quickstart(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Output directory. Default: runs/quickstart, or runs/smollm2; with --small runs/...-small."
        ),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Recipe file or name: tiny trains a new small model, smollm2 a pretrained one.")
    ] = "tiny",
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the recipe, such as steps=24.")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Check in half a minute that all parts work; nothing is learned.")
    ] = False,
) -> None:
    """Train a system on a laptop from its cold start on, evaluate it and write a report. Resumes where it stopped."""
    from ..backends.model_files import SMOLLM2
    from ..config.bundled import find_recipe
    from .quickstart_parts import SMALL_OVERRIDES, quickstart_size, run_quickstart

    path = find_recipe(recipe)
    name = SMOLLM2 if path.stem == SMOLLM2 else "quickstart"
    directory = directory or Path("runs", f"{name}-small" if small else name)
    overrides = [*(SMALL_OVERRIDES if small else ()), f"seed={seed}", *(settings or ())]
    interrupts.run(run_quickstart(path, directory, overrides, typer.echo, quickstart_size(path, small)))
