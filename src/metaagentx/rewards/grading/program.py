"""Run a whole program as __main__, with the imports in scope that solutions expect."""

import atexit
import builtins
import io
import sys
import types

_MODULES = """
import array, bisect, cmath, collections, copy, datetime, decimal, fractions, functools, heapq, io, itertools, json
import math, operator, os, queue, random, re, statistics, string, sys, time, typing
"""
_NAMES = """
from typing import *
from collections import *
from itertools import *
from functools import *
from math import *
from heapq import *
from bisect import *
from string import *
from decimal import Decimal
from fractions import Fraction
import bisect
from builtins import *
"""  # the last lines: bisect holds a function of its own name, math a pow of its own

FILE_NAME = "solution.py"


def _scope(*imports: str) -> dict[str, object]:
    names: dict[str, object] = {}
    for text in imports:
        exec(text, names)
    return names


MODULES = _scope(_MODULES)
"""Names in scope for tests."""
NAMES = _scope(_MODULES, _NAMES)
"""Names in scope for a solution."""
CLASSES = {name: kind for name, kind in NAMES.items() if isinstance(kind, type)}

# They are built-in names of a solution, not globals: adding hundreds of names to a fresh scope and removing them at the
# end would make each run copy memory pages that it shares with the fork server.
_BUILTINS = types.ModuleType("builtins")
_BUILTINS.__dict__.update(builtins.__dict__)
_BUILTINS.__dict__.update(NAMES)


def run(source: str) -> None:
    """Execute a program as __main__."""
    # Keep the first streams alive, as the interpreter does: otherwise a program that wraps sys.stdout.buffer and drops
    # the old sys.stdout would close what it writes to.
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    scope = _fresh_scope("__main__")
    atexit.register(_finish_output, scope)  # exit functions run last in, first out: after all of the program's own
    exec(compile(source, FILE_NAME, "exec"), scope)


def _finish_output(scope: dict[str, object]) -> None:
    """Flush a program's output as the interpreter does at its exit, which a sandboxed run does not reach.

    A closed or missing stream is not flushed. Then the program's names are dropped, so that files it left open, such
    as a wrapper around standard output, are closed and thereby flushed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if _can_flush(stream):
            stream.flush()  # type: ignore[union-attr]  # what this raises is the program's failure
        # The run flushes both streams again after the names that a program's own stream uses are gone.
        setattr(sys, name, io.StringIO())
    scope.clear()
    if _can_flush(sys.__stdout__):
        sys.__stdout__.flush()  # type: ignore[union-attr]


def _can_flush(stream: object) -> bool:
    try:
        return callable(getattr(stream, "flush", None)) and not getattr(stream, "closed", False)
    except ValueError:  # detached from its buffer
        return False


def define(source: str) -> dict[str, object]:
    """Execute a solution's definitions, not as __main__; return its scope."""
    scope = _fresh_scope("solution")
    exec(compile(source, FILE_NAME, "exec"), scope)
    return scope


def _fresh_scope(name: str) -> dict[str, object]:
    scope = sys.modules["__main__"].__dict__
    scope.clear()
    scope.update(__name__=name, __builtins__=_BUILTINS)
    return scope
