"""A whole program, run as a person would run it, with the imports in scope that solutions take for granted."""

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
    scope = sys.modules["__main__"].__dict__
    scope.clear()
    scope.update(NAMES, __name__="__main__")
    exec(compile(source, FILE_NAME, "exec"), scope)


def define(source: str) -> dict[str, object]:
    """Execute a solution's definitions; what it does when run as a program is left alone."""
    scope = sys.modules["__main__"].__dict__
    scope.clear()
    scope.update(NAMES, __name__="solution")
    exec(compile(source, FILE_NAME, "exec"), scope)
    return scope
