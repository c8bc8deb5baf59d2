"""Imports reasoning-gym, also where pycosat is missing, and says which of its generators are refused.

pycosat has no wheels, so it needs a C compiler, and only one generator uses it. Without it reasoning-gym would not
import at all: a stand-in takes its place, and that generator is refused with a line that says what is missing.
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
NOT_GRADED = {
    "coin_flip": 'its scorer gives full marks to "0", the beginning of nearly every gold',
    "composite": "it mixes other generators: name those in a mixture",
    "game_of_life_halting": "its scorer gives full marks to any text",
}
"""Generators whose tasks cannot be graded, with the reason. They are refused as sources and in task files."""
_UNSTABLE = "the same seed gives other tasks in another process"
_TUPLES = "its tasks hold Python tuples, which are lost when a task is written down"
REFUSED = NOT_GRADED | {
    "arc_agi": _TUPLES,
    "rearc": _TUPLES,
    "puzzle24": "its scorer gives full marks for one wrong answer to every task",
    "codeio": _UNSTABLE,
    "isomorphic_strings": _UNSTABLE,
    "knight_swap": _UNSTABLE,
    "list_functions": _UNSTABLE,
    "polynomial_multiplication": _UNSTABLE,
    "ransom_note": _UNSTABLE,
    "word_ladder": _UNSTABLE,
}
"""Generators that are not offered as sources `gym:NAME`, with the reason. Tasks of those outside NOT_GRADED are graded
when a task file holds them: the grader restores tuples and checks the numbers of puzzle24, and a stored task is stable.
Measured on reasoning-gym 0.1.25; tests/tasks/test_task_gym.py measures the others."""


def import_reasoning_gym() -> Any:
    """Return the module `reasoning_gym`. Raises ImportError if it is not installed."""
    if "pycosat" not in sys.modules and find_spec("pycosat") is None:
        sys.modules["pycosat"] = ModuleType("pycosat", "A stand-in: pycosat is not installed.")
    with warnings.catch_warnings():  # by a library that it imports, when that is first compiled
        warnings.simplefilter("ignore", SyntaxWarning)
        import_module("reasoning_gym.factory")
        return import_module("reasoning_gym")


def has_pycosat() -> bool:
    """Return whether the real pycosat is installed, not the stand-in."""
    module = sys.modules.get("pycosat")
    return hasattr(module, "solve") if module is not None else find_spec("pycosat") is not None


@lru_cache(maxsize=1)
def generator_settings() -> Mapping[str, frozenset[str]] | None:
    """Return the settings of each generator by its name; None if reasoning-gym is not installed."""
    try:
        registered = import_reasoning_gym().factory.DATASETS
    except ImportError:
        return None
    return {
        name: frozenset(field.name for field in dataclasses.fields(config)) for name, (_, config) in registered.items()
    }
