"""When two questions are the same: equal after case, spacing, punctuation and LaTeX layout are taken away.

Operators, digits, decimal points and signs stay: `2+3` and `2-3` are two tasks. Brackets do not, so `[0,1)` and `(0,1]`
pass for one. That is right for finding leaks, where a false alarm costs little, and wrong for telling tasks apart,
which goes by the exact text.
"""

import hashlib
import re
import unicodedata

_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|big|bigg|quad|qquad|limits|mathrm|text|textbf|mathbf|mbox|operatorname)"
    r"(?![a-z])"
)
_SPACING = re.compile(r"\\[\s,;:!()\[\]]")
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")
_TIMES = re.compile(r"\\(?:times|cdot)(?![a-z])|[×·]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TOKEN = re.compile(r"""\d+(?:\.\d+)?|[^\W\d_]+|[^\w\s.,;:!?'"`()\[\]{}$\\~|&“”‘’«»…–—]""")


def normalised(text: str) -> str:
    """The text as tokens with single spaces; equal for texts that differ in layout only."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    text = _LAYOUT.sub(" ", _SPACING.sub(" ", text))
    text = _TIMES.sub("*", _FRACTION.sub(r"\\frac", text)).replace("{,}", ",")
    return " ".join(_TOKEN.findall(_THOUSANDS.sub("", text))) or text.strip()


def fingerprint(text: str) -> str:
    """16 hexadecimal digits that are equal for the same question."""
    return digest(normalised(text))[:16]


def exact(text: str) -> str:
    """16 hexadecimal digits that are equal for texts that differ in spacing only."""
    return digest(" ".join(text.split()))[:16]


def digest(*parts: object) -> str:
    """A hash that does not change between processes, machines or Python versions."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()
