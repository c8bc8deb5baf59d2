r"""Which answers are the same, and which of them wins.

Values are compared after writing them in one way (1/2, 0.5 and \frac{1}{2} are one answer), programs by what they do on
inputs and never by their text. This decides votes inside a workflow; grading is the host's and is stricter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .behaviour import behaviours
from .messages import Message

_SPACING = re.compile(r"\\(?:left|right|displaystyle|[,;:!> ])(?![a-zA-Z])|[\s$~]")
_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]*)\}")
_NAMED = re.compile(r"[a-zA-Z](?:_\w)?=(?=[^=])")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_RATIO = re.compile(rf"([+-]?)(?:({_NUMBER})/({_NUMBER})|\\frac\{{({_NUMBER})\}}\{{({_NUMBER})\}}|\\frac(\d)(\d))")
_MAX_DIGITS = 60


def normalise(value: str) -> str:
    """One way of writing a value; a number is written as an exact fraction."""
    plain = _WRAPPER.sub(r"\1", _SPACING.sub("", value).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    plain = plain.replace("\\%", "%").removesuffix(".")
    named = _NAMED.match(plain)
    plain = plain[named.end() :] if named else plain
    number = _number(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain)
    return plain if number is None else str(number)


def _number(text: str) -> Fraction | None:
    if len(text) > _MAX_DIGITS:
        return None
    if re.fullmatch(_NUMBER, text):
        return Fraction(text)
    ratio = _RATIO.fullmatch(text)
    if not ratio:
        return None
    above, below = (Fraction(part) for part in ratio.groups()[1:] if part)
    if not below:
        return None
    return (-above if ratio[1] == "-" else above) / below


async def group_by_answer(question: str, messages: Sequence[Message]) -> list[list[int]]:
    """Positions of the messages that give the same answer, in order of the first of each group.

    A message that states no typed answer counts only when none does, and a program that fails on every input only when
    all do.
    """
    answers = [message.answer for message in messages]
    programs = [answer.value for answer in answers if answer.kind == "solution"]
    done = await behaviours(question, programs) if programs else {}
    keys: dict[int, tuple[str, str]] = {}
    for position, answer in enumerate(answers):
        if answer.kind == "solution":
            if done[answer.value] is not None:
                keys[position] = ("solution", done[answer.value] or "")
        elif answer.kind == "boxed":
            keys[position] = ("boxed", normalise(answer.value))
    if not keys:
        keys = {position: ("text", " ".join(a.value.casefold().split())) for position, a in enumerate(answers)}
    groups: dict[tuple[str, str], list[int]] = {}
    for position, key in keys.items():
        groups.setdefault(key, []).append(position)
    return list(groups.values())


async def vote(question: str, messages: Sequence[Message], weights: Sequence[float]) -> tuple[Message, float]:
    """The first message of the heaviest group, the earliest on a tie, and the group's share of the whole weight."""
    groups = await group_by_answer(question, messages)
    best = max(groups, key=lambda group: sum(weights[i] for i in group))
    whole = sum(weights)
    return messages[best[0]], sum(weights[i] for i in best) / whole if whole else 0.0
