"""A group of grading workers with a queue. Every request gets a reply or its worker is ended; no other request suffers.

A worker is one process that grades one request at a time, within its limits. It replies, or raises:
- `OverLimit`: grading the answer took more than allowed; the answer is wrong, with a reason;
- `WorkerCrashed`: the request is retried once in a fresh worker; a second crash is attributed to the answer;
- `WorkerLost`: the machine or an operator ended the worker; the request is retried, then GraderUnavailable is raised.

A request that takes longer than `PATIENCE_SECONDS` gives up its slot, so that up to `SLOW_PER_WORKER` slow requests per
worker do not delay quick ones behind them. Once a request has its slot, it ends within
`ATTEMPTS * GraderLimits.attempt_seconds`, whatever happens.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

from ..types import JSON
from .errors import GraderUnavailable
from .reply import GraderReply

PATIENCE_SECONDS = 0.3
SLOW_PER_WORKER = 4
ATTEMPTS = 3
_BUSY_FACTOR = 50
_CLOSE_SECONDS = 30.0
_REQUESTS_PER_WORKER = 5000  # then a fresh one, so that caches cannot grow without end


@dataclass(frozen=True, slots=True)
class GraderLimits:
    """What one request may use."""

    cpu_seconds: float = 1.2
    wall_seconds: float = 4.0
    """How long it may sleep. Time in which it computes, or waits for a CPU, does not count."""
    memory_bytes: int = 512 << 20
    """In addition to what the imported libraries use."""
    start_seconds: float = 120.0
    """For importing those libraries."""

    @property
    def request_seconds(self) -> float:
        """Wall time for one request on a busy machine; beyond it the machine is at fault."""
        return 2 * self.wall_seconds + _BUSY_FACTOR * self.cpu_seconds

    @property
    def attempt_seconds(self) -> float:
        """Wall time for one attempt at a request, including starting and ending a worker."""
        return self.start_seconds + self.request_seconds + _CLOSE_SECONDS


class OverLimit(Exception):
    """The request used more than it may."""


class WorkerCrashed(Exception):
    """The worker ended instead of replying, perhaps because of the request."""


class WorkerLost(Exception):
    """The worker ended, and the request did not cause it."""


class Worker(Protocol):
    """One grading process."""

    @property
    def alive(self) -> bool:
        """Return whether it can take a request."""

    async def ask(self, request: dict[str, JSON]) -> GraderReply:
        """Return the reply to one request, or raise one of the three exceptions above."""

    async def close(self) -> None:
        """End the process, whatever it is doing, and wait until it is gone."""


_REPLY_TYPES = {
    "score": float, "solved": bool, "reason": str, "broken": str, "over_limit": bool, "cpu": float, "last": bool
}  # fmt: skip


def read_reply(message: JSON) -> GraderReply:
    """Return a process's message as a reply. A malformed message counts as a crash."""
    fields: dict[str, Any] = message if isinstance(message, dict) else {}
    if any(type(fields.get(name)) is not kind for name, kind in _REPLY_TYPES.items()) or not 0 <= fields["score"] <= 1:
        raise WorkerCrashed("it sent a malformed reply")
    return GraderReply(**{name: fields[name] for name in _REPLY_TYPES})


class WorkerGroup(ABC):
    """Workers of one kind for at least `size` requests at a time, started on demand. After `close` it is unusable."""

    def __init__(self, size: int, limits: GraderLimits, reuse_slow: bool = True) -> None:
        """`reuse_slow`: whether a worker that gave up its slot may get another request."""
        self._size = size
        self._limits = limits
        self._reuse_slow = reuse_slow
        self._slots = asyncio.Semaphore(size)
        self._slow = 0
        self._idle: list[Worker] = []
        self._served: dict[Worker, int] = {}
        self._busy: set[Worker] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @abstractmethod
    async def start_worker(self) -> Worker:
        """Start one worker, or raise GraderUnavailable."""

    @abstractmethod
    def crashed_twice(self, reason: str) -> GraderReply:
        """Return the reply to an answer that crashed two workers, or raise GraderUnavailable."""

    async def start(self) -> None:
        """Start `size` workers now, so that the first requests do not wait for it."""
        missing = self._size - len(self._idle) - len(self._busy)
        self._idle += await asyncio.gather(*(self.start_worker() for _ in range(missing)))

    async def ask(self, request: dict[str, JSON]) -> GraderReply:
        """Return a worker's reply, or a wrong grade with its reason where the answer broke a limit or two workers."""
        crashes = 0
        reason = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                raise GraderUnavailable("the graders are closed")
            try:
                return await self._ask_once(request)
            except OverLimit as error:
                return GraderReply(reason=f"grading {error}", over_limit=True, by_host=True)
            except WorkerCrashed as error:
                crashes += 1
                reason = str(error)
                if crashes == 2:
                    return self.crashed_twice(f"it crashed the grader twice ({reason})")
            except WorkerLost as error:
                reason = str(error)
                self._end_idle()  # what happened to one has often happened to all
        raise GraderUnavailable(f"no reply after {ATTEMPTS} attempts; the last one: {reason}")

    async def _ask_once(self, request: dict[str, JSON]) -> GraderReply:
        await self._slots.acquire()
        slow = slot_released = False

        def release_early() -> None:
            nonlocal slow, slot_released
            slow = True
            if self._slow < SLOW_PER_WORKER * self._size:
                self._slow += 1
                self._slots.release()
                slot_released = True

        timer = None
        worker: Worker | None = None
        try:
            async with asyncio.timeout(self._limits.attempt_seconds):
                worker = await self._take()
                self._busy.add(worker)
                timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, release_early)
                reply = await worker.ask(request)
            self._give_back(worker, reply.last or (slow and not self._reuse_slow))
            worker = None
            return reply
        except TimeoutError:
            raise WorkerLost(f"no reply within {self._limits.attempt_seconds:g} s") from None
        finally:
            if timer is not None:
                timer.cancel()
            if worker is not None:  # it failed, or its caller was canceled
                self._end(worker)
            if slot_released:
                self._slow -= 1
            else:
                self._slots.release()

    async def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._end(worker)
        return await self.start_worker()

    def _give_back(self, worker: Worker, spent: bool) -> None:
        self._served[worker] = self._served.get(worker, 0) + 1
        if self._closed or spent or self._served[worker] >= _REQUESTS_PER_WORKER:
            self._end(worker)
        else:
            self._busy.discard(worker)
            self._idle.append(worker)

    def _end(self, worker: Worker) -> None:
        """End a worker in the background: only `close` waits for it."""
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
