"""Assert-style tests, run apart from the solution: stand-ins for its functions and classes relay calls to it.

A function's results are plain copies. An instance that the tests make themselves, `LRUCache(2)`, stays in the
solution's run, and its methods are called there. Nothing else of the solution has methods here, and the solution never
decides an operator or comparison: its objects must not be able to call themselves equal.
"""

import ast
import builtins
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import door

from . import program, values

# Made once and not in each run: copying would touch memory that the run shares with the fork server.
_GIVEN_NAMES = frozenset(program.MODULES) | frozenset(dir(builtins))
_CLASS_NAME = re.compile(r"[A-Z][a-zA-Z0-9]*")
_ANNOTATIONS = (
    "Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Optional", "Sequence", "Set", "Tuple", "Union"
)  # fmt: skip
# Raised inside map() these would end it early, and the tests with it; only tests may raise AssertionError.
_NOT_RELAYED = (StopIteration, StopAsyncIteration, AssertionError)


class SolutionError(Exception):
    """The solution raised, or its process has ended."""


class Solution:
    """The solution's run, as the tests see it."""

    def __init__(self) -> None:
        self._objects = values.Objects(step=1)
        self._classes: dict[str, type] = {}
        self._asked = False

    def ask(self, request: dict[str, values.JSON], *arguments: object, **keywords: object) -> Any:
        """Send a request to the solution's run; return the result and apply its in-place changes to the arguments."""
        request["arguments"] = values.pack((list(arguments), keywords), self._objects)
        if not self._asked:
            request["first"] = self._asked = True  # drop what earlier tests left there
        reply = door.ask(request)
        if "error" in reply:
            raise _solution_error(reply)
        if "method" in reply:
            return self._method(request)
        if "instance" in reply:
            result = self._instance(request["make"], reply["instance"])
            changed = values.unpack(reply["parcel"], self._objects)
        else:
            result, changed = values.unpack(reply["parcel"], self._objects)
        changed_arguments, changed_keywords = changed
        for before, after in zip(arguments, changed_arguments, strict=True):
            _update(before, after)
        for name, before in keywords.items():
            _update(before, changed_keywords[name])
        return result

    def function(self, name: str) -> Callable[..., object]:
        """Return a function that calls the solution's function of this name."""
        return lambda *arguments, **keywords: self.ask({"name": name}, *arguments, **keywords)

    def stand_in(self, name: str) -> Callable[..., object]:
        """Return the stand-in for a name that the solution defines, a class or a function by its spelling."""
        if not _CLASS_NAME.fullmatch(name):
            return self.function(name)
        if name not in self._classes:
            self._classes[name] = _ClassStandIn(name, (_Instance,), {"_solution": self})
        return self._classes[name]

    def _instance(self, class_name: str, number: values.JSON) -> object:
        if type(number) is not int:
            raise values.CannotTravel("not the number of an instance")
        known = self._objects.known.get(number)
        if isinstance(known, _Instance):
            return known
        made: object = object.__new__(self._classes[class_name])
        object.__setattr__(made, "_number", number)
        self._objects.add_instance(number, made)
        return made

    def _method(self, request: dict[str, values.JSON]) -> Callable[..., object]:
        target = "instance" if "instance" in request else "name"
        call = {target: request[target], "call": request["get"]}
        return lambda *arguments, **keywords: self.ask(dict(call), *arguments, **keywords)


class _ClassStandIn(type):
    """The metaclass of stand-ins for the solution's classes."""

    _solution: Solution

    def __call__(cls, *arguments: object, **keywords: object) -> object:
        return cls._solution.ask({"make": cls.__name__}, *arguments, **keywords)

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls._solution.ask({"name": cls.__name__, "get": name})


class _Instance:
    """Stands for an instance that the tests made. Its equality is identity: comparisons are not relayed."""

    _solution: Solution
    _number: int

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._solution.ask({"instance": self._number, "get": name})

    def __setattr__(self, name: str, value: object) -> None:
        self._solution.ask({"instance": self._number, "set": name}, value)

    def _relay(self, name: str, *arguments: object, **keywords: object) -> Any:
        return self._solution.ask({"instance": self._number, "call": name}, *arguments, **keywords)

    def __len__(self) -> int:
        return int(self._relay("__len__"))

    def __bool__(self) -> bool:
        return self._relay("__bool__") is True

    def __getitem__(self, key: object) -> object:
        return self._relay("__getitem__", key)

    def __setitem__(self, key: object, value: object) -> None:
        self._relay("__setitem__", key, value)

    def __delitem__(self, key: object) -> None:
        self._relay("__delitem__", key)

    def __iter__(self) -> Iterator[object]:
        return iter(self._relay("__iter__"))

    def __call__(self, *arguments: object, **keywords: object) -> object:
        return self._relay("__call__", *arguments, **keywords)

    def __str__(self) -> str:
        return str(self._relay("__str__"))

    def __repr__(self) -> str:
        return str(self._relay("__repr__"))


def _solution_error(reply: dict[str, values.JSON]) -> Exception:
    """Return what the solution raised, of the same built-in type, so that tests can expect it."""
    kind = getattr(builtins, str(reply.get("type")), None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NOT_RELAYED):
        try:
            return kind(reply["error"])
        except TypeError:  # a type that takes other arguments, such as UnicodeDecodeError
            pass
    return SolutionError(reply["error"])


def missing_names(source: str) -> set[str]:
    """Return the names that the tests use and do not define: the solution's."""
    used: set[str] = set()
    called: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    # A name of typing that is called is not an annotation: a solution may have a class of that name.
    return ((used - defined - set(_ANNOTATIONS)) | (called - defined)) - _GIVEN_NAMES


def _update(before: object, after: object) -> None:
    """Apply a change that the solution made in place to an argument."""
    if type(before) is not type(after) or before is after:
        return
    if isinstance(before, list) and isinstance(after, list):
        before[:] = after
    elif isinstance(before, dict | set) and isinstance(after, dict | set):
        before.clear()
        before.update(after)


def run(source: str, entry_point: str) -> None:
    """Execute the tests; answer True if they ran to their end."""
    solution = Solution()
    scope: dict[str, object] = {name: getattr(typing, name) for name in _ANNOTATIONS}
    scope |= program.MODULES | {"__name__": "tests"}
    head = entry_point.partition(".")[0]  # of Class.method the class
    for name in missing_names(source) | ({head} if head else set()):
        scope[name] = solution.stand_in(name)
    exec(compile(source, "tests.py", "exec"), scope)
    door.answer(True)
