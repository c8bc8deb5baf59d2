"""The result of an evaluation: evaluation.json for programs, its tables for people (evaluation.md and the report)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, TypeAdapter, ValidationError

from ..atomic import atomic_write, friendly_io_errors
from ..errors import MetaAgentXError
from ..runs.records import json_line
from ..tasks.paper import PAPER_SETS
from ..types import JSON
from .figures import Comparison, MethodFigures, compare, summarize
from .methods import GRID
from .outcomes import Outcome
from .published import published_rows


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share with its 95 % interval."""

    average: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one set of tasks, or of all."""

    rows: tuple[MethodFigures, ...]
    grid: dict[str, dict[str, Estimate]] | None
    """`grid["new designs"]["old executor"]`, where all four combinations were measured."""
    paired: tuple[Comparison, ...]

    @classmethod
    def of(cls, methods: Sequence[str], baseline: str, strata: Mapping[str, Sequence[Sequence[Outcome]]]) -> Self:
        """Summarize the outcomes of each method, given by stratum, and compare each method with the baseline."""
        rows = {method: summarize(method, strata[method]) for method in methods}
        grid: dict[str, dict[str, Estimate]] | None = None
        if set(GRID.values()) <= set(rows):
            grid = {f"{whose} designs": {} for whose in ("old", "new")}
            for (designs, executor), method in GRID.items():
                row = rows[method]
                grid[f"{designs} designs"][f"{executor} executor"] = Estimate(row.average, row.low, row.high)
        pairs = {method: list(zip(strata[method], strata[baseline], strict=True)) for method in methods}
        paired = [compare((method, baseline), pairs[method]) for method in methods if method != baseline]
        return cls(tuple(rows.values()), grid, tuple(paired))


class Table(NamedTuple):
    """A table of the result, for any kind of page."""

    heading: str
    """Of the section that begins with this table; otherwise empty."""
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The first column holds names, the others numbers."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Methods by sets of tasks: the content of evaluation.json. docs/evaluation.md describes the fields."""

    format: Literal[1] = 1
    samples: int
    seed: int
    checkpoint: int | None = None
    """The step of the measured checkpoint, if it belongs to a run."""
    split: str = ""
    """The split of the tasks, such as `test`, or `held-out`; empty if it is not known."""
    model: str = ""
    """The model, if it was measured without a run."""
    against: str
    """The method that all others are compared with."""
    methods: tuple[str, ...]
    votes: Mapping[str, Mapping[str, int]]
    """How many answers a method puts to the vote, by method and set."""
    sets: Mapping[str, Summary]
    overall: Summary
    """Over all sets: the mean over sets; of held-out tasks, the mean over tasks."""
    paper: Literal["all tests", "public tests"] | None = None
    """By which tests programs were graded, if the sets are the paper's benchmarks: then its figures are shown, too."""
    outcomes: Annotated[Mapping[tuple[str, str], Sequence[Outcome]], Field(exclude=True)] = field(default_factory=dict)
    """By method and set, with the elected outcome of a vote. They are in outcomes/ and not in evaluation.json."""

    def __post_init__(self) -> None:
        for summary in (*self.sets.values(), self.overall):
            if [row.method for row in summary.rows if row.passes] != list(self.methods):
                raise ValueError("every set needs a row with figures for each method")
        if self.paper is not None and list(self.sets) != list(PAPER_SETS):
            raise ValueError(f"the paper's sets are {', '.join(PAPER_SETS)}")
        if self.against not in self.methods:
            raise ValueError(f"{self.against} is not among the methods")

    @staticmethod
    def read(path: Path) -> "Evaluation":
        """Read an evaluation.json."""
        try:
            return _ADAPTER.validate_python(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            reason = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
        raise MetaAgentXError(f"{path} cannot be read ({reason}): run metaagentx eval again") from None

    def to_json(self) -> dict[str, JSON]:
        """Return the content of evaluation.json."""
        content: dict[str, JSON] = _ADAPTER.dump_python(self, mode="json")
        return content

    def to_markdown(self) -> str:
        """Return the content of evaluation.md."""
        parts = ["# Evaluation", self.about]
        for table in self.tables():
            parts += [f"## {_cell(table.heading)}"] if table.heading else []
            parts += [f"{_cell(table.caption)}:"] if table.caption else []
            rule = ["---", *["---:"] * (len(table.head) - 1)]
            lines = (table.head, rule, *table.rows)
            parts.append("\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines))
        return "\n\n".join(parts) + "\n"

    def write(self, directory: Path) -> None:
        """Write evaluation.json and evaluation.md."""
        with friendly_io_errors(str(directory), "all outcomes are saved; fix this, then run the same command again"):
            atomic_write(directory / "evaluation.json", json_line(self.to_json()))
            atomic_write(directory / "evaluation.md", self.to_markdown().encode(errors="backslashreplace"))

    @property
    def about(self) -> str:
        """Return what was measured, in a few sentences."""
        samples = "1 sample" if self.samples == 1 else f"{self.samples} samples"
        measured = "" if self.checkpoint is None else f"Checkpoint of step {self.checkpoint}. "
        measured += f"Model {self.model}. " if self.model else ""
        tasks = f"task ({self.split})" if self.split else "task"
        return (
            f"{measured}{samples} of each {tasks}, the same tasks and seeds for all methods (seed {self.seed}). "
            "Solved: the share of samples that solve their task, with the 95 % bootstrap interval over tasks. Tokens "
            "(of both roles), calls and seconds are per sample."
        )

    def tables(self) -> Iterator[Table]:
        """Yield all tables: first over all sets, then the paper's figures, the designs, and set by set."""
        if len(self.sets) > 1:
            yield from _summary_tables("All sets", self.overall, {}, self.samples)
        if self.paper is not None:
            yield self._published_table(self.paper)
        yield from self._pattern_tables()
        for name, summary in self.sets.items():
            votes = {method: by_set[name] for method, by_set in self.votes.items() if name in by_set}
            yield from _summary_tables(name, summary, votes, self.samples)

    def _published_table(self, graded_by: str) -> Table:
        """Return the solve rates of all methods beside those that the paper reports."""
        counts = [summary.rows[0].tasks for summary in (*self.sets.values(), self.overall)]
        rows = published_rows()
        for number, method in enumerate(self.methods):
            figures = [summary.rows[number].average for summary in (*self.sets.values(), self.overall)]
            rows.append([f"{method} (measured here)", *(f"{100 * average:.2f}" for average in figures)])
        caption = (
            "Solved %. Published: the paper's figures for Qwen3-8B, not measured here; its code grades programs of "
            f"livecodebench and codecontests by public tests. Measured here: this evaluation, by {graded_by}"
        )
        return Table("Beside the paper", caption, ["", *self.sets, "mean"], [*rows, ["tasks", *map(str, counts)]])

    def _pattern_tables(self) -> Iterator[Table]:
        """Yield the shares of workflow patterns by set, of each Designer once."""
        seen: list[dict[str, dict[str, float]]] = []
        for number, method in enumerate(self.methods):
            shares = {name: summary.rows[number].patterns for name, summary in self.sets.items()}
            patterns = list(self.overall.rows[number].patterns)
            if len(patterns) > 1 and shares not in seen:
                rows = [
                    [name, *(_percent(by_pattern.get(pattern, 0.0)) for pattern in patterns)]
                    for name, by_pattern in shares.items()
                ]
                yield Table("" if seen else "Designs by set", f"{method}, % of designs", ["set", *patterns], rows)
                seen.append(shares)


_ADAPTER = TypeAdapter(Evaluation)


def _summary_tables(title: str, summary: Summary, votes: Mapping[str, int], samples: int) -> Iterator[Table]:
    k = max(summary.rows[0].passes)
    head = ["method", f"solved % (avg@{samples})", *([f"pass@{k} %"] if k > 1 else []), "tokens", "calls", "seconds"]
    rows = []
    for row in summary.rows:
        name = f"{row.method}, {votes[row.method]} votes" if row.method in votes else row.method
        passed = [_percent(row.passes[k]) if k in row.passes else ""] if k > 1 else []
        costs = [f"{row.tokens:.0f}", f"{row.calls:.1f}", f"{row.seconds:.2f}"]
        rows.append([name, _with_interval(row), *passed, *costs, _percent(row.faults), str(row.infra)])
    yield Table(f"{title}: {summary.rows[0].tasks} tasks", "", [*head, "faults %", "left out"], rows)
    if summary.paired:
        head = ["method", "difference %", "better on", "worse on", "equal on"]
        caption = f"Against {summary.paired[0].against}, task by task"
        yield Table("", caption, head, [comparison_cells(pair) for pair in summary.paired])
    if summary.grid is not None:
        rows = [[designs, *map(_with_interval, cells.values())] for designs, cells in summary.grid.items()]
        yield Table("", "What each role has learned, solved %", ["", *summary.grid["old designs"]], rows)


def comparison_cells(pair: Comparison) -> list[str]:
    """Return a row of the table that compares methods task by task."""
    difference = f"{100 * pair.difference:+z.1f} ({100 * pair.low:+z.1f} to {100 * pair.high:+z.1f})"
    return [pair.method, difference, str(pair.wins), str(pair.losses), str(pair.ties)]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _with_interval(row: MethodFigures | Estimate) -> str:
    return f"{100 * row.average:.1f} ({100 * row.low:.1f} to {100 * row.high:.1f})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
