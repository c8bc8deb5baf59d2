"""A programmed teacher for the quickstart's small model: it plays both roles on a few families of reasoning-gym.

It writes real scripts and transcripts, through the same rollout as any teacher. It is imperfect on purpose, so that RL
has something to improve. It composes designs at random, whatever the task: one agent or several, with or without a
tool, a critic or a planner. As an agent it often forgets its tool where that helps, and uses it where it does not
help. It makes errors; those that were outvoted, rejected or retried stay in the demonstrations.
"""

import math
import operator
import random
import re
import string
from collections.abc import Callable, Mapping
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
TOOL_SKIP_RATE = 0.65
"""How often it forgets its tool where a program computes the answer. Elsewhere it always uses it, and believes it."""
CRITIC_ERROR_RATE = 0.2
"""How often its verdict on a result is wrong."""

SOLVERS = ("Solver", "Thinker", "Expert", "Analyst", "Scholar", "Sage")
CODERS = ("Coder", "Programmer", "Calculator", "Engineer", "Hacker", "Builder")
CRITICS = ("Critic", "Checker", "Reviewer")
PLANNERS = ("Planner", "Reader", "Guide")
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
        return f"<delivery>{family.plan}</delivery>"
    if system.startswith(CRITIC_PROMPT):
        boxed = re.findall(r"\\boxed{(.*?)}</|\\boxed{(.*)}", asked)
        result = (boxed[-1][0] or boxed[-1][1]) if boxed else ""
        right = family.check(match, result) != (chance.random() < CRITIC_ERROR_RATE)
        return f"<delivery>{'CORRECT' if right else 'INCORRECT'}</delivery>"
    has_turns = "You have tools:" in system and "last turn" not in last
    if len(conversation) > 2:
        output = last.split("\n", 2)[1] if "\n" in last else last
        answer = family.read(match, conversation[-2]["content"], output)
        if answer is None and has_turns and family.retries:
            return _program(family, match, len(conversation) // 2 - 1)
        if answer is not None:
            return _deliver(answer)
    elif has_turns and not (family.skips_tool and chance.random() < TOOL_SKIP_RATE):
        return _program(family, match, 0)
    errs = family.wrong is not None and chance.random() < ERROR_RATE
    answer = family.wrong(match, chance) if errs and family.wrong else family.answer(match)
    return _deliver(answer, family.reasons(match))


def _program(family: "_Family", match: re.Match[str], tries: int) -> str:
    return f"```python\n{family.code(match, tries)}\n```"


def _deliver(answer: str, reasons: str = "") -> str:
    return f"<delivery>{reasons}\\boxed{{{answer}}}</delivery>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Questions of one kind, and how the teacher solves them."""

    name: str
    pattern: str
    plan: str
    answer: Callable[[re.Match[str]], str]
    wrong: Callable[[re.Match[str], random.Random], str] | None
    """A wrong answer; None where it makes no errors."""
    reasons: Callable[[re.Match[str]], str] = lambda match: ""
    """What it says before an answer of its own."""
    code: Callable[[re.Match[str], int], str]
    """The program, given how many before it did not give the answer."""
    read: Callable[[re.Match[str], str, str], str | None]
    """The answer, from a program and its output; None if they do not give it."""
    skips_tool: bool = False
    """Whether it often forgets its tool."""
    retries: bool = False
    """Whether another program is worth a try where one does not give the answer."""
    check: Callable[[re.Match[str], str], bool]


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
    name: str, pattern: str, plan: str, answer: Callable[[re.Match[str]], str], code: Callable[[re.Match[str]], str]
) -> _Family:
    """Return a family in which a program prints the answer."""
    return _Family(
        name=name,
        pattern=pattern,
        plan=plan,
        answer=answer,
        wrong=lambda match, chance: _corrupt(answer(match), chance),
        code=lambda match, _: code(match),
        read=lambda match, program, output: output,
        skips_tool=True,
        check=lambda match, result: result == answer(match),
    )


def _read_off(
    name: str,
    pattern: str,
    plan: str,
    answer: Callable[[re.Match[str]], str],
    reasons: Callable[[re.Match[str]], str] = lambda match: "",
) -> _Family:
    """Return a family in which a program does not help, and which the teacher reads well."""
    return _Family(
        name=name,
        pattern=pattern,
        plan=plan,
        answer=answer,
        wrong=None,
        reasons=reasons,
        code=lambda match, _: f'print("{match[1]}")',
        read=lambda match, program, output: output,
        check=lambda match, result: result == answer(match),
    )


_OPERATIONS: Mapping[str, Callable[[int, int], float]] = {
    "+": operator.add,
    "*": operator.mul,
    "-": operator.sub,
    "/": operator.truediv,
}


def _expressions(match: re.Match[str]) -> dict[str, bool]:
    """Return the expressions worth a try, in the order in which the teacher tries them, and which are right."""
    target, numbers = (match[1], match[2]) if match[1] else (match[4], match[3]) if match[3] else (match[5], match[6])
    large, small = sorted(map(int, numbers.split(", ")), reverse=True)
    return {f"{large} {sign} {small}": compute(large, small) == int(target) for sign, compute in _OPERATIONS.items()}


def _solution(match: re.Match[str]) -> str:
    return next(expression for expression, right in _expressions(match).items() if right)


def _read_expression(match: re.Match[str], program: str, output: str) -> str | None:
    tried = program.partition("print(")[2].partition(")")[0]
    return tried if _expressions(match).get(tried) else None


_RELATIONS = {
    (0, 1): "husband", (1, 0): "wife", (0, 2): "father", (1, 2): "mother", (2, 0): "son", (2, 1): "son",
}  # fmt: skip
"""What a father (0), a mother (1) and their son (2) are to one another."""


_PLACES = ("father", "mother", "son")


def _places(match: re.Match[str]) -> tuple[int, int]:
    family = [match[1], match[2], match[3]]
    return family.index(match[4]), family.index(match[5])


def _family_reasons(match: re.Match[str]) -> str:
    members = ", ".join(f"{place} {match[index]}" for index, place in enumerate(_PLACES, 1))
    first, second = _places(match)
    return f"{members}: {match[4]} is the {_PLACES[first]}, {match[5]} is the {_PLACES[second]}. "


_FAMILIES = (
    _computed(
        "multiplication",
        r"multiplication: (\d+) \* (\d+)\.",
        "Multiply with a program.",
        lambda match: str(int(match[1]) * int(match[2])),
        lambda match: f"print({match[1]} * {match[2]})",
    ),
    _computed(
        "multiple",
        r"\(LCM\) of these numbers: (\d+), (\d+)",
        "Compute the multiple with a program.",
        lambda match: str(math.lcm(int(match[1]), int(match[2]))),
        lambda match: f"import math\nprint(math.lcm({match[1]}, {match[2]}))",
    ),
    _read_off(
        "kinship",
        r"(\w+) is married to (\w+)\. They have a child called (\w+)\.\s+(?:What is|How is|What relation is) (\w+) "
        r"(?:related )?to (\w+)\?",
        "Follow marriages and children.",
        lambda match: _RELATIONS[_places(match)],
        _family_reasons,
    ),
    _read_off(
        "circle",
        r"(\d+) (?:sisters|female friends|female colleagues)\b",
        "Count her as one of them.",
        lambda match: str(int(match[1]) + 1),
    ),
    _Family(
        name="numbers",
        pattern=r"Calculate (\d+) using all of these numbers: ([\d, ]+)\.|Using all the numbers ([\d, ]+), create an "
        r"expression that equals (\d+)\.|make (\d+) using all of these numbers: ([\d, ]+)\.",
        plan="Try expressions and check each with a program.",
        answer=_solution,
        wrong=lambda match, chance: chance.choice(list(_expressions(match))),
        code=lambda match, tries: f"print({list(_expressions(match))[tries % len(_OPERATIONS)]})",
        read=_read_expression,
        retries=True,
        check=lambda match, result: _expressions(match).get(result, False),
    ),
)
