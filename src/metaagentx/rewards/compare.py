"""Compare results of programs: printed output token by token, returned values by strict types.

Floats may differ by one part in a million if the expected one is written as a float; integers must be equal. A bool or
a string never equals a number, a list never equals a string.
"""

import math
import re
from decimal import Decimal, InvalidOperation

from ..types import JSON

TOLERANCE = 1e-6
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")


def same_output(expected: str, printed: str) -> bool:
    """Return whether a program printed what it should, white space aside."""
    expected_tokens, tokens = expected.split(), printed.split()
    return len(expected_tokens) == len(tokens) and all(map(_same_token, expected_tokens, tokens))


def _same_token(expected: str, token: str) -> bool:
    if expected == token:
        return True
    if len(expected) > 400 or len(token) > 400 or not _NUMBER.fullmatch(expected) or not _NUMBER.fullmatch(token):
        return False
    try:
        if _INTEGER.fullmatch(expected):
            return Decimal(expected) == Decimal(token)
        return math.isclose(float(expected), float(token), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except (InvalidOperation, OverflowError):
        return False


def same_value(expected: JSON, returned: JSON) -> bool:
    """Return whether a function returned what it should."""
    if isinstance(expected, bool) or isinstance(returned, bool) or expected is None or returned is None:
        return expected is returned
    if isinstance(expected, int) and isinstance(returned, int):
        return expected == returned
    if isinstance(expected, int | float) and isinstance(returned, int | float):
        return _close(expected, returned)
    if isinstance(expected, str) or isinstance(returned, str):
        return isinstance(expected, str) and isinstance(returned, str) and expected == returned
    if isinstance(expected, list) and isinstance(returned, list):
        return len(expected) == len(returned) and all(map(same_value, expected, returned))
    if isinstance(expected, dict) and isinstance(returned, dict):
        return expected.keys() == returned.keys() and all(same_value(expected[k], returned[k]) for k in expected)
    return False


def _close(expected: float, returned: float) -> bool:
    if isinstance(expected, int):
        return expected == returned
    try:
        return math.isclose(expected, returned, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:
        return False
