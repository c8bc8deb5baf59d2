r"""Compare sets of real numbers: intervals, unions, inequalities, `|x-2|<3`, `\mathbb{R}\setminus\{3\}`.

A text becomes a union of intervals and points on the real line; two texts are the same if their pieces are. A text that
is not such a set (a tuple of three, two variables, an unsolved quadratic) is None, and is compared by the caller in
another way. Runs in a worker: sympy reads the endpoints.
"""

import re
from dataclasses import dataclass
from functools import reduce

from sympy import Abs, EmptySet, Expr, FiniteSet, Integer, Interval, Poly, Rational, Set, Union, nan, oo

from . import exact, latex
from .values import evaluate, parse, same_constant

MAX_PIECES = 12
_REALS = Interval(-oo, oo)
_VARIABLE = re.compile(r"(?:[a-df-hj-zA-Z]|\\(?!pi)[a-z]+)(?:_(?:\w|\{\w+\}))?")
_MEMBER = re.compile(rf"({_VARIABLE.pattern})\s*\\in(?![a-z])\s*")
_LABEL = re.compile(rf"{_VARIABLE.pattern}\s*=\s*(?=[\[(⦃\\])")
_BUILDER = re.compile(
    rf"⦃\s*({_VARIABLE.pattern})\s*(?:\\in\s*\\Rset)?\s*(?:\\mid|:|\|)\s*(?:{_VARIABLE.pattern}\s*\\in\s*\\Rset\s*,)?(.+)⦄"
)
_CLOSED_INFINITY = re.compile(r"\\infty\s*\]|\[\s*-\s*\\infty")
_ABSOLUTE = re.compile(r"\|([^|]+)\|")
_UPWARD = ("<", r"\le")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}


@dataclass(frozen=True, slots=True)
class Region:
    """A set of real numbers, and the variable it is stated for, if any."""

    numbers: Set
    variable: str = ""


def same_region(gold: str, answer: str) -> bool | None:
    """Return whether two cleaned texts describe one set of real numbers; None if one of them describes none."""
    if bool(_CLOSED_INFINITY.search(gold)) is not bool(_CLOSED_INFINITY.search(answer)):
        return False  # [3,\infty] is not a set of real numbers
    expected, given = read_region(gold), read_region(answer)
    if expected is None or given is None:
        return None
    if expected.variable and given.variable and expected.variable != given.variable:
        return False
    ours, theirs = _pieces(expected.numbers), _pieces(given.numbers)
    if ours is None or theirs is None:
        return None
    return len(ours) == len(theirs) and all(map(_same_piece, ours, theirs))


def read_region(text: str) -> Region | None:
    """Return the set of real numbers that a cleaned text describes, else None."""
    text = _LABEL.sub("", latex.bare(latex.connect(text).strip()), count=1)
    for separators, join in ((frozenset({"∨", r"\cup"}), Union), (frozenset({"∧"}), _intersection)):
        parts = [part for part in latex.split(text, separators) if part]
        if len(parts) > MAX_PIECES:
            return None
        if len(parts) > 1:
            regions = [read_region(part) for part in parts]
            known = [region for region in regions if region is not None]
            variables = {region.variable for region in known if region.variable}
            if len(known) < len(parts) or len(variables) > 1:
                return None
            return Region(reduce(join, [region.numbers for region in known]), next(iter(variables), ""))
    return _read_single(text)


def _intersection(one: Set, other: Set) -> Set:
    return one.intersect(other)


def _read_single(text: str) -> Region | None:
    if match := _MEMBER.match(text):
        region = _read_single(text[match.end() :].strip())
        return region and Region(region.numbers, match[1])
    if match := _BUILDER.fullmatch(text):
        region = read_region(match[2])
        return region if region is None or region.variable in ("", match[1]) else None
    parts = latex.split(text, frozenset({r"\setminus"}))
    if len(parts) == 2:
        whole, without = (_read_single(part) for part in parts)
        return Region(whole.numbers - without.numbers) if whole and without else None
    if text == r"\emptyset":
        return Region(EmptySet)
    if text == r"\Rset":
        return Region(_REALS)
    terms, signs = latex.relations(text)
    return _read_relation(terms, signs) if signs else _read_brackets(text)


def _read_brackets(text: str) -> Region | None:
    listed = latex.items(text)
    if listed is None or listed.opening not in ("(", "[", "⦃"):
        return None
    numbers = [_read_constant(item) for item in listed.items]
    constants = [number for number in numbers if number is not None]
    if len(constants) < len(numbers):
        return None
    if listed.opening == "⦃":
        return None if any(number.is_infinite for number in constants) else Region(FiniteSet(*constants))
    if len(constants) != 2:
        return None
    low, high = constants
    # (2,-1) is a pair, not an interval.
    if (
        (low.is_infinite and listed.opening == "[")
        or (high.is_infinite and listed.closing == "]")
        or not _less(low, high)
    ):
        return None
    return Region(Interval(low, high, listed.opening == "(", listed.closing == ")"))


def _read_relation(terms: list[str], signs: list[str]) -> Region | None:
    constants = [_read_constant(term) for term in terms]
    unknowns = [position for position, constant in enumerate(constants) if constant is None]
    if len(unknowns) != 1 or len(terms) > 3:
        return None
    unknown = unknowns[0]
    if len(terms) == 3 and (unknown != 1 or (signs[0] in _UPWARD) != (signs[1] in _UPWARD) or r"\ne" in signs):
        return None
    conditions = []
    for position, sign in enumerate(signs):
        # Read as "unknown sign constant", whichever side the constant is on.
        constant = constants[position + 1] if position >= unknown else constants[position]
        if constant is None:
            return None
        conditions.append((sign if position >= unknown else _FLIPPED[sign], constant))
    return _solve(terms[unknown], conditions)


def _solve(term: str, conditions: list[tuple[str, Expr]]) -> Region | None:
    """Return the numbers for which a variable, or the absolute value of a linear term in one, meets all conditions."""
    numbers: Set = _REALS
    for sign, bound in conditions:
        numbers = numbers.intersect(_half_line(sign, bound))
    if _VARIABLE.fullmatch(term):
        return Region(numbers, term)
    inside = _ABSOLUTE.fullmatch(term)
    if inside is None or len(conditions) > 1:
        return None
    variable = inside[1].strip()
    expression = parse(variable)
    if not isinstance(expression, Expr) or len(expression.free_symbols) != 1:
        return None
    (symbol,) = expression.free_symbols
    if expression.has(Abs) or not expression.is_polynomial(symbol) or Poly(expression, symbol).degree() != 1:
        return None
    slope, shift = Poly(expression, symbol).all_coeffs()
    sign, bound = conditions[0]
    pieces = []
    for side in (1, -1):  # |e| > b is e > b or -e > b; |e| < b is both
        border = (side * bound - shift) / slope
        pieces.append(_half_line(sign if bool(side * slope > 0) else _FLIPPED[sign], border))
    both = sign in (*_UPWARD, r"\ne")
    return Region(pieces[0].intersect(pieces[1]) if both else Union(*pieces), str(symbol))


def _half_line(sign: str, bound: Expr) -> Set:
    if sign == r"\ne":
        return _REALS - FiniteSet(bound)
    if sign in _UPWARD:
        return Interval(-oo, bound, True, sign == "<")
    return Interval(bound, oo, sign == ">", True)


def _read_constant(text: str) -> Expr | None:
    text = latex.bare(text)
    if (number := exact.number(text)) is not None:
        return Rational(number.numerator, number.denominator)
    if (plain := latex.squeeze(text)) in (r"\infty", r"+\infty", r"-\infty"):
        return -oo if plain.startswith("-") else oo
    value = parse(text)
    if not isinstance(value, Expr) or value.free_symbols or value is nan:
        return None
    number_ = evaluate(value, {})
    return value if number_ is not None and number_.is_real else None


def _less(low: Expr, high: Expr) -> bool:
    if low.is_infinite or high.is_infinite:
        return bool(low < high)
    difference = evaluate(high - low, {})
    return difference is not None and bool(difference > 0)


def _pieces(numbers: Set) -> list[tuple[Expr, bool, Expr, bool]] | None:
    """Return the intervals in order, each as its ends and whether they are open; a point is an interval of one."""
    pieces: list[tuple[Expr, bool, Expr, bool]] = []
    for part in numbers.args if isinstance(numbers, Union) else (numbers,):
        if isinstance(part, Interval):
            pieces.append((part.start, bool(part.left_open), part.end, bool(part.right_open)))
        elif isinstance(part, FiniteSet):
            pieces += [(point, False, point, False) for point in part.args]
        elif part is not EmptySet:
            return None
    return sorted(pieces, key=lambda piece: float(piece[0]))


def _same_piece(one: tuple[Expr, bool, Expr, bool], other: tuple[Expr, bool, Expr, bool]) -> bool:
    return (one[1], one[3]) == (other[1], other[3]) and all(
        a == b or (not a.is_infinite and not b.is_infinite and same_constant(Integer(0) + a, Integer(0) + b))
        for a, b in ((one[0], other[0]), (one[2], other[2]))
    )
