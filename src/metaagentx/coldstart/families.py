"""The families of questions that the programmed teachers solve, and the errors that they make in them."""

import math
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import MetaAgentXError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Questions of one kind, and how the teacher solves them."""

    name: str
    pattern: str
    answer: Callable[[re.Match[str]], str]
    wrong: Callable[[re.Match[str], random.Random], str]
    """A wrong answer, as a rule."""
    code: Callable[[re.Match[str]], str]
    """The program of an agent that has the tool. It believes what it prints."""
    skips_tool: bool
    """Whether it often forgets its tool."""


def family_of(question: str) -> tuple[Family, re.Match[str]]:
    """Return the family of a question, and what its pattern matched; raise for any other question."""
    for family in FAMILIES:
        if match := re.search(family.pattern, question):
            return family, match
    raise MetaAgentXError(
        f"the programmed teacher cannot solve {question[:80]!r}: use tasks of the recipe tiny, or another --teacher"
    )


def _corrupt(answer: str, chance: random.Random) -> str:
    """Return the number with one random digit replaced, possibly by the same."""
    index = chance.randrange(len(answer))
    return f"{answer[:index]}{chance.choice(string.digits)}{answer[index + 1 :]}"


def _computed(
    name: str, pattern: str, answer: Callable[[re.Match[str]], str], code: Callable[[re.Match[str]], str]
) -> Family:
    """Return a family in which a program prints the answer."""
    return Family(
        name=name,
        pattern=pattern,
        answer=answer,
        wrong=lambda match, chance: _corrupt(answer(match), chance),
        code=code,
        skips_tool=True,
    )


def _read_off(
    name: str,
    pattern: str,
    answer: Callable[[re.Match[str]], str],
    wrong: Callable[[re.Match[str]], str],
) -> Family:
    """Return a family in which a program does not help, with the error that the teacher makes in it."""
    return Family(
        name=name,
        pattern=pattern,
        answer=answer,
        wrong=lambda match, chance: wrong(match),
        code=lambda match: f'print("{match[1]}")',
        skips_tool=False,
    )


def _other_subject(match: re.Match[str]) -> str:
    """Return whom another of the statements is about."""
    subjects = re.findall(r"(?:^|[.:\n] ?)([\w'-]+) [^.?]+(?=\.)", match.string)
    return next((subject for subject in subjects if subject != match[1]), match[1])


def _turned(match: re.Match[str]) -> str:
    """Return the matrix after one or two quarters of a turn."""
    a, b, c, d = (match[index] for index in range(2, 6))
    return f"{c} {a}\n{d} {b}" if match[1] == "90" else f"{d} {c}\n{b} {a}"


FAMILIES = (
    _computed(
        "multiplication",
        r"multiplication: (\d+) \* (\d+)\.",
        lambda match: str(int(match[1]) * int(match[2])),
        lambda match: f"print({match[1]} * {match[2]})",
    ),
    _computed(
        "multiple",
        r"\(LCM\) of these numbers: (\d+), (\d+)",
        lambda match: str(math.lcm(int(match[1]), int(match[2]))),
        lambda match: f"import math\nprint(math.lcm({match[1]}, {match[2]}))",
    ),
    _computed(
        "sum",
        r"arithmetic problem: (\d+) ([+-]) (\d+) ([+-]) (\d+) =",
        lambda match: str(int(match[1]) + int(match[2] + match[3]) + int(match[4] + match[5])),
        lambda match: f"print({match[1]} {match[2]} {match[3]} {match[4]} {match[5]})",
    ),
    _read_off(
        "circle",
        r"(\d+) (?:sisters|female friends|female colleagues)\b",
        lambda match: str(int(match[1]) + 1),
        lambda match: match[1],
    ),
    _read_off(
        "search",
        r"(?:^|[.:\n] ?)([\w'-]+) ([^.?]+)\.(?=[^?]*\nWho \2\?)",
        lambda match: match[1],
        _other_subject,
    ),
    _read_off(
        "turn",
        r"by (\d+) degrees clockwise:\n(\d) (\d)\n(\d) (\d)",
        _turned,
        lambda match: f"{match[2]} {match[3]}\n{match[4]} {match[5]}",
    ),
)
