"""What a source of tasks is: where its rows come from and how a row becomes a task.

A source is one entry in a table, not a class of its own: a function from a row to a Draft, its published splits, its
place on the hub and its licence. The families are in math_sources and code_sources.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..types import CodeTests, CustomGrader, Grading, GymEntry, MathGold
from .rows import Row


@dataclass(frozen=True, slots=True)
class Draft:
    """What a row says: a task that does not know its source yet."""

    statement: str
    grading: Grading
    form: str = ""
    """How to answer, put after the statement. Apart, so that comparisons between sources see statements only."""
    id: str = ""
    """The source's own; empty when it has none."""
    difficulty: float | None = None
    licence: str = ""
    """Of this task, where it is not the source's."""

    @property
    def question(self) -> str:
        """What the model reads."""
        return f"{self.statement}\n\n{self.form}" if self.form else self.statement


@dataclass(frozen=True, slots=True)
class Hub:
    """A place on the Hugging Face hub."""

    repository: str
    config: str = ""
    split: str = ""
    files: tuple[str, ...] = ()
    """JSON Lines files to fetch as they are, for repositories that come with a loading script, which nobody runs."""


def kind_of(grading: Grading) -> Literal["math", "code", "gym", "custom"]:
    """The kind of a task is the kind of its grader."""
    match grading:
        case MathGold():
            return "math"
        case CodeTests():
            return "code"
        case GymEntry():
            return "gym"
        case CustomGrader():
            return "custom"


def says_split(row: Row) -> str:
    """The split that a row itself names, if it does."""
    split = row.get("split")
    return split if isinstance(split, str) else ""


@dataclass(frozen=True, slots=True)
class Source:
    """A published set of tasks."""

    name: str
    kind: Literal["math", "code", "own"]
    draft: Callable[[Row], Draft]
    hub: Mapping[str, tuple[Hub, ...]]
    """By published split. The keys are the splits there are."""
    fields: tuple[str, ...]
    """What a row of a user's own copy must have."""
    licence: str
    optional_fields: tuple[str, ...] = ()
    row_split: Callable[[Row], str] = says_split
    ids_decide: bool = False
    """Whether `row_split` knows for every row, so that one file may hold all splits."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Names of parts that can be asked for alone, with the file each is in; for a set published in instalments."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The published ones."""
        return tuple(self.hub)
