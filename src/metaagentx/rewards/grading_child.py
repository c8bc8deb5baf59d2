"""What a grading process does, inside the jail: warm up in the fork server, then one request after the other.

The fork server calls a warm-up before its first fork. Each child then answers through `door`: strictly in turn, JSON
in and JSON out. A reply depends on the request alone, not on those before it: the random generators start anew.
"""

import importlib
import importlib.abc
import importlib.machinery
import io
import logging
import os
import random
import resource
import sys
import time
from collections.abc import Sequence
from types import ModuleType

from ..types import JSON
from .outcome import Grader, grade_outcome

# What one answer leaves in the caches of libraries must not take the memory of the next.
_MAX_GROWTH_BYTES = 64 << 20
_graders: dict[str, Grader] = {}


def warm_up_math() -> None:
    """Import what math grading needs, and do a little of it."""
    logging.disable()
    from . import mathematics

    mathematics.warm_up()
    _graders["math"] = mathematics.grade_request


def warm_up_gym() -> None:
    """Import what grading of generated tasks needs, and do a little of it."""
    logging.disable()
    sys.meta_path.insert(0, _NoDrawing())
    from . import gym

    gym.warm_up()
    importlib.import_module("sympy.core.random")
    _graders["gym"] = gym.grade_request


def serve(kind: str) -> None:
    """Answer requests until the host hangs up."""
    import door
    from sympy.core import random as sympy_random

    grader = _graders[kind]
    sys.stdout = sys.stderr = _Nowhere()
    reply: JSON = {"ready": True}
    most_bytes = _peak_bytes() + _MAX_GROWTH_BYTES
    while True:
        request = door.ask(reply)
        assert isinstance(request, dict)
        for output in (1, 2):
            os.lseek(output, 0, os.SEEK_SET)  # what compiled code printed is written over, so it cannot pile up
        random.seed(0)
        sympy_random.seed(0)
        started = time.process_time()
        outcome = grade_outcome(grader, request)
        cpu_seconds = time.process_time() - started
        reply = outcome.reply | {"cpu": cpu_seconds, "last": not outcome.reusable or _peak_bytes() > most_bytes}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Nowhere(io.TextIOBase):
    """Takes what libraries print."""

    def write(self, text: str) -> int:
        return len(text)


class _NoDrawing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for matplotlib, which a library of reasoning-gym's imports to draw: it wants files to write, and takes
    as long to import as all else together."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ("matplotlib", "mpl_toolkits"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Blank(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


class _Blank(ModuleType):
    """Has whatever is imported from it, and none of it does anything."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
