"""Ctrl-C and SIGTERM end a command in the same way: what is finished is kept, one line says how to go on.

`run` is `asyncio.run` whose task is canceled by the first signal, so that it can clean up and keep its state; elsewhere
the signal raises `Interrupted`. A second signal ends the process at once.
"""

import os
import signal
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import Interrupted

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_EXIT_CODE = 130
_SHOW_CURSOR = b"\x1b[?25h\n"


class _Stop:
    """What is known of signals in this process."""

    heard = False
    task: "asyncio.Task[Any] | None" = None


def install() -> None:
    """Listen from now on. What the process was told to ignore stays so: a shell's background job hears no Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end and return the result, or raise `Interrupted` when a signal canceled it."""
    import asyncio

    async def watched() -> T:
        _Stop.task = asyncio.current_task()
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise Interrupted from None
    finally:
        _Stop.task = None


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _Stop.heard:
        if sys.stderr.isatty():
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _SHOW_CURSOR)
        os._exit(_EXIT_CODE)
    _Stop.heard = True
    if _Stop.task is None:
        raise Interrupted
    _Stop.task.get_loop().call_soon_threadsafe(_cancel)


def _cancel() -> None:
    """In the event loop, where printing cannot disturb a display that is being drawn."""
    if _Stop.task is not None:
        sys.stderr.write("metaagentx: stopping; a second signal stops at once\n")
        sys.stderr.flush()
        _Stop.task.cancel()
