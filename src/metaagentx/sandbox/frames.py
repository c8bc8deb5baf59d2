"""Encodes and strictly decodes the messages between the host and a run.

A frame is a 4-byte big-endian length followed by that many bytes of UTF-8 JSON. The decoder checks size, depth and
digits before it parses, and rejects what JSON parsers disagree about: NaN and infinities, lone surrogates, repeated
keys. It takes time linear in the bytes received and raises nothing but `BadFrame`.
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

# Each bound keeps the decoding of a 4 MiB frame within about 25 ms; tests search for the slowest frame.
MAX_DEPTH = 64
MAX_DIGITS = 4000
MAX_VALUES = 250_000
MAX_OBJECTS = 20_000
MAX_KEYS = 50_000
MAX_LISTS = 25_000  # the garbage collector visits each of them, too
MAX_QUOTES = 250_000
MAX_FLOATS = 125_000
MAX_LARGE_FLOATS = 1000
MAX_SURROGATES = 100_000
# Long numbers are counted in units of 20 and of 200 digits, because parsing one takes time quadratic in its length.
MAX_TWENTIES = 50_000
MAX_TWO_HUNDREDS = 2000
# A frame of at most this size can exceed no bound but the depth, so the others are not checked.
MAX_SMALL_BYTES = 1000
_HEADER = struct.Struct(">I")
# Possessive, and the closing quote is optional: one pass for any input, where backtracking would be quadratic.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# Two patterns: one that begins with a fixed letter is found ten times as fast as one that begins with either.
_LARGE_FLOATS = (re.compile(rb"e\+?[0-9]{3}"), re.compile(rb"E\+?[0-9]{3}"))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F](?<!\\u[dD][89abAB]..\\u[dD].))", re.DOTALL
)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_DIGITS_ONLY = bytes(48 if chr(byte) in "0123456789" else 32 for byte in range(256))


class BadFrame(Exception):
    """The run sent a malformed frame; the text says what is wrong."""


def encode(value: JSON) -> bytes:
    """Return a value as one frame."""
    data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
    return _HEADER.pack(len(data)) + data


def decode(data: bytes) -> JSON:
    """Return the value of a frame; raise BadFrame when it is malformed."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFrame(f"not UTF-8 at byte {error.start}") from None
    # Only long numbers can be out of range, and a Python function for each number makes parsing five times slower.
    parse_float = _finite if _check_shape(data) else None
    # A parsed value has no cycles, and a garbage collection takes longer than parsing it.
    collects = gc.isenabled()
    gc.disable()
    try:
        value: JSON = json.loads(
            text, parse_float=parse_float, parse_constant=_reject_constant, object_pairs_hook=_distinct_keys
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
    """Reject what would be slow to parse; return whether there may be numbers of 100 digits or more."""
    opened, closed = data.count(b"[") + data.count(b"{"), data.count(b"]") + data.count(b"}")
    if len(data) <= MAX_SMALL_BYTES and closed <= opened <= MAX_DEPTH:
        if b"\\u" in data:
            _check_surrogates(data.replace(b"\\\\", b""))
        return True
    escapes = data.replace(b"\\\\", b"")  # now every character behind a backslash is escaped
    _at_most(MAX_QUOTES, escapes.count(b'"') - escapes.count(b'\\"'), "quotation marks")
    _check_surrogates(escapes)
    bare = _STRING.sub(b"", data)
    objects = _at_most(MAX_OBJECTS, bare.count(b"{"), "objects")
    lists = bare.count(b"[")
    _at_most(MAX_KEYS, bare.count(b":"), "keys")
    _at_most(MAX_VALUES, bare.count(b",") + objects + lists, "values")
    if bare.count(b"]") + bare.count(b"}") > objects + lists:
        raise BadFrame("not JSON: more closing than opening brackets")
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
    twenties = _at_most(MAX_TWENTIES, digits.count(b"0" * 20), "groups of 20 digits of long numbers")
    if twenties >= 10:
        if b"0" * (MAX_DIGITS + 1) in digits:
            raise BadFrame(f"a number with more than {MAX_DIGITS} digits")
        long = _at_most(MAX_TWO_HUNDREDS, digits.count(b"0" * 200), "groups of 200 digits of long numbers")
        return bool(large or long)
    return bool(large)


def _check_surrogates(escapes: bytes) -> None:
    """Reject escapes that are half of a character."""
    if _SURROGATE_ESCAPE.search(escapes):
        _at_most(MAX_SURROGATES, escapes.count(b"\\ud") + escapes.count(b"\\uD"), "surrogates")
        if _LONE_SURROGATE.search(escapes):
            raise BadFrame("a lone surrogate in a string")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadFrame(f"a number out of range: {text[:40]}")
    return number


def _reject_constant(text: str) -> NoReturn:
    raise BadFrame(f"not JSON: {text}")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise BadFrame("an object with a repeated key")
    return result


class FrameDecoder:
    """Splits a stream of bytes into frames. Not usable after it has raised BadFrame."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    @property
    def size(self) -> int:
        """Return how many bytes are buffered."""
        return len(self._buffer)

    def has_frame(self) -> bool:
        """Return whether a complete frame is buffered."""
        size = self._next_size()
        return size is not None and len(self._buffer) - 4 >= size

    def next_frame(self) -> bytes | None:
        """Return the bytes of the next complete frame, for `decode`; None when there is none yet."""
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
            raise BadFrame(f"a frame of {size} bytes, expected at most {self._max}")
        return size
