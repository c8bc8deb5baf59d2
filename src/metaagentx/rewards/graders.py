"""One door to all graders: a task and a reply in, a grade out."""

import asyncio
from types import TracebackType

from ..types import CodeTests, CustomGrader, Grade, GymEntry, MathGold, Task
from ..workflow.protocol import last_solution
from .code import CodeGrader
from .pool import GraderPool


class Graders:
    """Grades answers to tasks of every kind. What a kind needs is started with its first answer."""

    def __init__(self) -> None:
        self._pool = GraderPool()
        self._code: CodeGrader | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> "Graders":
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._code is not None:
            await self._code.__aexit__(kind, error, trace)
        await self._pool.__aexit__(kind, error, trace)

    async def grade(self, task: Task, reply: str | None, full: bool = True) -> Grade:
        """What a reply's answer is worth. `full` runs all tests of a program; training may stop early."""
        if reply is None:
            return Grade(0.0, False, "there is no answer")
        grading = task.grading
        if isinstance(grading, MathGold):
            return await self._pool.grade_math(reply, grading)
        if isinstance(grading, GymEntry):
            return await self._pool.grade_gym(reply, grading)
        if isinstance(grading, CustomGrader):
            return await self._pool.grade_custom(reply, grading)
        return await self._grade_code(reply, grading, full)

    async def _grade_code(self, reply: str, tests: CodeTests, full: bool) -> Grade:
        source = last_solution(reply)
        if source is None:
            return Grade(0.0, False, "the reply has no <solution>")
        async with self._starting:
            if self._code is None:
                code = CodeGrader()
                await code.__aenter__()
                self._code = code
        return await self._code.grade(source, tests, full)
