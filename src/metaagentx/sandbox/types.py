"""What goes into a run and what comes out of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from ..errors import MetaAgentXError
from .frames import JSON

Ask = Callable[[JSON], Awaitable[JSON]]
"""Answers one ask. What it raises ends the run and reaches the caller; BudgetExceeded, ProtocolViolation and Infra
become verdicts."""


OnProgram = Callable[[str, str, str], None]
"""Is told of each program a run had executed: its code, its standard input, and what it printed, errors last."""


class Verdict(StrEnum):
    """How a run ended. Everything but `infra` is the code's own doing and counts; `infra` is ours and never does."""

    OK = "ok"
    SCRIPT_ERROR = "script error"
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
    """This machine cannot isolate untrusted code as strongly as asked; the text says why and what to do."""


class BudgetExceeded(Exception):
    """Raised by a handler of asks when a budget that it keeps (tokens, say) is used up."""


class ProtocolViolation(Exception):
    """Raised by a handler of asks for an ask that no honest code sends: the verdict is `protocol`."""


class Infra(Exception):
    """Raised by a handler of asks when the machinery, not the code, has failed: the verdict is `infra`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    cpu_seconds: float = 5.0
    """Processor time in all. Decides the verdict; the run is killed at the next whole second."""
    wall_seconds: float = 30.0
    """Time for one turn: from the code or a reply going in until the next ask or the end comes out."""
    idle_seconds: float = inf
    """How long it may sleep in all: time of its turns beyond what its processor time explains on a crowded machine.
    As much again for the programs it has run."""
    turn_cpu_seconds: float | None = None
    """Processor time for one turn, looked at four times a second; None: only the sum counts."""
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    """For standard output and standard error each."""
    asks: int = 256
    """Asks in all, programs run for the script among them."""
    frame_bytes: int = 1 << 20
    """The largest single message out of the run."""
    door_bytes: int = 32 << 20
    """All messages out of the run together."""
    threads: int = 32


@dataclass(frozen=True, slots=True)
class Result:
    """How one run ended and what it left."""

    verdict: Verdict
    detail: str
    """Why, for a person; empty when all went well."""
    answer: JSON
    """What the code handed over by `door.answer`, None when nothing. As untrusted as the code."""
    stdout: str
    stderr: str
    cpu_seconds: float
    """As the kernel counted it; for a run of a few milliseconds as the run itself reports."""
    turn_seconds: float
    """Wall-clock time of the run's own turns, without its waits for the host."""
    idle_seconds: float
    """What of it the processor time does not explain, even on a crowded machine."""
    memory_bytes: int
    """The most it had in memory, as the run itself reports when it ended well."""
    exit_code: int | None
    """None when a signal ended it."""
    asks: int
    tier: Tier

    @property
    def isolated(self) -> bool:
        """False only where the user chose to run without any protection."""
        return self.tier is not Tier.NONE
