"""The host's end of the door: frames in, frames out, nothing believed.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON. The decoder bounds size, depth and digits
before it parses, and refuses what JSON readers disagree about: NaN and infinities, lone surrogates, repeated keys. It
costs time linear in the bytes received and raises nothing but `BadFrame`.
"""

import gc
import json
import math
import re
import struct
from array import array
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

# Each bound keeps a frame of 4 MiB within some 25 ms; tests search for the frame that takes longest.
MAX_DEPTH = 64
MAX_DIGITS = 4000
MAX_VALUES = 250_000
MAX_OBJECTS = 20_000
MAX_KEYS = 50_000
MAX_LISTS = 25_000  # each one that is kept is also looked at by the collector of cycles
MAX_QUOTES = 250_000
MAX_FLOATS = 125_000
MAX_LARGE_FLOATS = 1000
MAX_SURROGATES = 100_000
# Numbers of 20 digits or more are counted by twenties of digits, those of 200 or more by two hundreds: reading one
# takes time that grows with the square of its length.
MAX_TWENTIES = 50_000
MAX_TWO_HUNDREDS = 2000
_HEADER = struct.Struct(">I")
# Possessive, and the closing quote is optional: one pass whatever comes, where backtracking would be quadratic.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# Two, because one that begins with a letter is found ten times as fast as one that begins with either.
_LARGE_FLOATS = (re.compile(rb"e\+?[0-9]{3}"), re.compile(rb"E\+?[0-9]{3}"))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F](?<!\\u[dD][89abAB]..\\u[dD].))", re.DOTALL
)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_DIGITS_ONLY = bytes(48 if chr(byte) in "0123456789" else 32 for byte in range(256))


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
    # Only these can be out of range, and a function of ours for each number makes reading five times slower.
    parse_float = _finite if _check_shape(data) else None
    # A parsed value has no cycles to collect, and looking for some among all objects takes longer than parsing it.
    collects = gc.isenabled()
    gc.disable()
    try:
        value: JSON = json.loads(
            text, parse_float=parse_float, parse_constant=_refuse_constant, object_pairs_hook=_distinct_keys
        )
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from None
    finally:
        if collects:
            gc.enable()
    return value


def _at_most(bound: int, count: int, what: str) -> int:
    if count > bound:
        raise BadFrame(f"more than {bound} {what} in one frame")
    return count


def _check_shape(data: bytes) -> bool:
    """Refuse what would take long to parse; returns whether there are numbers of 100 digits or more."""
    escapes = data.replace(b"\\\\", b"")  # what stands behind a backslash is escaped now
    _at_most(MAX_QUOTES, escapes.count(b'"') - escapes.count(b'\\"'), "quotation marks")
    _check_surrogates(escapes)
    bare = _STRING.sub(b"", data)
    objects = _at_most(MAX_OBJECTS, bare.count(b"{"), "objects")
    lists = bare.count(b"[")
    _at_most(MAX_KEYS, bare.count(b":"), "keys")
    _at_most(MAX_VALUES, bare.count(b",") + objects + lists, "values")
    if bare.count(b"]") + bare.count(b"}") > objects + lists:
        raise BadFrame("not JSON: more brackets are closed than opened")
    if objects + lists > MAX_DEPTH:
        steps = array("b", bare.translate(_STEPS, _NOT_BRACKETS))
        if max(accumulate(steps)) > MAX_DEPTH:
            raise BadFrame(f"nested deeper than {MAX_DEPTH}")
    _at_most(MAX_LISTS, lists, "lists")
    exponents = bare.count(b"e") + bare.count(b"E") - bare.count(b"true") - bare.count(b"false")
    _at_most(MAX_FLOATS, bare.count(b".") + exponents, "numbers with a fraction")
    large = sum(len(pattern.findall(bare)) for pattern in _LARGE_FLOATS) if exponents else 0
    _at_most(MAX_LARGE_FLOATS, large, "numbers of 100 digits or more")
    digits = bare.translate(_DIGITS_ONLY)
    twenties = _at_most(MAX_TWENTIES, digits.count(b"0" * 20), "times 20 digits of long numbers")
    if twenties >= 10:
        if b"0" * (MAX_DIGITS + 1) in digits:
            raise BadFrame(f"a number with more than {MAX_DIGITS} digits")
        long = _at_most(MAX_TWO_HUNDREDS, digits.count(b"0" * 200), "times 200 digits of long numbers")
        return bool(large or long)
    return bool(large)


def _check_surrogates(escapes: bytes) -> None:
    """Refuse escapes that are half of a character."""
    if _SURROGATE_ESCAPE.search(escapes):
        _at_most(MAX_SURROGATES, escapes.count(b"\\ud") + escapes.count(b"\\uD"), "surrogates")
        if _LONE_SURROGATE.search(escapes):
            raise BadFrame("a lone surrogate in a string")


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
