"""Trees of answered questions on disk, the newest ones only, as a run directory that `metaagentx view` opens."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import atomic
from ..errors import MetaAgentXError
from ..runs import Run, records
from ..runs.trees import rollout_to_json
from ..types import Rollout

RECIPE = "serve"
"""What run.json of such a directory has as its recipe: a run with training is never written to."""


class TreeStore:
    """Writes trees, one file each, and removes the oldest beyond the limits."""

    def __init__(self, directory: Path, most_trees: int, most_bytes: int) -> None:
        self._directory = directory / "rollouts"
        self._most_trees, self._most_bytes = most_trees, most_bytes
        numbers = sorted(int(path.stem) for path in self._directory.glob("*.jsonl") if path.stem.isdecimal())
        self._files = deque((number, self._path(number).stat().st_size) for number in numbers)
        self._next = numbers[-1] + 1 if numbers else 0
        self._bytes = sum(size for _, size in self._files)
        self._lock = asyncio.Lock()

    async def save(self, rollout: Rollout) -> int:
        """Write a tree and return its number."""
        async with self._lock:
            number, self._next = self._next, self._next + 1
            # A request that is canceled leaves the write to its thread; the lock keeps the next one from overtaking it.
            await asyncio.shield(asyncio.to_thread(self._write, number, rollout))
            return number

    def _write(self, number: int, rollout: Rollout) -> None:
        data = records.json_line(rollout_to_json(rollout))
        atomic.atomic_write(self._path(number), data)
        self._files.append((number, len(data)))
        self._bytes += len(data)
        while len(self._files) > self._most_trees or (self._bytes > self._most_bytes and len(self._files) > 1):
            oldest, size = self._files.popleft()
            self._path(oldest).unlink(missing_ok=True)
            self._bytes -= size

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}.jsonl"


@contextmanager
def open_store(directory: Path | None, most_trees: int, most_bytes: int) -> Iterator[TreeStore | None]:
    """Yield the store of a directory, which no other process can use meanwhile; None: trees are not saved."""
    if directory is None:
        yield None
        return
    if not (directory / "run.json").exists():
        Run.create(directory, "", RECIPE)
    elif Run.open(directory).recipe != RECIPE:
        raise MetaAgentXError(f"{directory} is a run that `serve` did not write: choose another directory for --save")
    with atomic.exclusive_lock(directory):
        atomic.remove_leftovers(directory / "rollouts")
        yield TreeStore(directory, most_trees, most_bytes)
