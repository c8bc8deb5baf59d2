"""A sampling request under way: its tokens so far, its own random numbers, and the conditions that end it."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

from ...policy import Completion, FinishReason, SamplingParams
from ..chat import ChatTokenizer


class StopStrings:
    """Finds stop strings, however the model splits them into tokens."""

    def __init__(self, strings: tuple[str, ...], tokenizer: ChatTokenizer) -> None:
        self._strings = tuple(string for string in strings if string)
        self._tokenizer = tokenizer
        # A character takes at most four bytes, and a token holds at least one.
        self._max_tokens = 4 * max(map(len, self._strings), default=0)
        self._may_complete: dict[int, bool] = {}

    def matches(self, tokens: Sequence[int]) -> bool:
        """Return whether the last token completes one of the strings."""
        last = tokens[-1]
        if last not in self._may_complete:
            self._may_complete[last] = self._can_complete(self._tokenizer.decode([last]))
        if not self._may_complete[last]:
            return False
        tail = self._tokenizer.decode(tokens[-self._max_tokens :])
        return any(string in tail for string in self._strings)

    def _can_complete(self, text: str) -> bool:
        # Part of a character decodes as a replacement character; blanks may vanish when a token is decoded alone.
        return "\ufffd" in text or any(string[-1] in text or string[-1].isspace() for string in self._strings)


@dataclass(eq=False)
class SampleRequest:
    """One completion while it is sampled."""

    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    """`params.max_tokens`, or fewer where the context leaves less room."""
    end_tokens: frozenset[int]
    stop_strings: StopStrings | None
    seed: int | bytes | None
    future: "Future[Completion]" = field(default_factory=Future)
    asked_at: float = field(default_factory=time.monotonic)
    admitted_at: float | None = None
    """When it was admitted to a batch; None while it waits for that."""
    number: int = 0
    """Its place in the order of arrival."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was sampled. With a seed the same is drawn again."""
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self._rng = random.Random(self.seed)
        self._drawn: float | None = None

    def draw(self) -> float:
        """Return the random number of the next token, the same until that token is appended."""
        if self._drawn is None:
            self._drawn = self._rng.random()
        return self._drawn

    @cached_property
    def max_length(self) -> int:
        """The most positions that it may occupy."""
        return len(self.prompt) + self.max_tokens

    @property
    def length(self) -> int:
        """The number of tokens so far, prompt included."""
        return len(self.prompt) + len(self.tokens)

    @property
    def last_token(self) -> int:
        """The token whose keys and values are not computed yet."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    def computed_tokens(self) -> list[int]:
        """Return the tokens whose keys and values are cached once it is prefilled: all but the last."""
        return [*self.prompt, *self.tokens][:-1]

    def append(self, token: int, logprob: float) -> bool:
        """Add a sampled token and return whether it was the last."""
        self.tokens.append(token)
        if self.params.on_token is not None:
            self.params.on_token(len(self.tokens) - 1, token)
        self.logprobs.append(logprob)
        self._drawn = None
        finish: FinishReason
        if token in self.end_tokens or (self.stop_strings is not None and self.stop_strings.matches(self.tokens)):
            finish = "stop"
        elif len(self.tokens) >= self.max_tokens:
            finish = "length"
        else:
            return False
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(Completion(tuple(self.tokens), tuple(self.logprobs), finish))
        return True

    def fail(self, error: BaseException) -> None:
        """Raise the error for the caller, if it still waits."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
