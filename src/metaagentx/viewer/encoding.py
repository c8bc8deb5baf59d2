"""JSON for browsers."""

import json
from typing import Any

from ..runs.records import finite_fields


def to_json(value: dict[str, Any]) -> bytes:
    """Return JSON that every browser reads: ASCII only, and infinity and NaN as text."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(finite_fields(_lists(value)), separators=(",", ":"), allow_nan=False)
    return text.encode()


def _lists(value: Any) -> Any:
    """Return tuples as lists."""
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value
