"""Grades programs in the sandbox. Isolation does not stop cheating; this does:

- Expected values and test sources never enter a solution's process. Inputs go in, plain JSON or printed text comes out,
  and the host compares, or for assert-style tests another run that holds the tests, to which the host relays calls.
- One child per program that reads standard input and test, one child per solution for function tests.
- No exit code, printed marker or boolean of a solution's process is a verdict. No tests is an error and not a pass.

The same program always gets the same grade: same hash seed, same random seed, processor time instead of the clock.
A machine that cannot grade raises `GraderUnavailable`; it never becomes a score.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ..sandbox import JSON, Limits, Result, Sandbox, Verdict
from ..types import AssertTest, CodeTests, FunctionTest, Grade, StdinTest
from .compare import same_output, same_value
from .errors import GraderUnavailable

_INSIDE = {"grading": Path(__file__).parent / "grading"}
_RUN_PROGRAM = "import grading.program\ngrading.program.run(source)"
_SERVE_FUNCTIONS = "import grading.solution\ngrading.solution.serve_functions(source, entry_point)"
_SERVE_CALLS = "import grading.solution\ngrading.solution.serve_calls(source)"
_RUN_CHECKS = "import grading.checks\ngrading.checks.run(source, entry_point)"
_MEMORY_BYTES = 1 << 30
_OUTPUT_BYTES = 8 << 20
_TRIES = 3
# In training, tests after so many failures count as failed without being run.
STOP_AFTER_FAILURES = 3


@dataclass(slots=True)
class _Tally:
    """Tests passed so far, and why the first one failed."""

    total: int
    full: bool
    passed: int = 0
    failed: int = 0
    reason: str = ""

    def add(self, problem: str, at: int, limit_hit: bool = False) -> bool:
        """Count one test; False when no more need to be run."""
        if not problem:
            self.passed += 1
            return True
        self.failed += 1
        self.reason = self.reason or f"test {at + 1} of {self.total}: {problem}"
        return self.full or not (limit_hit or self.failed >= STOP_AFTER_FAILURES)

    def grade(self) -> Grade:
        return Grade(self.passed / self.total, self.passed == self.total, self.reason)


class CodeGrader:
    """Grades programs in a sandbox of its own, many at a time. Use as an async context manager."""

    def __init__(self, concurrency: int | None = None) -> None:
        self._concurrency = concurrency or 4 * (os.cpu_count() or 1)

    async def __aenter__(self) -> "CodeGrader":
        # Assert-style tests hold two runs at once: room for both of each, or grades would wait for one another.
        self._sandbox = Sandbox(max_runs=2 * self._concurrency, libraries=_INSIDE, warm=4)
        self._slots = asyncio.Semaphore(self._concurrency)
        await self._sandbox.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._sandbox.__aexit__(kind, error, trace)

    async def grade(self, source: str, tests: CodeTests, full: bool = True) -> Grade:
        """The grade of a program. `full` runs every test; otherwise a hopeless program is not run to its end."""
        if not tests.tests:
            raise ValueError("a program cannot be graded without tests: an empty test list is no pass")
        kinds = {type(test) for test in tests.tests}
        if len(kinds) != 1:
            raise ValueError("all tests of a task must be of one kind")
        if not source.strip():
            return Grade(0.0, False, "there is no program")
        tally = _Tally(len(tests.tests), full)
        async with self._slots:
            (kind,) = kinds
            if kind is StdinTest:
                await self._run_program(source, tests, tally)
            elif kind is FunctionTest:
                await self._call_function(source, tests, tally)
            else:
                await self._run_asserts(source, tests, tally)
        return tally.grade()

    # --- programs that read standard input

    async def _run_program(self, source: str, tests: CodeTests, tally: _Tally) -> None:
        for at, test in enumerate(tests.tests):
            assert isinstance(test, StdinTest)
            result = await self._run(_RUN_PROGRAM, {"source": source}, self._limits(tests), _final_newline(test.input))
            problem = _problem(result)
            if not problem and not same_output(test.output, result.stdout):
                problem = f"printed {_short(result.stdout)}, expected {_short(test.output)}"
            if not tally.add(problem, at, limit_hit=result.verdict in _LIMITS):
                return

    async def _run(self, code: str, inputs: dict[str, JSON], limits: Limits, stdin: str) -> Result:
        for _ in range(_TRIES):
            result = await self._sandbox.run(code, inputs=inputs, limits=limits, stdin=stdin)
            if result.verdict is not Verdict.INFRA:
                return result
        raise GraderUnavailable(f"a program could not be run: {result.detail}")

    # --- functions with JSON arguments

    async def _call_function(self, source: str, tests: CodeTests, tally: _Tally) -> None:
        whole = with_prompt(source, tests.prompt)
        inputs: dict[str, JSON] = {"source": whole, "entry_point": tests.entry_point}
        async with self._solution(_SERVE_FUNCTIONS, inputs, tests) as solution:
            for at, test in enumerate(tests.tests):
                assert isinstance(test, FunctionTest)
                said = await solution.call({"arguments": list(test.arguments)})
                problem = _value_problem(said, test, tests.wrapped_outputs)
                if not tally.add(problem, at, limit_hit=solution.gone) or solution.gone:
                    return

    # --- assert-style tests

    async def _run_asserts(self, source: str, tests: CodeTests, tally: _Tally) -> None:
        inputs: dict[str, JSON] = {"source": with_prompt(source, tests.prompt)}
        async with self._solution(_SERVE_CALLS, inputs, tests) as solution:
            for at, test in enumerate(tests.tests):
                assert isinstance(test, AssertTest)
                checks: dict[str, JSON] = {"source": test.source, "entry_point": tests.entry_point}
                result = await self._sandbox.run(
                    _RUN_CHECKS, inputs=checks, limits=self._limits(tests), on_ask=solution.call
                )
                if result.verdict is Verdict.INFRA:
                    raise GraderUnavailable(f"tests could not be run: {result.detail}")
                passed = result.verdict is Verdict.OK and result.answer is True
                problem = "" if passed else result.detail or "the tests did not run to their end"
                if not tally.add(problem, at, limit_hit=solution.gone) or solution.gone:
                    return

    @asynccontextmanager
    async def _solution(self, code: str, inputs: dict[str, JSON], tests: CodeTests) -> AsyncIterator["_Solution"]:
        """A solution that waits for calls in a run of its own."""
        solution = _Solution()
        limits = self._limits(tests, calls=100_000)
        run = asyncio.create_task(self._sandbox.run(code, inputs=inputs, limits=limits, on_ask=solution.next_call))
        run.add_done_callback(solution.ended)
        try:
            yield solution
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    def _limits(self, tests: CodeTests, calls: int = 0) -> Limits:
        return Limits(
            cpu_seconds=tests.cpu_seconds * max(1, len(tests.tests) if calls else 1),
            turn_cpu_seconds=tests.cpu_seconds,
            wall_seconds=max(5.0, 3 * tests.cpu_seconds),
            memory_bytes=_MEMORY_BYTES,
            output_bytes=_OUTPUT_BYTES,
            frame_bytes=_OUTPUT_BYTES,
            door_bytes=1 << 30 if calls else _OUTPUT_BYTES,
            asks=calls or 100_000,
        )


class _Solution:
    """Relays calls to a solution that lives in a run of its own, one at a time."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[JSON] = asyncio.Queue()
        self._result: asyncio.Future[JSON] | None = None
        self._end: Result | None = None
        self._ready = False

    @property
    def gone(self) -> bool:
        """Whether its process has ended: no further call can be answered."""
        return self._end is not None

    async def call(self, call: JSON) -> JSON:
        """Have the solution called; what it returned, or {"error": ...}."""
        if self._end is not None:
            return self._obituary(self._end)
        self._result = asyncio.get_running_loop().create_future()
        self._calls.put_nowait(call)
        said = await self._result
        return said if said is not None or self._end is None else self._obituary(self._end)

    async def next_call(self, said: JSON) -> JSON:
        """The solution's asks: the first says it is ready, each later one hands over a result; then the next call."""
        if self._ready and self._result is not None and not self._result.done():
            self._result.set_result(said)
        self._ready = True
        return await self._calls.get()

    def ended(self, run: "asyncio.Task[Result]") -> None:
        """The solution's process is gone, whatever a call is waiting for."""
        if run.cancelled():
            return
        self._end = run.result()
        if self._result is not None and not self._result.done():
            self._result.set_result(None)

    @staticmethod
    def _obituary(end: Result) -> JSON:
        if end.verdict is Verdict.INFRA:
            raise GraderUnavailable(f"a solution could not be run: {end.detail}")
        return {"error": f"the solution ended: {end.detail or 'without a word'}"}


_LIMITS = {Verdict.CPU, Verdict.WALL, Verdict.MEMORY, Verdict.OUTPUT, Verdict.VIOLATION}


def with_prompt(source: str, prompt: str) -> str:
    """A solution after the source it continues or repeats: its helpers and imports count as given."""
    if not prompt:
        return source
    return prompt + source if source[:1].isspace() and source.strip() else f"{prompt}\n    pass\n\n{source}"


def _final_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _problem(result: Result) -> str:
    return "" if result.verdict is Verdict.OK else f"{result.verdict}: {result.detail}"


def _value_problem(said: JSON, test: FunctionTest, wrapped: bool) -> str:
    if not isinstance(said, dict) or "value" not in said:
        return str(said.get("error", "no value"))[:300] if isinstance(said, dict) else "no value"
    value, expected = said["value"], test.expected
    if same_value(expected, value):
        return ""
    if wrapped and isinstance(expected, list) and len(expected) == 1 and same_value(expected[0], value):
        return ""
    return f"returned {_short(value)}, expected {_short(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"
