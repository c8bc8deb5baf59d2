"""Paths in a recipe: a relative one is relative to where it is written, and a loaded config has absolute ones.

Paths are `model.path` (unless it names a preset or a model on the hub), `tasks.data_dir`, and in the mixture
`tasks.train` the files of `jsonl:PATH` and of `source?file=PATH`.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..options import PRESET, is_hub_name
from ..tasks.mixture import replace_paths
from .sections import Config

PATH_KEYS = ("model.path", "tasks.data_dir", "tasks.train")
Candidates = Callable[[str], Sequence[str]]
"""From a path to those that may replace it, the best one first: a mixture cannot contain every path."""


def change_paths(recipe: dict[str, Any], candidates: Candidates) -> None:
    """Replace all paths of a recipe that is not validated yet. Values that are not strings stay as they are."""
    for key in PATH_KEYS:
        section, _, name = key.partition(".")
        keys = recipe.get(section)
        value = keys.get(name) if isinstance(keys, dict) else None
        if not isinstance(value, str) or not value or (key == "model.path" and _is_name(value, candidates)):
            continue
        recipe[section][name] = replace_paths(value, candidates) if key == "tasks.train" else candidates(value)[0]


def _is_name(model: str, candidates: Candidates) -> bool:
    """Return whether a model is a preset, or a name on the hub: neither the directory nor the one it would be in is
    there."""
    if model.startswith(PRESET):
        return True
    return is_hub_name(model) and not any(
        os.path.exists(candidates(path)[0])  # noqa: PTH110
        for path in (model, model.partition("/")[0])
    )


def resolve_from(bases: Sequence[Path]) -> Candidates:
    """Return the change to absolute paths. The second choice is relative to the working directory."""

    def candidates(path: str) -> Sequence[str]:
        absolute = _resolve(path, bases)
        return absolute, os.path.relpath(absolute)

    return candidates


def _resolve(path: str, bases: Sequence[Path]) -> str:
    """Return the absolute path: below the first base where it exists, else below the first base."""
    if Path(path).is_absolute():
        return path
    for base in bases:
        exact = os.path.join(base.absolute(), path)  # noqa: PTH118 - not the normalized path if a link precedes `..`
        normalized = os.path.abspath(exact)  # noqa: PTH100 - removes `..`, which Path keeps
        if os.path.exists(exact):  # noqa: PTH110
            return normalized if os.path.realpath(exact) == os.path.realpath(normalized) else exact
        if os.path.exists(normalized):  # noqa: PTH110
            return normalized
    return os.path.abspath(bases[0] / path)  # noqa: PTH100


def portable(config: Config, directory: Path) -> Config:
    """Return the config as it is written to a run directory, so that the run can be moved with what is around it.

    A path below the parent of the run directory becomes relative to the run directory, any other path absolute.
    """
    home = Path(os.path.abspath(directory))  # noqa: PTH100

    def candidates(path: str) -> Sequence[str]:
        absolute = os.path.abspath(path)  # noqa: PTH100
        relative = os.path.relpath(absolute, home)
        return (relative,) if Path(absolute).is_relative_to(home.parent) else (absolute, relative)

    recipe = config.model_dump(mode="json")
    change_paths(recipe, candidates)
    return Config.model_validate(recipe, context={"require_peers": False})
