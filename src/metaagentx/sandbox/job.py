"""What is sent into a child, and the programs a run may have run for it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from .conversation import QUICK_SECONDS
from .frames import JSON
from .shared import ProgramUsage, is_program
from .types import Ask, BudgetExceeded, Infra, Limits, Result, Verdict

_SUBRUN_OUTPUT_BYTES = 64 << 10
# A busy machine gives a program this much less than it asks for before that counts as a failure of the machine.
_BUSY_FACTOR = 10

ProgramHook = Callable[[str, str, str], None]
"""Hears of a program that has ended: its source, its standard input, and what it printed, errors last."""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of code and what it may use."""

    code: str
    inputs: dict[str, JSON]
    stdin: str
    limits: Limits

    def frame(self, other_tasks: int, mapped_bytes: int = 0) -> JSON:
        """What the child reads once it is locked down; `mapped_bytes` are the server's and come on top."""
        return {
            "code": self.code,
            "inputs": self.inputs,
            "stdin": self.stdin,
            "limits": {
                "address_space_bytes": self.limits.memory_bytes + mapped_bytes,
                "file_bytes": self.limits.output_bytes,
                "threads": self.limits.threads + other_tasks,
            },
        }


class Programs:
    """Answers a run's asks: programs in runs of their own with what is left of its time, the rest by its handler."""

    def __init__(
        self,
        limits: Limits,
        run: Callable[[Job], Awaitable[Result]],
        on_ask: Ask,
        usage: ProgramUsage,
        on_program: ProgramHook | None = None,
    ) -> None:
        self._limits = limits
        self._run = run
        self._on_ask = on_ask
        self._usage = usage
        self._on_program = on_program
        self._one_at_a_time = asyncio.Lock()  # so that all of them together keep to the budget

    async def answer(self, body: JSON) -> JSON:
        """The reply to one ask."""
        if not isinstance(body, dict) or not is_program(body):
            return await self._on_ask(body)
        async with self._one_at_a_time:
            return await self._answer_program(body)

    async def _answer_program(self, body: dict[str, JSON]) -> JSON:
        code, stdin, seconds = body.get("code"), body.get("stdin", ""), body.get("timeout", 10.0)
        if not isinstance(code, str) or not isinstance(stdin, str) or not isinstance(seconds, int | float):
            return {"error": "a program is asked for with code, stdin and timeout"}
        cpu_left = self._limits.cpu_seconds - self._usage.cpu_seconds
        if cpu_left <= 0:
            raise BudgetExceeded(f"its programs used all of its {self._limits.cpu_seconds:g} s of processor time")
        idle_left = self._limits.idle_seconds - self._usage.idle_seconds - self._usage.script_idle_seconds
        if idle_left <= 0:
            raise self._slept_too_long()
        seconds = float(min(max(seconds, 0.1), self._limits.wall_seconds))  # an integer may be too large for a float
        limits = replace(
            self._limits,
            cpu_seconds=min(cpu_left, seconds),
            wall_seconds=min(idle_left, seconds),
            total_seconds=min(self._limits.total_seconds, _BUSY_FACTOR * (5.0 + 2 * seconds)),
            output_bytes=min(self._limits.output_bytes, _SUBRUN_OUTPUT_BYTES),
            asks=0,
        )
        result = await self._run(Job(code, {}, stdin, limits))
        reply = self._reply(result)
        if result.verdict is Verdict.WALL and idle_left < seconds:
            raise self._slept_too_long()
        if self._on_program is not None:
            self._on_program(code, stdin, "\n".join(filter(None, (result.stdout.rstrip(), result.stderr.rstrip()))))
        return reply

    def _slept_too_long(self) -> BudgetExceeded:
        return BudgetExceeded(f"it and its programs slept for more than {self._limits.idle_seconds:g} s in all")

    def _reply(self, result: Result) -> JSON:
        if result.verdict is Verdict.INFRA:
            raise Infra(result.detail)
        self._usage.idle_seconds += result.idle_seconds
        self._usage.starved_seconds += result.starved_seconds
        self._usage.cpu_seconds += max(result.cpu_seconds, min(result.turn_seconds, QUICK_SECONDS))
        failed = result.verdict is not Verdict.OK
        notes = "" if result.verdict in (Verdict.OK, Verdict.SCRIPT_ERROR) else f"{result.verdict}: {result.detail}\n"
        return {
            "stdout": result.stdout,
            "stderr": result.stderr + notes,
            "returncode": result.exit_code if result.exit_code is not None else -9 if failed else 0,
            "timed_out": result.verdict in (Verdict.CPU, Verdict.WALL),
        }
