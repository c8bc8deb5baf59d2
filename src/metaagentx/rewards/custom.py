"""A user's own grader, `module:function`, called as `function(answer, data)`; it returns a bool or 0 to 1.

The function is trusted, the answer is not: it runs in a worker that is killed when it takes too long. Its
module must survive a fork: no threads, no connections at import. What the function raises is its own fault and reaches
the host as GraderUnavailable, never as a reward; a function that expects garbage returns 0 for it.
"""

import importlib
import math
from collections.abc import Mapping

from ..types import JSON
from .worker_main import BrokenGrader, Grader


def load(name: str) -> Grader:
    """The grader with this name. Raises what importing it raises."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"a grader is named module:function, not {name!r}")
    function = vars(importlib.import_module(module)).get(attribute)
    if not callable(function):
        raise ValueError(f"{module} has no function {attribute}")

    def grade(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
        try:
            score = function(request["answer"], request["data"])
        except MemoryError:
            raise
        except BaseException as error:
            raise BrokenGrader(f"{name} raised {type(error).__name__}: {error}") from error
        if not isinstance(score, bool | int | float) or not math.isfinite(score) or not 0 <= score <= 1:
            raise BrokenGrader(f"{name} returned {score!r}; a grader returns a bool or a number from 0 to 1")
        solved = score >= 1 - 1e-9
        return float(score), solved, "" if solved else f"{name} gave {float(score):g}"

    return grade
