"""A solution that is called from outside: each `door.ask` sends one result and returns the next call."""

import io
import itertools
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import door

from . import program, values


def serve_functions(source: str, entry_point: str) -> None:
    """Serve calls of one function with plain JSON."""
    function = _find(program.define(source), entry_point)
    reply: values.JSON = {"ready": True}
    while True:
        call = door.ask(reply)
        try:
            reply = {"value": values.plain(function(*call["arguments"]))}
        except Exception as error:  # noqa: BLE001 - the solution's own failure is a result
            reply = {"error": _describe(error)}


def _find(scope: dict[str, object], entry_point: str) -> Callable[..., object]:
    """Return the function of this name; for Solution.method, the method of a fresh instance."""
    head, _, method = entry_point.partition(".")
    if not method and not _defined(scope, head) and isinstance(scope.get("Solution"), type):
        head, method = "Solution", entry_point
    if not _defined(scope, head):
        raise NameError(f"the solution does not define {head!r}")
    target: Any = scope[head]
    return getattr(target(), method) if method else target  # type: ignore[no-any-return]


def _defined(scope: dict[str, object], name: str) -> bool:
    """Return whether the solution itself defines a name: names that are given to it do not count."""
    return name in scope and scope[name] is not program.NAMES.get(name)  # also not by importing it


def serve_calls(source: str) -> None:
    """Serve calls of any function, class or method, with values of any type, and report how arguments were changed."""
    scope = program.define(source)
    sys.stdin = io.StringIO()
    objects = _objects(scope)
    reply: values.JSON = {"ready": True}
    while True:
        call = door.ask(reply)
        if call.get("first"):
            objects = _objects(scope)  # other tests begin, with numbers of their own for objects
        try:
            reply = _call(scope, call, objects)
        except Exception as error:  # noqa: BLE001 - the solution's own failure is a result
            reply = {"error": _describe(error), "type": type(error).__name__}


def _objects(scope: dict[str, object]) -> values.Objects:
    objects = values.Objects(step=-1)
    own = {name: kind for name, kind in scope.items() if isinstance(kind, type)}
    objects.classes = ChainMap(own, program.CLASSES)
    return objects


def _call(scope: dict[str, object], call: dict[str, values.JSON], objects: values.Objects) -> values.JSON:
    """Do what one request of the tests asks for.

    The target is {"instance": number}, one that the tests have made, or {"name"}, or {"make"}, a class to be called. It
    is called itself, or {"get"}, {"set"} or {"call"} names an attribute.
    """
    arguments, keywords = values.unpack(call["arguments"], objects)
    target: Any = objects.known[call["instance"]] if "instance" in call else _lookup(scope, call)
    result: Any = None
    if "set" in call:
        setattr(target, str(call["set"]), arguments[0])
    elif "get" in call:
        result = getattr(target, str(call["get"]))
        if callable(result):
            return {"method": True}
    elif "call" in call:
        name = str(call["call"])
        protocol = _PROTOCOLS.get(name)
        result = protocol(target) if protocol else getattr(target, name)(*arguments, **keywords)
    else:
        result = target(*arguments, **keywords)
        if "make" in call and isinstance(target, type) and isinstance(result, target):
            number = objects.make_instance(result)
            return {"instance": number, "parcel": values.pack((arguments, keywords), objects)}
    return {"parcel": values.pack((result, (arguments, keywords)), objects)}


# What the language does itself where a class defines nothing, or something else.
_PROTOCOLS: dict[str, Callable[[Any], object]] = {
    "__bool__": bool,
    "__iter__": lambda it: list(itertools.islice(it, values.MAX_ITEMS)),
}


def _lookup(scope: dict[str, object], call: dict[str, values.JSON]) -> Any:
    name = str(call.get("make") or call["name"])
    if not _defined(scope, name):
        raise NameError(f"the solution does not define {name!r}")
    return scope[name]


def _describe(error: Exception) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()[:500]
