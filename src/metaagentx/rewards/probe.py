"""Check users' graders: import and call each once before a model is loaded.

Otherwise a grader that is missing, raises, returns an invalid value or hangs would show only after a model was loaded
and every execution had failed with an infrastructure fault. It runs in a worker that is killed if it takes too long.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from ..errors import MetaAgentXError
from ..types import CustomGrader
from .custom import CUSTOM_LIMITS, CustomWorker
from .errors import GraderUnavailable
from .workers import GraderLimits, OverLimit, WorkerCrashed, WorkerLost

PROBE = r"\boxed{0}"
"""The answer that graders are called with."""


async def check_graders(graders: Iterable[CustomGrader], limits: GraderLimits = CUSTOM_LIMITS) -> None:
    """Raise MetaAgentXError for the first grader that cannot be used, with its name, its file and the reason."""
    different = {(grader.function, str(Path(grader.file).parent)): grader for grader in reversed([*graders])}
    reasons = await asyncio.gather(*(_reason(grader, limits) for grader in different.values()))
    for grader, reason in reversed([*zip(different.values(), reasons, strict=True)]):
        if reason:
            owner = f" of {grader.file}" if grader.file else ""
            raise MetaAgentXError(f"the grader {grader.function}{owner} cannot be used: {reason}")


async def _reason(grader: CustomGrader, limits: GraderLimits) -> str:
    """Return why a grader cannot be used; empty if it can."""
    try:
        worker = await CustomWorker.start(grader, limits)
    except GraderUnavailable as error:
        return str(error).removeprefix("the grading process did not start: ")
    tried = f"when it was tried with the answer {PROBE} and the data of its first task"
    try:
        reply = await worker.ask({"answer": PROBE, "data": grader.data})
    except (OverLimit, WorkerLost) as error:
        return f"{error}, {tried}"
    except WorkerCrashed as error:
        return f"it crashed, {tried}: {error}"
    finally:
        await worker.close()
    if reply.broken:
        return f"{reply.broken}, {tried}"
    return f"{reply.reason.removeprefix('grading ')}, {tried}" if reply.over_limit else ""
