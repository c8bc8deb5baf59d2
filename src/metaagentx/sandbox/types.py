"""What goes into a run and what comes out of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from ..errors import MetaAgentXError
from .frames import JSON

Ask = Callable[[JSON], Awaitable[JSON]]
"""Answers one ask. What it raises ends the run and reaches the caller; BudgetExceeded and Infra become verdicts."""


KILL_SECONDS = 10.0
"""How long after its kill a run is given up if nobody confirms it: the fork server is then broken."""


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
    """Raised by a handler of asks when the code asks for what nothing honest asks for: the verdict is `protocol`."""


class Infra(Exception):
    """Raised by a handler of asks when the machinery, not the code, has failed: the verdict is `infra`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    cpu_seconds: float = 5.0
    """Processor time in all, with what the host spends on reading its messages. Decides the verdict."""
    wall_seconds: float = 30.0
    """How long it may sleep in one turn: from the code or a reply going in until the next ask or the end comes out."""
    idle_seconds: float = 120.0
    """How long it may sleep in all its turns together, with the programs it has run. No ask sets it back."""
    total_seconds: float = 600.0
    """For everything, waits for replies and for a busy machine included: the run is over by then, whatever it sends."""
    turn_seconds: float = 600.0
    """For one turn, whatever delays it: for runs that serve many requests."""
    turn_cpu_seconds: float | None = None
    """Processor time for one turn; None: only the sum counts."""
    yield_after_seconds: float | None = None
    """A turn that lasts longer than this gives up some of its share of the processor, for good; None: it keeps it."""
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    """For standard output and standard error each."""
    asks: int = 256
    """Asks in all, programs run for the script among them."""
    open_asks: int = 256
    """Asks that may be waiting for their replies at the same time."""
    frame_bytes: int = 1 << 20
    """The largest single message out of the run."""
    door_bytes: int = 32 << 20
    """All messages out of the run together."""
    threads: int = 32

    @property
    def bound_seconds(self) -> float:
        """When a run is over at the latest, counted from its admission, whatever it sends and whatever breaks."""
        return self.total_seconds + KILL_SECONDS


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
    """How long of it the run slept, as far as the host can tell."""
    memory_bytes: int
    """The most it had in memory, as the run itself reports when it ended well."""
    exit_code: int | None
    """None when a signal ended it."""
    asks: int
    tier: Tier
    starved_seconds: float = 0.0
    """How long the machine kept it from computing, as far as the host can tell."""

    @property
    def isolated(self) -> bool:
        """False only where the user chose to run without any protection."""
        return self.tier is not Tier.NONE
