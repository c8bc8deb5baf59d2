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
    """Write the weights of both roles; roles with the same weights get one directory, `shared`.

    `system.json` beside them has prompts, budgets and roles, for `metaagentx solve --system DIR`.
    """
    from ..backends.export import export_weights
    from ..backends.model_files import model_directory
    from ..runs import Run
    from ..system.models import checkpoint_step, find_initial_model, load_run_recipe
    from ..system.saved import write_system
    from ..types import Role
    from .preflight import check_new

    opened = Run.open(run)
    config = load_run_recipe(opened).config
    source = opened.checkpoint_at(checkpoint_step(opened, checkpoint))
    check_new(out)
    sources = {str(role): model_directory(source / role) for role in Role}
    if len({*sources.values()}) == 1:
        sources = {"shared": next(iter(sources.values()))}
    for name, directory in sources.items():
        export_weights(directory, find_initial_model(config, opened.directory), out / name, merged=merged)
        typer.echo(f"{out / name}")
    roles = {role: str(role) if str(role) in sources else "shared" for role in Role}
    typer.echo(write_system(out, config, roles))
