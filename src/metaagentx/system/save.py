"""Save answered questions as a run directory without training, which the viewer opens: one step per question."""

import os
from pathlib import Path

from .. import atomic
from ..errors import MetaAgentXError
from ..runs import Run, records
from ..runs.trees import rollout_to_json
from .system import Result

RECIPE = "solve"


def check_save_directory(directory: Path) -> None:
    """Raise unless trees can be saved here: a new directory, or one that `solve` wrote."""
    if (directory / "run.json").exists():
        if Run.open(directory).recipe != RECIPE:
            raise MetaAgentXError(f"{directory} is a run with training: choose another directory for --save")
    elif directory.exists() and not (directory.is_dir() and next(directory.iterdir(), None) is None):
        raise MetaAgentXError(f"{directory} exists and has other content: choose another directory for --save")


def save_result(directory: Path, result: Result) -> None:
    """Append a result."""
    check_save_directory(directory)
    if not (directory / "run.json").exists():
        Run.create(directory, "", RECIPE)
    lock = atomic.acquire_lock(directory / "lock")
    if lock is None:
        raise MetaAgentXError(f"{directory} is in use by another process: choose another directory for --save")
    try:
        with atomic.friendly_io_errors(str(directory), "free some disk space and try again"):
            step = len(list((directory / "rollouts").glob("*.jsonl")))
            path = directory / "rollouts" / f"{step:06}.jsonl"
            atomic.atomic_write(path, records.json_line(rollout_to_json(result.rollout)))
            metrics = {"solve/calls": result.usage.calls, "solve/seconds": result.seconds}
            line = records.json_line({**metrics, "format": records.FORMAT, "step": step}, sort_keys=True)
            atomic.append(directory / "metrics.jsonl", line)
    finally:
        os.close(lock)
