r"""Votes: which answers are the same, and which of them wins.

Values are normalized first (1/2, 0.5 and \frac{1}{2} are one answer), programs are compared by their outputs and never
by their text. This decides votes inside a workflow; the host's grading is stricter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .behavior import behaviors
from .messages import Message
from .protocol import Answer

_SPACING = re.compile(r"\\(?:left|right|displaystyle|[,;:!> ])(?![a-zA-Z])|[\s$~]")
_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf)\{([^{}]*)\}")
_NAMED = re.compile(r"[a-zA-Z](?:_\w)?=(?=[^=])")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_RATIO = re.compile(rf"([+-]?)(?:({_NUMBER})/({_NUMBER})|\\frac\{{({_NUMBER})\}}\{{({_NUMBER})\}}|\\frac(\d)(\d))")
_MAX_DIGITS = 60


def normalize(value: str) -> str:
    """Return a value in its normal form; a number becomes an exact fraction."""
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


async def group_by_answer(question: str, answers: Sequence[Answer]) -> list[list[int]]:
    """Return the positions of equal answers, group by group, in order of the first of each group.

    A plain text counts only when no answer is a box or a program, and a program that fails on every input only when
    all do.
    """
    programs = [answer.value for answer in answers if answer.kind == "solution"]
    outputs = await behaviors(question, programs) if programs else {}
    keys: dict[int, tuple[str, str]] = {}
    for position, answer in enumerate(answers):
        if answer.kind == "solution":
            if (output := outputs[answer.value]) is not None:
                keys[position] = ("solution", output)
        elif answer.kind == "boxed":
            keys[position] = ("boxed", normalize(answer.value))
    if not keys:
        keys = {position: ("text", " ".join(a.value.casefold().split())) for position, a in enumerate(answers)}
    groups: dict[tuple[str, str], list[int]] = {}
    for position, key in keys.items():
        groups.setdefault(key, []).append(position)
    return list(groups.values())


async def vote(question: str, messages: Sequence[Message], weights: Sequence[float]) -> tuple[Message, float]:
    """Return the first message of the heaviest group, the earliest on a tie, and the group's share of all weight."""
    groups = await group_by_answer(question, [message.answer for message in messages])
    best = max(groups, key=lambda group: sum(weights[i] for i in group))
    total = sum(weights)
    return messages[best[0]], sum(weights[i] for i in best) / total if total else 0.0
