"""The door: the channel between a script and the host. Scripts import it as `door`.

A frame is a 4-byte big-endian length followed by that many bytes of JSON. Sent to the host: {"ready": true}, {"ask":
id, "body": ...}, {"answer": value}, {"done": code, ...}. Received: the job, then {"reply": id, "body": ...}. A script
may misuse these functions and the descriptors behind them: the host decodes frames strictly and trusts nothing in them.
"""

import json
import os
import struct
from typing import Any, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

READ_FD, WRITE_FD = 3, 4
_HEADER = struct.Struct(">I")


class DoorClosed(BaseException):
    """The host is gone. Not an Exception, so that a script's `except Exception` cannot loop on it."""


def read_exactly(size: int) -> bytes:
    """Read this many bytes from the host."""
    parts = []
    while size:
        part = os.read(READ_FD, min(size, 1 << 20))
        if not part:
            raise DoorClosed("the host has closed the door")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def decode(data: bytes) -> JSON:
    """Return the value of a frame without its length."""
    value: JSON = json.loads(data)
    return value


def encode(value: JSON) -> bytes:
    """Return a value as a frame without its length."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def read_frame() -> Any:
    """Read the next frame from the host."""
    return decode(read_exactly(_HEADER.unpack(read_exactly(4))[0]))


def frame(value: JSON) -> bytes:
    """Return a value as a frame."""
    data = encode(value)
    return _HEADER.pack(len(data)) + data


def write_frame(value: JSON) -> None:
    """Send one frame to the host."""
    view = memoryview(frame(value))
    while view:
        view = view[os.write(WRITE_FD, view) :]


class Door:
    """Sends asks and keeps replies that arrive out of order. One thread uses it at a time."""

    def __init__(self) -> None:
        self._last = 0
        self._early: dict[int, JSON] = {}

    def send(self, body: JSON) -> int:
        """Send an ask and return its id at once; `receive` returns its reply."""
        self._last += 1
        write_frame({"ask": self._last, "body": body})
        return self._last

    def receive(self) -> tuple[int, JSON]:
        """Wait for the reply to any ask and return its id and value."""
        if self._early:
            return self._early.popitem()
        return self._read()

    def ask(self, body: JSON) -> JSON:
        """Send an ask and return the reply of the host."""
        number = self.send(body)
        while number not in self._early:
            other, reply = self._read()
            self._early[other] = reply
        return self._early.pop(number)

    def answer(self, value: JSON) -> None:
        """Send the answer of the run; a later one replaces it."""
        write_frame({"answer": value})

    def _read(self) -> tuple[int, JSON]:
        frame = read_frame()
        return frame["reply"], frame["body"]


transport = Door()
ask, answer = transport.ask, transport.answer
