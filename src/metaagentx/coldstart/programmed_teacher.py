"""A programmed teacher for the quickstart's small model: it plays both roles on a few families of reasoning-gym.

It writes real scripts and transcripts, through the same rollout as any teacher. It is imperfect on purpose, so that RL
has something to improve. It composes designs at random, whatever the task: one agent or several, with or without a
tool, a critic or a planner. As an agent it often forgets its tool where that helps, and uses it where it does not
help. It makes errors; those that were outvoted, rejected or retried stay in the demonstrations.
"""

import math
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import MetaAgentXError
from ..evaluation.designs import (
    AGENT_PROMPT,
    CRITIC_PROMPT,
    PLANNER_PROMPT,
    agent_design,
    planner_design,
    reflection_design,
    vote_design,
)
from ..policy import ChatReply, Messages, SamplingParams

ERROR_RATE = 0.3
"""How often it errs when it answers without the tool, where something is to be computed."""
READING_ERROR_RATE = 0.5
"""How often it errs where a program does not help."""
TOOL_SKIP_RATE = 0.5
"""How often it forgets its tool where a program computes the answer. Elsewhere it always uses it, and believes it."""
CRITIC_ERROR_RATE = 0.2
"""How often its verdict on a result is wrong."""

SOLVERS = ("Solver", "Thinker", "Expert", "Analyst", "Scholar", "Sage")
CODERS = ("Coder", "Programmer", "Calculator", "Engineer", "Hacker", "Builder")
CRITICS = ("Critic", "Checker", "Reviewer")
PLANNERS = ("Planner", "Reader", "Guide")
ADVICE = ("Read the task twice.", "Take one step after another.", "Check the result before you give it.")
VOTERS = ("Ada", "Bob", "Cal", "Dan", "Eve", "Fay", "Gus", "Hal")


class ProgrammedTeacher:
    """A chat model that knows the families. The seed of a request determines its draws."""

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        """Return the reply to a conversation, in either role. Each byte counts as a token, and so does the end."""
        chance = random.Random(params.seed)
        is_agent = messages[0]["content"].startswith((AGENT_PROMPT, CRITIC_PROMPT, PLANNER_PROMPT))
        text = _work(messages, chance) if is_agent else design(messages[-1]["content"], chance)
        prompt_tokens = sum(len(message["content"].encode()) + 1 for message in messages)
        return ChatReply(text, "stop", prompt_tokens, len(text.encode()) + 1)


def design(question: str, chance: random.Random) -> str:
    """Return a Designer's reply: the kind of problem and a design of random parts."""
    family, _ = _family_of(question)
    pattern, script = _compose(chance)
    return f"Problem Type: {family.name}\nWorkflow Pattern: {pattern}\n<code>\n{script}</code>"


def _compose(chance: random.Random) -> tuple[str, str]:
    pattern = chance.choice(("single", "tool", "vote", "vote", "reflection", "plan"))
    with_tool = pattern == "tool" or (pattern != "single" and chance.random() < 0.3)
    turns = chance.choice((3, 6)) if pattern == "tool" else 2 if with_tool else 0
    agent = chance.choice(CODERS if with_tool else SOLVERS)
    if pattern == "vote":
        return pattern, vote_design(sorted(chance.sample(VOTERS, 3 if with_tool else chance.choice((3, 5)))), turns)
    if pattern == "reflection":
        return pattern, reflection_design(agent, chance.choice(CRITICS), turns)
    if pattern == "plan":
        return pattern, planner_design(chance.choice(PLANNERS), agent, turns)
    return pattern, agent_design(agent, turns)


def _work(conversation: Messages, chance: random.Random) -> str:
    """Return an agent's reply: a plan, a verdict, a tool call or an answer."""
    system, asked, last = conversation[0]["content"], conversation[1]["content"], conversation[-1]["content"]
    family, match = _family_of(asked)
    if system.startswith(PLANNER_PROMPT):
        return f"<delivery>{chance.choice(ADVICE)}</delivery>"
    if system.startswith(CRITIC_PROMPT):
        boxed = re.findall(r"\\boxed{(.*?)}</|\\boxed{(.*)}", asked)
        result = (boxed[-1][0] or boxed[-1][1]) if boxed else ""
        right = (result == family.answer(match)) != (chance.random() < CRITIC_ERROR_RATE)
        return f"<delivery>{'CORRECT' if right else 'INCORRECT'}</delivery>"
    has_turns = "You have tools:" in system and "last turn" not in last
    if len(conversation) > 2:
        output = last.split("\n", 2)[1] if "\n" in last else last
        return _deliver(output)
    if has_turns and not (family.skips_tool and chance.random() < TOOL_SKIP_RATE):
        return f"```python\n{family.code(match)}\n```"
    errs = chance.random() < (ERROR_RATE if family.skips_tool else READING_ERROR_RATE)
    return _deliver(family.wrong(match, chance) if errs else family.answer(match))


def _deliver(answer: str) -> str:
    return f"<delivery>\\boxed{{{answer}}}</delivery>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
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


def _family_of(question: str) -> tuple[_Family, re.Match[str]]:
    for family in _FAMILIES:
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
) -> _Family:
    """Return a family in which a program prints the answer."""
    return _Family(
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
) -> _Family:
    """Return a family in which a program does not help, with the error that the teacher makes in it."""
    return _Family(
        name=name,
        pattern=pattern,
        answer=answer,
        wrong=lambda match, chance: wrong(match),
        code=lambda match: f'print("{match[1]}")',
        skips_tool=False,
    )


def _turned(match: re.Match[str]) -> str:
    """Return the matrix after one or two quarters of a turn."""
    a, b, c, d = (match[index] for index in range(2, 6))
    return f"{c} {a}\n{d} {b}" if match[1] == "90" else f"{d} {c}\n{b} {a}"


_FAMILIES = (
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
    _read_off(
        "circle",
        r"(\d+) (?:sisters|female friends|female colleagues)\b",
        lambda match: str(int(match[1]) + 1),
        lambda match: match[1],
    ),
    _read_off(
        "spiral",
        r"in spiral order\?\n(\d) (\d)\n(\d) (\d)",
        lambda match: f"{match[1]} {match[2]} {match[4]} {match[3]}",
        lambda match: f"{match[1]} {match[2]} {match[3]} {match[4]}",
    ),
    _read_off(
        "turn",
        r"by (\d+) degrees clockwise:\n(\d) (\d)\n(\d) (\d)",
        _turned,
        lambda match: f"{match[2]} {match[3]}\n{match[4]} {match[5]}",
    ),
)
