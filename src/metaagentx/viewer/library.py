"""The runs below a directory, each with its files and its index, and the thread that fills the indexes."""

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import MetaAgentXError
from .index import TreeIndex
from .run_files import RunFiles

_DEPTH = 6
_MOST_DIRECTORIES = 20_000
_FRESH_SECONDS = 2.0
_GIVES_WAY = 50
"""How often the background waits for requests, a hundredth of a second each, before it reads the next file."""
_NO_RUNS_BELOW = {"checkpoints", "rollouts", "evaluation", "node_modules", "__pycache__"}


class Library:
    """Finds runs by their path below the root; nothing else can be opened."""

    def __init__(self, root: Path, cache: Path | None, background: bool = True) -> None:
        self.root = root
        self._background = background
        self._cache = cache
        self._runs: dict[str, RunFiles] = {}
        self._indexes: dict[str, TreeIndex] = {}
        self._looked = 0.0
        self._lock = threading.RLock()
        self._waiting: deque[str] = deque()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._requests = 0

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Hold up the background while a request is answered: both need the same interpreter."""
        with self._lock:
            self._requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._requests -= 1

    def runs(self) -> list[RunFiles]:
        """Return all runs, in the order of their names."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH_SECONDS:
                found = dict(find_runs(self.root))
                self._runs = {
                    name: self._runs[name] if name in self._runs else RunFiles(name, path)
                    for name, path in sorted(found.items())
                }
                self._looked = time.monotonic()
            return list(self._runs.values())

    def run(self, identifier: str) -> RunFiles:
        """Return a run by its identifier."""
        run = self._runs.get(identifier) or next((r for r in self.runs() if r.identifier == identifier), None)
        if run is None:
            raise MetaAgentXError(f"there is no run {identifier[:200]!r} below {self.root}")
        return run

    def index(self, identifier: str) -> TreeIndex:
        """Return the index of a run; what it lacks is added in the background."""
        run = self.run(identifier)
        with self._lock:
            if identifier not in self._indexes:
                self._indexes[identifier] = TreeIndex(run.directory, self._cache)
            return self._indexes[identifier]

    def fill(self, identifier: str) -> tuple[int, int]:
        """Return how many of a run's files are indexed, of how many; have the rest indexed in the background."""
        index = self.index(identifier)
        files = index.files()
        missing = len(index.outdated(files))
        if missing and self._background:
            with self._lock:
                if identifier not in self._waiting:
                    self._waiting.append(identifier)
                if self._thread is None and not self._stopped:
                    self._thread = threading.Thread(target=self._work, name="viewer-index", daemon=True)
                    self._thread.start()
            self._wanted.set()
        return len(files) - missing, len(files)

    def close(self) -> None:
        """Stop the thread and close the indexes."""
        self._stopped = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        with self._lock:
            for index in self._indexes.values():
                index.close()

    def _work(self) -> None:
        while not self._stopped:
            self._wanted.wait()
            self._wanted.clear()
            while self._waiting and not self._stopped:
                index = self._indexes[self._waiting[0]]
                for step in index.outdated():
                    if self._stopped:
                        return
                    # A file that was removed or is being replaced: whoever looks next sees what is there then. And
                    # an index that cannot be written must not end the thread, which also serves the other runs.
                    with suppress(MetaAgentXError, sqlite3.OperationalError):
                        index.ensure(step)
                    self._give_way()
                with self._lock:
                    self._waiting.popleft()

    def _give_way(self) -> None:
        time.sleep(0.001)
        for _ in range(_GIVES_WAY):
            if not self._requests or self._stopped:
                return
            time.sleep(0.01)


def find_runs(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield every run at or below a directory with its path from there; runs within a run are not looked for."""
    pending, seen, looked = deque([(root, 0)]), set[tuple[int, int]](), 0
    while pending and looked < _MOST_DIRECTORIES:
        directory, depth = pending.popleft()
        looked += 1
        try:
            status = directory.stat()
            if (status.st_dev, status.st_ino) in seen:  # a link to what was found already, or a loop
                continue
            seen.add((status.st_dev, status.st_ino))
            if (directory / "run.json").is_file():
                name = directory.relative_to(root).as_posix()
                yield name.encode("utf-8", "replace").decode(), directory
                continue
            if depth < _DEPTH:
                pending.extend((directory / name, depth + 1) for name in sorted(_below(directory)))
        except OSError:
            continue


def _below(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name not in _NO_RUNS_BELOW:
                with suppress(OSError):
                    if entry.is_dir():
                        yield entry.name
