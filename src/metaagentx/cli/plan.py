"""`metaagentx plan`: the memory that a recipe needs, what would make it fit, and its step on a cluster."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import MetaAgentXError

if TYPE_CHECKING:
    from ..backends.memory_plan import MemoryPlan
    from .memory_check import Suggestions


def plan(  # noqa: PLR0913, PLR0917 - each is an option of the command
    recipe: Annotated[str, typer.Argument(help="Recipe file, or a name that `metaagentx recipes list` shows.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, such as model.lora_rank=16.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Main memory to plan for, such as 64GiB. Default: what is free.")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Plan for a GPU with this much memory, such as 80GiB. Default: this machine's.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Plan a step on a cluster of H100 GPUs: their number, or several, such as 8,64.")
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(help="With --gpus: machines of 64 cores that run the executions. Default: 1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how much memory a recipe needs, without loading or downloading anything. Exit code 2: it does not fit.

    With --gpus: how long a step takes on a cluster, and what limits it (docs/scale.md).
    """
    from ..backends.memory_plan import ACCURACY
    from ..backends.model_shape import KNOWN_SHAPES
    from ..config import load_config
    from ..config.bundled import find_recipe
    from . import memory_check as check
    from .cluster_check import print_cluster

    if hosts is not None and gpus is None:
        raise MetaAgentXError("--hosts needs --gpus: how many GPUs does the cluster have?")
    config = load_config(find_recipe(recipe), overrides or [])
    shape = check.find_shape(config)
    if shape is None:
        raise MetaAgentXError(
            f"no plan for {config.model.path}: expected a directory with the config.json of a decoder-only "
            f"transformer, a preset, or one of {', '.join(KNOWN_SHAPES)}"
        )
    if gpus is not None:
        print_cluster(
            config, shape, gpus, 1 if hosts is None else hosts, check.parse_size(device_memory or "80GiB"), as_json
        )
        return
    if device_memory and config.model.device in (None, "cpu"):
        config = check.change(config, {"model.device": "cuda:0"})
    config, sizes = check.place(config)
    if memory:
        sizes["cpu"] = check.parse_size(memory)
    if device_memory:
        sizes[str(config.model.device)] = check.parse_size(device_memory)
    planned = check.plan_recipe(config, shape, sizes)
    suggestions = [] if planned.fits(sizes) else check.suggest(config, shape, sizes)
    if as_json:
        typer.echo(json.dumps(_as_json(planned, sizes, suggestions), indent=1))
    else:
        _print_table(planned, sizes)
    if not planned.fits(sizes, ACCURACY):
        raise MetaAgentXError(check.describe_misfit(planned, sizes, suggestions))
    if suggestions and not as_json:
        typer.echo(f"Tight: plans are right within {ACCURACY:.0%}. {check.describe_fixes(suggestions)}")


def _as_json(plan: "MemoryPlan", sizes: "Mapping[str, int]", suggestions: "Suggestions") -> object:
    from ..backends.memory_plan import ALWAYS

    peaks = {
        device: {
            "free": sizes.get(device),
            "peak": plan.peak(device),
            "phases": {phase: plan.total(device, phase) for phase in ALWAYS},
        }
        for device in plan.devices
    }
    fixes = [{"set": changes, "peak": changed.peak(changed.device)} for changes, changed in suggestions]
    return asdict(plan) | {"fits": plan.fits(dict(sizes)), "devices": peaks, "suggestions": fixes}


def _print_table(plan: "MemoryPlan", sizes: "Mapping[str, int]") -> None:
    """Print the plan: a table on a terminal, plain columns elsewhere."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ..backends.memory_plan import ALWAYS
    from .memory_check import of_free, show_size

    console = Console(highlight=False)
    title = (
        f"{plan.parameters / 1e6:,.1f} million parameters in {plan.dtype}, of which each role trains "
        f"{plan.trained / 1e6:,.1f} million; KV cache of {plan.kv_tokens:,} tokens"
    )
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for column in ("device", "part", *ALWAYS):
        table.add_column(column, justify="right" if column in ALWAYS else "left", no_wrap=True)
    for device in plan.devices:
        for part in sorted((part for part in plan.parts if part.device == device), key=lambda part: -part.bytes):
            table.add_row(
                device, part.name, *(show_size(part.bytes) if phase in part.phases else "" for phase in ALWAYS)
            )
        totals = (show_size(plan.total(device, phase)) for phase in ALWAYS)
        table.add_row(device, f"at once{of_free(sizes, device)}", *totals, style="bold")
    console.print(title, soft_wrap=True)
    console.print(table)
