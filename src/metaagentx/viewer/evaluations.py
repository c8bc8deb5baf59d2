"""The evaluations of a run: which checkpoint, which tasks, how many samples, and the tables."""

from pathlib import Path
from typing import Any

from ..errors import MetaAgentXError
from ..evaluation import Evaluation
from ..runs import evaluation_directories
from ..types import JSON


def evaluations(run: Path, best: int | None) -> list[dict[str, Any]]:
    """Return all evaluations of a run: first that of the best checkpoint, else of the latest, the newest first."""
    entries = [_read(directory, run) for directory in evaluation_directories(run)]

    def order(entry: dict[str, Any]) -> tuple[bool, float, float]:
        step, written = entry["step"], entry["written"]
        known = float(step) if isinstance(step, int) else -1.0
        return step is not None and step == best, known, float(written) if isinstance(written, float) else 0.0

    return sorted(entries, key=order, reverse=True)


def _read(directory: Path, run: Path) -> dict[str, Any]:
    path = directory / "evaluation.json"
    # Earlier versions recorded the step in the name of the directory only.
    named = directory != run and directory.name.isascii() and directory.name.isdecimal()
    step = int(directory.name) if named else None
    entry: dict[str, Any] = {
        "location": "evaluation.json" if directory == run else f"evaluation/{directory.name}",
        "written": path.stat().st_mtime if path.exists() else 0.0,
        "step": step,
    }
    if path.exists() and not path.is_file():  # a pipe would be waited for
        return {**entry, "problem": f"{path} is not a regular file"}
    try:
        evaluation = Evaluation.read(path)
    except MetaAgentXError as error:
        return {**entry, "problem": str(error)}
    rows = {row.method: row for row in evaluation.overall.rows}
    kind = f"{evaluation.split} " if evaluation.split else ""
    return {
        **entry,
        "step": step if evaluation.checkpoint is None else evaluation.checkpoint,
        "tasks": f"{evaluation.overall.rows[0].tasks} {kind}tasks of {', '.join(evaluation.sets)}",
        "samples": "1 sample" if evaluation.samples == 1 else f"{evaluation.samples} samples",
        "method": evaluation.against,
        "solved": rows[evaluation.against].average,
        "about": evaluation.about,
        "tables": [
            {
                "heading": table.heading,
                "caption": table.caption,
                "head": [*table.head],
                "rows": [[*row] for row in table.rows],
            }
            for table in evaluation.tables()
        ],
        "grid": _grid(evaluation),
    }


def _grid(evaluation: Evaluation) -> JSON:
    """Return the four combinations of old and new roles, where they were measured."""
    if evaluation.overall.grid is None:
        return None
    return {
        designs: {executor: [cell.average, cell.low, cell.high] for executor, cell in cells.items()}
        for designs, cells in evaluation.overall.grid.items()
    }
