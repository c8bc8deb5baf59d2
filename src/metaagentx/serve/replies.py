"""Answers in the shape of the OpenAI API: one object, or the chunks of a stream."""

import json
from typing import Any

from ..system import Result


def usage_of(result: Result) -> dict[str, int]:
    """Return the tokens of all calls: the Designer's and those of every agent."""
    usage = result.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def completion(identifier: str, created: int, model: str, result: Result, reasoning: str) -> dict[str, Any]:
    """Return a whole answer."""
    message = {"role": "assistant", "content": result.answer, "reasoning_content": reasoning, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = {"id": identifier, "object": "chat.completion", "created": created, "model": model}
    return {**head, "choices": [choice], "usage": usage_of(result)}


class Chunks:
    """The chunks of one stream, as events of `text/event-stream`."""

    def __init__(self, identifier: str, created: int, model: str, include_usage: bool) -> None:
        self._head = {"id": identifier, "object": "chat.completion.chunk", "created": created, "model": model}
        self._include_usage = include_usage

    def delta(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        """Return a chunk with the next part of the message."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._event({"choices": [choice], **({"usage": None} if self._include_usage else {})})

    def end(self, result: Result) -> bytes:
        """Return the answer, the usage if it was asked for, and the mark of the end."""
        answer = self.delta({"content": result.answer}) + self.delta({}, "stop")
        usage = self._event({"choices": [], "usage": usage_of(result)}) if self._include_usage else b""
        return answer + usage + b"data: [DONE]\n\n"

    def _event(self, fields: dict[str, Any]) -> bytes:
        return event({**self._head, **fields})


def event(value: object) -> bytes:
    """Return a JSON value as an event of a stream."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"
