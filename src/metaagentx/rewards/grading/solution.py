"""A solution that is called from outside: each ask hands over one result and brings the next call."""

import io
import sys
import traceback
from collections.abc import Callable
from typing import Any

import door

from . import program, values


def serve_functions(source: str, entry_point: str) -> None:
    """Answer calls of one function with plain JSON."""
    function = _find(program.define(source), entry_point)
    said: values.JSON = {"ready": True}
    while True:
        call = door.ask(said)
        try:
            said = {"value": values.plain(function(*call["arguments"]))}
        except Exception as error:  # noqa: BLE001 - the solution's own failure, which is what is asked for
            said = {"error": _describe(error)}


def _find(scope: dict[str, object], entry_point: str) -> Callable[..., object]:
    """The function of this name; of a class of this name (Solution.method), the method of a fresh instance."""
    head, _, method = entry_point.partition(".")
    if not method and not _defined(scope, head) and isinstance(scope.get("Solution"), type):
        head, method = "Solution", entry_point
    if not _defined(scope, head):
        raise NameError(f"the solution does not define {head!r}")
    found: Any = scope[head]
    return getattr(found(), method) if method else found  # type: ignore[no-any-return]


def _defined(scope: dict[str, object], name: str) -> bool:
    """Whether the solution itself defines a name: what is in scope for its convenience solves nothing."""
    return name in scope and scope[name] is not program.NAMES.get(name)


def serve_calls(source: str) -> None:
    """Answer calls of any function by name, with values of any type, and tell how arguments were changed."""
    scope = program.define(source)
    sys.stdin = io.StringIO()
    objects = values.Objects(step=-1)
    objects.classes.update((name, kind) for name, kind in scope.items() if isinstance(kind, type))
    said: values.JSON = {"ready": True}
    while True:
        call = door.ask(said)
        try:
            said = _call(scope, call, objects)
        except Exception as error:  # noqa: BLE001 - the solution's own failure, which is what is asked for
            said = {"error": _describe(error)}


def _call(scope: dict[str, object], call: dict[str, values.JSON], objects: values.Objects) -> values.JSON:
    name = str(call["name"])
    if not _defined(scope, name):
        raise NameError(f"the solution does not define {name!r}")
    function: Any = scope[name]
    arguments, keywords = values.unpack(call["arguments"], objects)
    result = function(*arguments, **keywords)
    return {"parcel": values.pack((result, arguments), objects)}


def _describe(error: Exception) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()[:500]
