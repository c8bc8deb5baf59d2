r"""Compare two single values: numbers, units, percent signs, number bases, words, expressions."""

import re
from fractions import Fraction

from . import exact, latex, units

# A prime behind a number makes it minutes or feet; behind a letter it is part of a name.
_PRIMED_NUMBER = re.compile(r"(?<![_\d.a-zA-Z{])\d[\d.]*\s*'|^(?:[^a-zA-Z']|\\[a-zA-Z]+)+'")


def same_quantity(gold: str, given: str, tolerance: Fraction) -> bool:
    """Return whether two single values are equal, units and percent signs considered."""
    if _PRIMED_NUMBER.search(gold) or _PRIMED_NUMBER.search(given):
        one, other = gold.rstrip("'"), given.rstrip("'")
        primes = (len(gold) - len(one), len(given) - len(other))
        return primes[0] == primes[1] > 0 and same_quantity(one, other, tolerance)
    expected, answer = units.quantity(gold), units.quantity(given)
    if expected.unit and answer.unit and expected.unit != answer.unit:
        return False
    if expected.percent != answer.percent:
        return _same_percent(expected, answer, tolerance)
    if expected.unit != answer.unit and _same_leaf(gold, given.replace(r"\text", ""), tolerance):
        return True
    return _same_leaf(expected.value, answer.value, tolerance)


def _same_percent(gold: units.Quantity, given: units.Quantity, tolerance: Fraction) -> bool:
    r"""Compare a percentage with a plain number: `60\%` is 0.6, and also 60, but never the same number up to 1."""
    one, other = exact.number(latex.bare(gold.value)), exact.number(latex.bare(given.value))
    if one is None or other is None:
        return _same_leaf(gold.value, given.value, tolerance)
    if one == other:
        return abs(one) > 1
    share, plain = (one, other) if gold.percent else (other, one)
    return abs(share / 100 - plain) <= tolerance


def _same_leaf(gold: str, given: str, tolerance: Fraction) -> bool:
    gold, given = latex.bare(gold), latex.bare(given)
    if latex.squeeze(gold) == latex.squeeze(given):
        return True
    one, other = exact.number(gold), exact.number(given)
    if one is not None and other is not None:
        return abs(one - other) <= tolerance
    based = (exact.with_base(gold), exact.with_base(given))
    if based != (None, None):
        return _same_based(*based, gold, given)
    words = [re.sub(r"[\s().]|\\text|[{}]", "", text).casefold() for text in (gold, given)]
    if all(word.isalpha() and (len(word) > 2 or word == "no") for word in words):
        return words[0] == words[1]
    return bool(same_parsed(gold, given, tolerance))


def _same_based(expected: tuple[str, int] | None, answer: tuple[str, int] | None, gold: str, given: str) -> bool:
    """Compare numbers with a base: a gold with a base needs its digits, in its base if the answer states one; for a
    gold without a base the value decides.
    """
    if expected and answer:
        return expected == answer
    if expected:
        return given.strip().upper() == expected[0]
    assert answer is not None
    value = exact.value_in_base(*answer)
    return value is not None and value == exact.number(gold)


def same_parsed(gold: str, given: str, tolerance: Fraction) -> bool | None:
    """Return whether the parser finds one value in both texts; None if it cannot parse one of them."""
    from .values import same_value

    return same_value(gold, given, tolerance)
