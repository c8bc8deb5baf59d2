"""Functions that tests offer as tools."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Literal

CALLED: list[tuple[str, object]] = []
LET_GO = threading.Event()


def search(query: str, limit: int = 3, kind: Literal["web", "news"] = "web") -> list[str]:
    """Searches an encyclopedia.

    Returns titles, the best first.
    """
    CALLED.append(("search", (query, limit, kind)))
    return [f"{query} {number}" for number in range(limit)]


async def add(first: int, second: int) -> int:
    """Adds two integers."""
    CALLED.append(("add", (first, second)))
    await asyncio.sleep(0)
    return first + second


def fail(how: str) -> str:
    """Fails."""
    errors = {
        "exit": SystemExit(3),
        "stop": StopIteration(),
        "cancel": asyncio.CancelledError(),
        "interrupt": KeyboardInterrupt(),
    }
    raise errors.get(how, RuntimeError(how))


async def fail_soon(how: str) -> str:
    """Fails, too."""
    return fail(how)


def hang(seconds: float) -> str:
    """Takes its time."""
    LET_GO.wait(seconds)
    return "done"


async def stubborn(seconds: float) -> str:
    """Takes its time, and does not let itself be canceled."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "done"


def long(length: int) -> str:
    """Returns a long text."""
    return "x" * (length - 3) + "END"


def half() -> str:
    """Returns half of a character."""
    return "a\ud800b"


def settings(options: Mapping[str, int]) -> dict[str, object]:
    """Returns what it was given, and what it sees."""
    return {"options": dict(options), "secret": os.environ.get("TEST_SECRET", ""), "argv": len(sys.argv)}


def undescribed(x: int) -> int:
    return x


def untyped(x):  # type: ignore[no-untyped-def]
    """Has no type hints."""
    return x


def variadic(*numbers: int) -> int:
    """Has arguments without names."""
    return sum(numbers)


class NoFunction:
    """Not a function."""


number = 5
