"""Read LiveCodeBench's private tests: JSON as text, or that text in a pickle in zlib in base64.

Unpickling runs whatever the file says, so it is never done. A pickle is a list of instructions:
`pickletools.genops` lists them and runs none. A pickle with any instruction beyond one text is refused.
"""

import base64
import binascii
import pickletools
import zlib

from ..types import JSON
from .fields import decode
from .rows import RowError

MAX_BYTES = 512 * 2**20
"""Limit of the unpacked size: more than any row should have, and too little to fill a machine."""

_TEXT = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}


def unpack_json(text: str, name: str) -> JSON:
    """Return the value of a field in either form."""
    if text.lstrip()[:1] in ("[", "{"):
        return decode(text, name)
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        raise RowError(f"{name} is neither JSON nor base64 of zlib") from None
    if not unpacker.eof:
        raise RowError(f"{name} is cut off or unpacks to more than {MAX_BYTES} bytes")
    return decode(_only_text(data, name), name)


def _only_text(data: bytes, name: str) -> str:
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _TEXT:
                strings.append(str(argument))
            elif opcode.name not in _HARMLESS:
                raise RowError(f"{name} is a pickle with the instruction {opcode.name}: refused, convert it to JSON")
    except (ValueError, IndexError, UnicodeError):
        raise RowError(f"{name} is neither JSON nor a pickle of one text") from None
    if len(strings) != 1:
        raise RowError(f"{name} is a pickle of {len(strings)} texts: refused, convert it to JSON")
    return strings[0]
