"""A whole program, run as a person would run it, with the imports in scope that solutions take for granted."""

import atexit
import io
import sys

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
"""In scope for tests."""
NAMES = _scope(_MODULES, _NAMES)
"""In scope before the first line of a solution."""


def run(source: str) -> None:
    """Execute a program as __main__."""
    # The interpreter keeps the first streams alive: or a program that wraps sys.stdout.buffer and drops the old
    # sys.stdout would close what it writes to.
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    scope = sys.modules["__main__"].__dict__
    scope.clear()
    scope.update(NAMES, __name__="__main__")
    atexit.register(_finish_output, scope)  # exit functions run last in, first out: after all of the program's own
    exec(compile(source, FILE_NAME, "exec"), scope)


def _finish_output(scope: dict[str, object]) -> None:
    """Do with a program's output what the interpreter does at its end, which a sandboxed run does not reach.

    A closed or missing stream is not flushed. Then the program's names are dropped, so that files it left open, such
    as a wrapper around standard output, are flushed by being closed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if _can_flush(stream):
            stream.flush()  # type: ignore[union-attr]  # what this raises is the program's failure
        # The run flushes both streams once more, when the names that a program's own stream uses are gone.
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
    """Execute a solution's definitions; what it does when run as a program is left alone."""
    scope = sys.modules["__main__"].__dict__
    scope.clear()
    scope.update(NAMES, __name__="solution")
    exec(compile(source, FILE_NAME, "exec"), scope)
    return scope
