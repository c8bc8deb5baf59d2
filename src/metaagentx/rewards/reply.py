"""What a grading process replies for one answer: a score, a wrong answer with a reason, or a fault of the grader.

An exception that a library raises on a strange answer makes the answer wrong. A failed assertion of this package shows
that the grader is at fault and not the answer: the host raises GraderUnavailable, and it never becomes a score.
Imported by the grading processes: standard library only.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from ..types import JSON

Grader = Callable[[Mapping[str, JSON]], tuple[float, bool, str]]
"""From a request to score, solved and the reason why it is not solved."""
_PACKAGE = str(Path(__file__).parents[1])


class BrokenGrader(Exception):
    """The grader is at fault, not the answer; the host raises GraderUnavailable."""


@dataclass(frozen=True, slots=True)
class GraderReply:
    """The reply to one request."""

    score: float = 0.0
    solved: bool = False
    reason: str = ""
    broken: str = ""
    """Why the grader is at fault. If set, the answer has no score."""
    over_limit: bool = False
    """Whether grading took more time or memory than allowed."""
    cpu: float = 0.0
    """CPU time in seconds."""
    last: bool = False
    """Whether the process must not get another request."""
    by_host: bool = False
    """Whether no worker lived to reply; what a worker sends here does not count."""

    def to_json(self) -> dict[str, JSON]:
        """Return the reply as a message to the host."""
        return asdict(self)


def run_grader(grader: Grader, request: Mapping[str, JSON]) -> GraderReply:
    """Call a grader and turn its result, or whatever it raises, into a reply."""
    try:
        score, solved, reason = grader(request)
    except MemoryError:
        return GraderReply(reason="grading it took more memory than allowed", over_limit=True, last=True)
    except RecursionError:
        return GraderReply(reason="it is nested too deeply to be graded", last=True)
    except BrokenGrader as error:
        return GraderReply(broken=str(error)[:2000])
    except Exception as error:  # noqa: BLE001 - the boundary: what a library raises on garbage is a wrong answer
        source = _last_line(error.__traceback__)
        if isinstance(error, AssertionError) and source.startswith(_PACKAGE):
            detail = f"{source}: AssertionError: {error}".rstrip(": ")
            return GraderReply(broken=f"a check of the grader itself failed ({detail[:1000]})")
        reason = f"it could not be graded ({type(error).__name__}: {error})"
        return GraderReply(reason=reason[:500].encode("ascii", "replace").decode())
    return GraderReply(float(score), solved, reason)


def _last_line(trace: TracebackType | None) -> str:
    """Return file and line that raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
