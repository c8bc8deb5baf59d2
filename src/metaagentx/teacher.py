r"""A programmed teacher for the embedded model: it plays both roles on a few families of reasoning-gym.

It writes real scripts and real transcripts, through the same rollout as any teacher. It is imperfect on purpose, so
that there is something left to learn. It picks designs at random, whatever the task. It often forgets that
it has a tool, and when it thinks of it, arithmetic is all that it knows to do with it. In its head it slips, and slips
that were outvoted stay in what is learnt from. Sorting it knows.
"""

import math
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .backends.scripted import ByteTokenizer
from .errors import MetaAgentXError
from .policy import PAPER_LOSS, Completion, Datum, LossName, LossOptions, Metrics, SamplingParams
from .workflow.reply import DESIGN_REQUEST

SLIPS = 0.4
"""How often it slips in its head."""
FORGETS = 0.6
"""How often it does not think of its tool."""

_SINGLE = """from workflow import AgentNode, Workflow
workflow = Workflow(name="single")
workflow.add_node(AgentNode(name="Solver", system_prompt="Solve the task."))
"""
_TOOL = """from workflow import AgentNode, ToolRegistry, Workflow
tools = ToolRegistry()
tools.register_python()
workflow = Workflow(name="tool")
workflow.add_node(AgentNode(name="Coder", system_prompt="Solve the task.", tool_registry=tools, max_turns=3))
"""
_VOTE = """from workflow import AgentNode, Workflow
from workflow.nodes import EnsembleNode
agents = [AgentNode(name=name, system_prompt="Solve the task.") for name in ("A", "B", "C")]
workflow = Workflow(name="vote")
workflow.add_node(EnsembleNode(name="Vote", agents=agents, strategy="majority_vote"))
"""
_END = "result = workflow.run(question)\nprint(result.content)\n"
DESIGNS = {"single": _SINGLE + _END, "tool": _TOOL + _END, "vote": _VOTE + _END}
"""The designs it knows, by name."""


class ProgrammedTeacher:
    """A policy that knows the families. Its draws are its own by the seed of each request."""

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.context_length = 1 << 20

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """The reply to a conversation, in either role."""
        conversation = self.tokenizer.read_chat(prompt)
        chance = random.Random(params.seed)
        asked = conversation[1]["content"]
        text = design(asked, chance) if asked.startswith(DESIGN_REQUEST) else _work(conversation, chance)
        tokens = self.tokenizer.encode_reply(text)
        return Completion(tuple(tokens), (0.0,) * len(tokens), "stop")

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossOptions = PAPER_LOSS
    ) -> Metrics:
        """It does not learn."""
        raise TypeError("a teacher does not learn")

    async def optim_step(self, learning_rate: float) -> Metrics:
        """It does not learn."""
        raise TypeError("a teacher does not learn")

    async def save(self, path: Path) -> None:
        """It has nothing to keep."""

    async def load(self, path: Path) -> None:
        """It has nothing to keep."""


def design(question: str, chance: random.Random) -> str:
    """A Designer's reply: what kind of problem it sees, and one of the designs, any of them."""
    family, _ = _family_of(question)
    name = chance.choice(list(DESIGNS))
    return f"Problem Type: {family.name}\nWorkflow Pattern: {name}\n<code>\n{DESIGNS[name]}</code>"


def _work(conversation: list[dict[str, str]], chance: random.Random) -> str:
    """An agent's reply: a tool call or an answer."""
    system, asked, last = conversation[0]["content"], conversation[1]["content"], conversation[-1]["content"]
    family, match = _family_of(asked)
    if "You have tools:" in system and len(conversation) == 2 and chance.random() >= FORGETS:
        return f"```python\n{family.code(match)}\n```"
    answer = family.answer(match)
    if family.computed and len(conversation) > 2:
        answer = last.split("\n", 2)[1]
    elif family.slips and chance.random() < SLIPS:
        answer = _slip(answer, chance)
    return _delivery(f"\\boxed{{{answer}}}")


def _delivery(text: str) -> str:
    return f"<delivery>{text}</delivery>"


def _slip(answer: str, chance: random.Random) -> str:
    """One digit or letter of it drawn anew: sometimes it is the same."""
    place = chance.randrange(len(answer))
    others = string.digits if answer[place].isdigit() else string.ascii_lowercase
    return f"{answer[:place]}{chance.choice(others)}{answer[place + 1 :]}"


@dataclass(frozen=True, slots=True)
class _Family:
    """Questions of one kind."""

    name: str
    pattern: str
    answer: Callable[[re.Match[str]], str]
    code: Callable[[re.Match[str]], str]
    computed: bool
    """Whether the code prints the answer."""
    slips: bool
    """Whether it slips where it has no result to copy."""


def _family_of(question: str) -> tuple[_Family, re.Match[str]]:
    for family in _FAMILIES:
        if match := re.search(family.pattern, question):
            return family, match
    raise MetaAgentXError(f"the programmed teacher does not know questions such as {question[:80]!r}")


def _sorted(match: re.Match[str]) -> str:
    numbers = match[2].split(", ")
    return str(sorted(numbers, key=float, reverse=match[1] == "descending"))


_FAMILIES = (
    _Family(
        "multiplication",
        r"multiplication: (\d+) \* (\d+)\.",
        lambda match: str(int(match[1]) * int(match[2])),
        lambda match: f"print({match[1]} * {match[2]})",
        computed=True,
        slips=True,
    ),
    _Family(
        "multiple",
        r"\(LCM\) of these numbers: (\d+), (\d+)",
        lambda match: str(math.lcm(int(match[1]), int(match[2]))),
        lambda match: f"import math\nprint(math.lcm({match[1]}, {match[2]}))",
        computed=True,
        slips=True,
    ),
    _Family(
        "spelling",
        r"Spell this word backward \(example: sun -> nus\): (\w+)",
        lambda match: match[1][::-1],
        lambda match: f'print("{match[1]}")',
        computed=False,
        slips=True,
    ),
    _Family(
        "sorting",
        r"Sort these numbers in (\w+) order: ([-.\d, ]+)\n",
        _sorted,
        lambda match: f"print({match[2]})",
        computed=False,
        slips=False,
    ),
)
