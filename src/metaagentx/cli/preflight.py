"""Checks that run before a model is loaded and before anything is written; each takes milliseconds.

Task sources are the exception: their files are read, once, and the tasks are returned for use.
"""

import asyncio
import os
from pathlib import Path

from ..atomic import friendly_read_errors, refuse_dangling
from ..backends.hub import fetch_model, find_model
from ..backends.model_files import check_adapter, check_model
from ..backends.presets import check_preset
from ..config import Config, Recipe
from ..errors import MetaAgentXError, access_problem
from ..options import PRESET
from ..rewards.probe import check_graders
from ..tasks import Mixture
from ..tools import check_tools
from ..training.loggers import check_loggers
from ..types import Role
from .memory_check import check_memory

RESUME_HINT = "free some disk space, then run the same command to resume"


async def prepare_tasks(config: Config) -> Mixture:
    """Load the training tasks and check their graders."""
    tasks = config.load_tasks()
    await check_graders(tasks.graders)
    return tasks


def prepare_training(recipe: Recipe, directory: Path) -> Mixture:
    """Run every check for a run in this directory, which may exist or not, and return its training tasks.

    When all else is right, a model that only the Hugging Face hub has is downloaded, and the memory plan must fit.
    """
    check_start(recipe, directory)
    tasks = asyncio.run(prepare_tasks(recipe.config))
    model = recipe.config.model
    if model.backend == "tinker":  # the server has the weights
        return tasks
    if model.preset is None and not (model.made_by_run and (directory / "model").exists()):
        fetch_model(model.path, model.gguf_file)
    check_memory(recipe.config, directory)
    return tasks


def check_start(recipe: Recipe, directory: Path) -> None:
    """Check the output directory, the loggers, the tools, and the model that a run starts from."""
    check_output_directory(directory)
    check_loggers(recipe.config.run.loggers, directory)
    check_tools(recipe.config.tools)
    created = directory / "model"
    if recipe.config.model.backend == "tinker":
        from ..backends.tinker.server import import_sdk

        import_sdk()
        check_model(Path(recipe.config.model.path), origin=_origin(recipe), on_server=True)
    elif recipe.config.model.made_by_run and created.exists():
        check_model(created)
    else:
        check_model_setting(recipe.config.model.path, recipe.config.model.gguf_file, _origin(recipe))


def check_model_setting(path: str, gguf_file: str | None = None, origin: str = "") -> None:
    """Check a model as recipes and options name it: a directory, a preset, or a name on the hub.

    A model that must be downloaded is checked when that is done.
    """
    if path.startswith(PRESET):
        check_preset(path.removeprefix(PRESET))
    elif (directory := find_model(path, gguf_file)) is not None:
        check_model(directory, gguf_file, origin)


def check_checkpoint(config: Config, checkpoint: Path) -> None:
    """Check the files that an evaluation loads: a model or a LoRA adapter for each role."""
    roles = [Role.EXECUTOR] if config.model.sharing == "shared" and not config.model.lora_rank else [*Role]
    for role in roles:
        (check_adapter if config.model.lora_rank else check_model)(checkpoint / role)


def check_new(path: Path) -> None:
    """Check that a path does not exist yet and can be created."""
    refuse_dangling(path)
    with friendly_read_errors():
        if path.exists():
            raise MetaAgentXError(f"{path} exists already: remove it or choose another path")
    check_output_directory(path)


def check_output_directory(path: Path, fix: str = "choose another path") -> None:
    """Check that an output directory, or its nearest existing parent, is a directory and can be written."""
    refuse_dangling(path)
    with friendly_read_errors():
        nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
        if not nearest.is_dir():
            raise MetaAgentXError(f"{path} cannot be a directory: {nearest} is a file: {fix}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise MetaAgentXError(f"{access_problem(nearest, 'written')}, or {fix}")


def _origin(recipe: Recipe) -> str:
    """Describe where a model's relative path was written, and what else it may mean."""
    origin, written = recipe.origin("model.path"), Path(recipe.written.model.path)
    here = Path.cwd() / written
    if origin and here.exists() and not Path(recipe.config.model.path).exists():
        hint = (
            f"; paths in a recipe are relative to its directory: if {here} is meant, write --set model.path={written}"
        )
        return f"{origin.removesuffix(')')}{hint})"
    return origin
