"""The one tree that flows through everything: a Task gets Designs, a Design gets Executions, an Execution makes Calls.

`rollout` grows the tree, `rewards` score it, `credit` writes advantages on it, `trainer` flattens it, `runs` writes it
down, the viewer draws it. Plain data: nothing here computes, but what a grader needs has its shape checked.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


def _check_shape(owner: object, name: str, kind: type | tuple[type, ...], items: type | tuple[type, ...] = ()) -> None:
    """Raise TypeError for a field of another type: a text where a tuple belongs would be graded letter by letter."""
    value = getattr(owner, name)
    expected = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{type(owner).__name__}.{name}: expected {expected}, got {type(value).__name__} {value!r:.60}")
    for item in value if items and isinstance(value, tuple) else ():
        if not isinstance(item, items) or isinstance(item, bool):
            raise TypeError(f"{type(owner).__name__}.{name}: invalid item {item!r:.60}, a {type(item).__name__}")


class Role(StrEnum):
    """Who speaks: the one that designs the workflow, or the one that is every agent in it."""

    DESIGNER = "designer"
    EXECUTOR = "executor"


@dataclass(frozen=True, slots=True)
class MathGold:
    """What a math answer is compared with."""

    answers: tuple[str, ...]
    """LaTeX without dollar signs. Several when the task asks for several, in any order."""
    tolerances: tuple[float, ...] = ()
    """Absolute, as the task states them, one for all answers or one for each. None stated: none granted."""
    unit: str = ""

    def __post_init__(self) -> None:
        _check_shape(self, "answers", tuple, str)
        _check_shape(self, "tolerances", tuple, (int, float))
        _check_shape(self, "unit", str)


@dataclass(frozen=True, slots=True)
class StdinTest:
    """One run of a program: what it reads and what it should print."""

    input: str
    output: str

    def __post_init__(self) -> None:
        _check_shape(self, "input", str)
        _check_shape(self, "output", str)


@dataclass(frozen=True, slots=True)
class FunctionTest:
    """One call of a function: its arguments and what it should return, as JSON."""

    arguments: tuple[JSON, ...]
    expected: JSON

    def __post_init__(self) -> None:
        _check_shape(self, "arguments", tuple)


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Python source that calls the solution's functions and asserts; it runs apart from the solution."""

    source: str

    def __post_init__(self) -> None:
        _check_shape(self, "source", str)


CodeTest: TypeAlias = StdinTest | FunctionTest | AssertTest


@dataclass(frozen=True, slots=True)
class CodeTests:
    """What a program is tested with. All tests are of one kind."""

    tests: tuple[CodeTest, ...]
    entry_point: str = ""
    """The function (or Class.method) that is called; empty for programs that read standard input."""
    prompt: str = ""
    """Source that a completion continues, put before a solution that does not define the entry point itself."""
    cpu_seconds: float = 4.0
    """For each test."""
    wrapped_outputs: bool = False
    """Expected values may stand inside a one-element list (APPS writes some so): then either form is right."""
    special_judge: bool = False
    """More than one output is right, which a comparison cannot see: leave such tasks out of training."""

    def __post_init__(self) -> None:
        _check_shape(self, "tests", tuple, (StdinTest, FunctionTest, AssertTest))
        _check_shape(self, "entry_point", str)
        _check_shape(self, "prompt", str)
        _check_shape(self, "cpu_seconds", (int, float))


@dataclass(frozen=True, slots=True)
class GymEntry:
    """A generated task of reasoning-gym, which brings its own scorer."""

    generator: str
    config: dict[str, JSON]
    entry: dict[str, JSON]

    def __post_init__(self) -> None:
        _check_shape(self, "generator", str)
        _check_shape(self, "config", dict)
        _check_shape(self, "entry", dict)


@dataclass(frozen=True, slots=True)
class CustomGrader:
    """A user's own grader, `module:function`, called with the answer's text and this data; returns 0 to 1."""

    function: str
    data: JSON
    file: str = field(default="", repr=False, compare=False)
    """The file that the task is from: the module is looked for beside it first. A task is the same wherever it is."""

    def __post_init__(self) -> None:
        _check_shape(self, "function", str)


Grading: TypeAlias = MathGold | CodeTests | GymEntry | CustomGrader


@dataclass(frozen=True, slots=True)
class Task:
    """One task with all its grader needs."""

    id: str
    kind: Literal["math", "code", "gym", "custom"]
    question: str
    grading: Grading
    source: str
    split: str
    difficulty: float | None = None
    """From 0 (easy) to 1 (hard) where the source says something of it."""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader says of an answer."""

    score: float
    """From 0 to 1: for programs the share of tests passed."""
    solved: bool
    reason: str = ""
    """Why not, for a person."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The parts a reward is made of, kept so that a viewer can show why."""

    outcome: float
    solution: float
    delivery: float
    cost: float
    total: float
    solved: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why something has no ordinary result. `infra` is ours and never becomes a reward; all others are the model's."""

    kind: str
    message: str

    @property
    def infra(self) -> bool:
        """Whether the machinery failed and not the model."""
        return self.kind == "infra"


@dataclass(slots=True)
class Call:
    """One reply of the model."""

    role: Role
    agent: str
    messages: tuple[dict[str, str], ...]
    text: str
    tokens: int = 0
    """How many the model wrote."""
    advantage: float | None = None
    prompt: tuple[int, ...] = ()
    """The tokens the model read, and then those it wrote with the log-probability of each: what training sees."""
    completion: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: str = "stop"
    """`length`: the reply was cut off."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program printed that an agent wrote: no text of the script's."""

    call: int
    """Which of the execution's calls wrote the code, or the input if that came later."""
    output: str
    """Standard output, then standard error; the beginning and the end where it is long."""


@dataclass(slots=True)
class Execution:
    """One run of a design's script."""

    calls: list[Call] = field(default_factory=list)
    answer: str | None = None
    """The text of the answer, as the call it came from wrote it."""
    answer_call: int | None = None
    """Which of `calls` the answer came from; None when none did."""
    fault: Fault | None = None
    reward: Reward | None = None
    fed: str | None = None
    """Where the script wrote the answer into a prompt before any agent had said it. Kept also when a recipe pays."""
    programs: list[ProgramOutput] = field(default_factory=list)
    """Outputs of the programs that agents wrote, in the order they were run."""
    log: str = ""
    """What the script printed. It earns nothing."""
    seconds: float = 0.0


@dataclass(slots=True)
class Design:
    """One script for a task, with its executions."""

    call: Call
    script: str | None
    executions: list[Execution] = field(default_factory=list)
    fault: Fault | None = None
    reward: float | None = None
    """The mean of its executions'; of a script that could not run, 0. None: nothing is known, by an infra fault."""
    pattern: str = ""
    """What kind of workflow it is, for a person: `agent`, `ensemble`, `reflection`, ..."""


@dataclass(slots=True)
class Rollout:
    """A task with its designs."""

    task: Task
    designs: list[Design] = field(default_factory=list)
