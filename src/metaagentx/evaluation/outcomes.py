"""What came of one sample, and the files that keep it: one for each method and set, one outcome a line."""

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..errors import MetaAgentXError
from ..runs.files import explained, write_whole
from ..runs.records import json_line, read_lines
from ..types import JSON

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sample of a task."""

    task: str
    sample: int
    vote: int
    """Which of the answers that are put to the vote; 0 where nothing is."""
    solved: bool
    tokens: int
    """Written by both roles."""
    calls: int
    seconds: float
    fault: str = ""
    """Its kind."""
    pattern: str = ""
    answer: str = ""

    @property
    def judged(self) -> bool:
        """Whether it says something of the method: what the machinery spoilt does not."""
        return self.fault != "infra"


class Ledger:
    """The outcomes of one method on one set of tasks. What the machinery spoilt is not written: the next time it is
    tried again."""

    def __init__(self, directory: Path, header: Mapping[str, JSON]) -> None:
        header = {"format": FORMAT, **header}
        self.outcomes: dict[tuple[str, int, int], Outcome] = {}
        self._path = directory / f"{_slug(str(header['method']))}.{_slug(str(header['set']))}.jsonl"
        if self._path.exists():
            self._read(header)
        else:
            with self._explained():
                write_whole(self._path, json_line(header))

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome. It is with the system at once, which a killed process does not undo."""
        self.outcomes[outcome.task, outcome.sample, outcome.vote] = outcome
        if not outcome.judged:
            return
        with self._explained(), self._path.open("ab", buffering=0) as file:
            file.write(json_line(asdict(outcome)))

    def _read(self, header: Mapping[str, JSON]) -> None:
        whole = self._path.read_bytes().rfind(b"\n") + 1
        os.truncate(self._path, whole)  # a line that was cut off must not swallow the next one
        lines = read_lines(self._path)
        written = next(lines, {})
        other = [name for name in {**header, **written} if header.get(name) != written.get(name)]
        if other:
            raise MetaAgentXError(
                f"{self._path} has results with another {other[0]}: choose another directory with --out, or remove "
                "that file"
            )
        for number, line in enumerate(lines, start=2):
            if not _is_outcome(line):
                raise MetaAgentXError(
                    f"{self._path}, line {number}: this is no outcome, so the file is damaged: remove the line, and "
                    "the same command measures it again"
                )
            outcome = Outcome(**line)  # type: ignore[arg-type]
            self.outcomes[outcome.task, outcome.sample, outcome.vote] = outcome

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with explained(str(self._path), "what is finished is kept; when that is mended, the same command goes on"):
            yield


def _is_outcome(line: Mapping[str, JSON]) -> bool:
    """Whether every field is there and is what it should be; a number is never a truth value."""
    kinds: Mapping[str, type] = {field.name: field.type for field in fields(Outcome)}  # type: ignore[misc]
    if set(line) != set(kinds):
        return False
    numbers = [line[name] for name, kind in kinds.items() if kind in (int, float)]
    fitting = all(type(line[name]) in ((int, float) if kind is float else (kind,)) for name, kind in kinds.items())
    return fitting and all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers)


def _slug(name: str) -> str:
    """A name that any file system takes, and no two names share."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', name)[:40].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
