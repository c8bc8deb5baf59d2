"""`metaagentx model`: create the small model that the local backend starts from."""

from pathlib import Path
from typing import Annotated

import typer

model_app = typer.Typer(help="Create models.", no_args_is_help=True, add_completion=False)


@model_app.callback()
def models() -> None:
    """Create models."""


@model_app.command()
def new(
    path: Annotated[Path, typer.Argument(help="Directory to create.")],
    preset: Annotated[
        str, typer.Option(help="nano, micro, tiny, small, 4m or 10m: 0.3 to 10 million parameters.")
    ] = "tiny",
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
) -> None:
    """Create a small Qwen3 model with random weights and a tokenizer for the workflow language."""
    from ..backends.local.presets import new_model

    parameters = new_model(path, preset, seed)
    typer.echo(f"{path}: {preset}, {parameters / 1e6:.2f} million parameters")
