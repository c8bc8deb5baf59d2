"""Reading recipes: a file, then overrides, then the check of the whole."""

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import MetaAgentXError
from .describe import explain
from .sections import Config
from .toml import quote


def load_config(path: Path | None, overrides: Sequence[str] = (), *, trained: bool = True) -> Config:
    """A recipe with overrides such as `rollout.designs=8` or `stages.0.executor=1e-4`, checked.

    Without a path the overrides are all there is. Where nothing is trained, nothing must be there to compare.
    """
    recipe = _read(path) if path else {}
    name = path or "without a recipe"
    for override in overrides:
        _apply(recipe, override, f"{name} with --set {quote(override)}")
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
