"""Outcomes of samples, and the files that hold them: one file for each method and set, one outcome a line."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, NonNegativeInt

from ..atomic import atomic_write, friendly_io_errors
from ..errors import MetaAgentXError
from ..runs.records import json_line, read_lines
from ..runs.serialize import Serializer
from ..runs.trees import load_answer
from ..types import JSON, FinalAnswer

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """One sample of a task."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    task: str
    sample: NonNegativeInt
    vote: NonNegativeInt
    """Which of the answers that are put to the vote; 0 where nothing is."""
    solved: bool
    tokens: NonNegativeInt
    """Written by both roles."""
    calls: NonNegativeInt
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    fault: str = ""
    """Its kind."""
    pattern: str = ""
    answer: FinalAnswer | None = None
    script: str | None = None
    """A digest of the design's script, empty if the design cannot run; None in files of earlier versions."""

    @property
    def judged(self) -> bool:
        """Return whether the sample counts: one with an infrastructure fault says nothing about the method."""
        return self.fault != "infra"


_SERIALIZER = Serializer(Outcome)


class OutcomeFile:
    """The file with the outcomes of one method on one set of tasks.

    Samples with an infrastructure fault are not written, so the next evaluation in this directory repeats them.
    """

    def __init__(self, directory: Path, header: Mapping[str, JSON]) -> None:
        header = {"format": FORMAT, **header}
        self.outcomes: dict[tuple[str, int, int], Outcome] = {}
        self._path = directory / f"{_slug(str(header['method']))}.{_slug(str(header['set']))}.jsonl"
        if self._path.exists():
            self._read(header)
        else:
            with self._friendly_errors():
                atomic_write(self._path, json_line(header))

    def add(self, outcome: Outcome) -> None:
        """Write an outcome. It is not buffered: a killed process loses none."""
        self.outcomes[outcome.task, outcome.sample, outcome.vote] = outcome
        if not outcome.judged:
            return
        with self._friendly_errors(), self._path.open("ab", buffering=0) as file:
            file.write(json_line(_SERIALIZER.dump(outcome)))

    def _read(self, header: Mapping[str, JSON]) -> None:
        whole = self._path.read_bytes().rfind(b"\n") + 1
        os.truncate(self._path, whole)  # a line that was cut off must not swallow the next one
        lines = read_lines(self._path)
        written = next(lines, {})
        asked, saved = _flatten(header), _flatten(written)
        other = [name for name in {**asked, **saved} if asked.get(name) != saved.get(name)]
        if other:
            raise MetaAgentXError(
                f"{self._path} has results with another {other[0]}: choose another directory with --out, or remove "
                "that file"
            )
        for number, line in enumerate(lines, start=2):
            try:
                outcome = _SERIALIZER.load({**line, "answer": load_answer(line.get("answer"))})
            except MetaAgentXError as error:
                raise MetaAgentXError(
                    f"{self._path}, line {number}: invalid outcome ({error}), so the file is damaged: remove the line, "
                    "and the same command measures it again"
                ) from error
            self.outcomes[outcome.task, outcome.sample, outcome.vote] = outcome

    @contextmanager
    def _friendly_errors(self) -> Iterator[None]:
        with friendly_io_errors(
            str(self._path), "finished outcomes are saved; fix this, then run the same command again"
        ):
            yield


def _flatten(header: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the settings of a header, those of its sections by dotted names, such as `executor.temperature`."""
    settings: dict[str, JSON] = {}
    for name, value in header.items():
        section = {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
        settings |= section
    return settings


def _slug(name: str) -> str:
    """Return a file name that every file system accepts and that is different for different names."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', name)[:40].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
