"""A user's own grader, `module:function`, called as `function(answer, data)`; it returns a bool or 0 to 1.

The function is trusted, the answer is not: it runs in a worker that is killed when it takes too long. Its
module must survive a fork: no threads, no connections at import. What the function raises is its own fault and reaches
the host as GraderUnavailable, never as a reward; a function that expects garbage returns 0 for it.

The module is looked for beside the file of the task, then in the working directory, then where the host finds modules.
"""

import difflib
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from ..types import JSON, CustomGrader
from .outcome import BrokenGrader, Grader


def setup_of(grader: CustomGrader) -> dict[str, JSON]:
    """What a process needs to know to find a grader, whatever its own working directory is."""
    here = os.getcwd()  # noqa: PTH109 - a string is wanted
    beside = [str(Path(grader.file).parent)] if grader.file else []
    path: list[JSON] = [*beside, here, *(os.path.abspath(entry) for entry in sys.path)]  # noqa: PTH100
    return {"kind": "custom", "function": grader.function, "path": path}


def load(name: str) -> Grader:
    """The grader with this name. Raises BrokenGrader with what is wrong with it."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise BrokenGrader(f"a grader is named module:function, not {name!r}")
    members = vars(_import(module))
    function = members.get(attribute)
    if not callable(function):
        close = difflib.get_close_matches(attribute, [key for key in members if callable(members[key])], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BrokenGrader(f"{module} has no function {attribute} ({module} is {members.get('__file__')}){hint}")

    def grade(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
        try:
            score = function(request["answer"], request["data"])
        except MemoryError:
            raise
        except BaseException as error:
            raise BrokenGrader(f"{name} raised {_line(error)}") from error
        if not isinstance(score, bool | int | float) or not math.isfinite(score) or not 0 <= score <= 1:
            raise BrokenGrader(f"{name} returned {score!r}; a grader returns a bool or a number from 0 to 1")
        solved = score >= 1 - 1e-9
        return float(score), solved, "" if solved else f"{name} gave {float(score):g}"

    return grade


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            places = ", ".join(dict.fromkeys(sys.path[:2]))
            raise BrokenGrader(
                f"there is no module {error.name}, neither in {places} nor where Python looks "
                f"(ModuleNotFoundError): put {error.name.replace('.', '/')}.py beside the tasks, or install it"
            ) from error
        raise BrokenGrader(f"importing {_file_of(name)} raised {_line(error)}") from error
    except BaseException as error:
        raise BrokenGrader(f"importing {_file_of(name)} raised {_line(error)}") from error


def _file_of(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # noqa: BLE001 - a package that cannot be imported: its name will do
        spec = None
    return spec.origin if spec and spec.origin else module


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")[:500]
