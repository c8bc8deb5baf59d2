"""Paths in a recipe: a relative one is meant from where it is written, and a loaded config has absolute ones.

Paths are `model.path` (unless it names a preset), `tasks.data_dir`, and in the mixture `tasks.train` the files of
`jsonl:PATH` and of `source?file=PATH`.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import MetaAgentXError
from .sections import Config

PRESET = "preset:"
PATH_KEYS = ("model.path", "tasks.data_dir", "tasks.train")
Change = Callable[[str], Sequence[str]]
"""From a path to the ones that may stand in its place, the best one first."""

_OWN = "jsonl:"
_TERM = re.compile(r"(\s*(?:[0-9.]+\s*\*)?\s*)(.*?)(\s*)", re.DOTALL)
_PLUS = re.compile(r"(\s\+\s)")


def change_paths(recipe: Mapping[str, Any], change: Change) -> None:
    """Change all paths of a recipe that was read and not checked yet. What is no text stays as it is."""
    for key in PATH_KEYS:
        section, _, name = key.partition(".")
        keys = recipe.get(section)
        if isinstance(keys, dict) and isinstance(value := keys.get(name), str) and value:
            keys[name] = _changed(key, value, change)


def resolved(bases: Sequence[Path]) -> Change:
    """The change to absolute paths; in a mixture that cannot hold one, to a path from the working directory."""

    def change(path: str) -> Sequence[str]:
        absolute = _resolve(path, bases)
        return absolute, os.path.relpath(absolute)

    return change


def _resolve(path: str, bases: Sequence[Path]) -> str:
    """The absolute path that a relative one means: below the first base where it exists, else below the first."""
    if Path(path).is_absolute():
        return path
    tidy = [os.path.abspath(base / path) for base in bases]  # noqa: PTH100 - `..` is taken away, which Path leaves
    for base, candidate in zip(bases, tidy, strict=True):
        exact = os.path.join(base.absolute(), path)  # noqa: PTH118 - other than `tidy` where a link comes before `..`
        if os.path.exists(exact):  # noqa: PTH110
            return candidate if _is_same(exact, candidate) else exact
        if os.path.exists(candidate):  # noqa: PTH110
            return candidate
    return tidy[0]


def portable(config: Config, directory: Path) -> Config:
    """The config as it stands in a run directory, so that the run can be moved together with what is around it.

    A path below the parent of the run directory becomes relative to the run directory, any other one absolute.
    """
    home = Path(os.path.abspath(directory))  # noqa: PTH100 - as in `resolve`

    def change(path: str) -> Sequence[str]:
        there = os.path.abspath(path)  # noqa: PTH100
        relative = os.path.relpath(there, home)
        return (relative,) if Path(there).is_relative_to(home.parent) else (there, relative)

    model = config.model.model_copy(update={"path": _changed("model.path", config.model.path, change)})
    tasks = config.tasks.model_copy(update={"train": _changed("tasks.train", config.tasks.train, change)})
    if config.tasks.data_dir is not None:
        tasks = tasks.model_copy(update={"data_dir": Path(change(str(config.tasks.data_dir))[0])})
    return config.model_copy(update={"model": model, "tasks": tasks})


def _changed(key: str, value: str, change: Change) -> str:
    if key == "tasks.train":
        parts = _PLUS.split(value)
        parts[::2] = [_change_term(term, change) for term in parts[::2]]
        return "".join(parts)
    return value if key == "model.path" and value.startswith(PRESET) else change(value)[0]


def _change_term(term: str, change: Change) -> str:
    match = _TERM.fullmatch(term)
    assert match is not None
    before, source, after = match.groups()
    address, mark, query = source.partition("?")
    if address.startswith(_OWN) and len(address) > len(_OWN):
        address = _OWN + _writable(address.removeprefix(_OWN), change, r"\s\+\s|\?|\n|^\s|\s$")
    elif not address.startswith("gym:"):
        pairs = [_change_file(pair, change) for pair in query.split("&")]
        query = "&".join(pairs)
    return f"{before}{address}{mark}{query}{after}"


def _change_file(pair: str, change: Change) -> str:
    key, _, path = pair.partition("=")
    return "file=" + _writable(path, change, r"\s\+\s|&|\n|\s$") if key == "file" and path else pair


def _writable(path: str, change: Change, separators: str) -> str:
    for changed in change(path):
        if not re.search(separators, changed):
            return changed
    raise MetaAgentXError(f"tasks.train cannot name {changed}: rename the directory, without + ? & and line breaks")


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
