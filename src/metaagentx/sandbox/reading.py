"""Messages wait here and are decoded for a few milliseconds in each round of the event loop, so that no sender can
stall it."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

_ROUND_SECONDS = 0.005
# Between two rounds: a task that sleeps needs several turns of the loop to go on, and must not meet a round in each.
_PAUSE_SECONDS = 0.002


class FrameQueue:
    """Calls what was added, in order, for a moment in each round of the loop. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._scheduled = False

    def add(self, decode: Callable[[], None]) -> None:
        """Have this called when its turn comes."""
        self._waiting[decode] = None
        self._schedule()

    def forget(self, decode: Callable[[], None]) -> None:
        """Do not call this any more."""
        self._waiting.pop(decode, None)

    def _schedule(self, pause: float = 0.0) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(pause, self._call_some)

    def _call_some(self) -> None:
        deadline = time.perf_counter() + _ROUND_SECONDS
        try:
            while self._waiting and time.perf_counter() < deadline:
                decode, _ = self._waiting.popitem(last=False)
                decode()
        finally:
            self._scheduled = False
            self._schedule(_PAUSE_SECONDS)
