"""The rollout tree: a Task has Designs, a Design has Executions, an Execution has Calls.

`rollout` builds the tree, `rewards` scores it, `training` writes advantages into it and trains on it, `runs` saves it,
`viewer` shows it. Plain data; the types that graders read check their shape. No pydantic here: the grading workers
import this module inside the sandbox.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .workflow.protocol import Answer, last_boxed, last_solution, reply_answer
from .workflow.structure import Structure

if TYPE_CHECKING:
    JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
else:  # pydantic, which reads trees by these annotations, cannot follow an alias into itself
    JSON = Any


def _check_shape(owner: object, name: str, kind: type | tuple[type, ...], items: type | tuple[type, ...] = ()) -> None:
    """Raise TypeError for a field of the wrong type: text instead of a tuple would be graded letter by letter."""
    value = getattr(owner, name)
    expected = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{type(owner).__name__}.{name}: expected {expected}, got {type(value).__name__} {value!r:.60}")
    for item in value if items and isinstance(value, tuple) else ():
        if not isinstance(item, items) or isinstance(item, bool):
            raise TypeError(f"{type(owner).__name__}.{name}: invalid item {item!r:.60}, a {type(item).__name__}")


class Role(StrEnum):
    """The model that designs the workflow, or the one that plays every agent in it."""

    DESIGNER = "designer"
    EXECUTOR = "executor"


@dataclass(frozen=True, slots=True)
class MathGold:
    """The right answer of a math task."""

    answers: tuple[str, ...]
    """LaTeX without dollar signs; several, in any order, when the task asks for several."""
    tolerances: tuple[float, ...] = ()
    """Absolute, as the task states them: one for all answers or one for each. Empty: exact match required."""
    unit: str = ""

    def __post_init__(self) -> None:
        _check_shape(self, "answers", tuple, str)
        _check_shape(self, "tolerances", tuple, (int, float))
        _check_shape(self, "unit", str)


@dataclass(frozen=True, slots=True)
class StdinTest:
    """One run of a program: its standard input and its expected output."""

    input: str
    output: str

    def __post_init__(self) -> None:
        _check_shape(self, "input", str)
        _check_shape(self, "output", str)


@dataclass(frozen=True, slots=True)
class FunctionTest:
    """One call of a function: its arguments and the expected return value, as JSON."""

    arguments: tuple[JSON, ...]
    expected: JSON

    def __post_init__(self) -> None:
        _check_shape(self, "arguments", tuple)


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Python source with assertions that call the solution's functions; it runs in a process of its own."""

    source: str

    def __post_init__(self) -> None:
        _check_shape(self, "source", str)


CodeTest: TypeAlias = StdinTest | FunctionTest | AssertTest


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The tests of a program, all of one kind."""

    tests: tuple[CodeTest, ...]
    entry_point: str = ""
    """The function (or Class.method) to call; empty for programs that read standard input."""
    prompt: str = ""
    """Source that is put before a solution that does not define the entry point itself."""
    cpu_seconds: float = 4.0
    """The CPU time limit of each test."""
    wrapped_outputs: bool = False
    """Expected values may be wrapped in a one-element list, as in APPS: then either form is right."""
    special_judge: bool = False
    """Several outputs are right, which a comparison cannot check: leave such tasks out of training."""

    def __post_init__(self) -> None:
        _check_shape(self, "tests", tuple, (StdinTest, FunctionTest, AssertTest))
        _check_shape(self, "entry_point", str)
        _check_shape(self, "prompt", str)
        _check_shape(self, "cpu_seconds", (int, float))


@dataclass(frozen=True, slots=True)
class GymEntry:
    """A generated task of reasoning-gym, which has its own scorer."""

    generator: str
    config: dict[str, JSON]
    entry: dict[str, JSON]

    def __post_init__(self) -> None:
        _check_shape(self, "generator", str)
        _check_shape(self, "config", dict)
        _check_shape(self, "entry", dict)


@dataclass(frozen=True, slots=True)
class CustomGrader:
    """A user's own grader, `module:function`, called with the text of the answer and this data; returns 0 to 1."""

    function: str
    data: JSON
    file: str = field(default="", repr=False, compare=False)
    """The file of the task: the module is searched beside it first. It does not count when tasks are compared."""

    def __post_init__(self) -> None:
        _check_shape(self, "function", str)


Grading: TypeAlias = MathGold | CodeTests | GymEntry | CustomGrader


@dataclass(frozen=True, slots=True)
class Task:
    """One task with everything that its grader needs."""

    id: str
    kind: Literal["math", "code", "gym", "custom"]
    question: str
    grading: Grading
    source: str
    split: str
    difficulty: float | None = None
    """From 0 (easy) to 1 (hard), where the source states it."""
    license: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading an answer."""

    score: float
    """From 0 to 1; for programs the share of tests passed."""
    solved: bool
    reason: str = ""
    """Why the answer is wrong, for a person."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and its parts."""

    outcome: float
    solution: float
    delivery: float
    cost: float
    total: float
    solved: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a design or an execution failed. `infra` is an infrastructure fault, which never becomes a reward; all other
    kinds are the model's fault."""

    kind: str
    message: str

    @property
    def infra(self) -> bool:
        """Whether the infrastructure failed and not the model."""
        return self.kind == "infra"


@dataclass(slots=True)
class Call:
    """One reply of the model."""

    role: Role
    agent: str
    messages: tuple[dict[str, str], ...]
    text: str
    tokens: int = 0
    """How many tokens the model wrote."""
    advantage: float | None = None
    prompt: tuple[int, ...] = ()
    """The tokens that the model read; then those it wrote, with their log-probabilities: the input of training."""
    completion: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_tokens: int = 0
    """How many tokens the model read; a saved tree keeps this and not the tokens themselves, and
    log-probabilities with two decimals."""
    finish: str = "stop"
    """`length`: the reply was cut off."""
    instruction: str = ""
    """What all agents were told, where a recipe sets another instruction than the default: `prompts.agent_instruction`.
    An echo of it delivers nothing."""
    seconds: float = 0.0
    started: float = 0.0
    """When the request was made, in seconds since 1970; 0: not known."""
    lengths: tuple[int, ...] = ()
    """How many characters of `text` each token wrote; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class FinalAnswer(Answer):
    """The answer of an execution, parsed once; graders, rewards, evaluation and viewer read this."""

    text: str
    """The passage that states it, as the model wrote it: the delivery, or the whole reply."""
    call: int | None = None
    """The index of the call in `Execution.calls` that wrote it; None when no call did."""

    @classmethod
    def parse(cls, text: str) -> "FinalAnswer":
        """Return the answer that a text states."""
        answer = reply_answer(text)
        return cls(answer.kind, answer.value, text)

    @property
    def box(self) -> str | None:
        """The content of the last box, also where a program follows it."""
        return self.value if self.kind == "boxed" else last_boxed(self.text)

    @property
    def program(self) -> str | None:
        """The source of the last program, also where a box follows it."""
        return self.value if self.kind == "solution" else last_solution(self.text)


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """The output of a program that an agent, and not the script, wrote, or of an offered tool that an agent called."""

    call: int
    """The index of the call that wrote the code or the arguments, or the input if that came later."""
    output: str
    """Standard output, then standard error; a long one is shortened in the middle. Of a tool: its result."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool that the operator offers, as the host saw it."""

    name: str
    arguments: str
    """JSON, as it left the sandbox; what is longer than the limit of the recipe is cut."""
    result: str
    """What the agent read."""
    seconds: float = 0.0
    failed: bool = False
    """The result says what went wrong."""
    started: float = 0.0
    """As for calls."""


@dataclass(slots=True)
class Execution:
    """One run of the script of a design."""

    calls: list[Call] = field(default_factory=list)
    answer: FinalAnswer | None = None
    fault: Fault | None = None
    reward: Reward | None = None
    fed: str | None = None
    """Where the script wrote the answer into a prompt before any agent had said it; also set if a recipe allows it."""
    programs: list[ProgramOutput] = field(default_factory=list)
    """Outputs of the programs that agents wrote, then of the offered tools that agents called, in order."""
    tools: list[ToolCall] = field(default_factory=list)
    """Calls of the tools that the operator offers, in the order of asking."""
    told: tuple[str, ...] = ()
    """What the operator says about the offered tools in prompts; it is not the script's text."""
    log: str = ""
    """What the script printed; it does not affect the reward."""
    seconds: float = 0.0
    started: float = 0.0
    """As for calls."""
    structure: Structure | None = None
    """What the script ran, as it reported it from inside the sandbox; None: no model call was made."""


@dataclass(slots=True)
class Design:
    """One script for a task, with its executions."""

    call: Call
    script: str | None
    executions: list[Execution] = field(default_factory=list)
    fault: Fault | None = None
    reward: float | None = None
    """The mean reward of its executions; 0 if the script could not run; None if an infrastructure fault hides it."""
    pattern: str = ""
    """What kind of workflow it is: `single`, `ensemble+tools`, ... Empty: no execution has reported one."""

    @property
    def structure(self) -> Structure | None:
        """What the script ran, by its first execution that reported it."""
        return next((run.structure for run in self.executions if run.structure is not None), None)


@dataclass(slots=True)
class Rollout:
    """A task with its designs."""

    task: Task
    designs: list[Design] = field(default_factory=list)
