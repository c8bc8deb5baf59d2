"""A request for a completion while it is being drawn: what it has so far, its own chance, and when it is over."""

import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ...policy import Completion, SamplingParams
from .chat import ChatTokenizer


class StopTexts:
    """Finds the texts that end a completion, however the model has cut them into tokens."""

    def __init__(self, texts: tuple[str, ...], tokenizer: ChatTokenizer) -> None:
        self._texts = tuple(text for text in texts if text)
        self._tokenizer = tokenizer
        # A character takes at most four bytes, and a token holds at least one.
        self._reach = 4 * max(map(len, self._texts), default=0)
        self._may_end: dict[int, bool] = {}

    def ended_by(self, tokens: Sequence[int]) -> bool:
        """Whether the last token completes one of the texts."""
        last = tokens[-1]
        if last not in self._may_end:
            self._may_end[last] = self._could_end(self._tokenizer.decode([last]))
        if not self._may_end[last]:
            return False
        tail = self._tokenizer.decode(tokens[-self._reach :])
        return any(text in tail for text in self._texts)

    def _could_end(self, piece: str) -> bool:
        # Part of a character decodes as a replacement character; blanks may vanish when a token is decoded alone.
        return "\ufffd" in piece or any(text[-1] in piece or text[-1].isspace() for text in self._texts)


@dataclass(eq=False)
class Request:
    """One completion in the making."""

    prompt: tuple[int, ...]
    params: SamplingParams
    limit: int
    """How many tokens it may have: what was asked for, or what the context leaves."""
    end_tokens: frozenset[int]
    stop_texts: StopTexts | None
    chance: random.Random
    future: "Future[Completion]" = field(default_factory=Future)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @cached_property
    def need(self) -> int:
        """How many positions it may come to occupy."""
        return len(self.prompt) + self.limit

    @property
    def length(self) -> int:
        """How many tokens there are, the prompt's included."""
        return len(self.prompt) + len(self.tokens)

    @property
    def last(self) -> int:
        """The token that has not been read yet."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def context(self) -> list[int]:
        """Everything up to here but the last token."""
        return [*self.prompt, *self.tokens][:-1]

    def take(self, token: int, logprob: float) -> bool:
        """Add a token; True when it was the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.end_tokens or (self.stop_texts is not None and self.stop_texts.ended_by(self.tokens)):
            self._finish("stop")
        elif len(self.tokens) >= self.limit:
            self._finish("length")
        else:
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits still."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _finish(self, reason: str) -> None:
        if self.future.set_running_or_notify_cancel():
            finish: Literal["stop", "length"] = "stop" if reason == "stop" else "length"
            self.future.set_result(Completion(tuple(self.tokens), tuple(self.logprobs), finish))
