"""What an evaluation found, as JSON for programs and as Markdown for people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from ..runs.files import explained, write_whole
from ..runs.records import json_line
from ..types import JSON
from .figures import Comparison, Row, compare, summarise
from .methods import GRID
from .outcomes import Outcome

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one set, or of all."""

    rows: tuple[Row, ...]
    paired: tuple[Comparison, ...]

    @property
    def grid(self) -> dict[tuple[str, str], Row] | None:
        """By whose designs and whose executor, where all four were measured."""
        rows = {row.method: row for row in self.rows}
        return {place: rows[name] for place, name in GRID.items()} if set(GRID.values()) <= set(rows) else None


@dataclass(frozen=True)
class Evaluation:
    """Methods by sets of tasks."""

    samples: int
    seed: int
    checkpoint: int | None
    """The step of the checkpoint that was measured, where it is one of a run."""
    split: str
    """Of the tasks, such as `test`, or `held-out`; empty where it is not known."""
    against: str
    """The method that all others are compared with."""
    methods: tuple[str, ...]
    sets: tuple[str, ...]
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
    """By method and set; a vote's outcome is the elected one's."""
    votes: Mapping[str, Mapping[str, int]]
    """How many answers a method puts to the vote, by method and set."""

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """By set."""
        return {name: self._summary([name]) for name in self.sets}

    @cached_property
    def overall(self) -> Summary:
        """Over all sets: the mean over sets, whatever their sizes."""
        return self._summary(self.sets) if len(self.sets) > 1 else self.summaries[self.sets[0]]

    def _summary(self, sets: Sequence[str]) -> Summary:
        rows = [summarise(method, [self.outcomes[method, name] for name in sets]) for method in self.methods]
        paired = [
            compare(
                (method, self.against),
                [(self.outcomes[method, name], self.outcomes[self.against, name]) for name in sets],
            )
            for method in self.methods
            if method != self.against
        ]
        return Summary(tuple(rows), tuple(paired))

    def to_json(self) -> dict[str, JSON]:
        """docs/evaluation.md describes it."""
        return {
            "format": FORMAT,
            "samples": self.samples,
            "seed": self.seed,
            "checkpoint": self.checkpoint,
            "split": self.split,
            "against": self.against,
            "methods": list(self.methods),
            "votes": {method: dict(by_set) for method, by_set in self.votes.items()},
            "sets": {name: _summary_json(summary) for name, summary in self.summaries.items()},
            "overall": _summary_json(self.overall),
        }

    def to_markdown(self) -> str:
        """Tables, all sets first."""
        parts = ["# Evaluation", _about(self)]
        if len(self.sets) > 1:
            parts += _summary_markdown("All sets", self.overall, {}, self.samples)
        if patterns := list(_patterns_markdown(self)):
            parts += ["## Designs by set", *patterns]
        for name, summary in self.summaries.items():
            votes = {method: by_set[name] for method, by_set in self.votes.items()}
            parts += _summary_markdown(name, summary, votes, self.samples)
        return "\n\n".join(parts) + "\n"

    def write(self, directory: Path) -> None:
        """evaluation.json and evaluation.md."""
        with explained(str(directory), "the outcomes are kept; when that is mended, the same command goes on"):
            write_whole(directory / "evaluation.json", json_line(self.to_json()))
            write_whole(directory / "evaluation.md", self.to_markdown().encode(errors="backslashreplace"))


def _summary_json(summary: Summary) -> JSON:
    grid: JSON = None
    if summary.grid is not None:
        grid = {
            f"{designs} designs": {
                f"{executor} executor": {"average": cell.average, "low": cell.low, "high": cell.high}
                for (whose, executor), cell in summary.grid.items()
                if whose == designs
            }
            for designs in ("old", "new")
        }
    return {
        "rows": [_plain(asdict(row)) for row in summary.rows],
        "grid": grid,
        "paired": [asdict(pair) for pair in summary.paired],
    }


def _plain(fields: dict[str, JSON]) -> dict[str, JSON]:
    """JSON has texts as keys."""
    passes = fields["passes"]
    assert isinstance(passes, dict)
    return {**fields, "passes": {str(k): value for k, value in passes.items()}}


def _about(found: Evaluation) -> str:
    samples = "1 sample" if found.samples == 1 else f"{found.samples} samples"
    checkpoint = "" if found.checkpoint is None else f"The checkpoint of step {found.checkpoint}. "
    tasks = f"task ({found.split})" if found.split else "task"
    return (
        f"{checkpoint}{samples} of each {tasks}, the same tasks and seeds for all methods (seed {found.seed}). Solved: "
        "the share of samples that solve their task, with the 95 % bootstrap interval over tasks. Tokens (of both "
        "roles), calls and seconds are for one sample."
    )


def _summary_markdown(title: str, summary: Summary, votes: Mapping[str, int], samples: int) -> Iterator[str]:
    yield f"## {_cell(title)}: {summary.rows[0].tasks} tasks"
    k = max(summary.rows[0].passes)
    head = ["method", f"solved % (avg@{samples})", *([f"pass@{k} %"] if k > 1 else []), "tokens", "calls", "seconds"]
    lines = []
    for row in summary.rows:
        name = f"{row.method}, {votes[row.method]} votes" if row.method in votes else row.method
        passed = [_percent(row.passes[k]) if k in row.passes else ""] if k > 1 else []
        counts = [f"{row.tokens:.0f}", f"{row.calls:.1f}", f"{row.seconds:.2f}"]
        faults = [_percent(row.faults), str(row.infra)]
        lines.append([name, _with_interval(row.average, row.low, row.high), *passed, *counts, *faults])
    yield _table([*head, "faults %", "left out"], lines)
    if summary.paired:
        against = summary.paired[0].against
        yield f"Against {_cell(against)}, task by task:"
        head = ["method", "difference %", "better on", "worse on", "equal on"]
        yield _table(head, map(comparison_cells, summary.paired))
    if summary.grid is not None:
        yield "What each role has learnt, solved %:"
        grid = summary.grid
        cells = {place: _with_interval(row.average, row.low, row.high) for place, row in grid.items()}
        yield _table(
            ["", "old executor", "new executor"],
            [[f"{who} designs", cells[who, "old"], cells[who, "new"]] for who in ("old", "new")],
        )


def comparison_cells(pair: Comparison) -> list[str]:
    """A row of the table that compares methods task by task."""
    difference = f"{100 * pair.difference:+z.1f} ({100 * pair.low:+z.1f} to {100 * pair.high:+z.1f})"
    return [pair.method, difference, str(pair.wins), str(pair.losses), str(pair.ties)]


def _patterns_markdown(found: Evaluation) -> Iterator[str]:
    """Of the methods whose designs differ, those of one Designer once."""
    seen: list[dict[str, dict[str, float]]] = []
    for place, method in enumerate(found.methods):
        shares = {name: summary.rows[place].patterns for name, summary in found.summaries.items()}
        patterns = list(found.overall.rows[place].patterns)
        if len(patterns) > 1 and shares not in seen:
            seen.append(shares)
            yield f"{_cell(method)}, % of designs:"
            rows = [[name, *(_percent(own.get(pattern, 0.0)) for pattern in patterns)] for name, own in shares.items()]
            yield _table(["set", *patterns], rows)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in (head, rule, *rows))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
