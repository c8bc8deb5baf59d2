"""What runs share: places to compute, the line of messages to decode, and what a run's programs have used."""

import asyncio
from dataclasses import dataclass

from .frames import JSON
from .reading import FrameQueue


@dataclass(slots=True)
class ProgramUsage:
    """What the programs that a run asked for have used."""

    cpu_seconds: float = 0.0
    idle_seconds: float = 0.0
    starved_seconds: float = 0.0
    """How long the machine kept them from computing."""
    script_idle_seconds: float = 0.0
    """How long the run itself has slept, which its programs then may not."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all runs of a sandbox share."""

    turns: asyncio.Semaphore
    """How many may compute at a time."""
    frames: FrameQueue
    """Runs whose messages wait to be decoded."""


def is_program(body: JSON) -> bool:
    """Whether this asks for a program to be run: its replies are late by the code's own doing."""
    return isinstance(body, dict) and body.get("kind") == "python"
