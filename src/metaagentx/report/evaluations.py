"""The evaluations of a run as HTML: which checkpoint, which tasks, how many samples, and the tables."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..runs import Best, evaluation_directories
from ..types import JSON
from .charts import percent
from .svg import escape
from .tables import evaluation_tables, table


@dataclass(frozen=True, slots=True)
class Measured:
    """One evaluation, as far as its files tell."""

    place: str
    """Its directory within the run."""
    step: int | None
    """Of the checkpoint; None where it was not written down."""
    tasks: str
    samples: str
    solved: str
    """By the method that all others are compared with."""
    tables: str | None
    """As HTML; None when the files cannot be read."""
    written: float
    """When, by the clock of the file system."""

    def title(self, best: Best | None) -> str:
        """Which checkpoint was measured."""
        if self.step is None:
            return "Checkpoint not recorded"
        chosen = ", the best on held-out tasks" if best is not None and best.step == self.step else ""
        return f"Checkpoint of step {self.step}{chosen}"

    @property
    def about(self) -> str:
        """What it was measured with, and where the files are."""
        counts = ", ".join(filter(None, (self.tasks, self.samples and f"{self.samples} of each")))
        return f"{counts}. {self.place}" if counts else self.place


def evaluations(run: Path, best: Best | None) -> str:
    """All evaluations of a run: that of the best or else of the last checkpoint in full, the others folded up."""
    found = [_read(directory, run) for directory in evaluation_directories(run)]
    if not found:
        return "<p class='missing'>No evaluation was made after training.</p>"
    wanted = best.step if best is not None else None
    found.sort(key=lambda one: (one.step is not None and one.step == wanted, one.step or -1, one.written), reverse=True)
    parts = []
    if len(found) > 1:
        head = ["checkpoint", "tasks", "samples", "solved", "files"]
        rows = [
            ["?" if one.step is None else f"step {one.step}", one.tasks, one.samples, one.solved, one.place]
            for one in found
        ]
        parts.append(f"<p>{len(found)} evaluations were made.</p>{table(head, rows)}")
    first, *others = found
    parts.append(f"<h3>{escape(first.title(best))}</h3><p class='about'>{escape(first.about)}</p>{_tables(first)}")
    for one in others:
        title = f"<b>{escape(one.title(best))}</b>: {escape(one.about)}"
        parts.append(f"<details class='evaluation'><summary>{title}</summary>{_tables(one)}</details>")
    return "".join(parts)


def _tables(one: Measured) -> str:
    return one.tables or f"<p class='missing'>The files in {escape(one.place)} cannot be read.</p>"


def _read(directory: Path, run: Path) -> Measured:
    data = _fields(_load(directory / "evaluation.json"))
    overall, sets = _fields(data.get("overall")), _fields(data.get("sets"))
    rows = [_fields(row) for row in _items(overall.get("rows"))]
    against = next((row for row in rows if row.get("method") == data.get("against")), {})
    solved, samples = against.get("average"), data.get("samples")
    named = directory != run and directory.name.isascii() and directory.name.isdecimal()
    step = data.get("checkpoint", int(directory.name) if named else None)
    return Measured(
        place="evaluation.md" if directory == run else f"evaluation/{directory.name}",
        step=step if isinstance(step, int) else None,
        tasks=_tasks(rows[0].get("tasks") if rows else None, data.get("split"), list(sets)),
        samples="" if not isinstance(samples, int) else "1 sample" if samples == 1 else f"{samples} samples",
        solved=f"{against.get('method')} {percent(solved)}" if isinstance(solved, float | int) else "",
        tables=evaluation_tables(directory),
        written=max((path.stat().st_mtime for path in directory.glob("evaluation.*")), default=0.0),
    )


def _tasks(count: JSON, split: JSON, sets: list[str]) -> str:
    if not isinstance(count, int):
        return ", ".join(sets)
    kind = f"{split} " if isinstance(split, str) and split else ""
    return f"{count} {kind}tasks" + (f" of {', '.join(sets)}" if sets else "")


def _load(path: Path) -> JSON:
    try:
        data: JSON = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data


def _fields(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


def _items(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []
