"""Large messages wait here and are decoded one in each round of the event loop, so that no sender can stall it."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class FrameQueue:
    """Calls what was added, in order, one call in each round of the loop. Belongs to one event loop."""

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

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._call_next)

    def _call_next(self) -> None:
        self._scheduled = False
        if self._waiting:
            decode, _ = self._waiting.popitem(last=False)
            self._schedule()
            decode()
