"""Trees as the pages show them: JSON of the one serializer, without what a page loads later, long texts cut."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MetaAgentXError
from ..provenance import Prompts, delivery_of
from ..runs.serialize import Serializer
from ..runs.trees import rollout_to_json
from ..types import JSON, Call, Execution, Rollout, Task
from .index import script_name

LONGEST_TEXT = 20_000
"""Longer texts are cut; the page asks for the rest when somebody wants to see it."""
CALLS = 100
"""How many calls of an execution are sent at once."""
_PROVENANCE_CHARACTERS = 2_000_000
_TEXTS = {"messages", "text", "prompt", "completion", "logprobs", "lengths", "instruction"}
_OUTLINE = Serializer(
    Rollout,
    {
        "task": {"grading"},
        "designs": {
            "__all__": {
                "call": {"prompt", "completion"},
                "executions": {"__all__": {"calls": True, "programs": True, "tools": True, "told": True, "log": True}},
            }
        },
    },
)
_EXECUTION = Serializer(Execution, {"calls": {"__all__": {"prompt": True, "completion": True}}})
_TASK = Serializer(Task)
_CALL = Serializer(Call, dict.fromkeys(_TEXTS, True))


def outline(tree: Rollout) -> dict[str, Any]:
    """Return a tree with its designs; of the executions only how they ended, and the figures of their calls."""
    data = _OUTLINE.dump(tree)
    data["task"]["expected"] = expected(tree.task)
    for shown, design in zip(data["designs"], tree.designs, strict=True):
        shown["script_name"] = script_name(design)
        for place, execution in zip(shown["executions"], design.executions, strict=True):
            place["calls"] = [_CALL.dump(call) for call in execution.calls]
    return cut(data)


def execution_page(tree: Rollout, design: int, execution: int, start: int = 0) -> dict[str, Any]:
    """Return an execution with its calls from `start` on, and who wrote each part of their prompts."""
    run = tree.designs[design].executions[execution]
    shown: dict[str, Any] = _EXECUTION.dump(run)
    calls = shown["calls"]
    shown["calls"] = calls[start : start + CALLS]
    shown["programs"] = shown["programs"][:1000]
    shown["tools"] = shown["tools"][:1000]
    sources = _sources(tree.task.question, run)
    page = cut({"execution": shown})
    return {
        **page,
        "start": start,
        "deliveries": [
            None if text is None else text[:LONGEST_TEXT] for text in map(delivery_of, run.calls[start : start + CALLS])
        ],
        "outline": [_CALL.dump(call) for call in run.calls],
        "sources": None if sources is None else sources[start : start + CALLS],
        "heard": [] if sources is None else [_heard(messages) for messages in sources],
    }


def cut(data: dict[str, Any], longest: int = LONGEST_TEXT) -> dict[str, Any]:
    """Shorten long texts in place; `cut` lists them by their path, with their whole length."""
    long: dict[str, int] = {}

    def shorten(value: Any, path: tuple[object, ...]) -> Any:
        if isinstance(value, str) and len(value) > longest:
            long[".".join(map(str, path))] = len(value)
            return value[:longest]
        if isinstance(value, list | tuple):
            return [shorten(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: shorten(item, (*path, key)) for key, item in value.items()}
        return value

    try:
        return {**shorten(data, ()), "cut": long}
    except RecursionError:
        raise MetaAgentXError("it is nested too deeply to be shown") from None


def text_at(tree: Rollout, path: str) -> str:
    """Return a whole text of a tree by its path, such as `designs.0.script`."""
    value: Any = rollout_to_json(tree)
    for part in path.split(".")[:20]:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and len(part) < 9:
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = None
    if not isinstance(value, str):
        raise MetaAgentXError(f"the tree has no text at {path[:200]!r}")
    return value


def expected(task: Task) -> JSON:
    """Return what a grader knows of the right answer, without the parts that are long."""
    grading = _TASK.dump(task)["grading"]
    grading.pop("file", None)
    return cut(grading, 2000)


def _sources(question: str, run: Execution) -> list[list[list[list[JSON]]]] | None:
    """Return the source of every part of every message: name, length, and the call that replied; None if too long."""
    length = sum(len(message.get("content", "")) for call in run.calls for message in call.messages)
    if length > _PROVENANCE_CHARACTERS or len(run.calls) > 10 * CALLS:
        return None
    prompts = Prompts(question, run.calls, run.programs, run.told)
    return [
        [[[span.source, len(span.text), span.call] for span in spans] for spans in messages]
        for messages in prompts.calls
    ]


def _heard(messages: list[list[list[JSON]]]) -> list[int]:
    """Return the earlier calls whose replies, or the output of whose programs, are in a prompt."""
    calls = {call for spans in messages for source, _, call in spans if source in ("reply", "tool")}
    return sorted(call for call in calls if isinstance(call, int))
