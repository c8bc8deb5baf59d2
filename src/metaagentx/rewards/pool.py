r"""The graders of math, generated and custom tasks, behind one pool of killable workers.

    async with GraderPool() as pool:
        grade = await pool.grade_math(r"... so \boxed{42}", MathGold(("42",)))

Each kind of grading has workers of its own, started when first used: math and generated tasks in the sandbox
(`jailed`), users' functions in plain processes (`custom_workers`). An answer that cannot be graded within its limits
is wrong, with a reason; a grader that fails through no fault of the answer raises GraderUnavailable.
"""

import dataclasses
import os
from functools import partial
from typing import Any, Self

from ..types import JSON, CustomGrader, Grade, GymEntry, MathGold
from . import gym, mathematics
from .custom_workers import CustomWorker
from .errors import GraderUnavailable
from .jailed import JailedGraders
from .worker_group import GraderLimits, WorkerGroup

DEFAULT_LIMITS = GraderLimits()
# A user's grader may ask a slow judge.
CUSTOM_LIMITS = GraderLimits(cpu_seconds=10.0, wall_seconds=60.0, memory_bytes=2 << 30)
MAX_ANSWER = 1_000_000


class GraderPool:
    """Grades answers; at least two workers of each kind, so that one slow answer holds up no other."""

    def __init__(
        self,
        workers: int | None = None,
        limits: GraderLimits = DEFAULT_LIMITS,
        custom_limits: GraderLimits = CUSTOM_LIMITS,
    ) -> None:
        self._size = max(2, workers or os.cpu_count() or 2)
        self._jailed = {kind: JailedGraders(kind, self._size, limits) for kind in ("math", "gym")}
        self._custom: dict[tuple[str, str], WorkerGroup] = {}
        self._custom_limits = custom_limits
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        groups: list[JailedGraders | WorkerGroup] = [*self._jailed.values(), *self._custom.values()]
        for group in groups:
            await group.close()

    async def start(self, kind: str = "math") -> None:
        """Start the workers of a kind (math or gym) now and not with the first answer."""
        await self._jailed[kind].start()

    def worker_pids(self, kind: str = "math") -> list[int]:
        """The worker processes of a kind (math or gym) that are alive, with those that wait in reserve."""
        return self._jailed[kind].process_ids[1:]

    async def grade_math(self, answer: str, gold: MathGold) -> Grade:
        r"""Whether the last `\boxed{}` of the answer has the value of the gold."""
        if not gold.answers or not all(text.strip() for text in gold.answers):
            raise ValueError("a math task without a gold answer")
        boxed, refusal = mathematics.read_answer(answer)
        if refusal:
            return Grade(0.0, False, refusal)
        return await self._ask("math", {"answer": boxed, "gold": _plain(dataclasses.asdict(gold))})

    async def grade_gym(self, answer: str, task: GymEntry) -> Grade:
        """What the generator's own scorer says; less than full marks is not solved."""
        if task.generator in gym.REFUSED:
            raise GraderUnavailable(f"tasks of {task.generator} are not graded: {gym.REFUSED[task.generator]}")
        read, refusal = gym.read_answer(answer, task.generator)
        if refusal:
            return Grade(0.0, False, refusal)
        return await self._ask("gym", {"answer": read, "task": _plain(dataclasses.asdict(task))})

    async def grade_custom(self, answer: str, grader: CustomGrader) -> Grade:
        """What the user's function says of the answer's text."""
        if len(answer) > MAX_ANSWER:
            return Grade(0.0, False, f"the answer is longer than {MAX_ANSWER} characters")
        return await self._ask("custom", {"answer": _encodable(answer), "data": grader.data}, grader)

    def _custom_group(self, grader: CustomGrader) -> WorkerGroup:
        # Files of one directory share their graders; the same name elsewhere may be another function.
        key = (grader.function, os.path.dirname(grader.file))  # noqa: PTH120
        if key not in self._custom:
            start = partial(CustomWorker.start, grader, self._custom_limits)
            self._custom[key] = WorkerGroup(start, self._size, self._custom_limits)
        return self._custom[key]

    async def _ask(self, kind: str, request: dict[str, JSON], custom: CustomGrader | None = None) -> Grade:
        if self._closed:
            raise GraderUnavailable("the pool is closed")
        function = custom.function if custom else ""
        group = self._custom_group(custom) if custom else self._jailed[kind]
        try:
            reply = await group.ask(request)
        except GraderUnavailable as error:
            raise GraderUnavailable(f"{function or kind}: {error}") from error
        if "broken" in reply:
            raise GraderUnavailable(str(reply["broken"]))
        score, reason = reply["score"], reply["reason"]
        if function and reply.get("crashed"):
            raise GraderUnavailable(f"{function}: {reason}")
        assert isinstance(score, float | int) and isinstance(reason, str)
        return Grade(float(score), bool(reply["solved"]), reason)


def _plain(value: Any) -> JSON:
    """Tuples as lists: what the other side will read."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
