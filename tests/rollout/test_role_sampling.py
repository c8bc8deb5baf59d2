"""One role's way to its policy."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from metaagentx.backends.scripted import ByteTokenizer, ScriptedPolicy
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import (
    BackendError,
    ChatReply,
    Completion,
    ContextOverflow,
    Messages,
    SamplingParams,
    require_trainable,
)
from metaagentx.rollout.sampling import RoleSampler, SamplingFailed, encode_prompt, seed_of
from metaagentx.types import Role
from tests.rollout_helpers import Actor

CHAT = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "1 + 1?"}]


class Failing(Actor):
    """Fails so many times, then replies."""

    def __init__(self, times: int) -> None:
        async def fail(count: int) -> None:
            if count <= times:
                raise BackendError(f"out of memory, time {count}")

        super().__init__("two", fail)


def sampler(policy: ScriptedPolicy, **options: float) -> RoleSampler:
    return replace(RoleSampler(Role.EXECUTOR, policy, max_tokens=100), **options)  # type: ignore[arg-type]


def test_a_call_keeps_all_that_training_needs() -> None:
    policy = Actor("two")
    call = asyncio.run(sampler(policy, temperature=0.7).call("Solver", CHAT, seed=11))
    assert (call.role, call.agent, call.messages, call.text) == (Role.EXECUTOR, "Solver", tuple(CHAT), "two")
    assert call.prompt == tuple(ByteTokenizer().encode_chat(CHAT))
    assert call.completion == (*b"two", 256) and call.tokens == 4
    assert call.logprobs == (-0.25, -0.251, -0.252, -0.253)
    assert (call.finish, call.advantage) == ("stop", None)
    assert policy.asked == [SamplingParams(100, 0.7, seed=11)]


def test_what_the_caller_does_with_its_messages_later_changes_nothing() -> None:
    chat = [dict(message) for message in CHAT]
    call = asyncio.run(sampler(Actor("two")).call("Solver", chat, seed=1))
    chat[0]["content"] = "changed"
    assert call.messages == tuple(CHAT)


def test_a_conversation_that_goes_on_continues_the_tokens() -> None:
    one = sampler(Actor("two"))
    first = asyncio.run(one.call("Solver", CHAT, seed=1))
    chat = [*CHAT, {"role": "assistant", "content": "two"}, {"role": "user", "content": "Sure?"}]
    second = asyncio.run(one.call("Solver", chat, seed=2, earlier=[first]))
    assert second.prompt[: len(first.prompt) + len(first.completion)] == first.prompt + first.completion
    chat += [{"role": "assistant", "content": "two"}, {"role": "user", "content": "Really?"}]
    third = asyncio.run(one.call("Solver", chat, seed=3, earlier=[first, second]))
    assert third.prompt[: len(second.prompt) + len(second.completion)] == second.prompt + second.completion
    assert ByteTokenizer().read_chat(third.prompt) == chat


class Odd(ByteTokenizer):
    """Two sequences for one text: what is decoded and encoded again is not what was sampled."""

    def decode(self, tokens: Sequence[int]) -> str:
        return super().decode([token for token in tokens if token < 256])


class OddPolicy(Actor):
    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        done = await super().sample(prompt, params)
        return Completion((300, *done.tokens), (0.0, *done.logprobs), done.finish)


def test_tokens_that_encoding_would_not_give_are_kept() -> None:
    policy = OddPolicy("two")
    policy.tokenizer = Odd()
    first = asyncio.run(sampler(policy).call("Solver", CHAT, seed=1))
    assert first.text == "two" and first.completion[0] == 300
    chat = [*CHAT, {"role": "assistant", "content": "two"}, {"role": "user", "content": "Sure?"}]
    prompt = encode_prompt(policy, tuple(chat), [first])
    assert tuple(prompt[: len(first.prompt) + len(first.completion)]) == first.prompt + first.completion


@pytest.mark.parametrize(
    "chat",
    [
        [*CHAT, {"role": "assistant", "content": "three"}, {"role": "user", "content": "Sure?"}],
        [*CHAT, {"role": "user", "content": "two"}, {"role": "user", "content": "Sure?"}],
        [CHAT[1], {"role": "assistant", "content": "two"}, {"role": "user", "content": "Sure?"}],
        [*CHAT, {"role": "assistant", "content": "two"}],
        CHAT,
    ],
    ids=["other words", "not its words", "another beginning", "nothing new", "the same again"],
)
def test_a_conversation_that_only_resembles_an_earlier_one_starts_anew(chat: list[dict[str, str]]) -> None:
    one = sampler(Actor("two"))
    first = asyncio.run(one.call("Solver", CHAT, seed=1))
    second = asyncio.run(one.call("Solver", chat, seed=2, earlier=[first]))
    assert second.prompt == tuple(ByteTokenizer().encode_chat(chat))


def test_of_several_that_said_the_same_the_first_asked_is_continued() -> None:
    policy = Actor("two")
    one = sampler(policy)
    first, other = (asyncio.run(one.call("Solver", CHAT, seed=seed)) for seed in (1, 2))
    first.prompt = (7, *first.prompt)
    chat = [*CHAT, {"role": "assistant", "content": "two"}, {"role": "user", "content": "Sure?"}]
    assert encode_prompt(policy, tuple(chat), [first, other])[0] == 7


def test_a_backend_that_fails_is_asked_again_with_the_same_seed() -> None:
    policy = Failing(2)
    call = asyncio.run(sampler(policy, retries=2).call("Solver", CHAT, seed=11))
    assert call.text == "two"
    assert [params.seed for params in policy.asked] == [11, 11, 11]


def test_a_backend_that_keeps_failing_gives_no_call() -> None:
    policy = Failing(99)
    with pytest.raises(SamplingFailed, match="executor got no reply after 2 attempts: out of memory, time 2"):
        asyncio.run(sampler(policy, retries=1).call("Solver", CHAT, seed=11))
    assert len(policy.asked) == 2


def test_a_backend_that_hangs_is_cut() -> None:
    async def hang(count: int) -> None:
        await asyncio.sleep(60)

    started = time.perf_counter()
    with pytest.raises(SamplingFailed, match=r"no reply within 0\.05 s"):
        asyncio.run(sampler(Actor("two", hang), attempt_seconds=0.05, retries=1).call("Solver", CHAT, seed=1))
    assert time.perf_counter() - started < 10


def test_a_bug_in_a_backend_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no reply left"):
        asyncio.run(sampler(ScriptedPolicy([])).call("Solver", CHAT, seed=1))


def test_a_reply_has_what_room_the_context_leaves() -> None:
    policy = Actor("x" * 100)
    length = len(ByteTokenizer().encode_chat(CHAT))
    policy.context_length = length + 5
    call = asyncio.run(sampler(policy).call("Solver", CHAT, seed=1))
    assert (call.tokens, call.finish) == (5, "length")
    policy.context_length = length
    with pytest.raises(ContextOverflow, match=f"{length} tokens of {length}"):
        asyncio.run(sampler(policy).call("Solver", CHAT, seed=1))


def test_seeds_come_from_the_place_and_differ() -> None:
    places = [(1, "train", step, task, design) for step in range(5) for task in range(5) for design in range(5)]
    seeds = {seed_of(*place) for place in places} | {seed_of(*place, 0, 0) for place in places}
    assert len(seeds) == 250
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, "train", 0, 0) == seed_of(1, "train", 0, 0) != seed_of(1, "train", 0, 0, 0)
    assert seed_of(1, 11) != seed_of(11, 1)
    assert seed_of("train", 7) == 545814522193777998, "a resumed run draws what it drew before"


class Chatty:
    """A chat model that fails so many times, then repeats the last message."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.asked: list[SamplingParams] = []

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        self.asked.append(params)
        if len(self.asked) <= self.failures:
            raise BackendError("busy")
        return ChatReply(messages[-1]["content"], "length", prompt_tokens=7, completion_tokens=3)


def test_a_chat_model_is_sampled_without_tokens() -> None:
    model = Chatty(failures=1)
    call = asyncio.run(RoleSampler(Role.EXECUTOR, model, 100, 0.7).call("Solver", CHAT, seed=11))
    assert (call.agent, call.messages, call.text, call.tokens, call.finish) == (
        "Solver",
        tuple(CHAT),
        "1 + 1?",
        3,
        "length",
    )
    assert (call.prompt, call.completion, call.logprobs) == ((), (), ())
    assert model.asked == [SamplingParams(100, 0.7, seed=11)] * 2


def test_a_chat_model_cannot_be_trained() -> None:
    with pytest.raises(MetaAgentXError, match=r"the executor is a chat model \(Chatty\), .* cannot be trained"):
        require_trainable(Role.EXECUTOR, Chatty())
    policy = Actor("two")
    assert require_trainable(Role.EXECUTOR, policy) is policy
