r"""Golds of published data, rewritten as honest solvers write them. Part of `python -m benchmarks.grader_regression`.

A rewriting keeps the value and changes the text: spacing, fractions and decimals, text wrappers, `x =`, order where
order is free, units. Each is a rule that returns None where it does not apply. The rules know LaTeX only as text and
share no code with the grader, so that a mistake of the grader is not repeated here.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from benchmarks.math_held_out import ROWS
from benchmarks.math_perturbations import BY_HAND

Rule = Callable[[str], str | None]
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_INTEGER = re.compile(r"-?\d+")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_UNIT = re.compile(r"(-?[\d.]+(?:\\pi)?)\s*(?:\\text\{\s*([a-z ]+)\}|(\^\\circ)|(\\%))")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|in|approx|leq|geq|neq)(?![a-zA-Z])")
_STRUCTURE = re.compile(r"\\(?:begin|text|frac)|[\\{}\[\]()]")


@dataclass(frozen=True)
class Gold:
    """One gold with its rewritings by the name of the rule."""

    text: str
    rewritings: dict[str, str]


def _number(text: str) -> Fraction | None:
    return Fraction(text) if _NUMBER.fullmatch(text) and text not in (".", "-.") else None


def _decimal(value: Fraction) -> str | None:
    """A terminating decimal, or None."""
    scaled, digits = value, 0
    while scaled.denominator != 1 and digits < 8:
        scaled, digits = scaled * 10, digits + 1
    if scaled.denominator != 1 or digits == 0:
        return None
    whole = f"{abs(scaled.numerator):0{digits + 1}d}"
    return f"{'-' if value < 0 else ''}{whole[:-digits]}.{whole[-digits:]}"


def _top_level(text: str, separator: str) -> list[str]:
    parts, level = [""], 0
    for character in text:
        level += (character in "([{") - (character in ")]}")
        if character == separator and level == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _as_decimal(text: str) -> str | None:
    if match := _FRACTION.fullmatch(text):
        value = Fraction(int(match[2]), int(match[3]))
        return _decimal(-value if match[1] else value)
    return f"{text}.0" if _INTEGER.fullmatch(text) else f"{text}0" if _number(text) is not None else None


def _as_fraction(text: str) -> str | None:
    value = _number(text)
    if value is None:
        match = _FRACTION.fullmatch(text)
        return rf"{match[1]}\frac{{{3 * int(match[2])}}}{{{3 * int(match[3])}}}" if match else None
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{2 * abs(value.numerator)}}}{{{2 * value.denominator}}}"


def _thousands(separator: str) -> Rule:
    def rule(text: str) -> str | None:
        if not _INTEGER.fullmatch(text) or len(text.lstrip("-")) < 4 or text.lstrip("-").startswith("0"):
            return None
        return f"{int(text):,}".replace(",", separator)

    return rule


def _list_items(text: str) -> list[str]:
    """The items of a bare list of values; none for anything else, and for commas between thousands."""
    parts = _top_level(text, ",")
    is_list = len(parts) > 1 and not _RELATION.search(text) and not re.search(r"\\text|\\!|\{,\}", text)
    return parts if is_list and not re.fullmatch(r"-?\d{1,3}(?:,\d{3})+", text) else []


def _reversed_list(text: str) -> str | None:
    return ", ".join(reversed(_list_items(text))) or None


def _list_as_set(text: str) -> str | None:
    items = _list_items(text)
    return rf"\{{{', '.join(items)}\}}" if items else None


def _list_in_words(text: str) -> str | None:
    items = _list_items(text)
    return rf"{', '.join(items[:-1])} \text{{ and }} {items[-1]}" if items else None


def _as_inequality(text: str) -> str | None:
    """Only for what is plainly an interval: two numbers in round brackets may be a point."""
    match = re.fullmatch(r"([(\[])([^()\[\],]+),([^()\[\],]+)([)\]])", text)
    if match is None or (match[1] + match[4] == "()" and r"\infty" not in text):
        return None
    low = "" if r"\infty" in match[2] else f"{match[2]} {'<' if match[1] == '(' else chr(92) + 'le'} "
    high = "" if r"\infty" in match[3] else f" {'<' if match[4] == ')' else chr(92) + 'le'} {match[3]}"
    return f"{low}x{high}" if low or high else None


def _fraction_in_front(text: str) -> str | None:
    match = re.fullmatch(r"\\[dt]?frac\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\{(\d+)\}", text)
    return rf"\frac{{1}}{{{match[2]}}}({match[1]})" if match and not match[1].isdigit() else None


def _percent_as_decimal(text: str) -> str | None:
    match = re.fullmatch(r"(\d+)\\%", text)
    return f"{int(match[1]) / 100:.2f}" if match else None


def _reversed_union(text: str) -> str | None:
    parts = re.split(r"\\cup(?![a-z])", text)
    return r" \cup ".join(reversed(parts)) if len(parts) > 1 else None


def _reversed_sum(text: str) -> str | None:
    if _RELATION.search(text) or "," in text or _STRUCTURE.sub("", text) == "" or r"\pm" in text:
        return None
    parts = _top_level(text, "+")
    return " + ".join(reversed(parts)) if len(parts) > 1 and all(parts) and not parts[0].startswith("-") else None


def _other_unit(text: str) -> str | None:
    """A unit dropped, or one put behind a number that has none."""
    if match := _UNIT.fullmatch(text):
        return match[1]
    return rf"{text}\text{{ units}}" if _number(text) is not None else None


def _unit_in_roman(text: str) -> str | None:
    match = _UNIT.fullmatch(text)
    if match is None:
        return rf"{text}~\mathrm{{units}}" if _number(text) is not None else None
    if match[2]:
        return rf"{match[1]}~\mathrm{{{match[2].strip()}}}" if " " not in match[2].strip() else None
    return rf"{match[1]}^{{\circ}}" if match[3] else f"{match[1]} %"


def _label(text: str) -> str | None:
    if _RELATION.search(text) or r"\text" in text or re.fullmatch(r"[A-Za-z ]+", text) or re.search(r"\d_", text):
        return None
    return f"x = {text}" if "," not in text or text[0] in "([{\\" else None


def _wrapped(command: str) -> Rule:
    def rule(text: str) -> str | None:
        if _number(text) is not None or re.fullmatch(r"[A-Za-z]+", text):
            return rf"\{command}{{{text}}}"
        inner = re.fullmatch(r"\\text\{([^{}]*)\}", text)
        return rf"\{command}{{{inner[1]}}}" if inner else None

    return rule


def _inner_spaces(text: str) -> str | None:
    """Around plus, minus, equals and commas; a comma of the spacing command is none."""
    return None if r"\text" in text else re.sub(r"(?<!\\)([+=,]|(?<![\d(\[{,=^_])-)", r" \1 ", text)


def _no_spaces(text: str) -> str | None:
    meant = re.search(r"\\text|\\[a-zA-Z]* |\d \d|[a-z] [a-z]", text)
    return None if meant else text.replace(" ", "")


def _sized(text: str) -> str | None:
    if re.search(r"\\(?:left|right|sqrt\[)|_\w*\(|\]\d|\\[()\[\]{}]", text) or not re.search(r"[()]", text):
        return None
    return re.sub(r"[(\[]", r"\\left\g<0>", re.sub(r"[)\]]", r"\\right\g<0>", text))


RULES: dict[str, Rule] = {
    "outer spaces": lambda text: f"  {text} ",
    "thin space behind": lambda text: rf"{text}\,",
    "inner spaces": _inner_spaces,
    "no spaces": _no_spaces,
    "dollars": lambda text: f"${text}$" if "$" not in text else None,
    "display style": lambda text: rf"\displaystyle {text}",
    "full stop": lambda text: f"{text}." if not text.endswith((".", "}")) else None,
    "boxed again": lambda text: rf"\boxed{{{text}}}" if r"\boxed" not in text else None,
    "braces": lambda text: f"{{{text}}}" if "," not in text and not _RELATION.search(text) else None,
    "dfrac": lambda text: re.sub(r"\\[dt]?frac(?![a-z])", r"\\dfrac", text) if "frac" in text else None,
    "slash": lambda text: _FRACTION.sub(r"\1\2/\3", text) if _FRACTION.fullmatch(text) else None,
    "decimal": _as_decimal,
    "fraction": _as_fraction,
    "sign in the numerator": lambda text: re.sub(r"^-\\[dt]?frac\{", r"\\frac{-", text) if text[0] == "-" else None,
    "fraction in front": _fraction_in_front,
    "explicit product": lambda text: re.sub(r"(\d)\s*(\\(?:sqrt|pi))", r"\1 \\cdot \2", text),
    "percent as decimal": _percent_as_decimal,
    "root without braces": lambda text: re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", text) if r"\sqrt{" in text else None,
    "sized brackets": _sized,
    "thousands with commas": _thousands(","),
    "thousands with spaces": _thousands(" "),
    "thousands with thin spaces": _thousands(r"\,"),
    "thousands in braces": _thousands("{,}"),
    "text": _wrapped("text"),
    "mathrm": _wrapped("mathrm"),
    "textbf": _wrapped("textbf"),
    "x =": _label,
    "list reversed": _reversed_list,
    "list as set": _list_as_set,
    "list in words": _list_in_words,
    "interval as inequality": _as_inequality,
    "other matrix brackets": lambda text: text.replace("pmatrix", "bmatrix"),
    "index without braces": lambda text: re.sub(r"_\{(\w)\}", r"_\1", text),
    "union reversed": _reversed_union,
    "sum reversed": _reversed_sum,
    "unit added or dropped": _other_unit,
    "unit in roman": _unit_in_roman,
    "dollar sign": lambda text: rf"\${text}" if _number(text) is not None and not text.startswith("-") else None,
}  # fmt: skip


def rewrite(gold: str) -> Gold:
    """A gold with all rewritings that apply and differ from it."""
    plain = gold.strip()
    made = {name: rewritten for name, rule in RULES.items() if (rewritten := rule(plain)) not in (None, plain)}
    return Gold(gold, {name: text for name, text in made.items() if text is not None})


def different(one: str, other: str) -> bool:
    """Whether two golds plainly differ in value: two that may be equal make no pair of neighbors."""
    bare = [
        re.sub(r"\\[,! ]|\\text\{[^{}]*\}|\^\\circ|\\[$%]|[$\s,{}]|\\d(?=frac)|x=", "", text) for text in (one, other)
    ]
    values = [_number(text) for text in bare]
    return values[0] != values[1] if None not in values else bare[0] != bare[1]


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def math_golds(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Golds by the name of their source: those written by hand, and those of whatever files are there."""
    # In turn from each kind: golds of one kind may have one value.
    by_kind = [*BY_HAND.values(), ROWS]
    turns = itertools.zip_longest(*by_kind)
    yield "written by hand", [row[0] for turn in turns for row in turn if row is not None]
    for name, pattern, field in (
        ("GSM8K", "gsm8k_*.jsonl", "answer"),
        ("OlympiadBench examples", "olympiadbench_*.jsonl", "GT"),
        ("MATH-like", "math_*.jsonl", "answer"),
        ("Polaris", "polaris_*.jsonl", "answer"),
    ):
        for file in sorted(data.glob(pattern)) + sorted((data / "reference_only").glob(pattern)):
            yield name, [row[field].rpartition("####")[2].strip() for row in _rows(file)]
