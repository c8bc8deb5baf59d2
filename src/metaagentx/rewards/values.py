r"""Compare the values of two LaTeX expressions. Runs in a worker: sympy may not terminate, and the worker is killed.

math-verify's parser reads the expressions. Its own numeric comparison is not used: it rounds to six decimals and drops
differences below 1e-15, so that 1.6e-19 equals 9.1e-31. Constants are compared to 30 digits, relative to their size;
expressions at fixed points; relations and sets, which have no value, by math-verify's `verify`.
"""

import re
import zlib
from fractions import Fraction
from functools import lru_cache

from antlr4 import Parser
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, _Latex2Sympy, normalize_latex
from math_verify.grader import verify
from sympy import Basic, Expr, Float, I, Integer, MatrixBase, Pow, Rational, Symbol, binomial, factorial, floor, log
from sympy.core.function import AppliedUndef

_NORMALIZE = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
# Symbols keep their case: R and r are two radii.
_CONVERT = ConversionConfig(lowercase_symbols=False)
_DIGITS = 30
_MAX_MAGNITUDE = 3000
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_DEGREES = re.compile(r"(\d+|\((?:[^()]*)\))\s*\^\\circ")
_NAMED_INDEX = re.compile(r"_\{?\s*\\([a-zA-Z]+)\s*\}?")
_NATURAL_LOG = re.compile(r"\\log\s*_\s*\{?\s*e\s*\}?(?![a-z])")
_PRIMES = re.compile(r"(\\[a-zA-Z]+|[a-zA-Z])(?:_(\w)|_\{(\w+)\})?('+)")
_IN_PARENTHESES = r"\(\s*[-+]?\s*(?:[\d.]+|\d+\s*/\s*\d+|\\frac\{\d+\}\{\d+\})\s*\)"
_PRODUCT = re.compile(rf"({_IN_PARENTHESES})\s*(?=\(|\d|\\frac)|(?<![_^\w.}}])(\d+(?:\.\d+)?)\s*(?={_IN_PARENTHESES})")
_MIXED = re.compile(r"(?<![\w.^}])(\d+)\s*(?:\\frac\{(\d+)\}\{(\d+)\}|\s(\d+)\s*/\s*(\d+))")
# Two numbers side by side have no meaning; the parser would take them for a sum.
_SIDE_BY_SIDE = re.compile(r"(?<![_^\d.])\d[\d.]*(?:\s+\.?\d|\s*⦃|\s*\{\s*\d+\s*\})")
_PARSER_WORDS = {"⦃": r"\{", "⦄": r"\}", "⟨": "(", "⟩": ")", r"\Rset": r"\mathbb{R}", r"\Zset": r"\mathbb{Z}"}
_EXACT = Fraction(0)
_POINTS, _SIGNED_POINTS = 4, 2


def same_value(gold: str, answer: str, tolerance: Fraction) -> bool | None:
    """Return whether two cleaned texts have one value; None if one of them cannot be parsed."""
    expected, given = parse(gold), parse(answer)
    if expected is None or given is None:
        return None
    if isinstance(expected, Expr) and isinstance(given, Expr):
        return _same_expression(expected, given, tolerance)
    return bool(
        verify(
            expected, given, float_rounding=12, numeric_precision=30, allow_set_relation_comp=True, timeout_seconds=None
        )
    )


def same_equation(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Return whether two equations are equivalent: the differences of their sides are in a constant ratio."""
    parts = [parse(side) for side in (*gold, *answer)]
    expressions = [part for part in parts if isinstance(part, Expr)]
    if len(expressions) < 4:
        return False
    left = _plain(expressions[0]) - _plain(expressions[1])
    right = _plain(expressions[2]) - _plain(expressions[3])
    if _names(left) != _names(right):
        return False
    ratios = []
    for turn in range(4):
        above, below = (evaluate(side, _point(side, turn, False), _DIGITS) for side in (left, right))
        if above is None or below is None or abs(above) < 1e-25 or abs(below) < 1e-25:
            return False
        ratios.append(above / below)
    return all(_close(ratio, ratios[0], _DIGITS) for ratio in ratios)


@lru_cache(maxsize=512)
def parse(text: str) -> Basic | MatrixBase | None:
    """Parse a text with sympy, decimals exact, evaluated as little as possible; None if it cannot be parsed."""
    text = _MIXED.sub(_add_fraction, text)
    if _SIDE_BY_SIDE.search(text):
        return None
    for word, parser_word in _PARSER_WORDS.items():
        text = text.replace(word, parser_word)
    text = _NATURAL_LOG.sub(r"\\ln ", text)
    text = _NAMED_INDEX.sub(r"_{\1}", text)  # the sun's mass has an index the parser does not know
    # The parser drops primes: x' would be x.
    text = _PRIMES.sub(lambda match: f"{match[1]}_{{{match[2] or match[3] or ''}p{len(match[4])}}}", text)
    if "'" in text:
        return None
    text = _PRODUCT.sub(lambda match: rf"{match[0].strip()}\cdot ", text)  # it takes 2(3) for a mixed number, 5
    text = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)
    text = _DECIMAL.sub(lambda match: f"(\\frac{{{int(match[1] + match[2])}}}{{1{'0' * len(match[2])}}})", text)
    text = normalize_latex(text, _NORMALIZE)
    for reader in (_QuickReader, _Latex2Sympy):
        try:
            parsed = reader(is_real=True, config=_CONVERT).parse(text)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - the boundary: the parser raises anything on garbage
            continue
        return parsed if isinstance(parsed, Basic | MatrixBase) else None
    return None


def _add_fraction(match: re.Match[str]) -> str:
    """Return a mixed number as a sum: before a symbol the parser would take it for a product."""
    whole, above, below = match[1], match[2] or match[4], match[3] or match[5]
    return rf"({whole}+\frac{{{above}}}{{{below}}})" if int(above[:20]) < int(below[:20]) else match[0]


class _QuickReader(_Latex2Sympy):  # type: ignore[misc]
    """The parser with ANTLR's SLL prediction, six times as fast. If it succeeds, its result is that of the full
    prediction; if it fails, the full one is used."""

    def create_parser(self, text: str) -> Parser:
        parser = super().create_parser(text)
        parser._interp.predictionMode = PredictionMode.SLL
        return parser


def _plain(expression: Expr) -> Expr:
    """Replace undefined functions, f(x), by symbols and i by the imaginary unit."""
    calls = {call: Symbol(str(call)) for call in expression.atoms(AppliedUndef)}
    units = {symbol: I for symbol in expression.free_symbols if str(symbol) == "i"}
    replacements = calls | units
    result: Expr = expression.xreplace(replacements) if replacements else expression
    return result


def _same_expression(gold: Expr, given: Expr, tolerance: Fraction) -> bool:
    gold, given = _plain(gold), _plain(given)
    if not _names(gold) and not _names(given):
        return same_constant(gold, given, tolerance)
    integers = _needs_integers(gold) or _needs_integers(given)
    compared = 0
    for turn in range(_POINTS + _SIGNED_POINTS):
        signed = turn >= _POINTS and not integers
        both = gold + given  # one point for the symbols of both
        point = _point(both, turn, integers, signed)
        one, other = (evaluate(side, point, _DIGITS) for side in (gold, given))
        if one is None or other is None or (signed and not (one.is_real and other.is_real)):
            continue
        if not _close(one, other, _DIGITS):
            return False
        compared += 1
    return compared >= 2


def same_constant(gold: Expr, given: Expr, tolerance: Fraction = _EXACT) -> bool:
    """Return whether two expressions without symbols have one value."""
    one, other = (evaluate(side, {}, _DIGITS) for side in (gold, given))
    if one is None or other is None:
        return bool(gold == given)
    if tolerance:
        # Slightly more than stated: both values are rounded to 30 digits.
        return bool(
            abs(one - other) <= Rational(tolerance.numerator, tolerance.denominator) * (1 + Rational(1, 10**12))
        )
    size = max(_magnitude(one), _magnitude(other))
    if size > _MAX_MAGNITUDE:
        return False
    if size > 15:  # integers of many digits must agree in all of them
        one, other = (evaluate(side, {}, _DIGITS + size) for side in (gold, given))
        return one is not None and other is not None and _close(one, other, _DIGITS + size)
    return _close(one, other, _DIGITS)


def _names(expression: Expr) -> set[str]:
    return {str(symbol) for symbol in expression.free_symbols}


def _needs_integers(expression: Expr) -> bool:
    if expression.has(factorial, binomial, floor):
        return True
    return any(power.args[0] == -1 and power.args[1].free_symbols for power in expression.atoms(Pow))


def _point(expression: Expr, turn: int, integers: bool, signed: bool = False) -> dict[Basic, Basic]:
    """Return a value for each symbol, by its name and the turn: the same on every machine and in every run."""
    point: dict[Basic, Basic] = {}
    for symbol in expression.free_symbols:
        seed = zlib.crc32(f"{symbol} {turn}".encode())
        if integers:
            point[symbol] = Integer(1 + seed % 12)
        else:
            value = Rational(100 + seed % 1999, 1000)
            point[symbol] = -value if signed and (seed >> 16) % 3 else value
    return point


def evaluate(expression: Expr, point: dict[Basic, Basic], digits: int = _DIGITS) -> Expr | None:
    """Return the value of an expression at a point; None if it has no finite value."""
    value = expression.evalf(digits, subs=point or None)
    if not value.is_number or value.is_finite is False or value.is_comparable is None:
        return None
    real, imaginary = value.as_real_imag()
    return (
        value
        if isinstance(real, Float | Integer | Rational) and isinstance(imaginary, Float | Integer | Rational)
        else None
    )


def _close(one: Expr, other: Expr, digits: int) -> bool:
    size = max(abs(one), abs(other))
    return bool(size < Float(10) ** -60 or abs(one - other) <= size * Float(10) ** (5 - digits))


def _magnitude(value: Expr) -> int:
    return max(0, int(log(abs(value), 10).evalf(5))) if abs(value) > 1 else 0
