"""A programmed teacher for the quickstart's small model: it plays both roles on a few families of reasoning-gym.

It writes real scripts and transcripts, through the same rollout as any teacher. It is imperfect on purpose, so that RL
has something to improve. It picks designs at random, whatever the task. It often skips its tool, and uses it for
arithmetic only. Without the tool it makes errors, except in sorting; errors that were outvoted stay in the
demonstrations.
"""

import math
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import MetaAgentXError
from ..evaluation.designs import AGENT_PROMPT, FIXED_DESIGNS
from ..policy import ChatReply, Messages, SamplingParams

ERROR_RATE = 0.4
"""How often it errs when it answers without the tool."""
TOOL_SKIP_RATE = 0.6
"""How often it does not use its tool."""


class ProgrammedTeacher:
    """A chat model that knows the families. The seed of a request determines its draws."""

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        """Return the reply to a conversation, in either role. Each byte counts as a token, and so does the end."""
        chance = random.Random(params.seed)
        is_agent = messages[0]["content"].startswith(AGENT_PROMPT)  # it wrote the agents' prompts itself
        text = _work(messages, chance) if is_agent else design(messages[-1]["content"], chance)
        prompt_tokens = sum(len(message["content"].encode()) + 1 for message in messages)
        return ChatReply(text, "stop", prompt_tokens, len(text.encode()) + 1)


def design(question: str, chance: random.Random) -> str:
    """Return a Designer's reply: the kind of problem and one of the designs, at random."""
    family, _ = _family_of(question)
    name = chance.choice(list(FIXED_DESIGNS))
    return f"Problem Type: {family.name}\nWorkflow Pattern: {name}\n<code>\n{FIXED_DESIGNS[name]}</code>"


def _work(conversation: Messages, chance: random.Random) -> str:
    """Return an agent's reply: a tool call or an answer."""
    system, asked, last = conversation[0]["content"], conversation[1]["content"], conversation[-1]["content"]
    family, match = _family_of(asked)
    if "You have tools:" in system and len(conversation) == 2 and chance.random() >= TOOL_SKIP_RATE:
        return f"```python\n{family.code(match)}\n```"
    answer = family.answer(match)
    if family.tool_computes and len(conversation) > 2:
        answer = last.split("\n", 2)[1]
    elif family.makes_errors and chance.random() < ERROR_RATE:
        answer = _corrupt(answer, chance)
    return f"<delivery>\\boxed{{{answer}}}</delivery>"


def _corrupt(answer: str, chance: random.Random) -> str:
    """Return the answer with one random character replaced by a random digit or letter, possibly the same."""
    index = chance.randrange(len(answer))
    others = string.digits if answer[index].isdigit() else string.ascii_lowercase
    return f"{answer[:index]}{chance.choice(others)}{answer[index + 1 :]}"


@dataclass(frozen=True, slots=True)
class _Family:
    """Questions of one kind, and how the teacher solves them."""

    name: str
    pattern: str
    answer: Callable[[re.Match[str]], str]
    code: Callable[[re.Match[str]], str]
    tool_computes: bool
    """Whether the code prints the answer."""
    makes_errors: bool
    """Whether the teacher errs where it has no tool result to copy."""


def _family_of(question: str) -> tuple[_Family, re.Match[str]]:
    for family in _FAMILIES:
        if match := re.search(family.pattern, question):
            return family, match
    raise MetaAgentXError(
        f"the programmed teacher cannot solve {question[:80]!r}: use tasks of the recipe tiny, or another --teacher"
    )


def _sorted(match: re.Match[str]) -> str:
    numbers = match[2].split(", ")
    return str(sorted(numbers, key=float, reverse=match[1] == "descending"))


_FAMILIES = (
    _Family(
        "multiplication",
        r"multiplication: (\d+) \* (\d+)\.",
        lambda match: str(int(match[1]) * int(match[2])),
        lambda match: f"print({match[1]} * {match[2]})",
        tool_computes=True,
        makes_errors=True,
    ),
    _Family(
        "multiple",
        r"\(LCM\) of these numbers: (\d+), (\d+)",
        lambda match: str(math.lcm(int(match[1]), int(match[2]))),
        lambda match: f"import math\nprint(math.lcm({match[1]}, {match[2]}))",
        tool_computes=True,
        makes_errors=True,
    ),
    _Family(
        "spelling",
        r"Spell this word backward \(example: sun -> nus\): (\w+)",
        lambda match: match[1][::-1],
        lambda match: f'print("{match[1]}")',
        tool_computes=False,
        makes_errors=True,
    ),
    _Family(
        "sorting",
        r"Sort these numbers in (\w+) order: ([-.\d, ]+)\n",
        _sorted,
        lambda match: f"print({match[2]})",
        tool_computes=False,
        makes_errors=False,
    ),
)
