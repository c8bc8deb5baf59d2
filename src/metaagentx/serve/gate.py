"""How many requests a server takes on: some are answered, some wait, the rest is refused; none while it drains."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from .errors import APIError


class Gate:
    """Counts requests. `admit` is for the whole request, `running` for the time in which its question is answered."""

    def __init__(self, concurrency: int, queue: int) -> None:
        self.draining = False
        self.in_flight = 0
        self.running_now = 0
        self._concurrency = concurrency
        self._most = concurrency + queue
        self._slots = asyncio.Semaphore(concurrency)
        self._mean_seconds = 1.0
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def waiting(self) -> int:
        """How many admitted requests are not being answered yet."""
        return self.in_flight - self.running_now

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request while it is under way; refuse it with 429 if too many are."""
        if self.in_flight >= self._most:
            seconds = math.ceil(min(60.0, max(1.0, self._mean_seconds * self._most / self._concurrency / 2)))
            message = f"{self.in_flight} requests are under way or waiting: try again in {seconds} s"
            raise APIError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
        task = asyncio.current_task()
        assert task is not None
        self.in_flight += 1
        self._tasks.add(task)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._tasks.discard(task)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        async with self._slots:
            self.running_now += 1
            started = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                self.running_now -= 1
                seconds = asyncio.get_running_loop().time() - started
                self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def cancel_all(self) -> None:
        """Cancel every request that is under way."""
        for task in list(self._tasks):
            task.cancel()
