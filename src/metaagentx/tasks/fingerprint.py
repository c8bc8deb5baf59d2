"""Whether two questions are the same: equal without case, spacing, punctuation and LaTeX layout.

Operators, digits, decimal points and signs are kept: `2+3` and `2-3` are two tasks. Brackets are not, so `[0,1)` and
`(0,1]` count as one. That suits the search for leaks, where a false alarm costs little. Where tasks must be told apart,
`exact` compares the text itself.
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


def normalized(text: str) -> str:
    """Return the text as tokens with single spaces; equal for texts that differ in layout only."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    text = _LAYOUT.sub(" ", _SPACING.sub(" ", text))
    text = _TIMES.sub("*", _FRACTION.sub(r"\\frac", text)).replace("{,}", ",")
    return " ".join(_TOKEN.findall(_THOUSANDS.sub("", text))) or text.strip()


def fingerprint(text: str) -> str:
    """Return 16 hexadecimal digits that are equal for the same question."""
    return digest(normalized(text))[:16]


def exact(text: str) -> str:
    """Return 16 hexadecimal digits that are equal for texts that differ in spacing only."""
    return digest(" ".join(text.split()))[:16]


def digest(*parts: object) -> str:
    """Return a hash that does not change between processes, machines or Python versions."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()
