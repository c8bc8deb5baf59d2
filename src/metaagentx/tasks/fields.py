"""Typed access to the fields of a row: each function returns what it promises or raises RowError naming the field."""

import ast
import json
import math
import re
from typing import Any

from ..types import JSON
from .rows import Row, RowError

_HALF_PAIR = re.compile(r"\\u[dD]")
"""An escaped half of a surrogate pair is valid JSON but not valid text."""


def _checked(value: Any, kind: type, name: str, expected: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RowError(f"{name} is not {expected} but {type(value).__name__}")
    return value


def text(row: Row, *names: str) -> str:
    """Return the first of these fields that is present, as text that is not blank."""
    for name in names:
        if row.get(name) is not None:
            value: str = _checked(row[name], str, name, "text")
            if not value.strip():
                raise RowError(f"{name} is empty")
            return value
    raise RowError(f"no field {' or '.join(names)}")


def optional_text(row: Row, name: str) -> str:
    """Return text that may be missing, null or empty."""
    value: str = "" if row.get(name) is None else _checked(row[name], str, name, "text")
    return value


def answer_text(row: Row, *names: str) -> str:
    """Return text or an integer as text: published answers come as both."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return text(row, *names)


def optional_id(value: object) -> str:
    """Return a row's id, text or an integer, as text; empty if it is anything else."""
    return str(value) if isinstance(value, (int, str)) else ""


def integer(row: Row, name: str) -> int:
    """Return an integer."""
    value: int = _checked(row.get(name), int, name, "an integer")
    return value


def number(value: object, name: str) -> float:
    """Return a finite number >= 0, also if it is written as text."""
    try:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            result = float(value)
            if math.isfinite(result) and result >= 0:
                return result
    except (ValueError, OverflowError):
        pass
    raise RowError(f"{name} is not a number >= 0")


def flag(row: Row, name: str) -> bool | None:
    """Return true or false; None if the row has no such field."""
    value: bool | None = None if row.get(name) is None else _checked(row[name], bool, name, "true or false")
    return value


def items(row: Row, name: str) -> list[JSON]:
    """Return a list."""
    value: list[JSON] = _checked(row.get(name), list, name, "a list")
    return value


def mapping(value: object, name: str) -> dict[str, JSON]:
    """Return an object with text keys."""
    checked: dict[str, JSON] = _checked(value, dict, name, "an object")
    return checked


def texts(values: object, name: str) -> list[str]:
    """Return a list of texts."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RowError(f"{name} is not a list of texts")
    return values


def decode(value: str, name: str) -> JSON:
    """Parse JSON that a field carries as text."""
    try:
        decoded: JSON = json.loads(value)
        if _HALF_PAIR.search(value):
            json.dumps(decoded, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RowError(f"{name} is not valid JSON") from None
    return decoded


def python_source(source: str, name: str) -> str:
    """Return source that compiles: tests with a syntax error would fail every solution."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise RowError(f"{name} is not Python: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError, MemoryError):
        raise RowError(f"{name} is not Python that can be parsed") from None
    return source
