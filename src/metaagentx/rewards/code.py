"""Grades programs in the sandbox. Isolation does not stop cheating; this does:

- Expected values and test sources never enter a solution's process. Inputs go in, plain JSON or printed text comes out.
  The host compares; for assert-style tests another run holds the tests, and the host relays its calls.
- A program that reads standard input runs in one child per test; a solution for function tests in one child.
- No exit code, printed marker or boolean of a solution's process is a verdict. An empty test list is an error.

The same program always gets the same grade: same hash seed, same random seed, CPU time instead of the clock.
Every grade ends: each test within `Limits.total_seconds`, whatever a solution does. If the sandbox fails, the whole
grade is retried, then `GraderUnavailable` is raised; it never becomes a score.
"""

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from ..sandbox import JSON, Infra, Limits, Result, Sandbox, SandboxSession, SandboxUnavailable, SessionEnded, Verdict
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
_FRAME_BYTES = 4 << 20
_MAX_CALLS = 100_000
_ATTEMPTS = 3
# In training, the tests after this many failures count as failed without being run.
STOP_AFTER_FAILURES = 3


@dataclass(slots=True)
class _Tally:
    """Tests passed so far, and why the first one failed."""

    total: int
    strict: bool
    passed: int = 0
    failed: int = 0
    reason: str = ""

    def add(self, problem: str, limit_hit: bool = False) -> bool:
        """Count one test; return whether more need to be run."""
        if not problem:
            self.passed += 1
            return True
        self.failed += 1
        self.reason = self.reason or f"test {self.passed + self.failed} of {self.total}: {problem}"
        return self.strict or not (limit_hit or self.failed >= STOP_AFTER_FAILURES)

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

    async def grade(self, source: str, tests: CodeTests, strict: bool = True) -> Grade:
        """Grade a program. `strict` runs every test; otherwise testing stops early where it cannot pass."""
        if not tests.tests:
            raise ValueError("a program cannot be graded without tests: an empty test list is not a pass")
        kind, *others = {type(test) for test in tests.tests}
        if others:
            raise ValueError("all tests of a task must be of one kind")
        if not source.strip():
            return Grade(0.0, False, "no program")
        runners = {StdinTest: self._run_program, FunctionTest: self._call_function, AssertTest: self._run_asserts}
        async with self._slots:
            for attempt in range(_ATTEMPTS):
                tally = _Tally(len(tests.tests), strict)
                try:
                    await runners[kind](source, tests, tally)
                    return tally.grade()
                except (_Interrupted, SandboxUnavailable) as error:
                    if attempt == _ATTEMPTS - 1:
                        raise GraderUnavailable(f"a program could not be run: {error}") from error
        raise AssertionError("unreachable")

    # --- programs that read standard input

    async def _run_program(self, source: str, tests: CodeTests, tally: _Tally) -> None:
        for test in tests.tests:
            assert isinstance(test, StdinTest)
            result = await self._sandbox.run(
                _RUN_PROGRAM,
                inputs={"source": source},
                limits=_limits(tests),
                stdin=_final_newline(test.input),
            )
            problem = _problem(result)
            if not problem and not same_output(test.output, result.stdout):
                problem = f"printed {_short(result.stdout)}, expected {_short(test.output)}"
            if not tally.add(problem, limit_hit=result.verdict in _LIMITS):
                return

    # --- functions with JSON arguments

    async def _call_function(self, source: str, tests: CodeTests, tally: _Tally) -> None:
        inputs: dict[str, JSON] = {"source": with_prompt(source, tests.prompt), "entry_point": tests.entry_point}
        async with self._sandbox.serve(_SERVE_FUNCTIONS, inputs=inputs, limits=_session_limits(tests)) as session:
            for test in tests.tests:
                assert isinstance(test, FunctionTest)
                reply = await _call(session, {"arguments": list(test.arguments)})
                problem = _value_problem(reply, test, tests.wrapped_outputs)
                gone = not session.available  # it ended, or a test that did not wait for its reply left it busy
                if not tally.add(problem, limit_hit=gone) or gone:
                    return

    # --- assert-style tests

    async def _run_asserts(self, source: str, tests: CodeTests, tally: _Tally) -> None:
        inputs: dict[str, JSON] = {"source": with_prompt(source, tests.prompt)}
        async with self._sandbox.serve(_SERVE_CALLS, inputs=inputs, limits=_session_limits(tests)) as session:

            async def relay(call: JSON) -> JSON:
                try:
                    return await _call(session, call)
                except _Interrupted as error:
                    raise Infra(str(error)) from error

            for test in tests.tests:
                assert isinstance(test, AssertTest)
                checks: dict[str, JSON] = {"source": test.source, "entry_point": tests.entry_point}
                result = await self._sandbox.run(
                    _RUN_CHECKS,
                    inputs=checks,
                    limits=_check_limits(tests),
                    on_ask=relay,
                    excuse_slow_replies=False,  # the solution decides how slow they are
                )
                problem = _problem(result)
                if not problem and result.answer is not True:
                    problem = "the tests did not run to their end"
                gone = not session.available  # it ended, or a test that did not wait for its reply left it busy
                if not tally.add(problem, limit_hit=gone) or gone:
                    return


class _Interrupted(Exception):
    """The sandbox failed while a program ran: the whole grade must be retried."""


async def _call(session: SandboxSession, call: JSON) -> JSON:
    """Return the solution's reply to one call, or {"error": ...} if its process has ended."""
    try:
        return await session.request(call)
    except SessionEnded as ended:
        return {"error": f"the solution ended: {_problem(ended.result) or 'without an error'}"}


def _limits(tests: CodeTests) -> Limits:
    """Return what one test may use. Twenty times its CPU time is room for a busy machine."""
    sleep_seconds = max(5.0, 3 * tests.cpu_seconds)
    return Limits(
        cpu_seconds=tests.cpu_seconds,
        turn_cpu_seconds=tests.cpu_seconds,
        wall_seconds=sleep_seconds,
        idle_seconds=sleep_seconds,
        turn_seconds=2 * sleep_seconds + 20 * tests.cpu_seconds,
        total_seconds=2 * sleep_seconds + 20 * tests.cpu_seconds,
        memory_bytes=_MEMORY_BYTES,
        output_bytes=_OUTPUT_BYTES,
        frame_bytes=_FRAME_BYTES,
        door_bytes=_OUTPUT_BYTES,
    )


def _session_limits(tests: CodeTests) -> Limits:
    """Return what a solution that all tests call may use: as much as all tests together."""
    limits, count = _limits(tests), len(tests.tests)
    return replace(
        limits,
        cpu_seconds=count * limits.cpu_seconds,
        idle_seconds=count * limits.idle_seconds,
        total_seconds=count * limits.total_seconds,
        asks=_MAX_CALLS,
        door_bytes=1 << 30,
    )


def _check_limits(tests: CodeTests) -> Limits:
    """Return what an assert-style test may use, which may call its solution many times."""
    return replace(_limits(tests), asks=_MAX_CALLS, open_asks=1, door_bytes=1 << 30)


_LIMITS = {Verdict.CPU, Verdict.WALL, Verdict.MEMORY, Verdict.OUTPUT, Verdict.VIOLATION}


def with_prompt(source: str, prompt: str) -> str:
    """Return a solution after the prompt that it continues or repeats, with the prompt's helpers and imports."""
    if not prompt:
        return source
    return prompt + source if source[:1].isspace() and source.strip() else f"{prompt}\n    pass\n\n{source}"


def _final_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _problem(result: Result) -> str:
    if result.verdict is Verdict.INFRA:
        raise _Interrupted(result.detail)
    return "" if result.verdict is Verdict.OK else f"{result.verdict}: {result.detail}"


def _value_problem(reply: JSON, test: FunctionTest, wrapped: bool) -> str:
    if not isinstance(reply, dict) or "value" not in reply:
        return str(reply.get("error", "no value"))[:300] if isinstance(reply, dict) else "no value"
    value, expected = reply["value"], test.expected
    if same_value(expected, value):
        return ""
    if wrapped and isinstance(expected, list) and len(expected) == 1 and same_value(expected[0], value):
        return ""
    return f"returned {_short(value)}, expected {_short(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"
