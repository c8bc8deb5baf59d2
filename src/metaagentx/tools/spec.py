"""What all kinds of tools share: how a tool is described, what a call returns, and how arguments are read."""

from dataclasses import dataclass
from typing import Protocol

from ..sandbox.frames import BadFrame, decode
from ..types import JSON


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as agents and Designers read it. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, JSON]

    def to_json(self) -> dict[str, JSON]:
        """Return the description as it enters the sandbox."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text that the agent reads; `failed`: it says what went wrong."""

    text: str
    failed: bool = False


class ToolServerGone(Exception):
    """The tool could not be run at all: its server ended, or all threads are taken. No agent is at fault."""


class BadArguments(Exception):
    """The arguments do not fit the schema of the tool; the text says where."""


class OfferedTool(Protocol):
    """A tool that can be called. Both methods get the arguments as JSON text."""

    @property
    def spec(self) -> ToolSpec:
        """The description of the tool."""

    def check(self, arguments: str) -> None:
        """Raise BadArguments if the arguments do not fit the schema. Runs nothing of the tool."""

    async def call(self, arguments: str, seconds: float) -> ToolResult:
        """Check the arguments, then run the tool for at most so long."""


def parse_arguments(text: str) -> dict[str, JSON]:
    """Return the arguments in a JSON text; raise BadArguments for anything but one object."""
    try:
        value = decode(text.encode())
    except UnicodeEncodeError:
        raise BadArguments("the arguments hold half of a character (a lone surrogate)") from None
    except BadFrame as error:
        raise BadArguments(f"the arguments cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise BadArguments("the arguments are not a JSON object")
    return value
