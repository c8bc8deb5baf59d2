"""One role with its policy: messages become a `Call`, with a deadline, retries and a seed.

A conversation with several turns continues the exact tokens of its earlier calls. A backend that fails is retried with
the same seed and then counts as an infrastructure fault, which never becomes a reward.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..policy import BackendError, ChatModel, Completion, ContextOverflow, Policy, QueuesRequests, SamplingParams
from ..types import Call, Role

T = TypeVar("T")
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
        self, agent: str, messages: Sequence[Mapping[str, str]], seed: int, earlier: Sequence[Call] = ()
    ) -> Call:
        """Return the model's reply to messages. `earlier` are the calls that these messages may continue."""
        chat = tuple(dict(message) for message in messages)
        started = time.perf_counter()
        if isinstance(self.policy, ChatModel):
            model, params = self.policy, SamplingParams(self.max_tokens, self.temperature, seed=seed)
            reply = await self._with_retries(lambda: model.chat(chat, params), self.attempt_seconds)
            call = Call(self.role, agent, chat, reply.text, tokens=reply.completion_tokens, finish=reply.finish)
            call.prompt_tokens = reply.prompt_tokens
            call.prompt, call.completion, call.logprobs = reply.prompt, reply.completion, reply.logprobs
        else:
            prompt = encode_prompt(self.policy, chat, earlier)
            completion = await self._sample(self.policy, prompt, seed)
            text = self.policy.tokenizer.decode(completion.tokens)
            call = Call(self.role, agent, chat, text, tokens=len(completion.tokens), finish=completion.finish)
            call.prompt_tokens = len(prompt)
            call.prompt, call.completion, call.logprobs = tuple(prompt), completion.tokens, completion.logprobs
        call.seconds = time.perf_counter() - started
        return call

    async def _sample(self, policy: Policy, prompt: Sequence[int], seed: int) -> Completion:
        room = policy.context_length - len(prompt)
        if room < 1:
            raise ContextOverflow(f"the conversation has {len(prompt)} tokens of {policy.context_length}")
        params = SamplingParams(min(self.max_tokens, room), self.temperature, seed=seed)
        seconds = self.attempt_seconds
        if isinstance(policy, QueuesRequests):
            return await self._with_retries(lambda: policy.sample_within(seconds, prompt, params), None)
        return await self._with_retries(lambda: policy.sample(prompt, params), seconds)

    async def _with_retries(self, request: Callable[[], Awaitable[T]], seconds: float | None) -> T:
        for attempt in range(self.retries + 1):
            try:
                async with asyncio.timeout(seconds):
                    return await request()
            except TimeoutError:
                reason = f"no reply within {self.attempt_seconds:g} s"
            except BackendError as error:
                reason = str(error)
            if attempt < self.retries:
                await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 8**attempt, _LONGEST_PAUSE_SECONDS))
        raise SamplingFailed(f"the {self.role} got no reply after {self.retries + 1} attempts: {reason}")


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
