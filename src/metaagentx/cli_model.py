"""`metaagentx model`: make the small model that the embedded backend starts from."""

from pathlib import Path
from typing import Annotated

import typer

model_app = typer.Typer(help="Make models.", no_args_is_help=True, add_completion=False)


@model_app.callback()
def models() -> None:
    """Make models."""


@model_app.command()
def new(
    path: Annotated[Path, typer.Argument(help="A directory that is not there yet.")],
    preset: Annotated[
        str, typer.Option(help="nano, micro, tiny, small, 4m or 10m: 0.3 to 10 million parameters.")
    ] = "tiny",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Make a small Qwen3 model with random weights and a tokenizer for our language and protocol."""
    from .backends.local.presets import new_model

    parameters = new_model(path, preset, seed)
    typer.echo(f"{path}: {preset}, {parameters / 1e6:.2f} million parameters")
