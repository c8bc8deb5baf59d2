"""One run directory as the viewer sees it: its head, its log, and its state, read as they change.

Nothing here writes, and nothing waits for a lock: whether a run is being trained is read from the kernel's list of
locks.
"""

import json
import os
import threading
import tomllib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from ..config import Config, load_recipe
from ..errors import MetaAgentXError
from ..runs import Best, Run
from ..runs.records import INFO, RunInfo, read_record
from ..types import JSON
from .history import History
from .metrics_file import MetricsFile, columns, finite, open_regular
from .summary import page_title, settings, tiles, what_was_learned

T = TypeVar("T")
_LOG_BYTES = 1 << 17
_TREES_ONLY = ("solve", "serve")
"""Recipes of directories that hold saved trees and no training."""


class RunFiles:
    """The small files of a run, cached until they change."""

    def __init__(self, identifier: str, directory: Path) -> None:
        self.identifier = identifier
        self.directory = directory
        self.metrics = MetricsFile(directory / "metrics.jsonl")
        self._lock = threading.Lock()
        self._config: tuple[object, Config | None, dict[str, Any], str] = (None, None, {}, "")

    def summary(self) -> dict[str, Any]:
        """Return the line of the list of runs."""
        info, problems = self._info()
        history = self.history()
        config, values, _ = self.config()
        last = {name: self._recent(name) for name in ("solved", "reward/executor", "reward/designer")}
        held_out = history.series("evaluation/solved")
        return {
            "id": self.identifier,
            "name": self.name,
            "recipe": info.recipe,
            "kind": self.kind(info),
            "state": self.state(config, history),
            "steps": len(history.steps),
            "of": config.steps if config else None,
            "solved": last["solved"],
            "executor": last["reward/executor"],
            "designer": last["reward/designer"],
            "held_out": held_out[-1][1] if held_out else None,
            "seconds": sum(value for _, value in history.series("seconds/step")) or None,
            "created": _timestamp(info.created),
            "changed": self.changed(),
            "settings": values,
            "problem": next(iter([*problems, *self.metrics.problems]), None),
        }

    def head(self) -> dict[str, Any]:
        """Return what the page of a run says above its charts."""
        info, problems = self._info()
        history = self.history()
        config, values, problem = self.config()
        kind = self.kind(info)
        if problem and kind == "training":
            problems.append(f"The recipe cannot be read: {problem}")
        best = self._best(problems)
        run = Run(self.directory)
        title = page_title(run, config, history) if not problems else self.name
        training = kind == "training"
        return {
            "id": self.identifier,
            "name": self.name,
            "title": title,
            "kind": kind,
            "recipe": info.recipe,
            "created": _timestamp(info.created),
            "changed": self.changed(),
            "forked_from": [info.forked_from.run, info.forked_from.step] if info.forked_from else None,
            "state": self.state(config, history),
            "steps": len(history.steps),
            "of": config.steps if config else None,
            "learned": what_was_learned(history, best) if training else "",
            "settings": [[*pair] for pair in settings(config, history)] if training else [],
            "values": values,
            "tiles": [[*tile] for tile in tiles(history, best)],
            "best": {"step": best.step, "score": best.score} if best else None,
            "bands": [[band.first, band.last, list(band.roles)] for band in history.bands()],
            "generation": self.metrics.generation,
            "problems": [*problems, *self.metrics.problems[:20]],
        }

    def curves(self, start: int, generation: int) -> dict[str, Any]:
        """Return the metrics from a row on; all of them if the reader knows another generation of the file."""
        with self._lock:
            self.metrics.refresh()
            known = generation == self.metrics.generation and 0 <= start <= len(self.metrics.rows)
            start = start if known else 0
            rows = self.metrics.rows[start:]
        return {"generation": self.metrics.generation, "start": start, "columns": columns(rows), "rows": len(rows)}

    def history(self) -> History:
        """Return the metrics up to now."""
        with self._lock:
            self.metrics.refresh()
            return History(self.metrics.rows)

    def config(self) -> tuple[Config | None, dict[str, Any], str]:
        """Return the recipe, all its values by their dotted names, and what is wrong with it."""
        path = self.directory / "config.toml"
        identity = _identity(path)
        known, config, values, problem = self._config
        if known is None or known != identity:
            config, values, problem = None, {}, ""
            with suppress(OSError, ValueError, RecursionError):
                values = dict(_flatten(tomllib.loads(_read(path).decode())))
            try:
                _check_regular(path)
                config = load_recipe(path).written
            except MetaAgentXError as error:
                problem = str(error)
            self._config = (identity, config, values, problem)
        return config, values, problem

    def config_text(self) -> str:
        """Return config.toml."""
        try:
            return _read(self.directory / "config.toml").decode("utf-8", "replace")
        except OSError as error:
            return f"config.toml cannot be read ({error.strerror})"

    def log(self) -> dict[str, Any]:
        """Return the end of the log, and how many bytes come before it."""
        try:
            with open_regular(self.directory / "log.txt") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _LOG_BYTES))
                text = file.read(_LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            return {"text": "", "before": 0}
        return {"text": text, "before": max(0, size - _LOG_BYTES)}

    def state(self, config: Config | None, history: History) -> str:
        """Return whether the run is being trained, is done, was stopped, or has not begun."""
        if is_locked(self.directory / "lock"):
            return "running"
        if config is not None and len(history.steps) >= config.steps:
            return "finished"
        return "stopped" if history.steps else "empty"

    def kind(self, info: RunInfo) -> str:
        """Return `trees` for a directory of saved trees, else `training`."""
        return "trees" if info.recipe in _TREES_ONLY else "training"

    @property
    def name(self) -> str:
        """Return the name of the run for people."""
        return self.directory.absolute().name if self.identifier == "." else self.identifier

    def changed(self) -> float | None:
        """Return when the run last wrote something."""
        times = []
        for name in ("metrics.jsonl", "log.txt", "rollouts", "run.json"):
            with suppress(OSError):
                times.append((self.directory / name).stat().st_mtime)
        return max(times, default=None)

    def signature(self) -> tuple[object, ...]:
        """Return something that differs after each change that a page shows."""
        names = ("metrics.jsonl", "log.txt", "rollouts", "best", "evaluation", "config.toml")
        files = [_identity(self.directory / name) for name in names]
        return (*files, is_locked(self.directory / "lock"))

    def _info(self) -> tuple[RunInfo, list[str]]:
        try:
            return read_record(self.directory / "run.json", INFO), []
        except (MetaAgentXError, OSError) as error:
            return RunInfo(), [str(error)]

    def _best(self, problems: list[str]) -> Best | None:
        def read() -> Best | None:
            _check_regular(self.directory / "best")
            return Run(self.directory).best

        return _try(read, problems)

    def _recent(self, name: str) -> float | None:
        """Return the mean of a metric over the last tenth of the run, at most twenty steps."""
        with self._lock:
            rows = self.metrics.rows
            values = [finite(row.get(name)) for row in rows[-max(1, min(20, len(rows) // 10)) :]]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None


def is_locked(path: Path) -> bool:
    """Return whether a process holds this lock, without trying to take it: a trainer that starts must not find it held.

    The kernel lists the inode of each lock, and the file says which process took it.
    """
    try:
        inode = path.stat().st_ino
        holder = _read(path).decode().partition(" ")[0]
        lines = Path("/proc/locks").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    for line in lines:
        parts = line.split()
        if len(parts) > 5 and parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == str(inode):
            return holder in ("", parts[4]) or not Path(f"/proc/{parts[4]}").exists()
    return False


def _flatten(value: object, name: str = "") -> list[tuple[str, JSON]]:
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flatten(inner, f"{name}.{key}" if name else key)]
    return [(name, value if isinstance(value, str) else json.dumps(value, default=str))]


def _read(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _check_regular(path: Path) -> None:
    """Raise MetaAgentXError for a pipe or a device, which readers of files would wait for."""
    if path.exists() and not path.is_file():
        raise MetaAgentXError(f"{path} is not a regular file")


def _identity(path: Path) -> tuple[Any, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _timestamp(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _try(read: Callable[[], T], problems: list[str]) -> T | None:
    """Read a part of the run. If it is damaged, record the problem: the rest of the page does not need it."""
    try:
        return read()
    except (MetaAgentXError, OSError) as error:
        problems.append(str(error))
        return None
