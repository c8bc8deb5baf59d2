r"""Parse plain numbers exactly: integers, decimals, fractions, mixed numbers, repeating decimals, powers of ten.

No library and no rounding: a text that is not plainly one number is None, and is left to math-verify.
"""

import re
from fractions import Fraction

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(rf"([-+]?)\s*({_DECIMAL})")
_FRACTION = re.compile(rf"([-+]?)\s*\\frac\{{\s*([-+]?)\s*({_DECIMAL})\s*\}}\{{\s*([-+]?)\s*({_DECIMAL})\s*\}}")
_SLASH = re.compile(rf"([-+]?)\s*({_DECIMAL})\s*/\s*([-+]?)({_DECIMAL})")
_MIXED = re.compile(r"([-+]?)\s*(\d+)\s*(?:\\frac\{\s*(\d+)\s*\}\{\s*(\d+)\s*\}|\s(\d+)\s*/\s*(\d+))")
_TIMES = r"\s*(?:\\times|\\cdot|\*|x)\s*"
_TEN = re.compile(rf"([-+]?\s*(?:{_DECIMAL}))(?:{_TIMES}10\s*\^\s*\{{?\s*([-+]?\d{{1,3}})\s*\}}?|[eE]([-+]?\d{{1,3}}))")
_REPEATING = re.compile(r"([-+]?)\s*(\d*)\.(\d*)\\(?:overline|bar|dot)\{?(\d+)\}?")
_THOUSANDS = re.compile(r"[-+]?\s*\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SPACED_THOUSANDS = re.compile(r"[-+]?\s*\d{1,3}(?: \d{3})+(?:\.\d+)?")
_BASED = re.compile(r"([-+]?[0-9A-Za-z]+|[-+]?\(?[0-9A-Z]+\)?)\s*_\s*\{?\s*(\d{1,2})\s*\}?")
MAX_DIGITS = 1000


def number(text: str) -> Fraction | None:
    """Return the value of a cleaned text that is one plain number."""
    if len(text) > MAX_DIGITS or not any(character.isdigit() for character in text):
        return None
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    if match := _PLAIN.fullmatch(text):
        return _signed(match[1], Fraction(match[2]))
    if match := _FRACTION.fullmatch(text):
        below = Fraction(match[5])
        return _signed(match[1] + match[2] + match[4], Fraction(match[3]) / below) if below else None
    if match := _SLASH.fullmatch(text):
        below = Fraction(match[4])
        return _signed(match[1] + match[3], Fraction(match[2]) / below) if below else None
    return _unusual(text)


def _unusual(text: str) -> Fraction | None:
    if match := _MIXED.fullmatch(text):
        whole, above, below = int(match[2]), int(match[3] or match[5]), int(match[4] or match[6])
        return _signed(match[1], whole + Fraction(above, below)) if below else None
    if match := _TEN.fullmatch(text):
        exponent = int(match[2] or match[3])
        return Fraction(match[1].replace(" ", "")) * Fraction(10) ** exponent
    if match := _REPEATING.fullmatch(text):
        start, period = match[3], match[4]
        repeated = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))
        return _signed(match[1], Fraction(f"{match[2] or 0}.{start or 0}") + repeated)
    return None


def _signed(signs: str, value: Fraction) -> Fraction:
    return -value if signs.count("-") % 2 else value


def thousands(text: str) -> bool:
    """Return whether the commas of a text may be those of one number: `120,240`, which may also be a list."""
    return bool(_THOUSANDS.fullmatch(text)) and " " not in text


def with_base(text: str) -> tuple[str, int] | None:
    """Return digits and base of a number with a subscript, `42_7`. A variable with an index has no leading digit."""
    match = _BASED.fullmatch(text)
    if not match or not match[1].lstrip("-+(")[0].isdigit():
        return None
    return match[1].strip("()").lstrip("+").upper(), int(match[2])


def value_in_base(digits: str, base: int) -> Fraction | None:
    """Return the value of digits in a base; None if they are not digits of it."""
    try:
        return Fraction(int(digits, base))
    except ValueError:
        return None
