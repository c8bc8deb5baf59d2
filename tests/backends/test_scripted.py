"""The policy without a model."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.backends.scripted import ByteTokenizer, ScriptedPolicy
from metaagentx.policy import Datum, Policy, SamplingParams

ASK = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2 = ?"}]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def ask(policy: Policy, tokens: list[int], params: SamplingParams | None = None) -> str:
    completion = asyncio.run(policy.sample(tokens, params or SamplingParams(1000)))
    assert len(completion.tokens) == len(completion.logprobs)
    return policy.tokenizer.decode(completion.tokens)


def test_replies_come_in_turn_and_running_out_is_told() -> None:
    policy = ScriptedPolicy(["four", "five"])
    prompt = policy.tokenizer.encode_chat(ASK)
    assert [ask(policy, prompt), ask(policy, prompt)] == ["four", "five"]
    with pytest.raises(RuntimeError, match="no reply left for '2 \\+ 2"):
        ask(policy, prompt)


def test_a_function_sees_the_conversation() -> None:
    policy = ScriptedPolicy(lambda conversation: conversation[-1]["content"].upper())
    assert ask(policy, policy.tokenizer.encode_chat([{"role": "user", "content": "why?"}])) == "WHY?"
    assert policy.conversations == [[{"role": "user", "content": "why?"}]]


def test_lengths_and_stops_are_those_of_a_model() -> None:
    policy = ScriptedPolicy(lambda conversation: "one two three")
    prompt = policy.tokenizer.encode_chat(ASK)
    assert ask(policy, prompt, SamplingParams(3)) == "one"
    assert asyncio.run(policy.sample(prompt, SamplingParams(3))).finish == "length"
    assert ask(policy, prompt, SamplingParams(100, stop=("two",))) == "one two"


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), texts), min_size=1, max_size=5), texts)
def test_a_continuation_keeps_the_tokens_and_reads_back(turns: list[tuple[str, str]], reply: str) -> None:
    tokenizer = ByteTokenizer()
    messages = [{"role": role, "content": content} for role, content in turns]
    so_far = [*tokenizer.encode_chat(messages), *reply.encode()]
    longer = tokenizer.encode_continuation(so_far, [{"role": "user", "content": "go on"}])
    assert longer[: len(so_far)] == so_far
    assert tokenizer.read_chat(longer) == [
        *messages,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "go on"},
    ]


def test_it_remembers_what_it_was_taught(tmp_path: Path) -> None:
    policy = ScriptedPolicy([])
    asyncio.run(policy.forward_backward([Datum((1, 2), (0.0, 1.0), 0.5)], "ppo"))
    asyncio.run(policy.optim_step(1e-5))
    asyncio.run(policy.save(tmp_path / "step"))
    other = ScriptedPolicy([])
    asyncio.run(other.load(tmp_path / "step"))
    assert (policy.trained_on[0].advantage, other.steps) == (0.5, [1e-5])
