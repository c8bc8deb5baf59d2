"""Assert-style tests, run apart from the solution: its functions are stand-ins that call it through the host."""

import ast
import builtins
from collections.abc import Callable

import door

from . import program, values


class SolutionError(Exception):
    """The solution raised, or is gone."""


def missing_names(source: str) -> set[str]:
    """Names that the tests use and do not define: the solution's."""
    used: set[str] = set()
    defined = set(program.MODULES) | set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return used - defined


def stand_in(name: str, objects: values.Objects) -> Callable[..., object]:
    """A function that has the solution's function of this name called."""

    def call(*arguments: object, **keywords: object) -> object:
        parcel = values.pack((list(arguments), keywords), objects)
        said = door.ask({"name": name, "arguments": parcel})
        if "error" in said:
            raise SolutionError(said["error"])
        result, changed = values.unpack(said["parcel"], objects)
        for before, after in zip(arguments, changed, strict=True):
            _update(before, after)
        return result

    return call


def _update(before: object, after: object) -> None:
    """Let an argument that the solution changed in place be changed here too."""
    if type(before) is not type(after) or before is after:
        return
    if isinstance(before, list) and isinstance(after, list):
        before[:] = after
    elif isinstance(before, dict | set) and isinstance(after, dict | set):
        before.clear()
        before.update(after)


def run(source: str, entry_point: str) -> None:
    """Execute the tests; answer True when they ran to their end."""
    objects = values.Objects(step=1)
    scope: dict[str, object] = dict(program.MODULES) | {"__name__": "tests"}
    for name in missing_names(source) | ({entry_point} if entry_point else set()):
        scope[name] = stand_in(name, objects)
    exec(compile(source, "tests.py", "exec"), scope)
    door.answer(True)
