"""The index of a run's trees: where each line of each file begins, and the small figures for lists, filters and search.

It is a SQLite file in the user's cache directory, named after the run's real path, or in memory where that cannot be
written. It is never the truth: every file is compared with its identity, size and time before its offsets are used, and
indexed again if they differ. A line that is not a rollout is in the index with what is wrong with it.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import MetaAgentXError
from ..runs.records import parse_line
from ..runs.trees import rollout_from_json
from ..types import Design, Execution, Rollout
from .metrics_file import open_regular

_VERSION = 1
_QUESTION_CHARACTERS = 200
_LARGEST = (1 << 63) - 1
"""The largest integer of SQLite."""
_STEP_DIGITS = 9
_LONGEST_LINE = 1 << 29
"""A longer line is not parsed."""
_SCHEMA = """
CREATE TABLE files(step INTEGER PRIMARY KEY, inode INTEGER, size INTEGER, changed INTEGER);
CREATE TABLE trees(step INTEGER, task INTEGER, start INTEGER, length INTEGER, problem TEXT, id TEXT, source TEXT,
  kind TEXT, question TEXT, solved REAL, reward REAL, PRIMARY KEY(step, task)) WITHOUT ROWID;
CREATE INDEX trees_by_id ON trees(id);
CREATE TABLE designs(step INTEGER, task INTEGER, design INTEGER, reward REAL, advantage REAL, pattern TEXT, fault TEXT,
  script TEXT, tokens INTEGER, PRIMARY KEY(step, task, design)) WITHOUT ROWID;
CREATE TABLE executions(step INTEGER, task INTEGER, design INTEGER, execution INTEGER, reward REAL, solved INTEGER,
  fault TEXT, calls INTEGER, tokens INTEGER, seconds REAL, agents TEXT,
  PRIMARY KEY(step, task, design, execution)) WITHOUT ROWID;
"""
Identity: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change of a file."""
Row: TypeAlias = tuple[Any, ...]


@dataclass(slots=True)
class _Rows:
    """What the index keeps about the file of a step."""

    trees: list[Row]
    designs: list[Row]
    executions: list[Row]


class TreeIndex:
    """The index of one run. It may be used from several threads."""

    def __init__(self, run: Path, cache: Path | None) -> None:
        self._rollouts = run / "rollouts"
        self._lock = threading.RLock()
        self._path = None if cache is None else cache / f"{_name(run)}.sqlite"
        self._connection = _connect(self._path)
        self.stopped = False

    def close(self) -> None:
        """Close the file."""
        self.stopped = True
        with self._lock:
            self._connection.close()

    @property
    def megabytes(self) -> float:
        """How large the index is."""
        ((pages,),) = self.query("PRAGMA page_count")
        ((size,),) = self.query("PRAGMA page_size")
        return float(pages * size / 1e6)

    def files(self) -> dict[int, Identity]:
        """Return the steps that have trees on disk now, with the identity of each file."""
        found: dict[int, Identity] = {}
        with suppress(OSError), os.scandir(self._rollouts) as entries:
            for entry in entries:
                step = _step_of(entry.name)
                if step is not None and entry.is_file():
                    with suppress(OSError):
                        found[step] = _identity(entry.stat())
        return dict(sorted(found.items()))

    def outdated(self, files: dict[int, Identity] | None = None) -> list[int]:
        """Return the steps that are not indexed as they are now, the newest first; forget those that are gone."""
        files = self.files() if files is None else files
        known = {step: identity for step, *identity in self.query("SELECT step, inode, size, changed FROM files")}
        gone = [step for step in known if step not in files]
        if gone:
            with self._transaction() as connection:
                for step in gone:
                    _forget(connection, step)
        return [step for step in reversed(files) if known.get(step) != [*files[step]]]

    def ensure(self, step: int) -> Path:
        """Index the file of a step if it is not indexed as it is now, and return its path."""
        path = self._path_of(step)
        try:
            identity = _identity(path.stat())
        except OSError:
            raise MetaAgentXError(f"{path} does not exist: no rollouts of step {step} were written") from None
        known = self.query("SELECT inode, size, changed FROM files WHERE step = ?", step)
        if known != [identity]:
            try:
                with open_regular(path) as file:
                    identity = _identity(os.fstat(file.fileno()))
                    rows = _read_rows(step, file)
            except OSError as error:
                raise MetaAgentXError(f"{path} cannot be read ({error.strerror})") from None
            self._store(step, identity, rows)
        return path

    def line(self, step: int, task: int) -> bytes:
        """Return the line of a tree, read by its offset."""
        path = self.ensure(step)
        found = self.query("SELECT start, length FROM trees WHERE step = ? AND task = ?", step, task)
        if not found:
            raise MetaAgentXError(f"step {step} has no task {task}")
        ((start, length),) = found
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise MetaAgentXError(f"{path} cannot be read ({error.strerror})") from None

    def query(self, statement: str, *values: object) -> list[Row]:
        """Return the rows of a statement."""
        known = [_clean(value) if isinstance(value, str) else value for value in values]
        with self._lock:
            return self._connection.execute(statement, known).fetchall()

    def _path_of(self, step: int) -> Path:
        unpadded = self._rollouts / f"{step}.jsonl"
        return unpadded if unpadded.is_file() else self._rollouts / f"{step:06d}.jsonl"

    def _store(self, step: int, identity: Identity, rows: _Rows) -> None:
        with self._transaction() as connection:
            _forget(connection, step)
            connection.executemany(f"INSERT INTO trees VALUES ({_marks(11)})", rows.trees)
            connection.executemany(f"INSERT INTO designs VALUES ({_marks(9)})", rows.designs)
            connection.executemany(f"INSERT INTO executions VALUES ({_marks(11)})", rows.executions)
            connection.execute(f"INSERT INTO files VALUES ({_marks(4)})", (step, *identity))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def cache_directory() -> Path | None:
    """Return the directory for indexes, created; None where it cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  it may have no home
    directory = Path(home) / "metaagentx" / "viewer"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds questions of the runs
    except OSError:
        return None
    return directory if os.access(directory, os.W_OK | os.X_OK) else None


def read_tree(line: bytes) -> Rollout:
    """Return the tree of a line."""
    if not line.endswith(b"\n"):
        raise MetaAgentXError("the line was cut off while it was written")
    if len(line) > _LONGEST_LINE:
        raise MetaAgentXError(f"the line has {len(line) >> 20} MiB, which is too long to show")
    value = parse_line(line)
    if value is None:
        raise MetaAgentXError("not a JSON object, so the file is damaged")
    return rollout_from_json(value)


def script_name(design: Design) -> str:
    """Return a short digest of a script, which equal scripts share; empty for no script."""
    if design.script is None:
        return ""
    return hashlib.sha256(design.script.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _name(run: Path) -> str:
    return hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:24]


def _step_of(name: str) -> int | None:
    """Return the step of a file of rollouts, if it is one that can be asked for."""
    stem = name.removesuffix(".jsonl")
    if not (stem.isascii() and stem.isdecimal() and len(stem) <= _STEP_DIGITS):
        return None
    return int(stem) if name in (f"{int(stem)}.jsonl", f"{int(stem):06d}.jsonl") else None


def _identity(status: os.stat_result) -> Identity:
    return status.st_ino & _LARGEST, status.st_size, status.st_mtime_ns


def _connect(path: Path | None) -> sqlite3.Connection:
    """Open an index. One that is damaged or of another version is made again, or kept in memory if that fails, too."""
    if path is not None:
        for _ in range(2):
            try:
                return _open(str(path))
            except sqlite3.Error:
                for leftover in (path, path.with_name(f"{path.name}-journal")):
                    with suppress(OSError):
                        leftover.unlink()
    return _open(":memory:")


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        # The journal is a file, so that a viewer that is killed damages nothing. After a power cut the check fails, and
        # the index is made again. And a viewer of hundreds of runs has one open file for each.
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = OFF")
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        if version != _VERSION:
            if version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise sqlite3.DatabaseError("an index of another version")
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("a damaged index")
        connection.execute("SELECT count(*) FROM files").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _forget(connection: sqlite3.Connection, step: int) -> None:
    for table in ("files", "trees", "designs", "executions"):
        connection.execute(f"DELETE FROM {table} WHERE step = ?", (step,))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _read_rows(step: int, file: Iterable[bytes]) -> _Rows:
    rows, start = _Rows([], [], []), 0
    for task, line in enumerate(file):
        try:
            _add_tree(rows, (step, task), (start, len(line)), read_tree(line))
        except MetaAgentXError as error:
            rows.trees.append((step, task, start, len(line), str(error), *[None] * 6))
        start += len(line)
    return rows


def _add_tree(rows: _Rows, key: tuple[int, int], place: tuple[int, int], tree: Rollout) -> None:
    executions = [execution for design in tree.designs for execution in design.executions]
    scored = [execution.reward for execution in executions if execution.reward is not None]
    solved = sum(reward.solved for reward in scored) / len(scored) if scored else None
    rewards = [design.reward for design in tree.designs if design.reward is not None]
    reward = sum(rewards) / len(rewards) if rewards else None
    task = tree.task
    texts = map(
        _clean, (task.id, task.source, task.kind, " ".join(task.question[:2000].split())[:_QUESTION_CHARACTERS])
    )
    rows.trees.append((*key, *place, None, *texts, solved, reward))
    for number, design in enumerate(tree.designs):
        rows.designs.append((*key, number, *_design_row(design)))
        for index, execution in enumerate(design.executions):
            rows.executions.append((*key, number, index, *_execution_row(execution)))


def _design_row(design: Design) -> Row:
    fault = design.fault.kind if design.fault else ""
    pattern, call = _clean(design.pattern), design.call
    return design.reward, call.advantage, pattern, _clean(fault), script_name(design), _fitting(call.tokens)


def _execution_row(execution: Execution) -> Row:
    reward, calls = execution.reward, execution.calls
    agents = "\n".join(dict.fromkeys(call.agent[:100] for call in calls[:200]))
    return (
        reward.total if reward else None,
        reward.solved if reward else None,
        _clean(execution.fault.kind) if execution.fault else "",
        len(calls),
        _fitting(sum(call.tokens for call in calls)),
        execution.seconds,
        _clean(agents),
    )


def _clean(text: str) -> str:
    """Return a text that SQLite can hold: without halves of surrogate pairs and the zero character."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _fitting(value: int) -> int:
    """Return the nearest integer that SQLite can hold."""
    return max(-_LARGEST, min(value, _LARGEST))
