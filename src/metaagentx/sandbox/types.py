"""The public types of the sandbox: limits, results, verdicts, tiers and exceptions."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ..errors import MetaAgentXError
from .frames import JSON

AskHandler = Callable[[JSON], Awaitable[JSON]]
"""Handles one ask. An exception ends the run and is raised by `Sandbox.run`; a HandlerError sets the verdict."""

_LINE = re.compile(r'^  File "script\.py", line (\d+)', re.MULTILINE)
KILL_SECONDS = 10.0
"""How long to wait for a killed run to be confirmed dead. After that the fork server counts as broken."""


class Verdict(StrEnum):
    """How a run ended. `infra` is a failure of the host and never counts; every other verdict is caused by the code."""

    OK = "ok"
    SCRIPT_ERROR = "script_error"
    CPU = "cpu"
    MEMORY = "memory"
    WALL = "wall"
    OUTPUT = "output"
    PROTOCOL = "protocol"
    BUDGET = "budget"
    VIOLATION = "violation"
    INFRA = "infra"


class Tier(StrEnum):
    """How strongly this machine isolates a run, best first."""

    T1 = "T1"
    T2 = "T2"
    T3 = "T3"
    NONE = "none"


class SandboxUnavailable(MetaAgentXError):
    """This machine cannot isolate untrusted code as strongly as requested; the text says why and what to do."""


class HandlerError(Exception):
    """Base of the exceptions by which a handler of asks ends a run with a verdict."""

    verdict: ClassVar[Verdict]


class BudgetExceeded(HandlerError):
    """Raised by a handler of asks when a budget that it tracks (tokens, for example) is exhausted."""

    verdict = Verdict.BUDGET


class ProtocolViolation(HandlerError):
    """Raised by a handler of asks when the code sends an ask that no honest code sends."""

    verdict = Verdict.PROTOCOL


class Infra(HandlerError):
    """Raised by a handler of asks when the infrastructure has failed, not the code."""

    verdict = Verdict.INFRA


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use.

    A turn lasts from the moment when the code or a reply is sent to the run until the run sends its next ask or ends.
    """

    cpu_seconds: float = 5.0
    """CPU time in total, including what the host spends on decoding its messages. Decides the verdict."""
    wall_seconds: float = 30.0
    """How long it may sleep in one turn."""
    idle_seconds: float = 120.0
    """How long it may sleep in all its turns together, including the programs that it starts. Asks do not reset it."""
    total_seconds: float = 600.0
    """Wall-clock time in total, including waits for replies and for a busy machine. The run always ends by then."""
    turn_seconds: float = 600.0
    """Wall-clock time of one turn, whatever delays it. For runs that serve many requests."""
    turn_cpu_seconds: float | None = None
    """CPU time of one turn. None: only the total is limited."""
    yield_after_seconds: float | None = None
    """A turn that takes longer lowers the priority of the process permanently. None: never."""
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    """Of standard output and of standard error, each."""
    asks: int = 256
    """Asks in total, including the programs that it starts."""
    open_asks: int = 256
    """Asks that may wait for their replies at the same time."""
    frame_bytes: int = 1 << 20
    """The largest message from the run."""
    door_bytes: int = 32 << 20
    """All messages from the run together."""
    threads: int = 32

    @property
    def bound_seconds(self) -> float:
        """Return by when a run has ended, counted from its admission, whatever it sends and whatever fails."""
        return self.total_seconds + KILL_SECONDS


@dataclass(frozen=True, slots=True)
class Result:
    """How one run ended and what it produced."""

    verdict: Verdict
    detail: str
    """The reason, for a person; empty after success."""
    answer: JSON
    """What the code passed to `door.answer`, None when nothing. As untrusted as the code."""
    stdout: str
    stderr: str
    cpu_seconds: float
    """Measured by the kernel; for a run of a few milliseconds as reported by the run itself."""
    turn_seconds: float
    """Wall-clock time of the run's turns, without its waits for the host."""
    idle_seconds: float
    """How long the run slept in its turns, as far as the host can tell."""
    memory_bytes: int
    """Peak memory; reported by the run itself when it ended normally."""
    exit_code: int | None
    """None when a signal ended it."""
    asks: int
    tier: Tier
    starved_seconds: float = 0.0
    """How long the machine kept it from computing, as far as the host can tell."""

    @property
    def located_detail(self) -> str:
        """Return the detail, after the line of the code where the error came from, if its traceback says so."""
        lines = _LINE.findall(self.stderr) if self.verdict is Verdict.SCRIPT_ERROR else []
        return f"line {lines[-1]}: {self.detail}" if lines else self.detail

    @property
    def isolated(self) -> bool:
        """Return whether the run was isolated: False only where the user chose to run without any protection."""
        return self.tier is not Tier.NONE
