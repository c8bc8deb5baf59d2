"""What a source of tasks is: where its rows come from and how a row becomes a task.

A source is one entry in a table, not a class of its own: a function from a row to a Draft, its published splits, its
repository on the hub and its license. The tables are in math_sources and code_sources.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..types import CodeTests, CustomGrader, Grading, GymEntry, MathGold
from .rows import Row

KINDS: Mapping[type, Literal["math", "code", "gym", "custom"]] = {
    MathGold: "math",
    CodeTests: "code",
    GymEntry: "gym",
    CustomGrader: "custom",
}
"""The kind of a task, by the type of its grading."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a row says: a task without its source."""

    statement: str
    grading: Grading
    form: str = ""
    """How to answer, appended to the statement. Apart, because comparisons between sources look at statements only."""
    id: str = ""
    """The source's own id; empty if it has none."""
    difficulty: float | None = None
    license: str = ""
    """Of this task; empty: the source's."""

    @property
    def question(self) -> str:
        """What the model reads."""
        return f"{self.statement}\n\n{self.form}" if self.form else self.statement


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set on the Hugging Face hub."""

    repository: str
    config: str = ""
    split: str = ""
    files: tuple[str, ...] = ()
    """JSON Lines files to fetch as they are, for repositories with a loading script, which is never run."""


def hub_splits(repository: str, config: str, *splits: str) -> dict[str, tuple[Hub, ...]]:
    """Return the data sets of a repository whose splits have the published names."""
    return {split: (Hub(repository, config, split),) for split in splits}


def split_field(row: Row) -> str:
    """Return the split that a row names itself; empty if it names none."""
    split = row.get("split")
    return split if isinstance(split, str) else ""


@dataclass(frozen=True, slots=True)
class Source:
    """A published set of tasks."""

    name: str
    kind: Literal["math", "code", "own"]
    draft: Callable[[Row], Draft]
    hub: Mapping[str, tuple[Hub, ...]]
    """By published split; the keys are all splits there are."""
    fields: tuple[str, ...]
    """What a row of a user's own copy must have."""
    license: str
    optional_fields: tuple[str, ...] = ()
    row_split: Callable[[Row], str] = split_field
    ids_decide: bool = False
    """Whether `row_split` knows the split of every row, so that one file may hold all splits."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """For a set published in installments: their names, each with the stem of its file."""
    test_groups: Mapping[str, Callable[[Row], Row]] = field(default_factory=dict)
    """For a set whose tests are published in groups, such as `public`: a row with the tests of that group alone."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The published splits."""
        return tuple(self.hub)
