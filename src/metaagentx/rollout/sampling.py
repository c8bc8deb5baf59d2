"""One role with its policy: messages become a `Call`, with a deadline, retries and a seed.

A conversation with several turns continues the exact tokens of its earlier calls. A backend that fails is retried with
the same seed and then counts as an infrastructure fault, which never becomes a reward.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ..policy import BackendError, ChatModel, Completion, ContextOverflow, Policy, QueuesRequests, SamplingParams
from ..types import Call, Role
from .token_lengths import token_lengths

T = TypeVar("T")
OnTimeout: TypeAlias = Callable[[], Awaitable[bool]]
_STREAM_SECONDS = 0.05
"""How often a growing reply is decoded for those who watch."""
Chat = tuple[dict[str, str], ...]
"""The messages of a call, as `Call.messages` has them."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0


class SamplingFailed(Exception):
    """The backend failed or timed out on every attempt."""


@dataclass(frozen=True, slots=True)
class RoleSampler:
    """A role with its policy and sampling parameters."""

    role: Role
    policy: Policy | ChatModel
    max_tokens: int
    temperature: float = 1.0
    attempt_seconds: float = 600.0
    """The timeout of one attempt, from when the policy starts on it, where the policy has a queue of its own."""
    retries: int = 2
    """Retries of a call. No caller retries it again."""

    async def call(
        self,
        agent: str,
        messages: Sequence[Mapping[str, str]],
        seed: int,
        earlier: Sequence[Call] = (),
        on_text: Callable[[str], None] | None = None,
        on_timeout: OnTimeout | None = None,
    ) -> Call:
        """Return the model's reply to messages. `earlier` are the calls that these messages may continue.

        `on_text` gets the reply in pieces as it is written, or at once where the backend does not stream. `on_timeout`
        is awaited after an attempt that timed out, and returns whether that attempt does not count.
        """
        stream = None if on_text is None else _Stream(on_text)
        chat = tuple(dict(message) for message in messages)
        clock, started = time.time(), time.perf_counter()
        if isinstance(self.policy, ChatModel):
            model, params = self.policy, SamplingParams(self.max_tokens, self.temperature, seed=seed)
            reply = await self._with_retries(lambda: model.chat(chat, params), self.attempt_seconds, on_timeout)
            call = Call(self.role, agent, chat, reply.text, tokens=reply.completion_tokens, finish=reply.finish)
            call.prompt_tokens = reply.prompt_tokens
            call.prompt, call.completion, call.logprobs = reply.prompt, reply.completion, reply.logprobs
        else:
            prompt = encode_prompt(self.policy, chat, earlier)
            if stream is not None:
                stream.decode = self.policy.tokenizer.decode
            on_token = None if stream is None else stream.on_token
            completion = await self._sample(self.policy, prompt, seed, on_token, on_timeout)
            text = self.policy.tokenizer.decode(completion.tokens)
            call = Call(self.role, agent, chat, text, tokens=len(completion.tokens), finish=completion.finish)
            call.prompt_tokens = len(prompt)
            call.prompt, call.completion, call.logprobs = tuple(prompt), completion.tokens, completion.logprobs
            call.lengths = token_lengths(self.policy.tokenizer, call.completion, text)
        call.seconds, call.started = time.perf_counter() - started, round(clock, 4)
        if stream is not None:
            stream.finish(call.text)
        return call

    async def _sample(
        self,
        policy: Policy,
        prompt: Sequence[int],
        seed: int,
        on_token: Callable[[int, int], None] | None,
        on_timeout: OnTimeout | None,
    ) -> Completion:
        room = policy.context_length - len(prompt)
        if room < 1:
            raise ContextOverflow(f"the conversation has {len(prompt)} tokens of {policy.context_length}")
        params = SamplingParams(min(self.max_tokens, room), self.temperature, seed=seed, on_token=on_token)
        seconds = self.attempt_seconds
        if isinstance(policy, QueuesRequests):
            return await self._with_retries(lambda: policy.sample_within(seconds, prompt, params), None, on_timeout)
        return await self._with_retries(lambda: policy.sample(prompt, params), seconds, on_timeout)

    async def _with_retries(
        self, request: Callable[[], Awaitable[T]], seconds: float | None, on_timeout: OnTimeout | None
    ) -> T:
        failed = 0
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await request()
            except TimeoutError:
                reason = f"no reply within {self.attempt_seconds:g} s"
                if on_timeout is not None and await on_timeout():
                    continue
            except BackendError as error:
                reason = str(error)
            failed += 1
            if failed > self.retries:
                raise SamplingFailed(f"the {self.role} got no reply after {failed} attempts: {reason}")
            await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 8 ** (failed - 1), _LONGEST_PAUSE_SECONDS))


class _Stream:
    """Makes pieces of text from tokens, which may come from another thread, and again after a restart."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._loop = asyncio.get_running_loop()
        self._tokens: list[int] = []
        self._shown = ""
        self._shown_at = 0.0
        self._finished = False
        self.decode: Callable[[Sequence[int]], str] = lambda tokens: ""

    def on_token(self, position: int, token: int) -> None:
        """Take the token at this position of the reply."""
        self._loop.call_soon_threadsafe(self._receive, position, token)

    def _receive(self, position: int, token: int) -> None:
        if position != len(self._tokens) or self._finished:
            return
        self._tokens.append(token)
        now = time.perf_counter()
        if now - self._shown_at >= _STREAM_SECONDS:  # decoding the whole reply for each token would be quadratic
            self._shown_at = now
            self._show(self.decode(self._tokens).rstrip("\ufffd"))

    def finish(self, text: str) -> None:
        """Show what is left of the whole reply."""
        self._finished = True
        self._show(text)

    def _show(self, text: str) -> None:
        if text.startswith(self._shown) and len(text) > len(self._shown):
            piece, self._shown = text[len(self._shown) :], text
            self._on_text(piece)


def encode_prompt(policy: Policy, chat: Chat, earlier: Sequence[Call]) -> list[int]:
    """Return the prompt of a conversation; it continues the tokens of the longest earlier call that it extends."""
    continued = [call for call in earlier if _continues(chat, call)]
    if not continued:
        return policy.tokenizer.encode_chat(chat)
    last = max(continued, key=lambda call: len(call.messages))
    new = chat[len(last.messages) + 1 :]
    return policy.tokenizer.encode_continuation((*last.prompt, *last.completion), new)


def _continues(chat: Chat, call: Call) -> bool:
    length = len(call.messages)
    return (
        len(chat) > length + 1
        and chat[:length] == call.messages
        and chat[length] == {"role": "assistant", "content": call.text}
    )


def seed_of(*path: object) -> int:
    """Return the seed of one random draw. It depends on its path in the run and never on when it was drawn."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[:8], "big") >> 1
