r"""One entry to all graders: a task and an answer in, a grade out.

    async with Graders() as graders:
        grade = await graders.grade(task, FinalAnswer.parse(r"... so \boxed{42}"))

The way of one grade:
- math and generated tasks: `mathematics` or `gym` reads the answer here, then `jailed` sends it to a worker in the
  sandbox, where `jailed_child` calls `mathematics` or `gym` again to compare it;
- users' functions: `custom` sends the text to a plain process, where `custom_child` calls the function;
- programs: `code` runs them in a sandbox of its own.

An answer that is the gold as it stands needs no worker, and the grades of workers are kept in `memo`.

An answer that cannot be graded within its limits is wrong, with a reason. A grader that fails through no fault of the
answer raises GraderUnavailable.
"""

import asyncio
import dataclasses
import os
from types import TracebackType

from ..tasks.gym_library import NOT_GRADED
from ..types import JSON, CodeTests, CustomGrader, FinalAnswer, Grade, GymEntry, MathGold, Task
from . import gym, mathematics
from .code import CodeGrader
from .custom import CUSTOM_LIMITS, CustomGraders
from .errors import GraderUnavailable
from .jailed import JailedGraders
from .memo import GradeMemo
from .reply import GraderReply
from .workers import GraderLimits, WorkerGroup

DEFAULT_LIMITS = GraderLimits()
MAX_CUSTOM_ANSWER = 1_000_000


class Graders:
    """Grades answers to tasks of every kind. Processes start with the first answer that needs them."""

    def __init__(
        self,
        workers: int | None = None,
        limits: GraderLimits = DEFAULT_LIMITS,
        custom_limits: GraderLimits = CUSTOM_LIMITS,
    ) -> None:
        """`workers`: processes of each kind, at least two, so that one slow answer does not delay all others."""
        self._size = max(2, workers or os.cpu_count() or 2)
        self._jailed = {kind: JailedGraders(kind, self._size, limits) for kind in ("math", "gym")}
        self._memo = GradeMemo()
        self._custom: dict[tuple[str, str], CustomGraders] = {}
        self._custom_limits = custom_limits
        self._code: CodeGrader | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> "Graders":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._closed = True
        if self._code is not None:
            await self._code.__aexit__(kind, error, trace)
        groups: list[WorkerGroup] = [*self._jailed.values(), *self._custom.values()]
        for group in groups:
            await group.close()

    async def start(self, kind: str = "math") -> None:
        """Start the workers of a kind (math or gym) now instead of with the first answer. For tests and benchmarks."""
        await self._jailed[kind].start()

    def worker_pids(self, kind: str = "math") -> list[int]:
        """Return the live worker processes of a kind (math or gym), with those in reserve. For tests and benchmarks."""
        return self._jailed[kind].process_ids[1:]

    async def grade(self, task: Task, answer: FinalAnswer | None, strict: bool = True) -> Grade:
        """Grade an answer. `strict` runs all tests of a program; training may stop early."""
        if answer is None:
            return Grade(0.0, False, "no answer")
        grading = task.grading
        if isinstance(grading, MathGold):
            return await self.grade_math(answer, grading)
        if isinstance(grading, GymEntry):
            return await self.grade_gym(answer, grading)
        if isinstance(grading, CustomGrader):
            return await self.grade_custom(answer, grading)
        return await self._grade_code(answer, grading, strict)

    async def grade_math(self, answer: FinalAnswer, gold: MathGold) -> Grade:
        r"""Grade whether the last `\boxed{}` of the answer has the value of the gold."""
        if not gold.answers or not all(text.strip() for text in gold.answers):
            raise ValueError("a math task without a gold answer")
        boxed, refusal = mathematics.read_answer(answer)
        if refusal:
            return Grade(0.0, False, refusal)
        if mathematics.is_verbatim(boxed, gold):
            return Grade(1.0, True, "")
        return await self._ask_once("math", gold, boxed, "gold")

    async def grade_gym(self, answer: FinalAnswer, task: GymEntry) -> Grade:
        """Grade by the generator's own scorer; less than full marks is not solved."""
        if task.generator in NOT_GRADED:
            raise GraderUnavailable(f"tasks of {task.generator} are not graded: {NOT_GRADED[task.generator]}")
        read, refusal = gym.read_answer(answer, task.generator)
        if refusal:
            return Grade(0.0, False, refusal)
        if gym.is_gold(read, task):
            return Grade(1.0, True, "")
        return await self._ask_once("gym", task, read, "task")

    async def _ask_once(self, kind: str, grading: MathGold | GymEntry, answer: str, name: str) -> Grade:
        """Ask a worker, unless one has graded this answer to this task before."""
        grade = self._memo.find(grading, answer)
        if grade is None:
            request: dict[str, JSON] = {"answer": answer, name: dataclasses.asdict(grading)}
            grade, reply = await self._ask(kind, self._jailed[kind], request)
            if not (reply.over_limit or reply.by_host):
                self._memo.keep(grading, answer, grade)
        return grade

    async def grade_custom(self, answer: FinalAnswer, grader: CustomGrader) -> Grade:
        """Grade the answer's text by the user's function."""
        if len(answer.text) > MAX_CUSTOM_ANSWER:
            return Grade(0.0, False, f"the answer is longer than {MAX_CUSTOM_ANSWER} characters")
        # Files of one directory share their graders; the same name elsewhere may be another function.
        key = (grader.function, os.path.dirname(grader.file))  # noqa: PTH120
        if key not in self._custom and not self._closed:
            self._custom[key] = CustomGraders(grader, self._size, self._custom_limits)
        encodable = answer.text.encode("utf-8", "replace").decode("utf-8")
        request: dict[str, JSON] = {"answer": encodable, "data": grader.data}
        grade, _ = await self._ask(grader.function, self._custom.get(key), request)
        return grade

    async def _ask(self, name: str, group: WorkerGroup | None, request: dict[str, JSON]) -> tuple[Grade, GraderReply]:
        if self._closed or group is None:
            raise GraderUnavailable("the graders are closed")
        try:
            reply = await group.ask(request)
        except GraderUnavailable as error:
            raise GraderUnavailable(f"{name}: {error}") from error
        if reply.broken:
            raise GraderUnavailable(reply.broken)
        return Grade(reply.score, reply.solved, reply.reason), reply

    async def _grade_code(self, answer: FinalAnswer, tests: CodeTests, strict: bool) -> Grade:
        source = answer.program
        if source is None:
            return Grade(0.0, False, "the reply has no <solution>")
        async with self._starting:
            if self._code is None:
                code = CodeGrader()
                await code.__aenter__()
                self._code = code
        return await self._code.grade(source, tests, strict)
