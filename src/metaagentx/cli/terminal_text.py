"""Text of models and scripts on a terminal: no character of it may do anything but be shown."""

import re
from typing import TextIO

# Control characters but for newline and tab, among them the escape that begins a terminal's commands; and those that
# change the direction of the text around them, with which one thing can look like another.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def without_controls(text: str) -> str:
    """Return a text in which each control character is a visible mark."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def for_stream(text: str, stream: TextIO) -> str:
    """Return a text as it is where a program reads it, and without control characters on a terminal."""
    return without_controls(text) if stream.isatty() else text
