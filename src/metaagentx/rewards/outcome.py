"""What one call of a grader means for the answer: a score, a wrong answer with a reason, or a fault of ours.

What a library raises on a strange answer makes the answer wrong. A failed assertion of our own code says that the
grader, not the answer, is at fault: it reaches the host as GraderUnavailable and never becomes a score.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ..types import JSON

Grader = Callable[[Mapping[str, JSON]], tuple[float, bool, str]]
_PACKAGE = str(Path(__file__).parents[1])


class BrokenGrader(Exception):
    """The grader itself is at fault, not the answer; the host raises GraderUnavailable."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reply to the host, and whether the process can be trusted with another request."""

    reply: dict[str, JSON]
    reusable: bool = True


def grade_outcome(grader: Grader, request: Mapping[str, JSON]) -> Outcome:
    """Call a grader and sort what comes of it."""
    try:
        score, solved, reason = grader(request)
    except MemoryError:
        reason = "grading it took more memory than allowed"
        return Outcome({"score": 0.0, "solved": False, "reason": reason, "over_limit": True}, reusable=False)
    except RecursionError:
        return Outcome(
            {"score": 0.0, "solved": False, "reason": "it is nested too deeply to be graded"}, reusable=False
        )
    except BrokenGrader as error:
        return Outcome({"broken": str(error)[:2000]})
    except AssertionError as error:
        if not _is_ours(error.__traceback__):
            return _wrong(error)
        place = f"{_last(error.__traceback__)}: AssertionError: {error}".rstrip(": ")
        return Outcome({"broken": f"a check of the grader itself failed ({place[:1000]})"})
    except Exception as error:  # noqa: BLE001 - the boundary: what a library raises on garbage is a wrong answer
        return _wrong(error)
    return Outcome({"score": score, "solved": solved, "reason": reason})


def _wrong(error: Exception) -> Outcome:
    reason = f"it could not be graded ({type(error).__name__}: {error})"
    return Outcome({"score": 0.0, "solved": False, "reason": reason[:500].encode("ascii", "replace").decode()})


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether the line that raised is in this package, not in a library that it called."""
    return _last(trace).startswith(_PACKAGE)


def _last(trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
