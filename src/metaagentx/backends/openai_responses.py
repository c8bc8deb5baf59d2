"""What OpenAI-compatible servers send: replies, lists of models, and what their errors ask for."""

import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from ..policy import SamplingParams

if TYPE_CHECKING:
    from openai import APIStatusError

CONTEXT_OVERFLOW = re.compile(r"context[ _](length|size|window)|too long", re.IGNORECASE)
_COUNTS_THE_REPLY = re.compile(r"completion|output tokens|max_(new_)?tokens", re.IGNORECASE)
_CONTEXT_LENGTH = re.compile(r"context length (?:is|of) (\d+)", re.IGNORECASE)
_PROMPT_LENGTH = re.compile(r"(at least )?(\d+) (?:input tokens|(?:tokens )?(?:in|from) the (?:messages|prompt|input))")
_MIN_REPLY_TOKENS = 32


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(BaseModel):
    """A reply, and why it ended."""

    message: _Message
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM: the stop string that ended the reply."""
    matched_stop: str | int | None = None
    """SGLang: the same."""
    token_ids: object = None
    """vLLM, with `return_token_ids` in the extra body: the tokens of the reply."""
    logprobs: object = None
    """With `logprobs` in the extra body: the log-probability of each token."""


class Usage(BaseModel):
    """The tokens of a request, as the server counts them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ServedModel(BaseModel):
    """A model that a server lists."""

    id: str
    aliases: list[str] = []
    """llama.cpp: its other names."""


class ModelList(BaseModel):
    """The reply to a request for the server's models."""

    data: list[ServedModel]


class ChatCompletion(BaseModel):
    """The parts of a server's response that are used."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None
    prompt_token_ids: object = None
    """vLLM: the tokens of the prompt."""


def read_token_ids(value: object) -> tuple[int, ...]:
    """Return token ids as a server sends them; nothing for any other value."""
    return tuple(value) if isinstance(value, list) and all(type(token) is int for token in value) else ()


def read_logprobs(value: object) -> tuple[float, ...]:
    """Return the log-probabilities of a reply's tokens; nothing where the server sends them in another form."""
    entries = value.get("content") if isinstance(value, dict) else None
    values = [entry.get("logprob") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    numbers = tuple(float(value) for value in values if isinstance(value, int | float))
    return numbers if len(numbers) == len(values) else ()


def reply_text(choice: Choice, params: SamplingParams) -> str:
    """Return the text with its reasoning before it, and with the stop string that ended it."""
    text = choice.message.content or ""
    stop = choice.stop_reason or choice.matched_stop
    if isinstance(stop, str) and stop in params.stop and not text.endswith(stop):
        text += stop
    if reasoning := choice.message.reasoning_content or choice.message.reasoning:
        unfinished = choice.finish_reason == "length" and not text
        return f"<think>\n{reasoning}" + ("" if unfinished else f"\n</think>\n\n{text}")
    return text


def requested_pause(error: "APIStatusError") -> float:
    """Return how many seconds a busy server asks to wait, as a number or a date; 0 if it does not."""
    text = error.response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return 0.0
    return seconds if seconds > 0 else 0.0


def reply_room(message: str, max_tokens: int) -> int | None:
    """Return the shorter length for a reply that, by the server's message, does not fit behind its prompt.

    It is exact where the message has both numbers, otherwise half of the last one. None: the prompt itself is too long,
    or this is another error.
    """
    if not (CONTEXT_OVERFLOW.search(message) and _COUNTS_THE_REPLY.search(message)):
        return None
    context, prompt = _CONTEXT_LENGTH.search(message), _PROMPT_LENGTH.search(message)
    if context and prompt and not prompt[1]:
        room = int(context[1]) - int(prompt[2])
        return room if 0 < room < max_tokens else None
    return max_tokens // 2 if max_tokens >= 2 * _MIN_REPLY_TOKENS else None
