"""`metaagentx sft`: supervised fine-tuning of both roles on demonstrations."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import interrupts

if TYPE_CHECKING:
    from ..options import ModelConfig


def sft(  # noqa: PLR0913, PLR0917  options of a command
    rows: Annotated[Path, typer.Argument(help="Demonstrations as JSON Lines, as coldstart writes them.")],
    model: Annotated[
        str, typer.Option(help="Model directory, name on the Hugging Face hub, or preset:micro for a new model.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the fine-tuned model, in Hugging Face format.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1)] = 200,
    rows_per_step: Annotated[int, typer.Option(help="Batch size.", min=1)] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-5,
    designer_share: Annotated[float, typer.Option(help="Designer's share of a batch.", min=0.0, max=1.0)] = 0.5,
    method: Annotated[Literal["adamw", "muon"], typer.Option(help="Optimizer; muon suits a new model.")] = "adamw",
    lora_rank: Annotated[
        int,
        typer.Option(help="Train a LoRA of this rank, merged into the model that is written; 0: full weights.", min=0),
    ] = 0,
    join_turns: Annotated[
        bool, typer.Option("--join-turns", help="Learn from all turns of a conversation in one pass over it.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the order of rows and of a new model's weights.")] = 0,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe file or name that the model is for: model.chat_template comes from it.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="model.chat_template.NAME=value, as in a recipe.")
    ] = None,
) -> None:
    """Fine-tune both roles on shared weights, with loss on the replies only. Resumes where it stopped."""
    from ..atomic import exclusive_lock, friendly_io_errors
    from ..backends.hub import fetch_model
    from ..coldstart.demonstrations import read_rows
    from ..coldstart.sft import SftOptions, run_sft, sft_settings
    from ..options import PRESET
    from ..runs.work import check_same_settings
    from .preflight import RESUME_HINT, check_model_setting, check_new

    model_config = _load_model_config(recipe, overrides or ())
    check_new(out)
    check_model_setting(model)
    demonstrations = read_rows(rows)
    options = SftOptions(
        steps=steps,
        rows_per_step=rows_per_step,
        designer_share=designer_share,
        learning_rate=learning_rate,
        method=method,
        warmup_steps=min(10, steps),
        seed=seed,
        lora_rank=lora_rank,
        dtype=model_config.dtype,
        join_turns=join_turns,
    )
    if not model.startswith(PRESET):
        model = str(fetch_model(model))
    work = out.with_name(f"{out.name}.work")
    with exclusive_lock(work), friendly_io_errors(str(work), RESUME_HINT):
        depends_on = sft_settings(demonstrations, model, options, model_config.chat_template)
        check_same_settings(work / "settings.json", depends_on, "--out", [work / "new", work / "sft" / "state.json"])
        losses = interrupts.run(run_sft(demonstrations, model, out, options, work, model_config.chat_template))
    typer.echo(f"{out}: loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last, {len(losses)} steps")


def _load_model_config(recipe: str | None, overrides: Sequence[str]) -> "ModelConfig":
    """Return the model section of the recipe that the model is for. Of the overrides, only those of how it is read."""
    from ..coldstart.collect import NO_RECIPE
    from ..config import load_config
    from ..config.bundled import find_recipe
    from ..errors import MetaAgentXError

    for override in overrides:
        if not override.strip().startswith(("model.chat_template", "model.dtype")):
            raise MetaAgentXError(
                f"--set {override}: sft takes model.chat_template and model.dtype only: use its own options"
            )
    settings = [] if recipe else [*NO_RECIPE, 'tasks.train="none"']
    path = None if recipe is None else find_recipe(recipe)
    return load_config(path, [*settings, *overrides], require_peers=False).model
