"""The script's side of the door: ask the host, hand over the answer. Importable by scripts as `door`.

Frames are a 4-byte big-endian length and that many bytes of JSON. Towards the host: {"ready": true}, {"ask": id,
"body": ...}, {"answer": value}, {"done": code, ...}; from the host: the job, then {"reply": id, "body":
...}. Whatever a script does with these functions or with the descriptors behind them, the host reads frames with a
strict decoder and believes nothing in them.
"""

import json
import os
import struct
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

READ_FD, WRITE_FD = 3, 4
_HEADER = struct.Struct(">I")


class DoorClosed(BaseException):
    """The host has gone; not an Exception, so that a script's `except Exception` cannot loop on it."""


def read_exactly(size: int) -> bytes:
    """Read that many bytes from the host."""
    parts = []
    while size:
        part = os.read(READ_FD, min(size, 1 << 20))
        if not part:
            raise DoorClosed("the host has closed the door")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def decode(data: bytes) -> JSON:
    """The value of a frame's bytes."""
    value: JSON = json.loads(data)
    return value


def encode(value: JSON) -> bytes:
    """The bytes of a frame, without their length."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def read_frame() -> JSON:
    """The next frame from the host."""
    return decode(read_exactly(_HEADER.unpack(read_exactly(4))[0]))


def write_frame(value: JSON) -> None:
    """Send one frame to the host."""
    data = encode(value)
    view = memoryview(_HEADER.pack(len(data)) + data)
    while view:
        view = view[os.write(WRITE_FD, view) :]


class Door:
    """Asks in flight and replies that have come for others. One thread uses it at a time."""

    def __init__(self) -> None:
        self._last = 0
        self._early: dict[int, JSON] = {}

    def send(self, body: JSON) -> int:
        """Start an ask; its id comes back at once, its reply by `receive`."""
        self._last += 1
        write_frame({"ask": self._last, "body": body})
        return self._last

    def receive(self) -> tuple[int, JSON]:
        """Wait for the reply to any ask."""
        if self._early:
            return self._early.popitem()
        return self._read()

    def ask(self, body: JSON) -> JSON:
        """Ask the host and wait for its reply."""
        wanted = self.send(body)
        while wanted not in self._early:
            number, reply = self._read()
            self._early[number] = reply
        return self._early.pop(wanted)

    def answer(self, value: JSON) -> None:
        """Hand over the run's answer; a later one replaces it."""
        write_frame({"answer": value})

    def _read(self) -> tuple[int, JSON]:
        frame = read_frame()
        assert isinstance(frame, dict)
        number = frame["reply"]
        assert isinstance(number, int)
        return number, frame["body"]


transport = Door()
ask, answer = transport.ask, transport.answer
