"""What can be wrong is found before a model is loaded and before anything is written: each check takes milliseconds.

Task sources are the exception: their files are read, once, and the tasks handed on.
"""

import asyncio
import os
from pathlib import Path

from .backends.model_files import check_adapter, check_model
from .backends.presets import check_preset
from .config import Config, Recipe
from .config.paths import PRESET
from .errors import MetaAgentXError, access_problem
from .loggers import check_loggers
from .rewards.probe import check_graders
from .runs.files import explained_reading, refuse_dangling
from .settings import mixture_of
from .tasks import Mixture
from .types import Role


async def prepare_tasks(config: Config) -> Mixture:
    """The training tasks, with graders that work."""
    tasks = mixture_of(config)
    await check_graders(tasks.graders)
    return tasks


def prepare_training(recipe: Recipe, directory: Path) -> Mixture:
    """The training tasks of a run in this directory, which is there or not, after every check."""
    check_start(recipe, directory)
    return asyncio.run(prepare_tasks(recipe.config))


def check_start(recipe: Recipe, directory: Path) -> None:
    """Everything but the tasks: the model that a run begins from, its loggers, and the place it is written to."""
    check_place(directory)
    check_loggers(recipe.config.run.loggers, directory)
    made = directory / "model"
    if recipe.config.model.path.startswith(PRESET) and made.exists():
        check_model(made)
    else:
        check_model_setting(recipe.config.model.path, recipe.config.model.gguf_file, _origin(recipe))


def check_model_setting(path: str, gguf_file: str | None = None, origin: str = "") -> None:
    """A model as recipes and options name it: a directory, or a preset."""
    if path.startswith(PRESET):
        check_preset(path.removeprefix(PRESET))
    else:
        check_model(Path(path), gguf_file, origin)


def check_checkpoint(config: Config, checkpoint: Path) -> None:
    """The files that an evaluation loads: a model or a LoRA for each role."""
    roles = [Role.EXECUTOR] if config.model.sharing == "shared" and not config.model.lora_rank else [*Role]
    for role in roles:
        (check_adapter if config.model.lora_rank else check_model)(checkpoint / role)


def check_new(place: Path) -> None:
    """A place where something is to be made: nothing is there, and it can be written."""
    refuse_dangling(place)
    with explained_reading():
        if place.exists():
            raise MetaAgentXError(f"{place} is there already: remove it or choose another place")
    check_place(place)


def check_place(place: Path, cure: str = "choose another place") -> None:
    """A place that is to be written: it, or the nearest directory above it, is one and can be written."""
    refuse_dangling(place)
    with explained_reading():
        nearest = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise MetaAgentXError(f"{place} cannot be a directory: {nearest} is a file: {cure}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise MetaAgentXError(f"{access_problem(nearest, 'written')}, or {cure}")


def _origin(recipe: Recipe) -> str:
    """Where a model's relative path was written, and what else it may have been meant to be."""
    origin, written = recipe.origin("model.path"), Path(recipe.written.model.path)
    here = Path.cwd() / written
    if origin and here.exists() and not Path(recipe.config.model.path).exists():
        hint = (
            f"; paths in a recipe are relative to its directory: if {here} is meant, write --set model.path={written}"
        )
        return f"{origin.removesuffix(')')}{hint})"
    return origin
