"""What happens while a question is answered, for those who watch: plain data, in the order it happens."""

from dataclasses import dataclass
from typing import TypeAlias

from ..types import Fault


@dataclass(frozen=True, slots=True)
class DesignText:
    """The next piece of the Designer's reply."""

    design: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class DesignReady:
    """A design is written. With a fault it cannot run."""

    design: int
    attempt: int
    script: str | None
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class CallStarted:
    """An agent is asked. Calls of a design are numbered as they start."""

    design: int
    call: int
    agent: str


@dataclass(frozen=True, slots=True)
class CallText:
    """The next piece of an agent's reply."""

    design: int
    call: int
    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """An agent has replied."""

    design: int
    call: int
    agent: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What an agent reads after it used tools, as its next call begins."""

    design: int
    call: int
    agent: str
    text: str


Event: TypeAlias = DesignText | DesignReady | CallStarted | CallText | CallDone | ToolOutput
