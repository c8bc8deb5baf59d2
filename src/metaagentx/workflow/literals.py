"""Values that the text of a script tells, for the reader in `structure`. Nothing that could grow large is computed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

MAX_ITEMS = 200
MAX_TEXT = 50_000
BUILTINS = ("range", "enumerate", "zip", "list", "tuple")


class Unknown:
    """A value that the text does not tell. It may stand for a function, so it can be called."""

    def __call__(self, *_: object) -> Unknown:
        return self


UNKNOWN = Unknown()


def is_unknown(value: object) -> bool:
    return isinstance(value, Unknown)


def lookup(container: object, key: object) -> object:
    """`container[key]`."""
    if isinstance(container, list | tuple) and isinstance(key, int) and -len(container) <= key < len(container):
        return container[key]
    if isinstance(container, dict) and isinstance(key, str | int):
        return container.get(key, UNKNOWN)
    return UNKNOWN


def builtin(name: str, arguments: list[Any]) -> object:
    """`range`, `zip`, `enumerate`, `list` and `tuple` of known values."""
    known: list[Any] = [
        list(a) if isinstance(a, list | tuple | dict | range) and len(a) <= MAX_ITEMS else a for a in arguments
    ]
    if name == "range" and 1 <= len(known) <= 3 and all(isinstance(a, int) and abs(a) < 10**9 for a in known):
        return range(*known) if len(known) < 3 or known[2] else UNKNOWN
    if not known or name == "range" or not all(isinstance(a, list) for a in known):
        return UNKNOWN
    if name == "zip":
        return [tuple(items) for items in zip(*known, strict=False)]
    return list(enumerate(known[0])) if name == "enumerate" else known[0]


def combine(operator: ast.operator, left: Any, right: Any) -> Any:
    """Sums and repetitions of small values; nothing that could grow large is computed."""
    match operator, left, right:
        case ast.Add(), str(), str():
            return left + right if len(left) + len(right) <= MAX_TEXT else UNKNOWN
        case (ast.Add(), list(), list()) | (ast.Add(), tuple(), tuple()):
            return left + right if len(left) + len(right) <= MAX_ITEMS else UNKNOWN
        case ast.Mult(), (list() | tuple()), int():
            return left * right if len(left) * right <= MAX_ITEMS else UNKNOWN
        case ((ast.Add() | ast.Sub()), int(), int()) if max(abs(left), abs(right)) < 10**9:
            return left + right if isinstance(operator, ast.Add) else left - right
    return UNKNOWN


def joined(separator: str, items: Sequence[object]) -> object:
    """`separator.join(items)`."""
    texts = [item for item in items if isinstance(item, str)]
    size = sum(len(text) + len(separator) for text in texts)
    return separator.join(texts) if len(texts) == len(items) and size <= MAX_TEXT else UNKNOWN


def method_value(target: Any, method: str, arguments: list[Any]) -> object:
    """A call of a method of a list, dict or str."""
    match target, method, arguments:
        case list(), "append", [item] if len(target) < MAX_ITEMS:
            target.append(item)
            return None
        case list(), "extend", [list() | tuple() as items] if len(target) + len(items) <= MAX_ITEMS:
            target.extend(items)
            return None
        case dict(), "items" | "keys" | "values", []:
            views = {"items": target.items(), "keys": target.keys(), "values": target.values()}
            return list(views[method])
        case dict(), "get", [str() | int() as key, *_]:
            return target.get(key, UNKNOWN)
        case str(), "strip", []:
            return target.strip()
        case str(), "join", [list() | tuple() as items]:
            return joined(target, items)
    return UNKNOWN
