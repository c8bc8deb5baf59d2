"""Typed access to the fields of a row: each function returns what it promises or raises RowError naming the field."""

import ast
import json
import math
import re

from ..types import JSON
from .rows import Row, RowError

_HALF_PAIR = re.compile(r"\\u[dD]")
"""An escaped half of a surrogate pair is JSON, but no text."""


def text(row: Row, *names: str) -> str:
    """The first of these fields that is there, as text that is not blank."""
    for name in names:
        value = row.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise RowError(f"{name} is not text but {type(value).__name__}")
        if not value.strip():
            raise RowError(f"{name} is empty")
        return value
    raise RowError(f"no field {' or '.join(names)}")


def optional_text(row: Row, name: str) -> str:
    """Text that may be missing, null or empty."""
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError(f"{name} is not text but {type(value).__name__}")
    return value


def answer_text(row: Row, *names: str) -> str:
    """Text or a whole number: published answers come as both."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return text(row, *names)


def integer(row: Row, name: str) -> int:
    """A whole number."""
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RowError(f"{name} is not a whole number")
    return value


def number(value: object, name: str) -> float:
    """A finite number from 0 on, also when written as text."""
    try:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            result = float(value)
            if math.isfinite(result) and result >= 0:
                return result
    except (ValueError, OverflowError):
        pass
    raise RowError(f"{name} is not a number from 0 on")


def flag(row: Row, name: str) -> bool | None:
    """True or false; None when the row does not say."""
    value = row.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise RowError(f"{name} is neither true nor false")


def items(row: Row, name: str) -> list[JSON]:
    """A list."""
    value = row.get(name)
    if not isinstance(value, list):
        raise RowError(f"{name} is not a list")
    return value


def mapping(value: object, name: str) -> dict[str, JSON]:
    """An object with text keys."""
    if not isinstance(value, dict):
        raise RowError(f"{name} is not an object")
    return value


def texts(values: object, name: str) -> list[str]:
    """A list of texts."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RowError(f"{name} is not a list of texts")
    return values


def decode(value: str, name: str) -> JSON:
    """JSON that a field carries as text."""
    try:
        decoded: JSON = json.loads(value)
        if _HALF_PAIR.search(value):
            json.dumps(decoded, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RowError(f"{name} is not JSON that can be read") from None
    return decoded


def python_source(source: str, name: str) -> str:
    """Python that compiles: tests with a syntax error would fail every solution."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise RowError(f"{name} is not Python: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError, MemoryError):
        raise RowError(f"{name} is not Python that can be read") from None
    return source
