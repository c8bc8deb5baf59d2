"""Child side of grading math and generated tasks, inside the jail. `jailed` is the other side.

The fork server calls a warm-up before its first fork. Each child then replies to requests through `door`: strictly in
turn, JSON in and JSON out. A reply depends only on its request: the random generators are seeded for each one.
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
from dataclasses import replace
from types import ModuleType

from ..types import JSON
from .reply import Grader, run_grader

# What one answer leaves in the caches of libraries must not use up the memory of the next.
_MAX_GROWTH_BYTES = 64 << 20
_graders: dict[str, Grader] = {}


def warm_up_math() -> None:
    """Import what math grading needs, and grade a few answers."""
    logging.disable()
    from . import mathematics

    mathematics.warm_up()
    _graders["math"] = mathematics.grade_request


def warm_up_gym() -> None:
    """Import what grading of generated tasks needs, and grade an answer."""
    logging.disable()
    sys.meta_path.insert(0, _NoDrawing())
    from . import gym

    gym.warm_up()
    importlib.import_module("sympy.core.random")
    _graders["gym"] = gym.grade_request


def serve(kind: str) -> None:
    """Reply to requests until the host hangs up."""
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
            os.lseek(output, 0, os.SEEK_SET)  # overwrite what compiled code printed, so that it cannot pile up
        random.seed(0)
        sympy_random.seed(0)
        started = time.process_time()
        graded = run_grader(grader, request)
        cpu_seconds = time.process_time() - started
        reply = replace(graded, cpu=cpu_seconds, last=graded.last or _peak_bytes() > most_bytes).to_json()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Nowhere(io.TextIOBase):
    """Discards what libraries print."""

    def write(self, text: str) -> int:
        return len(text)


class _NoDrawing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for matplotlib, which a dependency of reasoning-gym imports: it needs files to write, and takes as long
    to import as everything else together."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ("matplotlib", "mpl_toolkits"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Blank(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


class _Blank(ModuleType):
    """Has every name that is imported from it, as None."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
