"""Imports reasoning-gym, also where pycosat is missing.

pycosat has no wheels, so it needs a C compiler, and only one generator uses it. Without it reasoning-gym would not
import at all: a stand-in takes its place, and that generator is refused with a line that says what it lacks.
"""

import dataclasses
import sys
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NEEDS_PYCOSAT = "zebra_puzzles"


def import_reasoning_gym() -> Any:
    """The module `reasoning_gym`. Raises ImportError where it is not installed."""
    if "pycosat" not in sys.modules and find_spec("pycosat") is None:
        sys.modules["pycosat"] = ModuleType("pycosat", "A stand-in: pycosat is not installed.")
    with warnings.catch_warnings():  # of a library that this one imports, when it is compiled for the first time
        warnings.simplefilter("ignore", SyntaxWarning)
        import_module("reasoning_gym.factory")
        return import_module("reasoning_gym")


def has_pycosat() -> bool:
    """Whether the real pycosat is there, not the stand-in."""
    module = sys.modules.get("pycosat")
    return hasattr(module, "solve") if module is not None else find_spec("pycosat") is not None


@lru_cache(maxsize=1)
def generator_settings() -> Mapping[str, frozenset[str]] | None:
    """The settings of each generator by its name; None where reasoning-gym is not installed."""
    try:
        registered = import_reasoning_gym().factory.DATASETS
    except ImportError:
        return None
    return {
        name: frozenset(field.name for field in dataclasses.fields(config)) for name, (_, config) in registered.items()
    }
