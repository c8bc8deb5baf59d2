"""`metaagentx export`: the weights of a run's checkpoint for transformers, peft and vLLM."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="The run directory, such as runs/tiny.")],
    out: Annotated[Path, typer.Option(help="Directory to create, with one directory for each role.")],
    merged: Annotated[bool, typer.Option("--merged", help="Whole models: a LoRA becomes part of the base.")] = False,
    checkpoint: Annotated[str, typer.Option(help="best, last, or a step.")] = "best",
) -> None:
    """Write the weights of both roles; roles with the same weights get one directory, `shared`."""
    from ..backends.export import export_weights
    from ..backends.model_files import model_directory
    from ..runs import Run
    from ..types import Role
    from .assembly import load_run_recipe
    from .evaluation_request import _checkpoint_step, _start_model
    from .preflight import check_new

    opened = Run.open(run)
    config = load_run_recipe(opened).config
    source = opened.checkpoint_at(_checkpoint_step(opened, checkpoint))
    check_new(out)
    sources = {str(role): model_directory(source / role) for role in Role}
    if len({*sources.values()}) == 1:
        sources = {"shared": next(iter(sources.values()))}
    for name, directory in sources.items():
        export_weights(directory, _start_model(config, opened.directory), out / name, merged=merged)
        typer.echo(f"{out / name}")
