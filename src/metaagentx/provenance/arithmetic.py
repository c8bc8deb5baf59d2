"""The values of a tool's arguments: the value of an expression, the sum and the product of a list.

A script may define a calculator. Its output counts as the agent's, and not as the script's, where the host computes the
same value from the arguments that the agent wrote.
"""

import ast
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import prod

from ..types import JSON

_MAX_CHARACTERS = 300
_MAX_TERMS = 100
_MAX_BITS = 2000


def values_of(arguments: Iterable[JSON]) -> Iterator[Fraction]:
    """Yield all values that follow from arguments."""
    for argument in arguments:
        if isinstance(argument, list) and len(argument) <= _MAX_TERMS:
            terms = [value for item in argument if (value := evaluate(item)) is not None]
            if len(terms) == len(argument) > 1:
                yield sum(terms, Fraction(0))
                yield prod(terms, start=Fraction(1))
        elif (value := evaluate(argument)) is not None:
            yield value


def evaluate(expression: JSON) -> Fraction | None:
    """Return the exact value of a number or an arithmetic expression; None for anything else, and for large values."""
    text = str(expression).replace("^", "**") if isinstance(expression, str | int | float) else ""
    if not 0 < len(text) <= _MAX_CHARACTERS:
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(Fraction(str(number)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _bounded(_combine(operator, _value(left), _value(right)))
    raise ValueError("not arithmetic")


def _combine(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow() if right.denominator == 1 and abs(right) <= 1000 and _bits(left) * abs(right) <= _MAX_BITS:
            return left ** int(right)
    raise ValueError("not arithmetic")


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > _MAX_BITS:
        raise ValueError("too large")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
