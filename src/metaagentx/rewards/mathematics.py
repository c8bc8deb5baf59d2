r"""Grading math answers: the last `\boxed{}` must have the value of the gold.

`read_answer` runs in the host and is cheap: it takes the box and refuses one that is too long or nested too deeply. The
rest runs in a worker. Structure (lists, tuples, intervals, equations, matrices, units, bases) is compared here, element
by element; elements exactly if they are plain numbers, else by `quantities`. There is no tolerance beyond what the task
states. docs/graders.md has the rules and their measured errors.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from ..types import JSON, FinalAnswer, MathGold
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
_SPACING = re.compile(r"[\s$]+")
_MAX_SPACING = 40
EXACT = Fraction(0)
"""The tolerance of a task that states none."""


def read_answer(answer: FinalAnswer) -> tuple[str, str]:
    """Return the content of the answer's box and '', or '' and why it is refused. Cheap: it runs in the host."""
    if len(answer.text) > MAX_TEXT:
        return "", f"the answer is longer than {MAX_TEXT} characters"
    box = answer.box
    if box is None:
        return "", r"no \boxed{} with anything in it"
    if len(box) > MAX_BOX:
        return "", f"the box holds more than {MAX_BOX} characters"
    if latex.depth(box) > MAX_DEPTH:
        return "", f"the box is nested deeper than {MAX_DEPTH}"
    if re.search(rf"\d{{{MAX_DIGITS}}}", box):
        return "", f"a number with {MAX_DIGITS} digits or more"
    return box.encode("utf-8", "replace").decode("utf-8"), ""


def is_verbatim(answer: str, gold: MathGold) -> bool:
    """Return whether the content of a box is the gold but for spacing and dollars, which `judge` accepts at once.

    Cheap: it runs in the host. Only a text that consists of the gold's characters is cleaned here.
    """
    whole = ", ".join(gold.answers)
    if gold.unit or len(answer) > len(whole) + _MAX_SPACING or _SPACING.sub("", answer) != _SPACING.sub("", whole):
        return False
    given = latex.clean(answer)
    return given != "" and latex.squeeze(given) == latex.squeeze(", ".join(latex.clean(text) for text in gold.answers))


def grade_request(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
    """Grade one answer in a worker; return score, solved and reason."""
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
    """Return why the content of a box is not the gold; empty if it is."""
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
    if _OUTWARD.match(gold.answers[0]) and (given_items := latex.items(given)) and not given_items.opening:
        return False  # a bare list may stand for a pair, but `]0,1[` is an interval
    expected = _gold_items(golds)
    tolerances = _tolerances(gold, len(expected))
    if len(expected) == 1:
        return _same(expected[0], given, tolerances[0])
    pairs = zip(expected, tolerances, strict=True)
    expanded = [(value, tolerance) for text, tolerance in pairs for value in _signs(text)]
    return _same_list([value for value, _ in expanded], given, [tolerance for _, tolerance in expanded])


def _refuse(given: str, gold: str) -> str:
    if _TOWER.search(given) and not _TOWER.search(gold):
        return "a tower of powers or factorials"
    unfinished = _UNFINISHED.search(given)
    if unfinished and not _UNFINISHED.search(gold):
        return f"{unfinished[0]} is left to be worked out"
    if len(latex.split(given, latex.SEPARATORS)) > MAX_ITEMS:
        return f"more than {MAX_ITEMS} items"
    return ""


def _gold_items(golds: list[str]) -> list[str]:
    if len(golds) != 1 or exact.thousands(golds[0]):
        return golds
    listed = latex.items(golds[0])
    return list(listed.items) if listed and not listed.opening else golds


def _tolerances(gold: MathGold, count: int) -> list[Fraction]:
    stated = [Fraction(str(tolerance)) for tolerance in gold.tolerances]
    return stated if len(stated) == count else (stated[:1] or [EXACT]) * count


def _without_unit(given: str, unit: str) -> tuple[str, str]:
    """Return the answer without the unit that the task states, and a reason if its unit is another one."""
    stated = re.fullmatch(r"\s*(?:\\text\{)?\s*([^{}^]+?)\s*\}?\s*(?:\^\{?(\d)\}?)?\s*", latex.clean(unit))
    expected = units.canonical(stated[1], stated[2] or "") if stated else unit
    answer = units.quantity(given)
    if answer.unit:
        return (answer.value, "") if answer.unit == expected else (given, f"the unit is {unit}, not {answer.unit}")
    plain = latex.squeeze(latex.clean(unit))
    return latex.squeeze(given).removesuffix(plain) or given, ""


def _same_list(golds: list[str], given: str, tolerances: list[Fraction]) -> bool:
    """Compare several answers in any order; those in round brackets look like a tuple and must keep the order."""

    def same(i: int, item: str) -> bool:
        return _same(golds[i], item, tolerances[i])

    listed = _items(given)
    if listed and listed.opening == "(" and len(listed.items) == len(golds):
        return all(map(_same, golds, listed.items, tolerances))
    if listed and listed.opening in ("", "⦃"):
        return _matched(golds, list(listed.items), same)
    name, *rest = latex.sides(given)
    if len(rest) == 1 and _is_name(name):
        return _same_list(golds, rest[0], tolerances)
    return _matched(golds, _signs(given), same)


def _signs(text: str) -> list[str]:
    r"""Return the values that `\pm` stands for. Several in one value are independent; `\mp` is the opposite of `\pm`.

    Several in one tuple are ambiguous: the text is returned as it is.
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


def _matched(golds: list[str], given: list[str], same: Callable[[int, str], bool]) -> bool:
    """Return whether golds and given items can be paired off, none left over: a bipartite matching."""
    if len(golds) != len(given):
        return False
    partner: dict[int, int] = {}
    known: dict[tuple[int, int], bool] = {}

    def equal(i: int, j: int) -> bool:
        if (i, j) not in known:
            known[i, j] = same(i, given[j])
        return known[i, j]

    def assign(i: int, tried: set[int]) -> bool:
        for j in range(len(given)):
            if j not in tried and equal(i, j):
                tried.add(j)
                if j not in partner or assign(partner[j], tried):
                    partner[j] = i
                    return True
        return False

    return all(assign(i, set()) for i in range(len(golds)))


def _same(gold: str, given: str, tolerance: Fraction = EXACT) -> bool:
    """Return whether two texts have one value."""
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
    """Return whether inequalities or unions of intervals are one set of numbers; None if there are none."""
    if not (_REGION.search(gold) or _REGION.search(given)):
        return None
    from .regions import same_region

    return same_region(gold, given)


def _same_ratio(gold: str, given: str) -> bool | None:
    """Compare ratios of three and more parts, in proportion, and times of day; None for anything else.

    A ratio of two parts is a fraction, which the parser reads by itself.
    """
    if ":" not in gold and ":" not in given:
        return None
    ours, theirs = (latex.split(text, frozenset({":"})) for text in (gold, given))
    if any(_TIME_PART.match(part) for part in (*ours[1:], *theirs[1:])):
        # 7:05 is not 7:5: minutes have two digits.
        digits = [[len(part) - len(part.lstrip("0123456789")) for part in parts[1:]] for parts in (ours, theirs)]
        return digits[0] == digits[1] and all(map(_same, ours, theirs))
    if max(len(ours), len(theirs)) < 3:
        return None
    if len(ours) != len(theirs):
        return False
    gold_numbers, given_numbers = ([exact.number(part) for part in parts] for parts in (ours, theirs))
    if None in gold_numbers or None in given_numbers:
        products = ((rf"({a})\cdot({theirs[0]})", rf"({b})\cdot({ours[0]})") for a, b in zip(ours, theirs, strict=True))
        return all(same_parsed(left, right, EXACT) for left, right in products)
    pairs = zip(gold_numbers, given_numbers, strict=True)
    factors = {b / a if a else None for a, b in pairs if a or b}  # type: ignore[operator]
    return len(factors) == 1 and None not in factors and 0 not in factors


def _same_rounded(gold: str, given: str, tolerance: Fraction) -> bool:
    r"""`\frac{11}{36} \approx 0.306`: the part in front is the answer, and the rest must not contradict it."""
    front, _, back = given.rpartition(r"\approx")
    rounded = exact.number(back.strip())
    if not front.strip() or _is_name(front):
        return _same(gold, back.strip(), tolerance)
    return rounded is not None and _same(gold, front.strip(), tolerance) and _same(gold, back, abs(rounded) / 50)


def _same_chain(gold: list[str], given: list[str], tolerance: Fraction) -> bool:
    r"""Compare equations. `x=5` is 5 and `13=12` is wrong: every part but a name in front must be right."""
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
    """Return whether the front of a chain names the value: `x`, `f(2)`, `x+y`, but not `2x`, which is twice it."""
    return _has_symbol(text) and not re.match(r"[-+]?\s*(?:\d|\\frac)", text)


def _same_structure(gold: str, given: str, tolerance: Fraction) -> bool | None:
    """Compare element by element; None if neither side has elements."""
    if (rows := latex.matrix(gold)) is not None and (cells := latex.matrix(given)) is not None:
        same_shape = [len(row) for row in rows] == [len(row) for row in cells]
        return same_shape and all(
            _same(a, b, tolerance) for x, y in zip(rows, cells, strict=True) for a, b in zip(x, y, strict=True)
        )
    pieces = [latex.split(text, frozenset({r"\cup"})) for text in (gold, given)]
    if len(pieces[0]) == len(pieces[1]) > 1:
        return _matched(pieces[0], pieces[1], lambda i, item: _same(pieces[0][i], item, tolerance))
    gold_items, given_items = _items(gold), _items(given)
    if gold_items and given_items:
        return _same_items(gold_items, given_items, tolerance)
    if listed := gold_items or given_items:
        if listed.opening == "⦃":  # a set of one is its element
            return len(listed.items) == 1 and _same(listed.items[0], given if gold_items else gold)
        return listed.opening in ("(", "[") and bool(same_parsed(gold, given, EXACT))
    return None


def _items(text: str) -> latex.Items | None:
    if exact.thousands(text):
        return None
    listed = latex.items(text)
    if listed and listed.opening in ("", "⦃"):
        expanded = tuple(sign for item in listed.items for sign in _signs(item))
        return latex.Items(listed.opening, listed.closing, expanded, listed.in_words)
    signs = _signs(text)
    return latex.Items("", "", tuple(signs)) if len(signs) > 1 else listed


def _same_items(gold: latex.Items, given: latex.Items, tolerance: Fraction) -> bool:
    r"""Compare lists and sets in any order; tuples and intervals in order, with their brackets.

    A bare list for a tuple, or a tuple for a list, must be in order; a set never equals a tuple.
    """
    ours, theirs = list(gold.items), list(given.items)
    if {gold.opening, given.opening} <= {"", "⦃"}:
        return _matched(ours, theirs, lambda i, item: _same(ours[i], item, tolerance))
    if "⦃" in (gold.opening, given.opening) or len(ours) != len(theirs) or gold.in_words or given.in_words:
        return False
    brackets = (gold.opening + gold.closing, given.opening + given.closing)
    # A vector may have angle brackets; a bare list may stand only for a tuple.
    if brackets[0] != brackets[1] and not set(brackets) <= {"", "()", "⟨⟩"}:
        return False
    return all(_same(one, other, tolerance) for one, other in zip(ours, theirs, strict=True))


def warm_up() -> None:
    """Import sympy and let the parser fill its caches: the first text of each form is slow."""
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
