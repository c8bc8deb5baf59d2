"""The host's end of a run's door: bytes in and out, and messages decoded without any sender stalling the event loop.

A small message is handled as it comes. The rest waits in line behind those of other runs; a few milliseconds in each
round of the loop go to decoding, and the sender is charged for them.
"""

import asyncio
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from .frames import JSON, BadFrame, Decoder, decode
from .types import Limits, Verdict

_READ_BYTES = 1 << 16
# One message of this size is handled as it comes. The rest waits in line, and its sender pays for it.
_SMALL_BYTES = 1 << 12
# How long one run may keep the host's thread before the others have it.
_READING_SECONDS = 0.002
# What the event loop itself spends on a wake-up, which nobody measures.
_WAKE_UP_SECONDS = 20e-6
# The host reads for all runs on one thread, so a second of its time costs the sender this many of its own.
_READING_PRICE = 10.0

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


class Listener(Protocol):
    """Whom the messages of a run are for."""

    @property
    def listens(self) -> bool:
        """Whether what the run says still matters."""

    def handle(self, frame: JSON) -> None:
        """Take one message; BadFrame when it is none of ours."""

    def refuse_frame(self, verdict: Verdict, detail: str) -> None:
        """End the run for what it sent."""

    def pay_reading(self, seconds: float, price: float) -> None:
        """Charge the run for the host's time."""


class FrameReader:
    """Reads what a run says. Belongs to one event loop."""

    def __init__(self, fd: int, limits: Limits, queue: FrameQueue, listener: Listener) -> None:
        self._fd = fd
        self._limits = limits
        self._queue = queue
        self._listener = listener
        self._decoder = Decoder(limits.frame_bytes)
        self._bytes = 0
        self._in_line = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Listen from now on."""
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Listen no more; the descriptor may be another run's soon."""
        self._closed = True
        self._queue.forget(self._decode_waiting)
        self._loop.remove_reader(self._fd)

    def drain(self) -> None:
        """Take what the child wrote just before its end, which may arrive after the news of it.

        Only what the pipe holds now: a child that said it was done may be alive and go on writing.
        """
        if self._listener.listens:
            self._receive()
            self._decode_for(math.inf)

    def _read(self) -> None:
        """Take what has come. A small message is handled at once, the rest when its turn comes."""
        started = time.thread_time()
        quick = False
        if self._receive():
            try:
                small = self._decoder.size <= _SMALL_BYTES
                quick = small and self._decoder.has_frame()
                if quick and (frame := self._decoder.next_frame()) is not None:
                    self._listener.handle(decode(frame))
                if self._decoder.has_frame() and self._listener.listens:
                    self._wait_in_line()
            except BadFrame as error:
                self._listener.refuse_frame(Verdict.PROTOCOL, str(error))
        seconds = time.thread_time() - started + _WAKE_UP_SECONDS
        self._listener.pay_reading(seconds, 1.0 if quick else _READING_PRICE)

    def _receive(self) -> int:
        """Move bytes from the door to the decoder; 0 when there are none."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data or not self._listener.listens:
            self._loop.remove_reader(self._fd)  # what comes after the end matters to nobody
            return 0
        self._bytes += len(data)
        if self._bytes > self._limits.door_bytes:
            self._listener.refuse_frame(Verdict.BUDGET, f"more than {self._limits.door_bytes} bytes through the door")
            return 0
        self._decoder.add(data)
        return len(data)

    def _wait_in_line(self) -> None:
        self._in_line = True
        self._loop.remove_reader(self._fd)  # what comes after it waits, too
        self._queue.add(self._decode_waiting)

    def _decode_waiting(self) -> None:
        """Decode and handle messages that have waited, for a moment; others wait as well."""
        self._in_line = False
        if self._closed:
            return
        started = time.thread_time()
        self._decode_for(_READING_SECONDS)
        self._listener.pay_reading(time.thread_time() - started, _READING_PRICE)
        if self._listener.listens and not self._in_line and not self._closed:
            self._loop.add_reader(self._fd, self._read)

    def _decode_for(self, seconds: float) -> None:
        deadline = time.thread_time() + seconds
        try:
            while self._listener.listens and (frame := self._decoder.next_frame()) is not None:
                self._listener.handle(decode(frame))
                if time.thread_time() > deadline and self._decoder.has_frame():
                    self._wait_in_line()
                    return
        except BadFrame as error:
            self._listener.refuse_frame(Verdict.PROTOCOL, str(error))


class FrameWriter:
    """Writes to a run, which may read slowly or never. Belongs to one event loop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._outbox: deque[memoryview] = deque()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self.sent = 0
        """How many messages have gone out whole."""

    def write(self, data: bytes) -> None:
        """Send a message, as soon as the pipe has room."""
        if not self._closed:  # a handler that would not be cancelled; the descriptor may be another run's by now
            self._outbox.append(memoryview(data))
            self._flush()

    def close(self) -> None:
        """Send no more."""
        self._closed = True
        self._loop.remove_writer(self._fd)

    def _flush(self) -> None:
        while self._outbox:
            try:
                sent = os.write(self._fd, self._outbox[0])
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._flush)
                return
            except BrokenPipeError:
                self._outbox.clear()  # it ended without reading; its exit says how
                break
            if sent == len(self._outbox[0]):
                self._outbox.popleft()
                self.sent += 1
            else:
                self._outbox[0] = self._outbox[0][sent:]
        self._loop.remove_writer(self._fd)
