"""Ctrl-C and SIGTERM end a command in the same way: finished work is kept, and one line says how to resume.

`run` is `asyncio.run` with a task that the first signal cancels, so that it can clean up and save its state; elsewhere
the signal raises `Interrupted`. A second signal ends the process at once.
"""

import os
import signal
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import Interrupted

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_EXIT_CODE = 130
_SHOW_CURSOR = b"\x1b[?25h\n"


class _State:
    """State of signal handling in this process."""

    received = False
    task: "asyncio.Task[Any] | None" = None


def install() -> None:
    """Install the handlers. Ignored signals stay ignored: a shell starts background jobs without Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result, or raise `Interrupted` when a signal canceled it."""
    import asyncio

    async def watched() -> T:
        _State.task = asyncio.current_task()
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise Interrupted from None
    finally:
        _State.task = None


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _State.received:
        if sys.stderr.isatty():
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _SHOW_CURSOR)
        os._exit(_EXIT_CODE)
    _State.received = True
    if _State.task is None:
        raise Interrupted
    _State.task.get_loop().call_soon_threadsafe(_cancel)


def _cancel() -> None:
    """Cancel the task. Runs in the event loop, where printing cannot disturb a display that is being drawn."""
    if _State.task is not None:
        sys.stderr.write("metaagentx: stopping; a second signal stops at once\n")
        sys.stderr.flush()
        _State.task.cancel()
