"""Load recipes: read a file, apply overrides, resolve paths, validate."""

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
from .paths import PATH_KEYS, change_paths, resolve_from
from .sections import Config
from .toml import quote, show_value


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe that was loaded and validated."""

    file: Path
    config: Config
    """With absolute paths."""
    written: Config
    """With paths as they are written."""
    overridden: frozenset[str]
    """Those of `PATH_KEYS` that an override set."""

    def origin(self, key: str) -> str:
        """Return in parentheses where a relative path was written, or nothing if the path is absolute."""
        section, _, name = key.partition(".")
        written, resolved = (getattr(getattr(config, section), name) for config in (self.written, self.config))
        if written == resolved:
            return ""
        where = "--set, from the working directory" if key in self.overridden else str(self.file)
        return f" ({key} = {show_value(written)} in {where})"


def load_config(path: Path | None, overrides: Sequence[str] = (), *, require_peers: bool = True) -> Config:
    """Load a recipe with overrides such as `rollout.designs=8` or `stages.0.executor=1e-4`; its paths are absolute.

    Without a path the overrides are the whole recipe. With `require_peers=False` groups may have one member,
    which is enough where nothing is trained.
    """
    return load_recipe(path, overrides, require_peers=require_peers).config


def load_recipe(
    path: Path | None, overrides: Sequence[str] = (), bases: Sequence[Path] = (), *, require_peers: bool = True
) -> Recipe:
    """Load a recipe and remember where its paths were written.

    Relative paths in the file are relative to its directory, or to the first of `bases` where they exist; those of a
    bundled recipe and of overrides are relative to the working directory.
    """
    recipe = _read(path) if path else {}
    file = path or Path("without a recipe")
    written = copy.deepcopy(recipe)
    change_paths(recipe, resolve_from(bases or _bases(file)))
    for override in overrides:
        for target in (written, recipe):
            _apply(target, override, f"{file} with --set {quote(override)}")
    change_paths(recipe, resolve_from([Path.cwd()]))  # those of the file are absolute by now
    keys = [override.partition("=")[0].strip() for override in overrides]
    overridden = frozenset(path_key for path_key in PATH_KEYS for key in keys if f"{path_key}.".startswith(f"{key}."))
    config, as_written = (_validate(settings, file, overrides, require_peers) for settings in (recipe, written))
    return Recipe(file, config, as_written, overridden)


def _bases(file: Path) -> list[Path]:
    """Return what relative paths in a recipe are relative to. One that is not a regular file has no directory."""
    if is_bundled(file) or not file.is_file():
        return [Path.cwd()]
    return [file.parent, file.resolve().parent]  # they differ if the recipe is a link


def _validate(recipe: dict[str, Any], file: Path, overrides: Sequence[str], require_peers: bool) -> Config:
    try:
        return Config.model_validate(recipe, context={"require_peers": require_peers})
    except ValidationError as error:
        # A misspelled key is often also a missing one, and its spelling says more.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    text = explain(problems[0])
    causes = [f" with --set {quote(override)}" for override in overrides if _is_cause(override, text)]
    raise MetaAgentXError(f"{file}{''.join(causes)}: {text}")


def _is_cause(override: str, message: str) -> bool:
    """Return whether a message names the key of an override, or begins with a table that the key is in."""
    key, problem = override.partition("=")[0].strip(), message.partition(";")[0]  # a suggestion may follow
    first = re.match(r'(?:(?:unknown|missing) key ")?([\w.-]*)', problem)
    in_table = first is not None and key.startswith(f"{first[1]}.")
    return in_table or re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", problem) is not None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
    except PermissionError:
        raise MetaAgentXError(access_problem(path)) from None
    except OSError as error:
        close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.toml")], n=1)
        fix = f"did you mean {path.parent / close[0]}?" if close else "give the path of a recipe, a TOML file"
        raise MetaAgentXError(f"{path} cannot be read ({error.strerror}): {fix}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MetaAgentXError(f"{path}: line {line} is not UTF-8: save the file in that encoding") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).replace("at end of document", f"at line {len(text.splitlines())}, the last one")
        raise MetaAgentXError(f"{path} is not TOML: {reason}: fix that line; strings need quotes") from None


def _apply(recipe: dict[str, Any], override: str, where: str) -> None:
    """Set one key. Whether the key exists is checked when the whole recipe is validated."""
    name, equals, text = override.partition("=")
    *tables, leaf = parts = name.strip().split(".")
    if not equals or not all(parts):
        raise MetaAgentXError(f"{where}: invalid override, expected key=value, such as rollout.designs=8")
    target: Any = recipe
    for depth, part in enumerate(tables):
        if isinstance(target, dict):
            target.setdefault(part, {})
        target = target[_index(target, part, parts[:depth], where)]
    target[_index(target, leaf, tables, where)] = _parse(text.strip())


def _index(target: object, part: str, above: Sequence[str], where: str) -> int | str:
    """Return the index of a part of a key in the table or list that the parts above it name."""
    if isinstance(target, dict):
        return part
    name = ".".join(above)
    if not isinstance(target, list):
        raise MetaAgentXError(f"{where}: {name} has no keys, set it with {name}=value")
    if re.fullmatch("[0-9]{1,9}", part) is None or int(part) >= len(target):
        fix = f"use an index from 0 to {len(target) - 1}" if target else f"set {name} as a whole"
        raise MetaAgentXError(f"{where}: {name} has no entry {part}: {fix}")
    return int(part)


def _parse(text: str) -> object:
    """Return the TOML value of a text, or the text itself: strings need no quotes inside a shell's quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text
