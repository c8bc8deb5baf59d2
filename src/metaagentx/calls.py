"""One role's way to its policy: messages to a `Call`, with a deadline, retries and seeds.

A conversation that goes on continues the very tokens of its earlier calls. A backend that fails is asked again, with
the same seed, and then counts as an infra fault: it never becomes a reward.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .policy import BackendError, Completion, Policy, SamplingParams
from .types import Call, Role

Messages = tuple[dict[str, str], ...]
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0


class TooLong(Exception):
    """The conversation leaves no room for a reply in the model's context."""


class Unanswered(Exception):
    """The backend failed or was late, as often as it was asked."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A role with its policy and how it is asked."""

    role: Role
    policy: Policy
    max_tokens: int
    temperature: float = 1.0
    seconds: float = 600.0
    """The deadline of one try."""
    retries: int = 2
    """How often a call is tried again. Nothing above tries it again once more."""

    async def call(
        self, agent: str, messages: Sequence[Mapping[str, str]], seed: int, earlier: Sequence[Call] = ()
    ) -> Call:
        """The model's reply to messages. `earlier`: calls that these messages may continue."""
        chat = tuple(dict(message) for message in messages)
        prompt = self._prompt(chat, earlier)
        room = self.policy.context_length - len(prompt)
        if room < 1:
            raise TooLong(f"the conversation has {len(prompt)} tokens of {self.policy.context_length}")
        params = SamplingParams(min(self.max_tokens, room), self.temperature, seed=seed)
        started = time.perf_counter()
        completion = await self._sample(prompt, params)
        return Call(
            self.role,
            agent,
            chat,
            self.policy.tokenizer.decode(completion.tokens),
            tokens=len(completion.tokens) if completion.token_count is None else completion.token_count,
            prompt=tuple(prompt),
            completion=completion.tokens,
            logprobs=completion.logprobs,
            finish=completion.finish,
            seconds=time.perf_counter() - started,
        )

    def _prompt(self, chat: Messages, earlier: Sequence[Call]) -> list[int]:
        continued = [call for call in earlier if _continues(chat, call)]
        if not continued:
            return self.policy.tokenizer.encode_chat(chat)
        last = max(continued, key=lambda call: len(call.messages))
        new = chat[len(last.messages) + 1 :]
        return self.policy.tokenizer.encode_continuation((*last.prompt, *last.completion), new)

    async def _sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        for attempt in range(self.retries + 1):
            try:
                async with asyncio.timeout(self.seconds):
                    return await self.policy.sample(prompt, params)
            except TimeoutError:
                reason = f"no reply within {self.seconds:g} s"
            except BackendError as error:
                reason = str(error)
            if attempt < self.retries:
                await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 8**attempt, _LONGEST_PAUSE_SECONDS))
        raise Unanswered(f"the {self.role} got no reply after {self.retries + 1} tries: {reason}")


def _continues(chat: Messages, call: Call) -> bool:
    length = len(call.messages)
    return (
        len(chat) > length + 1
        and chat[:length] == call.messages
        and chat[length] == {"role": "assistant", "content": call.text}
    )


def seed_of(*path: object) -> int:
    """A seed of its own for everything that is drawn, by its place in the run: never by when it was drawn."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[:8], "big") >> 1
