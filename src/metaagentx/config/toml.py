"""Configs and single values as TOML."""

import json
from pathlib import Path

from .sections import Config


def to_toml(config: Config) -> str:
    """Return the config as a recipe that sets every key and loads to an equal config."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def show_value(value: object) -> str:
    """Return a value on one line, for messages and the reference."""
    if isinstance(value, bool | str | Path | list | dict):
        return quote(str(value)) if isinstance(value, str | Path) else json.dumps(value, default=str)
    return str(value)


def quote(text: str) -> str:
    """Return a TOML basic string. JSON's escapes are TOML's, except that TOML also escapes the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
