"""Reading recipes: a file, then overrides, then the check of the whole."""

import copy
import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import MetaAgentXError, access_problem
from .bundled import is_bundled
from .describe import explain
from .paths import PATH_KEYS, change_paths, resolved
from .sections import Config
from .toml import quote, write_value


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe that was read and checked."""

    file: Path
    config: Config
    """With absolute paths."""
    written: Config
    """With paths as they are written."""
    overridden: frozenset[str]
    """Those of `PATH_KEYS` that an override set."""

    def origin(self, key: str) -> str:
        """Where a relative path was written, in brackets; nothing for a path that is absolute."""
        section, _, name = key.partition(".")
        written, config = (getattr(getattr(whole, section), name) for whole in (self.written, self.config))
        if written == config:
            return ""
        where = "--set, from the working directory" if key in self.overridden else str(self.file)
        return f" ({key} = {write_value(written)} in {where})"


def load_config(path: Path | None, overrides: Sequence[str] = (), *, trained: bool = True) -> Config:
    """A recipe with overrides such as `rollout.designs=8` or `stages.0.executor=1e-4`, checked; paths are absolute.

    Without a path the overrides are all there is. Where nothing is trained, nothing must be there to compare.
    """
    return load_recipe(path, overrides, trained=trained).config


def load_recipe(
    path: Path | None, overrides: Sequence[str] = (), bases: Sequence[Path] = (), *, trained: bool = True
) -> Recipe:
    """The same with where its paths come from.

    Relative paths in the file are meant from its directory, or from the first of `bases` where they exist; those of a
    bundled recipe and of overrides from the working directory.
    """
    recipe = _read(path) if path else {}
    name = path or Path("without a recipe")
    written = copy.deepcopy(recipe)
    change_paths(recipe, resolved(bases or _bases(name)))
    for override in overrides:
        for target in (written, recipe):
            _apply(target, override, f"{name} with --set {quote(override)}")
    change_paths(recipe, resolved([Path.cwd()]))  # the file's own are absolute by now
    keys = [override.partition("=")[0].strip() for override in overrides]
    overridden = frozenset(key for key in PATH_KEYS for given in keys if f"{key}.".startswith(f"{given}."))
    config, as_written = (_check(settings, name, overrides, trained) for settings in (recipe, written))
    return Recipe(name, config, as_written, overridden)


def _bases(path: Path) -> list[Path]:
    """What relative paths in a file are relative to. A file that is no file, such as a pipe, is nowhere."""
    if is_bundled(path) or not path.is_file():
        return [Path.cwd()]
    return [path.parent, path.resolve().parent]  # other than the first if the recipe is a link


def _check(recipe: dict[str, Any], name: Path, overrides: Sequence[str], trained: bool) -> Config:
    try:
        return Config.model_validate(recipe, context={"trained": trained})
    except ValidationError as error:
        # A misspelt key is also a missing one; its spelling says more.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    text = explain(problems[0])
    blamed = [f" with --set {quote(override)}" for override in overrides if _is_about(text, override)]
    raise MetaAgentXError(f"{name}{''.join(blamed)}: {text}")


def _is_about(text: str, override: str) -> bool:
    """Whether a message begins with a key that the override reaches into, or names the override's own."""
    key, first = override.partition("=")[0].strip(), text.partition(" ")[0]
    return key.startswith(f"{first}.") or re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", text) is not None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
    except PermissionError:
        raise MetaAgentXError(access_problem(path)) from None
    except OSError as error:
        near = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.toml")], n=1)
        fix = f"did you mean {path.parent / near[0]}?" if near else "give the path of a recipe, a TOML file"
        raise MetaAgentXError(f"{path} cannot be read ({error.strerror}): {fix}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MetaAgentXError(f"{path}: line {line} is not UTF-8: save the file in that encoding") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        end = f"at line {len(text.splitlines())}, the last one"
        reason = str(error).replace("at end of document", end)
        raise MetaAgentXError(f"{path} is not TOML: {reason}: mend that line; texts need quotes") from None


def _apply(recipe: dict[str, Any], override: str, where: str) -> None:
    """Set one key. Whether there is such a key is found out when the whole is checked."""
    name, equals, text = override.partition("=")
    *sections, leaf = parts = name.strip().split(".")
    if not equals or not all(parts):
        raise MetaAgentXError(f"{where}: this is no override: write key=value, such as rollout.designs=8")
    place: Any = recipe
    for depth, part in enumerate(sections):
        if isinstance(place, dict):
            place.setdefault(part, {})
        place = place[_index(place, part, parts[:depth], where)]
    place[_index(place, leaf, sections, where)] = _parse(text.strip())


def _index(place: object, part: str, above: Sequence[str], where: str) -> int | str:
    """What to look a part of a key up with, in what stands at the parts above it."""
    if isinstance(place, dict):
        return part
    name = ".".join(above)
    if not isinstance(place, list):
        raise MetaAgentXError(f"{where}: {name} has no keys: write {name}=value")
    if re.fullmatch("[0-9]{1,9}", part) is None or int(part) >= len(place):
        fix = f"write a number from 0 to {len(place) - 1}" if place else f"set {name} as a whole"
        raise MetaAgentXError(f"{where}: {name} has no entry {part}: {fix}")
    return int(part)


def _parse(text: str) -> object:
    """A value as TOML has it; what is none is a text, so that words need no quotes within a shell's quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text
