r"""The graders of math, generated and custom tasks, behind one pool of killable workers.

    async with GraderPool() as pool:
        grade = await pool.grade_math(r"... so \boxed{42}", MathGold(("42",)))

or, from any plain thread, `with BlockingGraderPool() as pool: pool.grade_math(...)`. Each kind of grading has a group
of workers, started when first used. An answer that cannot be graded within its limits is wrong, with a reason; a
grader that fails through no fault of the answer raises GraderUnavailable.
"""

import asyncio
import dataclasses
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from ..types import JSON, CustomGrader, Grade, GymEntry, MathGold
from . import gym, mathematics
from .custom import setup_of
from .errors import GraderUnavailable
from .workers import Limits, WorkerGroup

T = TypeVar("T")
DEFAULT_LIMITS = Limits()
# A user's grader may ask a slow judge.
CUSTOM_LIMITS = Limits(cpu_seconds=10.0, wall_seconds=60.0, memory_bytes=2 << 30)
MAX_ANSWER = 1_000_000


class GraderPool:
    """Grades answers; at least two workers of each kind, so that one slow answer holds up no other."""

    def __init__(
        self,
        workers: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        custom_limits: Limits = CUSTOM_LIMITS,
    ) -> None:
        self._size = max(2, workers or os.cpu_count() or 2)
        self._limits = {"math": limits, "gym": limits, "custom": custom_limits}
        self._groups: dict[tuple[str, str, str], WorkerGroup] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        for group in self._groups.values():
            await group.close()

    async def start(self, kind: str = "math") -> None:
        """Start the workers of a kind now and not with the first answer."""
        await self._group(kind).start()

    def worker_pids(self, kind: str = "math") -> list[int]:
        """The worker processes of a kind that are alive."""
        return self._group(kind).worker_pids

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

    def _group(self, kind: str, custom: CustomGrader | None = None) -> WorkerGroup:
        # Files of one directory share their graders; the same name elsewhere may be another function.
        key = (kind, custom.function if custom else "", os.path.dirname(custom.file) if custom else "")  # noqa: PTH120
        if key not in self._groups:
            setup: dict[str, JSON] = setup_of(custom) if custom else {"kind": kind}
            self._groups[key] = WorkerGroup(setup, self._size, self._limits[kind])
        return self._groups[key]

    async def _ask(self, kind: str, request: dict[str, JSON], custom: CustomGrader | None = None) -> Grade:
        if self._closed:
            raise GraderUnavailable("the pool is closed")
        function = custom.function if custom else ""
        try:
            reply = await self._group(kind, custom).ask(request)
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


class BlockingGraderPool:
    """The same for plain threads: the pool lives on an event loop in a thread of its own."""

    def __init__(self, workers: int | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        self._pool = GraderPool(workers, limits)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="graders", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with suppress(GraderUnavailable):
            self._run(self._pool.__aexit__())
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def grade_math(self, answer: str, gold: MathGold) -> Grade:
        """As GraderPool.grade_math."""
        return self._run(self._pool.grade_math(answer, gold))

    def grade_gym(self, answer: str, task: GymEntry) -> Grade:
        """As GraderPool.grade_gym."""
        return self._run(self._pool.grade_gym(answer, task))

    def grade_custom(self, answer: str, grader: CustomGrader) -> Grade:
        """As GraderPool.grade_custom."""
        return self._run(self._pool.grade_custom(answer, grader))
