"""Configs and their values as TOML."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from .sections import Config, Section


def to_toml(config: Config) -> str:
    """The config as a recipe that says everything and loads to an equal config."""
    before, sections = [], []
    for name, value in config:
        if isinstance(value, Section):
            entries = [f"{key} = {write_value(entry)}" for key, entry in _entries(value).items()]
            sections.append("\n".join([f"[{name}]", *entries]))
        elif name == "stages":
            before.append("stages = [\n" + "".join(f"    {write_value(stage)},\n" for stage in value) + "]")
        else:
            before.append(f"{name} = {write_value(value)}")
    return "\n\n".join(["\n".join(before), *sections]) + "\n"


def write_value(value: object) -> str:
    """A value on one line. Of a kind that no recipe has, a date for instance: something to show."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | Path):
        return quote(str(value))
    if isinstance(value, list):
        return f"[{', '.join(write_value(entry) for entry in value)}]"
    if isinstance(value, Section):
        return write_value(_entries(value))
    if isinstance(value, dict):
        inner = ", ".join(f"{write_key([key])} = {write_value(entry)}" for key, entry in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return str(value)


def quote(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_key(parts: Sequence[int | str]) -> str:
    """A dotted key, on one line whatever its parts are."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else quote(part) for part in map(str, parts))


def _entries(section: Section) -> dict[str, object]:
    """What is written of a section. TOML has no null: left out, or false where leaving out means something else."""
    fields = type(section).model_fields
    return {
        name: False if value is None else value
        for name, value in section
        if value is not None or fields[name].default is not None
    }
