"""The host's end of the pipes to a run: bytes in and out, and messages decoded so that no sender stalls the event loop.

A small message is handled on arrival. Others wait in a queue shared by all runs; a few milliseconds in each round of
the event loop are spent on decoding, and the sender is charged for them.
"""

import asyncio
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .frames import BadFrame, FrameDecoder, decode
from .types import Limits, Verdict

if TYPE_CHECKING:
    from .supervisor import RunSupervisor

_READ_BYTES = 1 << 16
# A message up to this size is handled on arrival. Larger ones are queued, and their sender is charged for them.
_SMALL_BYTES = 1 << 12
# How long one run may keep the host's thread before the next run in the queue has it.
_DECODING_SECONDS = 0.002
# What the event loop itself spends on a wake-up, which is not measured.
_WAKE_UP_SECONDS = 20e-6
# The host decodes for all runs on one thread, so a second of its time is charged as this many.
_DECODING_PRICE = 10.0

_ROUND_SECONDS = 0.005
# Between two rounds: a sleeping task needs several iterations of the loop to resume, and must not meet a round in each.
_PAUSE_SECONDS = 0.002


class FrameQueue:
    """Calls queued functions in order, for a few milliseconds in each round of the loop. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._scheduled = False

    def add(self, decode: Callable[[], None]) -> None:
        """Queue a function."""
        self._waiting[decode] = None
        self._schedule()

    def remove(self, decode: Callable[[], None]) -> None:
        """Remove a function from the queue if it is in it."""
        self._waiting.pop(decode, None)

    def _schedule(self, pause: float = 0.0) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(pause, self._run_round)

    def _run_round(self) -> None:
        deadline = time.perf_counter() + _ROUND_SECONDS
        try:
            while self._waiting and time.perf_counter() < deadline:
                decode, _ = self._waiting.popitem(last=False)
                decode()
        finally:
            self._scheduled = False
            self._schedule(_PAUSE_SECONDS)


class FrameReader:
    """Reads the messages of a run and passes them to its supervisor. Belongs to one event loop."""

    def __init__(self, fd: int, limits: Limits, queue: FrameQueue, supervisor: "RunSupervisor") -> None:
        self._fd = fd
        self._limits = limits
        self._queue = queue
        self._supervisor = supervisor
        self._decoder = FrameDecoder(limits.frame_bytes)
        self._bytes = 0
        self._queued = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start reading."""
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Stop reading; the number of the descriptor may belong to another run soon."""
        self._closed = True
        self._queue.remove(self._decode_queued)
        self._loop.remove_reader(self._fd)

    def drain(self) -> None:
        """Handle what the child wrote just before its end, which may arrive after the report of its end.

        Only what the pipe holds now: a child that reported its end may still be alive and writing.
        """
        if self._supervisor.listening:
            self._receive()
            self._decode_for(math.inf)

    def _read(self) -> None:
        """Handle a small message at once; queue the rest."""
        started = time.thread_time()
        at_once = False
        if self._receive():
            try:
                small = self._decoder.size <= _SMALL_BYTES
                at_once = small and self._decoder.has_frame()
                if at_once and (frame := self._decoder.next_frame()) is not None:
                    self._supervisor.handle(decode(frame))
                if self._decoder.has_frame() and self._supervisor.listening:
                    self._enqueue()
            except BadFrame as error:
                self._supervisor.refuse_frame(Verdict.PROTOCOL, str(error))
        seconds = time.thread_time() - started + _WAKE_UP_SECONDS
        self._supervisor.charge_decoding(seconds, 1.0 if at_once else _DECODING_PRICE)

    def _receive(self) -> int:
        """Move bytes from the pipe to the decoder and return how many."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data or not self._supervisor.listening:
            self._loop.remove_reader(self._fd)  # what arrives after the end does not matter
            return 0
        self._bytes += len(data)
        if self._bytes > self._limits.door_bytes:
            self._supervisor.refuse_frame(Verdict.BUDGET, f"sent more than {self._limits.door_bytes} bytes")
            return 0
        self._decoder.add(data)
        return len(data)

    def _enqueue(self) -> None:
        self._queued = True
        self._loop.remove_reader(self._fd)  # what follows waits, too
        self._queue.add(self._decode_queued)

    def _decode_queued(self) -> None:
        self._queued = False
        if self._closed:
            return
        started = time.thread_time()
        self._decode_for(_DECODING_SECONDS)
        self._supervisor.charge_decoding(time.thread_time() - started, _DECODING_PRICE)
        if self._supervisor.listening and not self._queued and not self._closed:
            self._loop.add_reader(self._fd, self._read)

    def _decode_for(self, seconds: float) -> None:
        """Decode and handle messages for this long, then queue again if any are left."""
        deadline = time.thread_time() + seconds
        try:
            while self._supervisor.listening and (frame := self._decoder.next_frame()) is not None:
                self._supervisor.handle(decode(frame))
                if time.thread_time() > deadline and self._decoder.has_frame():
                    self._enqueue()
                    return
        except BadFrame as error:
            self._supervisor.refuse_frame(Verdict.PROTOCOL, str(error))


class FrameWriter:
    """Writes messages to a run, which may read slowly or never. Belongs to one event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._outbox: deque[memoryview] = deque()
        self._closed = False
        self._has_writer = False
        self._loop = asyncio.get_running_loop()
        self.sent = 0
        """How many messages have been written completely."""

    def write(self, data: bytes) -> None:
        """Send a message as soon as the pipe has room."""
        if not self._closed:  # a handler that ignored its cancellation; the descriptor may be another run's by now
            self._outbox.append(memoryview(data))
            self._flush()

    def close(self) -> None:
        """Stop writing."""
        self._closed = True
        self._remove_writer()

    def _flush(self) -> None:
        while self._outbox:
            try:
                sent = os.write(self._fd, self._outbox[0])
            except BlockingIOError:
                self._has_writer = True
                self._loop.add_writer(self._fd, self._flush)
                return
            except BrokenPipeError:
                self._outbox.clear()  # it ended without reading; its exit status explains why
                break
            if sent == len(self._outbox[0]):
                self._outbox.popleft()
                self.sent += 1
            else:
                self._outbox[0] = self._outbox[0][sent:]
        self._remove_writer()

    def _remove_writer(self) -> None:
        if self._has_writer:  # asyncio takes long to find out that there is nothing to remove
            self._has_writer = False
            self._loop.remove_writer(self._fd)
