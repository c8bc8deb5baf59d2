"""A chat completion request as a question. What the server cannot honor is refused by name, never ignored.

A single user message is the question as it is. A longer conversation becomes one text: instructions, earlier turns,
then the question. Parameters with the value that the API documents as their default ask for nothing and are accepted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import APIError, invalid

_IGNORED = {"user", "metadata", "safety_identifier", "prompt_cache_key"}
"""Parameters that do not change the answer."""
_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "temperature": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "stop": ([], ""),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Parameters that the server does not have, with the values that ask for nothing."""
_EMPTY: tuple[object, ...] = (None, [], "")
_MESSAGE_FIELDS = {"role", "content", "name", "reasoning_content"}
_SYSTEM = ("system", "developer")
_NAMES = {"user": "User", "assistant": "Assistant"}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks."""

    question: str
    stream: bool
    include_usage: bool


def parse_chat_request(body: bytes, model: str) -> ChatRequest:
    """Return the request in a body, or raise an APIError that names the parameter."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise invalid(None, "the body is not JSON: send an object with model and messages", "invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, f"the body is a JSON {_kind(data)}: send an object with model and messages")
    given = {name: value for name, value in data.items() if value is not None}
    _check_model(given.pop("model", None), model)
    messages = given.pop("messages", None)
    stream = _flag(given.pop("stream", False), "stream")
    include_usage = _include_usage(given.pop("stream_options", None), stream)
    for name, value in given.items():
        _check_parameter(name, value)
    return ChatRequest(_question(messages), stream, include_usage)


def _check_model(value: object, model: str) -> None:
    if value is None:
        raise invalid("model", f'model is missing: send "{model}"')
    if value != model:
        message = f'model: unknown model {_show(value)}, this server has "{model}"'
        raise APIError(404, message, param="model", code="model_not_found")


def _check_parameter(name: str, value: object) -> None:
    if name in _IGNORED:
        return
    if name not in _DEFAULTS:
        raise invalid(name, f"{_show(name)} is not supported by this server: leave it out", "unsupported_parameter")
    # True equals 1 in Python, and the types of JSON are to be told apart.
    accepted = _DEFAULTS[name]
    if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in accepted):
        values = " or ".join(map(json.dumps, accepted))
        message = f"{name}: unsupported value {_show(value)}, this server accepts {values} only: leave it out"
        raise invalid(name, message, "unsupported_value")


def _include_usage(options: object, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options", f"stream_options: expected an object, got {_show(options)}")
    if not stream:
        raise invalid("stream_options", "stream_options needs stream = true")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation") or (name != "include_usage" and value):
            param = f"stream_options.{name}"
            raise invalid(param, f"{_show(param)} is not supported by this server: leave it out")
    return _flag(options.get("include_usage") or False, "stream_options.include_usage")


def _flag(value: object, param: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(param, f"{param}: expected true or false, got {_show(value)}")
    return value


def _question(messages: object) -> str:
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "messages: expected a list with at least one message")
    turns = [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]
    role, question = turns[-1]
    if role != "user":
        raise invalid("messages", f'messages: the last one must have the role "user", not "{role}"')
    if not question.strip():
        raise invalid(f"messages[{len(turns) - 1}].content", "the question is empty: write one")
    if len(turns) == 1:
        return question
    instructions = [text for role, text in turns if role in _SYSTEM]
    earlier = [f"{_NAMES[role]}: {text}" for role, text in turns[:-1] if role not in _SYSTEM]
    parts = [f"Instructions:\n{text}" for text in instructions]
    parts += ["Conversation so far:\n" + "\n\n".join(earlier)] if earlier else []
    return "\n\n".join([*parts, f"Question:\n{question}"])


def _turn(message: object, param: str) -> tuple[str, str]:
    """Return role and text of a message."""
    if not isinstance(message, dict):
        raise invalid(param, f"{param}: expected an object with role and content, got {_show(message)}")
    role = message.get("role")
    if role not in (*_SYSTEM, *_NAMES):
        expected = ", ".join((*_SYSTEM, *_NAMES))
        raise invalid(f"{param}.role", f"{param}.role: unsupported value {_show(role)}, expected one of {expected}")
    for name, value in message.items():
        if name not in _MESSAGE_FIELDS and value not in _EMPTY:
            raise invalid(f"{param}.{name}", f"{param}.{name} is not supported by this server: leave it out")
    text = _text(message.get("content"), f"{param}.content")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
        raise invalid(f"{param}.content", f"{param}.content is not valid Unicode") from None
    return str(role), text


def _text(content: Any, param: str) -> str:
    """Return a text, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(param, f"{param}: expected text or a list of text parts, got {_show(content)}")
    texts = []
    for index, part in enumerate(content):
        match part:
            case {"type": "text", "text": str() as text}:
                texts.append(text)
            case {"type": kind} if kind != "text":
                message = f"{param}[{index}].type: unsupported value {_show(kind)}, this server reads text only"
                raise invalid(f"{param}[{index}].type", message, "unsupported_value")
            case _:
                raise invalid(f"{param}[{index}]", f'{param}[{index}]: expected {{"type": "text", "text": ...}}')
    return "\n".join(texts)


def _kind(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _show(value: object) -> str:
    """Return a value for a message, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
