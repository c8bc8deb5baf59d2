"""The small files of a run: one JSON object, or one a line, with the number of the format."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import MetaAgentXError
from ..types import JSON

FORMAT = 1


class Best(NamedTuple):
    """The step whose checkpoint did best on held-out tasks."""

    step: int
    score: float


@dataclass(frozen=True, slots=True)
class State:
    """What a checkpoint says of itself."""

    best: Best | None
    extra: JSON


def json_line(value: JSON, *, sort_keys: bool = False) -> bytes:
    """One line of a file; the same value gives the same bytes."""
    try:
        return (json.dumps(value, ensure_ascii=False, sort_keys=sort_keys) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot hold
        return (json.dumps(value, sort_keys=sort_keys) + "\n").encode()


def read_lines(path: Path, cure: Callable[[int], str] = lambda number: "") -> Iterator[dict[str, JSON]]:
    """The objects of a file. A last line without its end was cut off while it was written and is left out.

    `cure` says what to do about a damaged line, by its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise MetaAgentXError(
                    f"{path}, line {number}: this is no JSON object, so the file is damaged{cure(number)}"
                )
            yield value


def empty_metrics(step: int | str) -> str:
    """A line that stands for a step whose metrics are lost, as a person may write it into metrics.jsonl."""
    return f'{{"format": {FORMAT}, "step": {step}}}'


def finite_fields(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """JSON has no sign for infinity and for what is no number: they stand as text."""
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


def best_line(best: Best) -> bytes:
    """The file `best`."""
    return json_line({"format": FORMAT, "step": best.step, "score": best.score})


def state_line(step: int, best: Best | None, extra: JSON) -> bytes:
    """The file state.json of a checkpoint."""
    marked: JSON = None if best is None else {"step": best.step, "score": best.score}
    return json_line({"format": FORMAT, "step": step, "best": marked, "extra": extra}, sort_keys=True)


def read_state(checkpoint: Path) -> State:
    """What state.json of a checkpoint says."""
    path = checkpoint / "state.json"
    state = read_object(path)
    best = state.get("best")
    return State(_best(best, path) if isinstance(best, dict) else None, state.get("extra"))


def read_best(path: Path) -> Best:
    """What the file `best` says."""
    return _best(read_object(path), path)


def read_object(path: Path) -> dict[str, JSON]:
    """The object of a file, if it has our format."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or "format" not in value:
        raise MetaAgentXError(f"{path} is damaged or not ours: it is no JSON object with a format")
    if value["format"] != FORMAT:
        raise MetaAgentXError(f"{path} has format {value['format']}, and this version reads {FORMAT}")
    return value


def _best(data: dict[str, JSON], path: Path) -> Best:
    step, score = data.get("step"), data.get("score")
    if not isinstance(step, int) or not isinstance(score, (int, float)):
        raise MetaAgentXError(f"{path} is damaged: it names no step with a score")
    return Best(step, float(score))
