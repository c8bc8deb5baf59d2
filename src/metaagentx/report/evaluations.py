"""The evaluations of a run as HTML: which checkpoint, which tasks, how many samples, and the tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import MetaAgentXError
from ..evaluation import Evaluation
from ..runs import Best, evaluation_directories
from .svg import escape, percent
from .tables import html_table


@dataclass(frozen=True, slots=True)
class _Entry:
    """An evaluation of the run, with what the page says about it."""

    location: str
    """Where its files are within the run."""
    written: float
    """When evaluation.json was written."""
    step: int | None
    """The step of the checkpoint; None if it was not recorded."""
    tasks: str = ""
    samples: str = ""
    solved: str = ""
    """The solve rate of the method that all others are compared with."""
    tables: str = ""
    """As HTML, or what is wrong with the file."""

    def title(self, best: Best | None) -> str:
        """Return which checkpoint was measured."""
        if self.step is None:
            return "Checkpoint not recorded"
        is_best = best is not None and best.step == self.step
        return f"Checkpoint of step {self.step}{', the best on held-out tasks' if is_best else ''}"

    @property
    def about(self) -> str:
        """Return what was measured, and where the files are."""
        counts = f"{self.tasks}, {self.samples} of each. " if self.tasks else ""
        return f"{counts}{self.location}"


def evaluations(run: Path, best: Best | None) -> str:
    """Return all evaluations of a run: that of the best or else the latest checkpoint in full, the others folded."""
    entries = [_read(directory, run) for directory in evaluation_directories(run)]
    if not entries:
        return "<p class='missing'>No evaluation was made after training.</p>"
    best_step = best.step if best is not None else None
    entries.sort(key=lambda e: (e.step is not None and e.step == best_step, e.step or -1, e.written), reverse=True)
    first, *others = entries
    parts = []
    if others:
        head = ["checkpoint", "tasks", "samples", "solved", "files"]
        rows = [
            ["?" if e.step is None else f"step {e.step}", e.tasks, e.samples, e.solved, e.location] for e in entries
        ]
        parts.append(f"<p>{len(entries)} evaluations were made.</p>{html_table(head, rows, text_columns=len(head))}")
    parts.append(f"<h3>{escape(first.title(best))}</h3><p class='about'>{escape(first.about)}</p>{first.tables}")
    for entry in others:
        title = f"<b>{escape(entry.title(best))}</b>: {escape(entry.about)}"
        parts.append(f"<details class='evaluation'><summary>{title}</summary>{entry.tables}</details>")
    return "".join(parts)


def _read(directory: Path, run: Path) -> _Entry:
    path = directory / "evaluation.json"
    location = "evaluation.json" if directory == run else f"evaluation/{directory.name}"
    written = path.stat().st_mtime if path.exists() else 0.0
    # Earlier versions recorded the step in the name of the directory only.
    named = directory != run and directory.name.isascii() and directory.name.isdecimal()
    step = int(directory.name) if named else None
    try:
        evaluation = Evaluation.read(path)
    except MetaAgentXError as error:
        return _Entry(location, written, step, tables=f"<p class='missing'>{escape(str(error))}</p>")
    rows = {row.method: row for row in evaluation.overall.rows}
    kind = f"{evaluation.split} " if evaluation.split else ""
    return _Entry(
        location,
        written,
        step if evaluation.checkpoint is None else evaluation.checkpoint,
        tasks=f"{evaluation.overall.rows[0].tasks} {kind}tasks of {', '.join(evaluation.sets)}",
        samples="1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples",
        solved=f"{evaluation.against} {percent(rows[evaluation.against].average)}",
        tables="".join(_tables(evaluation)),
    )


def _tables(evaluation: Evaluation) -> Iterator[str]:
    yield f"<p>{escape(evaluation.about)}</p>"
    for table in evaluation.tables():
        if table.heading:
            yield f"<h4>{escape(table.heading)}</h4>"
        if table.caption:
            yield f"<p>{escape(table.caption)}:</p>"
        yield html_table(table.head, table.rows)
