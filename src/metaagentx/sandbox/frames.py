"""The host's end of the door: frames in, frames out, nothing believed.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON. The decoder bounds size, depth and digits
before it parses, and refuses what JSON readers disagree about: NaN and infinities, lone surrogates, repeated keys. It
costs time linear in the bytes received and raises nothing but `BadFrame`.
"""

import json
import math
import re
import struct
from typing import Any, NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_DEPTH = 64
MAX_DIGITS = 4000
MAX_VALUES = 250_000
MAX_OBJECTS = 20_000
MAX_QUOTES = 1_000_000
MAX_LONG_NUMBERS = 100
_HEADER = struct.Struct(">I")
# Possessive, and the closing quote is optional: one pass whatever comes, where backtracking would be quadratic.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_LONG_NUMBER = re.compile(r"[0-9]{200}[0-9]*+")
_BRACKET = re.compile(r"[\[\]{}]")
_DIGITS = re.compile(rf"(?<![0-9])[0-9]{{{MAX_DIGITS + 1}}}")  # tried once per number, not once per digit
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class BadFrame(Exception):
    """The far side sent something that is not a frame of ours; the text says what."""


def encode(value: JSON) -> bytes:
    """One frame with this value."""
    data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
    return _HEADER.pack(len(data)) + data


def decode(data: bytes) -> JSON:
    """The value of a frame's bytes, or BadFrame."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFrame(f"not UTF-8 at byte {error.start}") from None
    _check_shape(text)
    try:
        value: JSON = json.loads(
            text, parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_distinct_keys
        )
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from None
    if _SURROGATE_ESCAPE.search(text):
        _check_surrogates(value)
    return value


def _check_shape(text: str) -> None:
    """Refuse what would take long to parse: each bound keeps a frame of a few megabytes within some 25 ms."""
    if text.count('"') > MAX_QUOTES:
        raise BadFrame(f"more than {MAX_QUOTES} quotation marks in one frame")
    bare = _STRING.sub("", text)
    objects = bare.count("{")
    if objects > MAX_OBJECTS:
        raise BadFrame(f"more than {MAX_OBJECTS} objects in one frame")
    if bare.count(",") + objects + bare.count("[") > MAX_VALUES:
        raise BadFrame(f"more than {MAX_VALUES} values in one frame")
    if _DIGITS.search(bare):
        raise BadFrame(f"a number with more than {MAX_DIGITS} digits")
    # Reading a number takes time that grows with the square of its length.
    if len(_LONG_NUMBER.findall(bare)) > MAX_LONG_NUMBERS:
        raise BadFrame(f"more than {MAX_LONG_NUMBERS} numbers of more than 200 digits")
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            raise BadFrame(f"nested deeper than {MAX_DEPTH}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadFrame(f"a number out of range: {text[:40]}")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise BadFrame(f"{text} is not JSON")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BadFrame("an object with a repeated key")
    return result


def _check_surrogates(value: JSON) -> None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise BadFrame("a lone surrogate in a string") from None
    elif isinstance(value, list):
        for item in value:
            _check_surrogates(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_surrogates(key)
            _check_surrogates(item)


class Decoder:
    """Collects bytes and cuts them into frames. Single use: after BadFrame the door is closed."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data

    @property
    def size(self) -> int:
        """How many bytes are waiting."""
        return len(self._buffer)

    def has_frame(self) -> bool:
        """Whether a whole frame has come."""
        size = self._next_size()
        return size is not None and len(self._buffer) - 4 >= size

    def next_frame(self) -> bytes | None:
        """The bytes of the next whole frame, for `decode`; None when more must come first."""
        size = self._next_size()
        if size is None or len(self._buffer) - 4 < size:
            return None
        frame = bytes(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        return frame

    def _next_size(self) -> int | None:
        if len(self._buffer) < 4:
            return None
        size: int = _HEADER.unpack_from(self._buffer)[0]
        if size > self._max:
            raise BadFrame(f"a frame of {size} bytes; at most {self._max} are allowed")
        return size

    def feed(self, data: bytes) -> list[JSON]:
        """The values of all frames completed by these bytes."""
        self.add(data)
        values = []
        while (frame := self.next_frame()) is not None:
            values.append(decode(frame))
        return values
