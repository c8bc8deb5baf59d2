"""When two results are the same: printed output token by token, returned values by strict types.

Floats may differ by one part in a million where the expected one is written as a float; integers never differ. A bool
is no number, a string is no number, a list is no string.
"""

import math
import re
from decimal import Decimal, InvalidOperation

from ..types import JSON

TOLERANCE = 1e-6
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")


def same_output(expected: str, printed: str) -> bool:
    """Whether a program printed what it should, white space aside."""
    wanted, got = expected.split(), printed.split()
    return len(wanted) == len(got) and all(map(_same_token, wanted, got))


def _same_token(wanted: str, got: str) -> bool:
    if wanted == got:
        return True
    if len(wanted) > 400 or len(got) > 400 or not _NUMBER.fullmatch(wanted) or not _NUMBER.fullmatch(got):
        return False
    try:
        if _INTEGER.fullmatch(wanted):
            return Decimal(wanted) == Decimal(got)
        return math.isclose(float(wanted), float(got), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except (InvalidOperation, OverflowError):
        return False


def same_value(expected: JSON, returned: JSON) -> bool:
    """Whether a function returned what it should."""
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
