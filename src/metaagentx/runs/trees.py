"""Rollouts as JSON, one per line: the whole tree without the tokens.

A rollout that was read back equals the one that was written, except that `Call.prompt` and `completion` are empty, and
that log-probabilities have two decimals; without `lengths`, which says what text they belong to, they are left out.
Anything else than a rollout is refused with the file, the line and the field. Unknown fields are ignored.
"""

from pathlib import Path
from typing import Any

from ..errors import MetaAgentXError
from ..types import JSON, FinalAnswer, Rollout
from .records import read_lines
from .serialize import Serializer

_TOKENS = {"prompt", "completion"}
_EXCLUDED = {
    "task": {"grading": {"file"}},  # where the task was read from: the run may be moved away from it
    "designs": {"__all__": {"call": _TOKENS, "executions": {"__all__": {"calls": {"__all__": _TOKENS}}}}},
}
_SERIALIZER = Serializer(Rollout, _EXCLUDED)


def read_rollouts(path: Path) -> list[Rollout]:
    """Load all rollouts of a file."""
    rollouts = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            rollouts.append(rollout_from_json(line))
        except MetaAgentXError as error:
            raise MetaAgentXError(f"{path}, line {number}: {error}") from error
    return rollouts


def rollout_to_json(rollout: Rollout) -> dict[str, JSON]:
    """Return the tree with its texts, rewards, advantages, faults, timings and log-probabilities."""
    data = _SERIALIZER.dump(rollout)
    for design in data["designs"]:
        for call in (design["call"], *(call for execution in design["executions"] for call in execution["calls"])):
            # Two decimals are what a page can show; all digits would be most of the file.
            call["logprobs"] = [round(value, 2) for value in call["logprobs"]] if call["lengths"] else []
    return data


def rollout_from_json(data: dict[str, JSON]) -> Rollout:
    """Build the tree again; a field that is missing or of the wrong type is an error that names it."""
    return _SERIALIZER.load(_upgrade(data))


def load_answer(data: JSON, call: JSON = None) -> JSON:
    """Return a saved answer as it is saved now; earlier versions saved its text alone, and an empty one for none."""
    if not isinstance(data, str):
        return data
    answer = FinalAnswer.parse(data)
    return {"kind": answer.kind, "value": answer.value, "text": data, "call": call}


def _upgrade(data: Any) -> Any:
    """Return a rollout in today's shape. Earlier versions wrote `licence`, and an answer as text with `answer_call`."""
    match data:
        case {"task": {"licence": terms, **task}, "designs": [*designs]}:
            return {"task": {**task, "license": terms}, "designs": [_upgrade_design(design) for design in designs]}
    return data


def _upgrade_design(design: Any) -> Any:
    match design:
        case {"executions": [*executions]}:
            return {**design, "executions": [_upgrade_execution(execution) for execution in executions]}
    return design


def _upgrade_execution(execution: Any) -> Any:
    match execution:
        case {"answer": str() as text}:
            return {**execution, "answer": load_answer(text, execution.get("answer_call"))}
    return execution
