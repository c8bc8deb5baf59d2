"""The job that is sent to a child, and the programs that a script starts through the `subprocess` stand-in.

Each program runs in a sandboxed run of its own, with what is left of the CPU and sleep budgets of the script.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from .frames import JSON
from .types import AskHandler, BudgetExceeded, Infra, Limits, Result, Verdict

# The CPU time that a run reports itself is believed below this; longer runs are measured by the fork server.
SHORT_RUN_SECONDS = 0.1
_PROGRAM_OUTPUT_BYTES = 64 << 10
# A program may take this many times longer on a busy machine before that counts as a failure of the machine.
_BUSY_FACTOR = 10

ProgramHook = Callable[[str, str, str], None]
"""Called for each program that has ended, with its source, its standard input and its output, errors last."""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of code, its inputs and its limits."""

    code: str
    inputs: dict[str, JSON]
    stdin: str
    limits: Limits

    def frame(self, other_tasks: int, mapped_bytes: int = 0) -> JSON:
        """Return the message that a locked-down child waits for; `mapped_bytes` of the server are added to memory."""
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


@dataclass(slots=True)
class ProgramUsage:
    """What the programs started by a run have used."""

    cpu_seconds: float = 0.0
    idle_seconds: float = 0.0
    starved_seconds: float = 0.0
    """How long the machine kept them from computing."""
    script_idle_seconds: float = 0.0
    """How long the run itself has slept; its programs share this budget."""


def is_program(body: JSON) -> bool:
    """Return whether an ask requests a program; the code itself is responsible for how long those take."""
    return isinstance(body, dict) and body.get("kind") == "python"


async def refuse_ask(body: JSON) -> JSON:
    """Answer the asks of a run without a handler."""
    return {"error": "this run has no handler of asks"}


@dataclass(slots=True)
class ProgramRunner:
    """Handles the asks of a run: runs programs itself and passes every other ask to the handler of the caller."""

    limits: Limits
    run: Callable[[Job], Awaitable[Result]]
    on_ask: AskHandler
    usage: ProgramUsage
    on_program: ProgramHook | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One program at a time, so that all of them together stay within the budget."""

    async def reply_to(self, body: JSON) -> JSON:
        """Return the reply to one ask."""
        if not isinstance(body, dict) or not is_program(body):
            return await self.on_ask(body)
        async with self.lock:
            return await self._run_program(body)

    async def _run_program(self, body: dict[str, JSON]) -> JSON:
        code, stdin, seconds = body.get("code"), body.get("stdin", ""), body.get("timeout", 10.0)
        if not isinstance(code, str) or not isinstance(stdin, str) or not isinstance(seconds, int | float):
            return {"error": "a program needs code (string), stdin (string) and timeout (number)"}
        limits, usage = self.limits, self.usage
        cpu_left = limits.cpu_seconds - usage.cpu_seconds
        if cpu_left <= 0:
            raise BudgetExceeded(f"its programs used all of its {limits.cpu_seconds:g} s of CPU time")
        too_long_asleep = BudgetExceeded(f"it and its programs slept for more than {limits.idle_seconds:g} s in total")
        idle_left = limits.idle_seconds - usage.idle_seconds - usage.script_idle_seconds
        if idle_left <= 0:
            raise too_long_asleep
        seconds = float(min(max(seconds, 0.1), limits.wall_seconds))  # an integer may be too large for a float
        program_limits = replace(
            limits,
            cpu_seconds=min(cpu_left, seconds),
            wall_seconds=min(idle_left, seconds),
            total_seconds=min(limits.total_seconds, _BUSY_FACTOR * (5.0 + 2 * seconds)),
            output_bytes=min(limits.output_bytes, _PROGRAM_OUTPUT_BYTES),
            asks=0,
        )
        result = await self.run(Job(code, {}, stdin, program_limits))
        if result.verdict is Verdict.INFRA:
            raise Infra(result.detail)
        usage.idle_seconds += result.idle_seconds
        usage.starved_seconds += result.starved_seconds
        usage.cpu_seconds += max(result.cpu_seconds, min(result.turn_seconds, SHORT_RUN_SECONDS))
        if result.verdict is Verdict.WALL and idle_left < seconds:
            raise too_long_asleep
        if self.on_program is not None:
            self.on_program(code, stdin, "\n".join(filter(None, (result.stdout.rstrip(), result.stderr.rstrip()))))
        failed = result.verdict is not Verdict.OK
        note = "" if result.verdict in (Verdict.OK, Verdict.SCRIPT_ERROR) else f"{result.verdict}: {result.detail}\n"
        return {
            "stdout": result.stdout,
            "stderr": result.stderr + note,
            "returncode": result.exit_code if result.exit_code is not None else -9 if failed else 0,
            "timed_out": result.verdict in (Verdict.CPU, Verdict.WALL),
        }
