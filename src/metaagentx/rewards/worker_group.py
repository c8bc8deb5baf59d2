"""Workers of one kind and the queue in front of them: every request is answered or its worker ended, no other suffers.

A worker takes one request at a time and answers it within its limits, or raises what became of it:
- `OverLimit`: the answer took more than it may; it is wrong, with a reason;
- `WorkerCrashed`: tried once more with a fresh worker; the same again is the answer's doing;
- `WorkerLost`: the machine's or an operator's doing; tried again, then GraderUnavailable.

A request that takes longer than `PATIENCE_SECONDS` gives up its place in the queue, so that up to `SLOW_PER_WORKER`
slow ones for each worker cannot hold up the quick ones behind them. From the moment a request has its place it ends
within `ATTEMPTS * GraderLimits.attempt_seconds`, whatever happens.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from ..types import JSON
from .errors import GraderUnavailable

PATIENCE_SECONDS = 0.3
SLOW_PER_WORKER = 4
ATTEMPTS = 3
_BUSY_FACTOR = 50
_CLOSE_SECONDS = 30.0
_REQUESTS_PER_WORKER = 5000  # then a fresh one, so that caches cannot grow for ever


@dataclass(frozen=True, slots=True)
class GraderLimits:
    """What one request may use."""

    cpu_seconds: float = 1.2
    wall_seconds: float = 4.0
    """How long it may sleep. Time in which it computes, or waits for a processor, does not count."""
    memory_bytes: int = 512 << 20
    """On top of what the imported libraries use."""
    start_seconds: float = 120.0
    """For importing those libraries."""

    @property
    def request_seconds(self) -> float:
        """For one request, however busy the machine is; then it counts as failed through the machine's fault."""
        return 2 * self.wall_seconds + _BUSY_FACTOR * self.cpu_seconds

    @property
    def attempt_seconds(self) -> float:
        """For one attempt at a request, with starting a worker and ending it."""
        return self.start_seconds + self.request_seconds + _CLOSE_SECONDS


class OverLimit(Exception):
    """The request used more than it may."""


class WorkerCrashed(Exception):
    """The worker ended instead of answering, perhaps because of the request."""


class WorkerLost(Exception):
    """The worker ended through no fault of the request."""


class Worker(Protocol):
    """One process that grades, or several that share the work on one request."""

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""

    async def ask(self, request: dict[str, JSON]) -> dict[str, JSON]:
        """The reply to one request; `last` in it says that there must be no other. Raises as the module says."""

    async def close(self) -> None:
        """End it, whatever it is doing, and wait until it is gone."""


class WorkerGroup:
    """At least `size` requests at a time. Workers are started when needed; single use: nothing after `close`."""

    def __init__(
        self, start_worker: Callable[[], Awaitable[Worker]], size: int, limits: GraderLimits, reuse_slow: bool = True
    ) -> None:
        self._start_worker = start_worker
        self._size = size
        self._limits = limits
        self._reuse_slow = reuse_slow
        self._places = asyncio.Semaphore(size)
        self._slow = 0
        self._idle: list[Worker] = []
        self._served: dict[Worker, int] = {}
        self._busy: set[Worker] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Have as many workers ready as there may be requests at a time."""
        missing = self._size - len(self._idle) - len(self._busy)
        self._idle += await asyncio.gather(*(self._start_worker() for _ in range(missing)))

    async def ask(self, request: dict[str, JSON]) -> dict[str, JSON]:
        """The worker's reply; a reply that says why not when the request ran over its limits or crashed two workers."""
        crashes = 0
        reason = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                raise GraderUnavailable("the pool is closed")
            try:
                return await self._ask_once(request)
            except OverLimit as error:
                return {"score": 0.0, "solved": False, "reason": f"grading {error}", "over_limit": True}
            except WorkerCrashed as error:
                crashes += 1
                reason = str(error)
                if crashes == 2:
                    reason = f"it crashed the grader twice ({error})"
                    return {"score": 0.0, "solved": False, "reason": reason, "crashed": True}
            except WorkerLost as error:
                reason = str(error)
                self._end_idle()  # what happened to one has often happened to all
        raise GraderUnavailable(f"no grader could answer; the last one: {reason}")

    async def _ask_once(self, request: dict[str, JSON]) -> dict[str, JSON]:
        await self._places.acquire()
        place = _Place(self)
        timer = None
        worker: Worker | None = None
        try:
            async with asyncio.timeout(self._limits.attempt_seconds):
                worker = await self._take()
                self._busy.add(worker)
                timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, place.leave_early)
                reply = await worker.ask(request)
            self._give_back(worker, reply.get("last") is True or (place.slow and not self._reuse_slow))
            worker = None
            return reply
        except TimeoutError:
            raise WorkerLost(f"no answer within {self._limits.attempt_seconds:g} s") from None
        finally:
            if timer is not None:
                timer.cancel()
            if worker is not None:  # ended, or abandoned by a caller that was cancelled
                self._end(worker)
            place.leave()

    async def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._end(worker)
        return await self._start_worker()

    def _give_back(self, worker: Worker, spent: bool) -> None:
        self._served[worker] = self._served.get(worker, 0) + 1
        if self._closed or spent or self._served[worker] >= _REQUESTS_PER_WORKER:
            self._end(worker)
        else:
            self._busy.discard(worker)
            self._idle.append(worker)

    def _end(self, worker: Worker) -> None:
        """In the background: nobody waits for it but `close`."""
        self._busy.discard(worker)
        self._served.pop(worker, None)
        task = asyncio.ensure_future(worker.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _end_idle(self) -> None:
        while self._idle:
            self._end(self._idle.pop())

    async def close(self) -> None:
        """End every worker and wait until they are gone; requests that wait for one raise GraderUnavailable."""
        self._closed = True
        self._end_idle()
        for worker in tuple(self._busy):
            self._end(worker)
        while self._closing:
            await asyncio.wait(self._closing)

    def leave(self, slow: bool) -> bool:
        """Give a place back before the request is done, if not too many have; whether it was given back."""
        if slow:
            if self._slow >= SLOW_PER_WORKER * self._size:
                return False
            self._slow += 1
        self._places.release()
        return True

    def end_slow(self) -> None:
        """A slow request is done."""
        self._slow -= 1


class _Place:
    """A place among the quick ones, given back once."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._left = False
        self.slow = False

    def leave_early(self) -> None:
        self.slow = True
        self._left = self._group.leave(slow=True)

    def leave(self) -> None:
        if self.slow and self._left:
            self._group.end_slow()
        elif not self._left:
            self._group.leave(slow=False)
