"""A programmed teacher for a pretrained language model: it plays both roles in words of its own each time.

It knows the families of questions that the quickstart's teacher knows. Names, system prompts, instructions and the
phrasing of answers are combined from many parts, so that hardly two of its scripts are equal, and the student learns to
write its own. The first words of a design name its kind, so that RL can change that choice without changing the rest.

It is imperfect on purpose, so that RL has something to improve. Designs are composed at random, whatever the task. An
agent forgets its tool, more often if its prompt does not speak of Python; without it, it errs. What it answers to
questions that are to be read is wrong at times, which a vote can repair.
"""

import random
import re

from ..policy import ChatReply, Messages, SamplingParams
from ..workflow.nodes import REFLECTION_REQUEST
from ..workflow.protocol import last_boxed
from ..workflow.reply import DESIGNER_LINE
from .families import Family, family_of

ERROR_RATE = 0.3
"""How often an agent errs when it answers without the tool."""
FORGET_RATES = {True: 0.35, False: 0.65}
"""How often an agent forgets its tool, by whether its system prompt speaks of Python."""
CRITIC_ERROR_RATE = 0.2
"""How often a verdict on a result is wrong."""
TOOL_SHARE = 0.4
"""The share of designs whose agents have the tool."""
RATES = (ERROR_RATE, *FORGET_RATES.values(), CRITIC_ERROR_RATE, TOOL_SHARE)
"""What demonstrations depend on, besides the words."""

_SUBJECTS = ("the task", "the question", "this problem", "what is asked", "the exercise", "the puzzle")
_MANNERS = ("", " with care", " step by step", " in one line", " without haste", " exactly", " and say no more")
SOLVING = ("Solve", "Answer", "Work out", "Settle", "Resolve", "Handle", "Take on")
COMPUTING = ("Use Python for", "Write a Python program for", "Run Python on", "Let Python solve", "Code in Python for")
PLANNING = ("Say how to solve", "Plan how to approach", "Outline a way through", "Give advice on", "Suggest a path for")
CHECKING = (
    "Check the result of",
    "Review the answer to",
    "Look for errors in",
    "Test the result of",
    "Judge the answer to",
)
"""How system prompts begin. `PLANNING` is what the teacher knows a planner by."""

SOLVERS = """Solver Thinker Expert Analyst Scholar Sage Mind Reader Worker Student Mentor Helper Adviser Tutor Genius
Specialist Assistant Researcher Problem_Solver Detective Oracle Mathematician""".split()  # noqa: SIM905
CODERS = """Coder Programmer Calculator Engineer Hacker Builder Developer Computer Scripter Pythonist Technician Machine
Operator Compiler Software_Engineer Automaton""".split()  # noqa: SIM905
CRITICS = "Critic Checker Reviewer Judge Auditor Inspector Examiner Tester Referee Editor Verifier Skeptic".split()  # noqa: SIM905
PLANNERS = "Planner Guide Coach Strategist Architect Leader Navigator Director Scout Organizer Manager Chief".split()  # noqa: SIM905
VOTERS = """Ada Bob Cal Dan Eve Fay Gus Hal Ida Jon Kim Leo Mia Ned Oli Pam Ray Sue Tom Uma Vic Wes Zoe Ann Ben Cleo
Dora Emil Finn Gina Hugo Iris Jack Kate Liam Maya Nora Otto Paul Rosa Sam Tina""".split()  # noqa: SIM905
_HINTS = ("read the question twice", "note the numbers", "take one step after another", "check the result at the end",
          "let Python compute what can be computed", "ignore what does not matter", "keep it short")  # fmt: skip
_LEADS = ("So: ", "Answer: ", "Here it is. ", "I get this: ", "The result: ", "Done. ", "In short: ")
_LEAD_SHARE = 0.25
_VERDICTS = {
    True: ("CORRECT", "This holds. CORRECT", "I agree. CORRECT", "No error found. CORRECT"),
    False: ("INCORRECT", "This does not hold. INCORRECT", "I disagree. INCORRECT", "There is an error. INCORRECT"),
}


class VariedTeacher:
    """A chat model that knows the families. The seed of a request determines its draws."""

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        """Return the reply to a conversation, in either role. Each byte counts as a token, and so does the end."""
        chance = random.Random(params.seed)
        is_designer = messages[0]["content"].startswith(DESIGNER_LINE)
        text = design(messages[-1]["content"], chance) if is_designer else _work(messages, chance)
        prompt_tokens = sum(len(message["content"].encode()) + 1 for message in messages)
        return ChatReply(text, "stop", prompt_tokens, len(text.encode()) + 1)


def design(question: str, chance: random.Random) -> str:
    """Return a Designer's reply: the kind of problem and a design of random parts in random words."""
    family, _ = family_of(question)
    with_tool = chance.random() < TOOL_SHARE
    kind = chance.choice(("single", "vote", "vote", "reflection", "plan"))
    script = _script(kind, with_tool, chance)
    name = f"tool {kind}" if with_tool else kind
    return f"Problem Type: {family.name}\nWorkflow Pattern: {name}\n<code>\n{script}</code>"


def _script(kind: str, with_tool: bool, chance: random.Random) -> str:
    # An agent with the tool has two turns at least: one for the program and one for the answer.
    tool = f", tools, {chance.choice((2, 3)) if kind == 'single' else 2}" if with_tool else ""
    names = CODERS if with_tool else SOLVERS
    openings = COMPUTING if with_tool and chance.random() < 0.5 else SOLVING
    agent = f"{_named(names, openings, chance)}{tool})"
    nodes, body = [], f"workflow.add_node({agent})\n"
    if kind == "vote":
        voters = ", ".join(f'"{name}"' for name in chance.sample(VOTERS, 3 if with_tool else chance.choice((3, 5))))
        nodes, agent = ["EnsembleNode"], f'AgentNode(name, "{_prompt(openings, chance)}"{tool})'
        body = f'agents = [{agent} for name in ({voters})]\nworkflow.add_node(EnsembleNode("Vote", agents))\n'
    elif kind == "reflection":
        nodes, critic = ["ReflectionNode"], f"{_named(CRITICS, CHECKING, chance)})"
        body = f'agent = {agent}\ncritic = {critic}\nworkflow.add_node(ReflectionNode("Review", agent, critic, 1))\n'
    elif kind == "plan":
        body = f"workflow.add_node({_named(PLANNERS, PLANNING, chance)}))\n{body}"
    imports = f"from workflow import AgentNode, {'ToolRegistry, ' if with_tool else ''}Workflow\n"
    imports += f"from workflow.nodes import {nodes[0]}\n" if nodes else ""
    setup = "tools = ToolRegistry()\ntools.register_python()\n" if with_tool else ""
    return f"{imports}{setup}workflow = Workflow()\n{body}print(workflow.run(question).content)\n"


def _named(names: list[str], openings: tuple[str, ...], chance: random.Random) -> str:
    """Return the beginning of an agent's definition, up to its prompt."""
    return f'AgentNode("{chance.choice(names)}", "{_prompt(openings, chance)}"'


def _prompt(openings: tuple[str, ...], chance: random.Random) -> str:
    return f"{chance.choice(openings)} {chance.choice(_SUBJECTS)}{chance.choice(_MANNERS)}."


def _work(conversation: Messages, chance: random.Random) -> str:
    """Return an agent's reply: a plan, a verdict, a tool call or an answer."""
    system, asked, last = conversation[0]["content"], conversation[1]["content"], conversation[-1]["content"]
    family, match = family_of(asked)
    if system.startswith(PLANNING):
        first, second = chance.sample(_HINTS, 2)
        return f"<delivery>{first.capitalize()}, then {second}.</delivery>"
    if asked.endswith(REFLECTION_REQUEST):
        right = (last_boxed(asked) == family.answer(match)) != (chance.random() < CRITIC_ERROR_RATE)
        return f"<delivery>{chance.choice(_VERDICTS[right])}</delivery>"
    if len(conversation) > 2:
        output = last.split("\n", 2)[1] if "\n" in last else last
        return _deliver(output, chance)
    if "You have tools:" in system and chance.random() >= FORGET_RATES["Python" in system.partition("\n")[0]]:
        return f"```python\n{_program(family.code(match), chance)}\n```"
    return _deliver(_answer(family, match, chance), chance)


def _answer(family: Family, match: re.Match[str], chance: random.Random) -> str:
    return family.wrong(match, chance) if chance.random() < ERROR_RATE else family.answer(match)


def _program(code: str, chance: random.Random) -> str:
    """Return the program, at times with its result under a name."""
    name = chance.choice(("", "", "result", "answer", "x"))
    return re.sub(r"print\((.*)\)$", rf"{name} = \1\nprint({name})", code) if name else code


def _deliver(answer: str, chance: random.Random) -> str:
    lead = chance.choice(_LEADS) if chance.random() < _LEAD_SHARE else ""
    return f"{lead}<delivery>\\boxed{{{answer}}}</delivery>"
