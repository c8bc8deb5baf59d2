r"""Whether two single things are equal: numbers, units, percent signs, number bases, words, expressions."""

import re
from fractions import Fraction

from . import exact, latex, units

# A prime behind a number makes it minutes or feet; behind a letter it is part of a name.
_PRIMED_NUMBER = re.compile(r"(?<![_\d.a-zA-Z{])\d[\d.]*\s*'|^(?:[^a-zA-Z']|\\[a-zA-Z]+)+'")


def same_quantity(gold: str, given: str, tolerance: Fraction) -> bool:
    """Whether two single things are equal, units and percent signs considered."""
    if _PRIMED_NUMBER.search(gold) or _PRIMED_NUMBER.search(given):
        one, other = gold.rstrip("'"), given.rstrip("'")
        primes = (len(gold) - len(one), len(given) - len(other))
        return primes[0] == primes[1] > 0 and same_quantity(one, other, tolerance)
    wanted, found = units.quantity(gold), units.quantity(given)
    if wanted.unit and found.unit and wanted.unit != found.unit:
        return False
    if wanted.percent != found.percent:
        return _same_percent(wanted, found, tolerance)
    if (wanted.unit != found.unit) and _same_leaf(gold, given.replace(r"\text", ""), tolerance):
        return True
    return _same_leaf(wanted.value, found.value, tolerance)


def _same_percent(wanted: units.Quantity, found: units.Quantity, tolerance: Fraction) -> bool:
    r"""`60\%` is 0.6, and also 60 where the task asked for a percentage: never for a number up to 1."""
    one, other = exact.number(latex.bare(wanted.value)), exact.number(latex.bare(found.value))
    if one is None or other is None:
        return _same_leaf(wanted.value, found.value, tolerance)
    if one == other:
        return abs(one) > 1
    share, plain = (one, other) if wanted.percent else (other, one)
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


def _same_based(wanted: tuple[str, int] | None, found: tuple[str, int] | None, gold: str, given: str) -> bool:
    """A gold with a base wants these digits, in this base when one is stated; else the value decides."""
    if wanted and found:
        return wanted == found
    if wanted:
        return given.strip().upper() == wanted[0]
    assert found is not None
    value = exact.value_in_base(*found)
    return value is not None and value == exact.number(gold)


def same_parsed(gold: str, given: str, tolerance: Fraction) -> bool | None:
    """Whether the parser finds one value in both; None when it cannot read one of them."""
    from .values import same_value

    return same_value(gold, given, tolerance)
