"""No bytes on the door may crash or stall the host."""

import json
import math
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.sandbox import JSON
from metaagentx.sandbox.frames import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, BadFrame, FrameDecoder, decode, encode

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


def feed(decoder: FrameDecoder, data: bytes) -> list[JSON]:
    """The values of all frames completed by these bytes."""
    decoder.add(data)
    return [decode(frame) for frame in iter(decoder.next_frame, None)]


@given(values)
def test_what_is_sent_arrives(value: object) -> None:
    try:
        sent = encode(value)  # type: ignore[arg-type]
    except UnicodeEncodeError:
        return
    try:
        assert feed(FrameDecoder(1 << 20), sent) == [value]
    except BadFrame as refused:
        assert "surrogate" in str(refused)


@given(st.lists(values, max_size=5), st.data())
def test_frames_may_arrive_in_any_pieces(sent: list[object], data: st.DataObject) -> None:
    stream = b"".join(encode(value) for value in sent)  # type: ignore[arg-type]
    decoder, got = FrameDecoder(1 << 20), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        try:
            got += feed(decoder, stream[:cut])
        except BadFrame as refused:
            assert "surrogate" in str(refused)
            return
        stream = stream[cut:]
    assert got == sent


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_are_values_or_a_bad_frame(data: bytes) -> None:
    try:
        feed(FrameDecoder(1000), data)
    except BadFrame:
        pass
    try:
        decode(data)
    except BadFrame:
        pass


@settings(max_examples=300)
@given(st.text(alphabet='[]{}",:0123456789eE+-.\\uud8NaItrfnlsy ', max_size=80))
def test_anything_like_json_is_a_value_or_a_bad_frame(text: str) -> None:
    try:
        value = decode(text.encode("utf-8", "surrogatepass"))
    except BadFrame:
        return
    assert decode(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"NaN", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"-Infinity", "Infinity"),
        (b"1e999", "out of range"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b"\xed\xa0\x80", "UTF-8"),
        (b'"\xff"', "UTF-8"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper"),
        (b"[" * 100_000, "deeper"),
        (b"9" * (MAX_DIGITS + 1), "digits"),
        (b'{"a": 1, "a": 2}', "repeated"),
        (b"[" + b"0," * MAX_VALUES + b"0]", "values"),
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"cos\nsystem\n(S'id'\ntR.", "JSON"),  # a pickle
    ],
)
def test_what_json_readers_disagree_about_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        decode(data)


def test_legal_extremes_pass() -> None:
    assert decode(b"9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
    assert decode(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"
    assert decode(b'"[[[[{{{{' + b"[" * 1000 + b'"') == "[[[[{{{{" + "[" * 1000
    assert decode(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None


def test_a_frame_that_announces_too_much_is_refused_before_it_comes() -> None:
    with pytest.raises(BadFrame, match="at most 100"):
        feed(FrameDecoder(100), struct.pack(">I", 101))


@pytest.mark.parametrize(
    "hostile",
    [
        b'"' + b'\\"' * 500_000,
        b'"\\' * 500_000,
        b'["' + b"a" * 1_000_000,
        b"[" + b"{}," * 300_000 + b"0]",
        b"1." + b"1" * 3_999 + b"e" + b"9" * 100,
        b'{"' + b'":0,"'.join(str(n).encode() for n in range(100_000)) + b'":0}',
    ],
)
def test_decoding_takes_time_linear_in_the_bytes(hostile: bytes) -> None:
    started = time.process_time()
    try:
        decode(hostile)
    except BadFrame:
        pass
    assert time.process_time() - started < 5  # quadratic would be minutes


def test_numbers_that_python_cannot_send_are_refused_on_our_side_too() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(math.nan)
