r"""Units after a value: `10\text{ cm}`, `336^\circ`, `12\%`, `5 dollars`.

A unit that only one side states is ignored (some golds of MATH have one, others do not); two different units are a
difference. A bare letter, the N of `0.64N`, is part of the expression: it cannot be told from a variable.
"""

import re
from dataclasses import dataclass

_NAMES = {
    "cm": "cm centimeter centimeters centimetre centimetres", "mm": "mm millimeter millimeters millimetres",
    "m": "m meter meters metre metres", "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
    "g": "g gram grams", "kg": "kg kilogram kilograms", "lb": "lb lbs pound pounds", "oz": "oz ounce ounces",
    "s": "s sec second seconds", "min": "min mins minute minutes", "h": "h hr hrs hour hours", "day": "day days",
    "week": "week weeks", "month": "month months", "year": "year years", "dollar": "dollar dollars usd",
    "cent": "cent cents", "degree": "degree degrees", "unit": "unit units", "mph": "mph miles/hour",
    "l": "l liter liters litre litres", "ml": "ml milliliter milliliters", "n": "n newton newtons",
    "j": "j joule joules", "w": "w watt watts", "v": "v volt volts", "k": "k kelvin", "pa": "pa pascal pascals",
    "people": "people person persons", "radian": "radian radians rad", "percent": "percent percents",
}  # fmt: skip
_CANONICAL = {name: unit for unit, names in _NAMES.items() for name in names.split()}
_SQUARE = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_WRAPPED = re.compile(r"\\text\{([^{}]*)\}\s*(?:\^\s*\{?(\d)\}?)?$")
# Unwrapped words count only when they are plainly units: a single letter may be a variable.
_WORDS = sorted((name for name in _CANONICAL if len(name) > 1 and name != "in"), key=len, reverse=True)
_BARE = re.compile(
    rf"(?<=[\d}})\s])\s*((?:square|cubic|sq|cu)?\s*(?:{'|'.join(map(re.escape, _WORDS))}))\.?\s*(?:\^\s*\{{?(\d)\}}?)?$"
)
# Not "or 6", which hedges, and not "million", which multiplies.
_UNIT = re.compile(
    r"(?!.*\b(?:or|and|not|but|maybe|(?:hundred|thousand|million|billion|trillion|dozen|half)s?)\b)[a-zA-Z/^·. -]+\d?"
)
_ANGLE_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with its unit or percent sign."""

    value: str
    unit: str = ""
    percent: bool = False


def quantity(text: str) -> Quantity:
    """Split the unit, the degree sign or the percent sign from a cleaned text."""
    if text.endswith(r"\%"):
        return Quantity(text[:-2].strip(), percent=True)
    if text.endswith(r"^\circ") and not _ANGLE_FUNCTION.search(text):
        return Quantity(text[: -len(r"^\circ")].strip(), "degree")
    match = _WRAPPED.search(text) or _BARE.search(text)
    if match and _UNIT.fullmatch(match[1]) and (value := text[: match.start()].strip()):
        unit = canonical(match[1], match[2] or "")
        if unit == "percent":
            return Quantity(value, percent=True)
        inner = quantity(value) if match.re is _WRAPPED else Quantity(value)
        # `m/s` comes as one text or as several: keep all of it.
        return Quantity(inner.value, f"{inner.unit} {unit}".strip(), inner.percent)
    return Quantity(text)


def canonical(unit: str, power: str = "") -> str:
    """Return one name for all spellings of a unit, with its power."""
    words = unit.lower().replace(".", "").split()
    if words and words[0] in _SQUARE:
        power = power or _SQUARE[words.pop(0)]
    return " ".join(_CANONICAL.get(word, word) for word in words) + (f"^{power}" if power else "")
