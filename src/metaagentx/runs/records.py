"""The small files of a run: one JSON object, or one per line, with the number of the format."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import MetaAgentXError
from ..types import JSON
from .serialize import Serializer

FORMAT = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Best:
    """The step whose checkpoint scored best on held-out tasks; the file `best`."""

    step: int
    score: float


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The file state.json of a checkpoint."""

    step: int
    best: Best | None = None


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """The checkpoint that a run was forked from."""

    run: str
    step: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The file run.json."""

    created: str = ""
    recipe: str = ""
    """The name of the recipe; empty where it is not known."""
    forked_from: ForkOrigin | None = None
    directory: str = ""
    """Where the run was created; it may have been moved since."""


BEST, STATE, INFO = Serializer(Best), Serializer(CheckpointState), Serializer(RunInfo)


def json_line(value: Mapping[str, JSON], *, sort_keys: bool = False) -> bytes:
    """Return one line of a file; the same value gives the same bytes."""
    try:
        return (json.dumps(value, ensure_ascii=False, sort_keys=sort_keys) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot hold
        return (json.dumps(value, sort_keys=sort_keys) + "\n").encode()


def read_lines(path: Path, hint: Callable[[int], str] = lambda number: "") -> Iterator[dict[str, JSON]]:
    """Yield the objects of a file. A last line without a newline was cut off while it was written and is left out.

    `hint` returns what to do about a damaged line, by its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            value = parse_line(line)
            if value is None:
                raise MetaAgentXError(f"{path}, line {number}: not a JSON object, so the file is damaged{hint(number)}")
            yield value


def parse_line(line: bytes) -> dict[str, JSON] | None:
    """Return the object of a line; None for a damaged line, which a reader that needs no other line may leave out."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def empty_metrics(step: int | str) -> str:
    """Return the line that a person may write into metrics.jsonl for a step whose metrics are lost."""
    return f'{{"format": {FORMAT}, "step": {step}}}'


def finite_fields(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the fields with infinity and NaN, which JSON does not have, as text."""
    return {name: _finite(value) for name, value in fields.items()}


def _finite(value: JSON) -> JSON:
    match value:
        case float() if not math.isfinite(value):
            return repr(float(value))
        case list():
            return [_finite(item) for item in value]
        case dict():
            return finite_fields(value)
    return value


def record_line(serializer: Serializer[T], record: T) -> bytes:
    """Return the content of a file that holds one record."""
    return json_line({"format": FORMAT, **serializer.dump(record)}, sort_keys=True)


def read_record(path: Path, serializer: Serializer[T]) -> T:
    """Load a file that holds one record."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or "format" not in value:
        raise MetaAgentXError(f"{path} is damaged or not a file of a run: expected a JSON object with a format")
    if value["format"] != FORMAT:
        raise MetaAgentXError(f"{path} has format {value['format']}, and this version reads {FORMAT}")
    try:
        return serializer.load(value)
    except MetaAgentXError as error:
        raise MetaAgentXError(f"{path} is damaged: {error}") from error
