r"""A canonical form of texts, so that a value is found wherever and however it is written.

`canonical` returns the tokens of a text between spaces: words in lower case, numbers without thousands separators and
trailing zeros, operators; without quotes, brackets, commas, dollars and the wrappers of LaTeX. A text holds a value if
its canonical form holds that of the value: 42 is not in 1420, 42.0 is 42, 1,234 is 1234.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

_TOKEN = re.compile(
    r"(?<![\d.,])100%|\d+(?:[,_]\d{3})*(?![\d_])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+|[^\W\d_]+|[-+*/^=<>|%.!?~&@#]"
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_MINUS = re.compile("[\u2010-\u2015\u2212]")
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{([^{}]{1,60})\}\s*\{([^{}]{1,60})\}|\\[dtc]?frac\s*(\d)\s*(\d)")
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|displaystyle|left|right|big|Big|quad|qquad)"
    r"(?![a-zA-Z])|\\[,;:!> ]|\{,\}|\\?\$|\\(?=%)"
)
_NAMED = re.compile(r" [a-z]+ = (?=.)")
_DIGITS = frozenset("0123456789.")
_CACHED_CHARACTERS = 4000
_MAX_DIGITS = 30
_MIN_SPACED_DIGITS = 4

# Many honest prompts hold a value this short, or one of these words: it counts only where it is stated as an answer.
_SHORT = 2
_COMMON = frozenset({"yes", "true", "false", "none", "correct", "incorrect", "right", "wrong", "valid", "invalid"})
_CUE = (
    r"\b(?:boxed|answers?|results?|solutions?|values?|outputs?|totals?|sums?|products?|equals?|repeat|say|reply|respond"
    r"|write|print|return|deliver|delivery|copy|state|submit|give|conclude)\b"
    r"(?:\W|\b(?:is|are|be|the|with|only|just|exactly|of|to|as|number|word|value|answer|result|final|correct|after|me"
    r"|it|this|that|by|and|so|must|should|will|has|text)\b){0,16}"
)
_END = r"""(?=\s*(?:[.!?;:)}\]'"*$<`\\]|,\s+(?!\d)|$|(?:and|exactly|only|verbatim|then|as|please|now|without|in)\b))"""


def canonical(text: str) -> str:
    """Return the tokens of a text, each between spaces."""
    return _cached(text) if len(text) <= _CACHED_CHARACTERS else _canonical(text)


@lru_cache(512)  # the same instructions come in every execution
def _cached(text: str) -> str:
    return _canonical(text)


def _canonical(text: str) -> str:
    if not text.isascii():
        text = _MINUS.sub("-", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)))
        text = _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)
    if "\\" in text or "$" in text or "{" in text:
        text = _WRAPPER.sub("", _FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]} ", text))
    tokens = _TOKEN.findall(text.lower())
    return f" {' '.join([_canonical_number(token) if token[0] in _DIGITS else token for token in tokens])} "


def _canonical_number(token: str) -> str:
    if token == "." or token.endswith("%"):
        return token  # "100% sure" is a figure of speech, not a number
    token = token.replace(",", "").replace("_", "")
    whole, _, decimals = token.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole


def variants(value: str) -> list[str]:
    """Return the canonical forms of a value: as it is, without a name or a unit, as fraction and decimal."""
    plain = canonical(value).rstrip(" .") + " "
    if not plain.strip():
        return []
    forms = [plain, without_name] if (without_name := _NAMED.sub(" ", plain, count=1)) != plain else [plain]
    bare = forms[-1]
    numbers = [token for token in bare.split() if token[0] in _DIGITS]
    words = [token for token in bare.split() if token.isalpha()]
    if len(numbers) == 1 and words and len(numbers) + len(words) == len(bare.split()):
        forms.append(f" {numbers[0]} ")
    forms += _other_notations(bare)
    return forms


def _other_notations(form: str) -> list[str]:
    """Return a ratio as a decimal number, and a decimal number as a ratio."""
    text = form.replace(" ", "")
    if len(text) > _MAX_DIGITS or not re.fullmatch(r"-?\d+(?:\.\d+|/\d+)", text):
        return []
    try:
        ratio = Fraction(text)
    except ZeroDivisionError:
        return []
    sign, above, below = "- " if ratio < 0 else "", abs(ratio.numerator), ratio.denominator
    forms = [f" {sign}{above} / {below} " if below > 1 else f" {sign}{above} "]
    places = next((n for n in range(1, 16) if 10**n % below == 0), None)
    if places is not None and below > 1:
        digits = str(above * 10**places // below).rjust(places + 1, "0")
        forms.append(f" {sign}{_canonical_number(f'{digits[:-places]}.{digits[-places:]}')} ")
    return [other for other in forms if other != form]


def is_common(form: str) -> bool:
    """Return whether an honest prompt may hold a value by chance: one or two characters, or a word such as "yes"."""
    text = form.replace(" ", "")
    return len(text) <= _SHORT or text in _COMMON


def states_as_answer(form: str, text: str) -> bool:
    r"""Return whether a text states a common value as an answer: "the answer is 42.", "Repeat: 42", `\boxed{42}`."""
    return _answer_pattern(form).search(text.lower()) is not None


@lru_cache(64)
def _answer_pattern(form: str) -> re.Pattern[str]:
    """Return a pattern for a common value: after a word such as "answer", not counting things, or alone on a line."""
    value = r"(?<![\w.])" + r"\s*".join(re.escape(token) for token in form.split()) + r"(?:\.0+)?(?![\w%])(?!\.\d)"
    return re.compile(rf"{_CUE}{value}{_END}|^\W{{0,16}}{value}\W{{0,16}}$", re.MULTILINE)


def contains_spaced_digits(form: str, text: str) -> bool:
    """Return whether a text holds a long whole number with its digits apart: "5 2 4 4", "5-244", "52_44"."""
    digits = form.strip()
    if not digits.isdecimal() or not _MIN_SPACED_DIGITS <= len(digits) <= _MAX_DIGITS:
        return False
    return _spaced_digits(digits).search(text) is not None


@lru_cache(64)
def _spaced_digits(digits: str) -> re.Pattern[str]:
    return re.compile(r"(?<!\d)" + r"[\W_]{0,3}".join(digits) + r"(?!\d)")


def contains_value(form: str, text: str) -> bool:
    """Return whether a canonical text holds a canonical value.

    A minus after a number is not a sign: 10-15 does not hold -15.
    """
    start = text.find(form)
    while start >= 0:
        if not form.startswith(" - ") or not text[start - 1 : start].isdecimal():
            return True
        start = text.find(form, start + 1)
    return False
