"""A programmed teacher for the quickstart's small model: it plays both roles on a few families of reasoning-gym.

It writes real scripts and transcripts, through the same rollout as any teacher. It is imperfect on purpose, so that RL
has something to improve. It composes designs at random, whatever the task: one agent or several, with or without a
tool, a critic or a planner. As an agent it often forgets its tool where that helps, and uses it where it does not
help. It makes errors; those that were outvoted, rejected or retried stay in the demonstrations.
"""

import random
import re

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
from .families import family_of

ERROR_RATE = 0.3
"""How often it errs when it answers without the tool, where something is to be computed."""
READING_ERROR_RATE = 0.35
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
    family, _ = family_of(question)
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
    family, match = family_of(asked)
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
