"""metrics.jsonl, read as it grows. A damaged line costs that line; a file that was rewritten is read anew."""

import errno
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..runs.records import parse_line
from ..types import JSON

_TAIL = 4096
_LARGEST_STEP = 10**9


@dataclass(slots=True)
class MetricsFile:
    """The lines of a run's metrics that were read so far."""

    path: Path
    rows: list[dict[str, JSON]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    generation: int = 0
    """Counts how often the file was read anew: rows known from an earlier generation do not count any more."""
    _identity: tuple[int, int] = (0, 0)
    _read: int = 0
    _lines: int = 0
    _tail: bytes = b""

    def refresh(self) -> None:
        """Read what was added since the last time."""
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._identity or not self._continues(file.fileno(), status.st_size):
                    self._restart(identity)
                if status.st_size > self._read:
                    file.seek(self._read)
                    self._add(file.read(status.st_size - self._read))
        except OSError as error:
            self._restart((0, 0))
            self.problems = [f"{self.path.name} cannot be read ({error.strerror})"]

    def _continues(self, descriptor: int, size: int) -> bool:
        """Return whether what was read is still there: a run that resumes cuts the file and writes other lines."""
        return size >= self._read and os.pread(descriptor, len(self._tail), self._read - len(self._tail)) == self._tail

    def _restart(self, identity: tuple[int, int]) -> None:
        self.generation += 1
        self.rows, self.problems = [], []
        self._identity, self._read, self._lines, self._tail = identity, 0, 0, b""

    def _add(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]  # a line that is being written has no end yet
        for line in whole.splitlines(keepends=True):
            self._lines += 1
            value = parse_line(line)
            if value is None or type(step := value.get("step")) is not int or abs(step) > _LARGEST_STEP:
                self.problems.append(
                    f"{self.path.name}, line {self._lines}: damaged, so this step is not in the curves"
                )
            else:
                self.rows.append(value)
        self._read += len(whole)
        self._tail = (self._tail + whole)[-_TAIL:]


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; a pipe, which would wait for somebody to write, or a device is an error."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def columns(rows: list[dict[str, JSON]]) -> dict[str, JSON]:
    """Return rows as one list for each metric, with null where a step has no finite number."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if finite(value) is not None)
    names.pop("format", None)
    return {name: [_short(row, name) for row in rows] for name in names}


def finite(value: JSON) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None  # an integer of JSON can be larger than any floating-point number
    return float(value)


def _short(row: Mapping[str, JSON], name: str) -> JSON:
    value = finite(row.get(name))
    return None if value is None else int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")
