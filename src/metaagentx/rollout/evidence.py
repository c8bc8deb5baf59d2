"""Was an execution late because of the backend, or because of its own script?

The backend may serve calls one after the other, or all of them together and each more slowly. In both cases a script
that makes many calls at once waits long for each of them, on a backend that is not slow. What it cannot cause is that
the time of a few calls, divided by their number, is long: one of them, made by itself, would take as long. `Evidence`
measures that. `Turns` lets a call that timed out beside others be made again by itself.
"""

import asyncio
import time


class Evidence:
    """When the backend worked on the calls of an execution. Waiting for the execution's own turn does not count."""

    def __init__(self) -> None:
        self._running: dict[int, float] = {}
        self._spans: list[tuple[float, float]] = []

    def start(self, number: int) -> None:
        """Note that the backend has this call from now on."""
        self._running[number] = time.perf_counter()

    def stop(self, number: int) -> None:
        """Note that the backend has it no longer, if it had it."""
        if (started := self._running.pop(number, None)) is not None:
            self._spans.append((started, time.perf_counter()))

    def shows(self, seconds: float) -> bool:
        """Return whether some calls took at least this long for each of them, answered or not."""
        now = time.perf_counter()
        spans = sorted([*self._spans, *((start, now) for start in self._running.values())])
        moments = {moment for span in spans for moment in span}
        return any(_longest_share(spans, moment, seconds) >= seconds for moment in moments)


def _longest_share(spans: list[tuple[float, float]], start: float, enough: float) -> float:
    """Return the longest time from `start` on, without a pause, divided by the number of calls that were under way."""
    last = max(end for _, end in spans)
    longest, calls, busy_until = 0.0, 0, start
    for begin, end in spans:
        if end <= start:
            continue
        if begin > busy_until or (calls and (last - start) / calls < enough):
            break
        if calls:
            longest = max(longest, (begin - start) / calls)
        calls += 1
        busy_until = max(busy_until, end)
    return max(longest, (busy_until - start) / calls) if calls else 0.0


class Turns:
    """Lets at most `limit` calls of an execution run at a time, and notes when they did."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.evidence = Evidence()
        self._running: set[int] = set()
        self._with_company: set[int] = set()
        self._waiting: list[asyncio.Future[None]] = []

    async def enter(self, number: int) -> None:
        """Wait for a turn."""
        while len(self._running) >= self.limit:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            finally:
                if place in self._waiting:
                    self._waiting.remove(place)
        self._with_company.discard(number)
        self._running.add(number)
        if len(self._running) > 1:
            self._with_company |= self._running
        self.evidence.start(number)

    def leave(self, number: int) -> None:
        """End a turn."""
        self.evidence.stop(number)
        self._running.discard(number)
        for place in self._waiting[: max(0, self.limit - len(self._running))]:
            if not place.done():
                place.set_result(None)

    async def retry_alone(self, number: int) -> bool:
        """After a timeout, wait for all other calls of the execution; return False if none were under way beside it.

        A call that is slow because the script makes many at once is not the backend's fault. From now on the execution
        has one call at a time.
        """
        if number not in self._with_company:
            return False
        self.leave(number)
        self.limit = 1
        await self.enter(number)
        return True
