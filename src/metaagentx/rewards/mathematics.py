r"""Math answers: the last `\boxed{}` must have the value of the gold, no more and no less.

`read_answer` runs in the host and costs next to nothing: it takes the box and refuses what is too long, too deep or
plainly explosive. The rest runs in a worker. The structure (lists, tuples, intervals, equations, matrices, units,
bases) is compared here, element by element; the elements exactly when they are plain numbers, else by `quantities`.
No tolerance is granted that the task does not state. docs/graders.md has the rules and their measured errors.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from ..types import JSON, MathGold
from ..workflow.protocol import last_boxed
from . import exact, latex, units
from .quantities import same_parsed, same_quantity

MAX_TEXT = 1_000_000
MAX_BOX = 2_000
MAX_DEPTH = 12
MAX_DIGITS = 400
MAX_ITEMS = 40
_TOWER = re.compile(
    r"\^\s*\{[^{}]{0,20}\^\s*\{[^{}]{0,20}\^|\^\w\s*\^\w\s*\^|\^\s*\{?\s*\(?\d{5,}|!\s*!\s*!|\d{5,}\s*\)?\s*!"
    r"|\d\s*\^\s*\{?\d+\}?\s*\)?\s*!"
)
# Operations that would let an answer restate its question.
_UNFINISHED = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|bmod|pmod|mod|gcd|max|min|sup|inf|det|ldots|cdots)(?![a-zA-Z])|lcm|gcd|\.\."
)
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|widehat|hat|bar|text|Delta|left|mathrm|measuredangle)\s*)*"
    r"\{?(?:\\[a-zA-Z]+|[a-zA-Z]+)\}?(?:\s*[a-zA-Z])?(?:\s*_(?:\{[^{}]*\}|\w|\\[a-z]+))?'*(?:\^\{?-1\}?)?(?:\s*\([^()=]*\))?"
)
_CONSTANT_WORDS = re.compile(
    r"\\(?:pi|frac|sqrt|cdot|times|infty|text\{[^{}]*\}|log|ln|sin|cos|tan|exp|binom|pm|mp|circ|%)|e(?![a-z])"
)
_MEMBER = re.compile(r"[a-zA-Z](?:_\w)?\s*\\in(?![a-z])")
_REGION = re.compile(r"[<>]|\\(?:le|ge|ne|cup|setminus)(?![a-zA-Z])")
_NO_SOLUTION = re.compile(r"(?:thereisno|thereareno|no)(?:real)?solutions?(?:exists?)?")
_OUTWARD = re.compile(r"\s*\$?\s*(?:\\left\s*)?\]")
_TIME_PART = re.compile(r"0\d(?!\d)")
NONE = Fraction(0)


def read_answer(text: str) -> tuple[str, str]:
    """The content of the answer's box, or why there is nothing to grade. Cheap: it runs in the host."""
    if len(text) > MAX_TEXT:
        return "", f"the answer is longer than {MAX_TEXT} characters"
    box = last_boxed(text)
    if box is None:
        return "", r"no \boxed{} with anything in it"
    if len(box) > MAX_BOX:
        return "", f"the box holds more than {MAX_BOX} characters"
    if latex.depth(box) > MAX_DEPTH:
        return "", f"the box is nested deeper than {MAX_DEPTH}"
    if re.search(rf"\d{{{MAX_DIGITS}}}", box):
        return "", f"a number with {MAX_DIGITS} digits or more"
    return box.encode("utf-8", "replace").decode("utf-8"), ""


def grade_request(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
    """What a worker does with one answer."""
    answer, gold = request["answer"], request["gold"]
    assert isinstance(answer, str) and isinstance(gold, dict)
    answers, tolerances, unit = gold["answers"], gold["tolerances"], gold["unit"]
    assert isinstance(answers, list) and isinstance(tolerances, list) and isinstance(unit, str)
    texts = tuple(text for text in answers if isinstance(text, str))
    numbers = tuple(float(item) for item in tolerances if isinstance(item, int | float))
    assert len(texts) == len(answers) and len(numbers) == len(tolerances)
    reason = judge(answer, MathGold(texts, numbers, unit))
    return float(not reason), not reason, reason


def judge(answer: str, gold: MathGold) -> str:
    """Why the content of a box is not the gold; nothing when it is."""
    golds = [latex.clean(text) for text in gold.answers]
    given = latex.clean(answer)
    if not given:
        return "the box is empty"
    if gold.unit:
        given, other_unit = _without_unit(given, gold.unit)
        if other_unit:
            return other_unit
    whole = ", ".join(golds)
    if latex.squeeze(whole) == latex.squeeze(given):
        return ""
    if refusal := _refuse(given, whole):
        return refusal
    return "" if _same_answers(golds, given, gold) else f"{answer.strip()[:200]} is not {whole[:200]}"


def _same_answers(golds: list[str], given: str, gold: MathGold) -> bool:
    if len(golds) == 1 and (same := _same_region(golds[0], given)) is not None:
        return same
    if _OUTWARD.match(gold.answers[0]) and (found := latex.items(given)) and not found.opening:
        return False  # a bare list may stand for a pair, but `]0,1[` is no pair
    wanted = _gold_items(golds)
    tolerances = _tolerances(gold, len(wanted))
    if len(wanted) == 1:
        return _same(wanted[0], given, tolerances[0])
    expanded = [(sign, tolerance) for text, tolerance in zip(wanted, tolerances, strict=True) for sign in _signs(text)]
    return _same_list([text for text, _ in expanded], given, [tolerance for _, tolerance in expanded])


def _refuse(given: str, wanted: str) -> str:
    if _TOWER.search(given) and not _TOWER.search(wanted):
        return "a tower of powers or factorials"
    unfinished = _UNFINISHED.search(given)
    if unfinished and not _UNFINISHED.search(wanted):
        return f"{unfinished[0]} is left to be worked out"
    if len(latex.split(given, latex.SEPARATORS)) > MAX_ITEMS:
        return f"more than {MAX_ITEMS} items"
    return ""


def _gold_items(golds: list[str]) -> list[str]:
    if len(golds) != 1 or exact.thousands(golds[0]):
        return golds
    found = latex.items(golds[0])
    return list(found.items) if found and not found.opening else golds


def _tolerances(gold: MathGold, count: int) -> list[Fraction]:
    stated = [Fraction(str(tolerance)) for tolerance in gold.tolerances]
    return stated if len(stated) == count else (stated[:1] or [NONE]) * count


def _without_unit(given: str, unit: str) -> tuple[str, str]:
    """The answer without the unit that the task states, wrapped or not; or which other unit it has."""
    stated = re.fullmatch(r"\s*(?:\\text\{)?\s*([^{}^]+?)\s*\}?\s*(?:\^\{?(\d)\}?)?\s*", latex.clean(unit))
    wanted = units.canonical(stated[1], stated[2] or "") if stated else unit
    found = units.quantity(given)
    if found.unit:
        return (found.value, "") if found.unit == wanted else (given, f"the unit is {unit}, not {found.unit}")
    plain = latex.squeeze(latex.clean(unit))
    return latex.squeeze(given).removesuffix(plain) or given, ""


def _same_list(wanted: list[str], given: str, tolerances: list[Fraction]) -> bool:
    """Several answers in any order; those in round brackets look like a tuple and must keep the order."""
    found = _items(given)
    if found and found.opening == "(" and len(found.items) == len(wanted):
        return all(map(_same, wanted, found.items, tolerances))
    if found and found.opening in ("", "⦃"):
        parts = list(found.items)
        return _matched(wanted, parts, lambda i, item: _same(wanted[i], item, tolerances[i]))
    name, *rest = latex.sides(given)
    if len(rest) == 1 and _is_name(name):
        return _same_list(wanted, rest[0], tolerances)
    return _matched(wanted, _signs(given), lambda i, item: _same(wanted[i], item, tolerances[i]))


def _signs(text: str) -> list[str]:
    r"""The values that `\pm` stands for. Several in one value are independent, `\mp` is the opposite of `\pm`.

    Several in one tuple may be meant either way: the text is left as it is.
    """
    count = text.count(r"\pm")
    if count == 0 and r"\mp" in text:
        return _signs(text.replace(r"\mp", r"\pm"))
    if count == 0 or count > 2:
        return [text]
    if count == 1:
        upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
        lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
        return [upper.removeprefix("+").strip(), lower.removeprefix("+").strip()]
    if r"\mp" in text or latex.items(text):
        return [text]
    halves = [text.replace(r"\pm", sign, 1) for sign in "+-"]
    return [signed for half in halves for signed in _signs(half.removeprefix("+").strip())]


def _matched(wanted: list[str], given: list[str], same: Callable[[int, str], bool]) -> bool:
    """Whether each wanted item has a given one of its own, none left over."""
    if len(wanted) != len(given):
        return False
    partner: dict[int, int] = {}
    known: dict[tuple[int, int], bool] = {}

    def equal(i: int, j: int) -> bool:
        if (i, j) not in known:
            known[i, j] = same(i, given[j])
        return known[i, j]

    def place(i: int, tried: set[int]) -> bool:
        for j in range(len(given)):
            if j not in tried and equal(i, j):
                tried.add(j)
                if j not in partner or place(partner[j], tried):
                    partner[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(wanted)))


def _same(gold: str, given: str, tolerance: Fraction = NONE) -> bool:
    """Whether one thing is another."""
    gold, given = latex.bare(gold), latex.bare(given)
    if latex.squeeze(gold) == latex.squeeze(given):
        return True
    one, other = exact.number(gold), exact.number(given)
    if one is not None and other is not None:
        return abs(one - other) <= tolerance
    if r"\approx" in given and r"\approx" not in gold:
        return _same_rounded(gold, given, tolerance)
    gold_sides, given_sides = latex.sides(gold), latex.sides(given)
    if len(gold_sides) > 1 or len(given_sides) > 1:
        return _same_chain(gold_sides, given_sides, tolerance)
    gold, given = _MEMBER.sub("", gold).strip(), _MEMBER.sub("", given).strip()
    if _is_empty_set(gold) or _is_empty_set(given):
        return _is_empty_set(gold) and _is_empty_set(given)
    for same in (_same_region(gold, given), _same_ratio(gold, given)):
        if same is not None:
            return same
    structured = _same_structure(gold, given, tolerance)
    return same_quantity(gold, given, tolerance) if structured is None else structured


def _is_empty_set(text: str) -> bool:
    plain = latex.squeeze(text)
    return plain in (r"\emptyset", "⦃⦄") or bool(
        _NO_SOLUTION.fullmatch(re.sub(r"\\text|[\s{}.]", "", plain).casefold())
    )


def _same_region(gold: str, given: str) -> bool | None:
    """Whether inequalities and unions of intervals are one set of numbers; None when this is about something else."""
    if not (_REGION.search(gold) or _REGION.search(given)):
        return None
    from .regions import same_region

    return same_region(gold, given)


def _same_ratio(gold: str, given: str) -> bool | None:
    """Ratios of three and more parts, in proportion, and times of day; None for anything else.

    A ratio of two parts is a fraction, which the parser reads by itself.
    """
    if ":" not in gold and ":" not in given:
        return None
    wanted, found = (latex.split(text, frozenset({":"})) for text in (gold, given))
    if any(_TIME_PART.match(part) for part in (*wanted[1:], *found[1:])):
        # 7:05 is not 7:5: minutes have two digits.
        digits = [[len(part) - len(part.lstrip("0123456789")) for part in parts[1:]] for parts in (wanted, found)]
        return digits[0] == digits[1] and all(map(_same, wanted, found))
    if max(len(wanted), len(found)) < 3:
        return None
    if len(wanted) != len(found):
        return False
    ones, others = ([exact.number(part) for part in parts] for parts in (wanted, found))
    if None in ones or None in others:
        products = (
            (rf"({a})\cdot({found[0]})", rf"({b})\cdot({wanted[0]})") for a, b in zip(wanted, found, strict=True)
        )
        return all(same_parsed(one, other, NONE) for one, other in products)
    factors = {b / a if a else None for a, b in zip(ones, others, strict=True) if a or b}  # type: ignore[operator]
    return len(factors) == 1 and None not in factors and 0 not in factors


def _same_rounded(gold: str, given: str, tolerance: Fraction) -> bool:
    r"""`\frac{11}{36} \approx 0.306`: what stands in front is the answer, and the rest must not contradict it."""
    front, _, back = given.rpartition(r"\approx")
    rounded = exact.number(back.strip())
    if not front.strip() or _is_name(front):
        return _same(gold, back.strip(), tolerance)
    return rounded is not None and _same(gold, front.strip(), tolerance) and _same(gold, back, abs(rounded) / 50)


def _same_chain(gold: list[str], given: list[str], tolerance: Fraction) -> bool:
    r"""Equations. `x=5` is 5 and `13=12` is nothing: each part of a chain but a name in front must be right."""
    if len(gold) > 1 and not (_is_name(gold[0]) and len(gold) == 2):
        equation = len(gold) == len(given) == 2
        return equation and _equation((gold[0], gold[1]), (given[0], given[1]))
    value = gold[-1]
    if len(given) == 1:
        return _same(value, given[0], tolerance)
    if len(gold) > 1 and latex.squeeze(gold[0]) != latex.squeeze(given[0]):
        return len(given) == 2 and _equation((gold[0], gold[1]), (given[0], given[1]))
    if len(gold) == 1 and len(given) == 2 and _is_name(given[1]) and not _has_symbol(given[0]):
        given = given[::-1]
    parts = given[1:] if _labels(given[0]) else given
    return all(_same(value, part, tolerance) for part in parts)


def _equation(gold: tuple[str, str], given: tuple[str, str]) -> bool:
    from .values import same_equation

    return same_equation(gold, given)


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text.strip()))


def _has_symbol(text: str) -> bool:
    return bool(re.search(r"[a-zA-Z]", _CONSTANT_WORDS.sub("", text)))


def _labels(text: str) -> bool:
    """Whether the front of a chain says what the value is of: `x`, `f(2)`, `x+y`, and not `2x`, which is twice it."""
    return _has_symbol(text) and not re.match(r"[-+]?\s*(?:\d|\\frac)", text)


def _same_structure(gold: str, given: str, tolerance: Fraction) -> bool | None:
    """Compare element by element; None when both are single things."""
    if (rows := latex.matrix(gold)) is not None and (cells := latex.matrix(given)) is not None:
        same_shape = [len(row) for row in rows] == [len(row) for row in cells]
        return same_shape and all(
            _same(a, b, tolerance) for x, y in zip(rows, cells, strict=True) for a, b in zip(x, y, strict=True)
        )
    pieces = [latex.split(text, frozenset({r"\cup"})) for text in (gold, given)]
    if len(pieces[0]) == len(pieces[1]) > 1:
        return _matched(pieces[0], pieces[1], lambda i, item: _same(pieces[0][i], item, tolerance))
    wanted, found = _items(gold), _items(given)
    if wanted is None and found is None:
        return None
    if wanted is None or found is None:
        return _same_single(wanted, found, gold, given)
    return _same_items(wanted, found, tolerance)


def _items(text: str) -> latex.Items | None:
    if exact.thousands(text):
        return None
    found = latex.items(text)
    if found and found.opening in ("", "⦃"):
        expanded = tuple(sign for item in found.items for sign in _signs(item))
        return latex.Items(found.opening, found.closing, expanded, found.in_words)
    signs = _signs(text)
    return latex.Items("", "", tuple(signs)) if len(signs) > 1 else found


def _same_single(wanted: latex.Items | None, found: latex.Items | None, gold: str, given: str) -> bool:
    """One side has elements, the other is a single thing: a set of one, or a relation that describes an interval."""
    structured, single = (wanted, given) if wanted else (found, gold)
    assert structured is not None
    if structured.opening == "⦃":
        return len(structured.items) == 1 and _same(structured.items[0], single)
    return structured.opening in ("(", "[") and bool(same_parsed(gold, given, NONE))


def _same_items(wanted: latex.Items, found: latex.Items, tolerance: Fraction) -> bool:
    r"""Lists and sets in any order; tuples and intervals in theirs, with their brackets.

    A bare list for a tuple, or a tuple for a list, must be in order; a set is no tuple.
    """
    ones, others = list(wanted.items), list(found.items)
    if {wanted.opening, found.opening} <= {"", "⦃"}:
        return _matched(ones, others, lambda i, item: _same(ones[i], item, tolerance))
    if "⦃" in (wanted.opening, found.opening) or len(ones) != len(others) or wanted.in_words or found.in_words:
        return False
    brackets = (wanted.opening + wanted.closing, found.opening + found.closing)
    # A vector may stand in angles; a bare list only for what is plainly a tuple.
    if brackets[0] != brackets[1] and not set(brackets) <= {"", "()", "⟨⟩"}:
        return False
    return all(_same(one, other, tolerance) for one, other in zip(ones, others, strict=True))


def warm_up() -> None:
    """Import sympy and let the parser learn its grammar: its first sight of each form is slow."""
    for gold, answer in WARM_UP:
        judge(answer, MathGold((gold,)))


WARM_UP = (
    (r"\frac{\sqrt{3}}{2}", r"\sqrt{\frac{3}{4}}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"[3,\infty)", r"x \ge 3"),
    (r"(-1,2)", r"-1<x<2"),
    (r"\Rset\setminus\{3\}", r"x\ne 3"),
    (r"\frac{n!}{k!(n-k)!}", r"\binom{n}{k}"),
    (r"2\sin x\cos x", r"\sin(2x)"),
    (r"e^{-\frac{h\nu}{k_B T}}+\log_2 5", r"\ln(2) e^{i\pi}"),
    (r"|x-1|+\lfloor x\rfloor", r"\left|1-x\right|"),
    (r"y=2x+3", r"2x-y+3=0"),
    (r"1+\sqrt[3]{2}", r"\pi r^2 - \tan^{-1}(f(x))"),
    (r"x_1x_2 \hbar \omega_{L}'", r"a_{10} \cos^2 \theta"),
)
