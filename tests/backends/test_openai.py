"""A chat model on an OpenAI-compatible server: a real one, of the standard library, in a thread of the tests."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from metaagentx.backends.openai import OpenAIChatModel
from metaagentx.coldstart.demonstrations import read_rows
from metaagentx.coldstart.programmed_teacher import ProgrammedTeacher
from metaagentx.config import RolloutConfig
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import (
    BackendError,
    ChatModel,
    ChatReply,
    ContextOverflow,
    SamplerStats,
    SamplingParams,
    require_trainable,
)
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler, SamplingFailed
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.types import Execution, Fault, Role, Rollout
from metaagentx.workflow.reply import DESIGNER_LINE
from tests.chat_server import Reply, refused, said, serving
from tests.commands import command
from tests.rollout_helpers import (
    COMPUTE,
    RIGHT,
    TASK,
    TOOL,
    by_agent,
    design,
    executions_of,
    in_words,
    resources,
    with_speakers,
)

pytest.importorskip("openai")

KEY = "sk-a-key-that-nobody-may-see"
CHAT = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "1 + 1?"}]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def ask(model: OpenAIChatModel, chat: list[dict[str, str]] = CHAT, params: SamplingParams | None = None) -> ChatReply:
    async def once() -> ChatReply:
        async with model:
            return await model.chat(chat, params or SamplingParams(100))

    return asyncio.run(once())


def call(model: OpenAIChatModel, **patience: float) -> str:
    async def once() -> str:
        async with model:
            sampler = replace(RoleSampler(Role.EXECUTOR, model, 100), **patience)  # type: ignore[arg-type]
            return (await sampler.call("Solver", CHAT, seed=11)).text

    return asyncio.run(once())


def by_role(asked: dict[str, Any], number: int) -> Reply:
    if asked["messages"][0]["content"] == DESIGNER_LINE:
        return said(design(TOOL))
    return said(by_agent({"Compute.": [COMPUTE, RIGHT]})(asked["messages"], asked["seed"]))


def test_a_whole_rollout(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    async def tree(url: str) -> tuple[list[Any], Mapping[str, float]]:
        async with OpenAIChatModel("m", url) as model:
            shared = resources(model, model, sandbox, graders)
            rollouts = await rollout_batch(
                [TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=3)), ("test",)
            )
            return [in_words(execution) for execution in executions_of(rollouts)], model.stats()

    with serving(by_role) as server:
        executions, work = runner.run(tree(server.url))
        first, server.asked = server.asked, []
        runner.run(tree(server.url))
    assert executions == [(["Coder", "Coder"], r"\boxed{14}", 1, None, 1.8)] * 6
    assert work == {"requests": 14, "prompt_tokens": 7 * 14, "completion_tokens": 3 * 14}
    longest = max(first, key=lambda asked: len(asked["messages"]))["messages"]
    assert [message["role"] for message in longest] == ["system", "user", "assistant", "user"]
    assert longest[2]["content"] == COMPUTE and "14" in longest[3]["content"]
    assert len({asked["seed"] for asked in first}) == 14
    assert sorted(map(repr, first)) == sorted(map(repr, server.asked)), "the same run asks the same"


def test_what_the_server_is_asked() -> None:
    params = SamplingParams(12, 0.25, stop=("\n\n", "END"), seed=2**62 + 5)
    with serving(said("two")) as server:
        done = ask(OpenAIChatModel("m", server.url, extra_body={"top_k": 1, "temperature": 0.5}), params=params)
    assert server.asked == [
        {"model": "m", "messages": CHAT, "max_tokens": 12, "temperature": 0.5, "seed": 5, "stop": ["\n\n", "END"]}
        | {"top_k": 1}
    ]
    assert server.keys == [f"Bearer {KEY}"]
    assert done == ChatReply("two", "stop", prompt_tokens=7, completion_tokens=3)


def test_no_seed_and_no_stop_are_not_sent() -> None:
    with serving(said("two")) as server:
        ask(OpenAIChatModel("m", server.url + "/"))
    assert server.asked[0].keys() == {"model", "messages", "max_tokens", "temperature"}


def test_it_is_a_chat_model_that_counts_tokens() -> None:
    model: ChatModel = OpenAIChatModel("m", "http://localhost/v1")
    assert isinstance(model, SamplerStats)
    assert model.stats() == {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}


def test_a_server_that_counts_nothing() -> None:
    body = b'{"choices": [{"message": {"content": "two"}}]}'
    with serving(Reply(200, body)) as server:
        model = OpenAIChatModel("m", server.url)
        assert ask(model) == ChatReply("two", "stop", prompt_tokens=0, completion_tokens=1)
    assert model.stats() == {"requests": 1, "prompt_tokens": 0, "completion_tokens": 0}


def test_token_ids_and_log_probabilities_are_kept_where_the_server_gives_them() -> None:
    logprobs = {"content": [{"token": "tw", "logprob": -0.5}, {"token": "o", "logprob": -1}]}
    choice: dict[str, Any] = {"message": {"content": "two"}, "token_ids": [11, 12], "logprobs": logprobs}
    with serving(Reply(200, json.dumps({"choices": [choice], "prompt_token_ids": [1, 2, 3]}).encode())) as server:
        extra = {"return_token_ids": True, "logprobs": True}
        done = ask(OpenAIChatModel("m", server.url, extra_body=extra))
    assert done == ChatReply("two", "stop", 3, 2, (1, 2, 3), (11, 12), (-0.5, -1.0))
    assert server.asked[0]["return_token_ids"] is True


@pytest.mark.parametrize(
    "strange",
    [
        {"token_ids": "no", "logprobs": {"tokens": ["a"], "token_logprobs": [-1]}},
        {"token_ids": [1.5, None], "logprobs": {"content": None}},
        {"token_ids": {"a": 1}, "logprobs": {"content": [{"logprob": "x"}]}},
        {"token_ids": None, "logprobs": [1, 2]},
    ],
)
def test_tokens_in_another_form_are_left_out(strange: dict[str, Any]) -> None:
    with serving(Reply(200, json.dumps({"choices": [{"message": {"content": "two"}, **strange}]}).encode())) as server:
        assert ask(OpenAIChatModel("m", server.url)) == ChatReply("two", "stop", 0, 1)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"completion_tokens": 3}, [3, 3]),
        ({"completion_tokens": 8}, [8, 8]),
        ({}, [8, 13]),
        (None, [8, 13]),
        ({"completion_tokens": 0}, [8, 13]),
    ],
)
def test_a_budget_counts_the_servers_tokens(
    usage: object, tokens: list[int], runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """They were the bytes of the text, so that long replies broke `rollout.tokens`. Not told, four bytes are one."""

    def counted(asked: dict[str, Any], number: int) -> Reply:
        body = json.loads(by_role(asked, number).body)
        return Reply(200, json.dumps({**body, "usage": usage}).encode())

    async def executed(url: str, budget: int) -> Execution:
        async with OpenAIChatModel("m", url) as model:
            options = RolloutOptions(RolloutConfig(designs=1, executions=1, tokens=budget))
            (tree,) = await rollout_batch([TASK], resources(model, model, sandbox, graders), options, ("test",))
            return tree.designs[0].executions[0]

    assert [-(-len(text.encode()) // 4) for text in (COMPUTE, RIGHT)] == [8, 13]
    with serving(counted) as server:
        enough = runner.run(executed(server.url, sum(tokens)))
        short = runner.run(executed(server.url, sum(tokens) - 1))
    assert enough.fault is None and [call.tokens for call in enough.calls] == tokens
    assert short.fault == Fault("budget", f"more than {sum(tokens) - 1} tokens")


def test_only_the_server_knows_its_context() -> None:
    """Bytes of a long conversation were held against a context of our own, and took from the length of the reply."""
    chat = [{"role": "user", "content": "long " * 300_000}]

    async def once(url: str) -> str:
        async with OpenAIChatModel("m", url) as model:
            return (await RoleSampler(Role.EXECUTOR, model, 4096).call("Solver", chat, seed=1)).text

    with serving(said("two")) as server:
        text = asyncio.run(once(server.url))
    assert (text, server.asked[0]["max_tokens"]) == ("two", 4096)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_server_that_is_busy_is_asked_again(status: int) -> None:
    with serving(lambda asked, number: refused(status, "busy") if number == 1 else said("two")) as server:
        model = OpenAIChatModel("m", server.url)
        assert call(model) == "two"
    assert len(server.asked) == 2 and server.asked[0] == server.asked[1]
    assert model.stats() == {"requests": 2, "prompt_tokens": 7, "completion_tokens": 3}


@pytest.mark.parametrize("written", [lambda: "1", lambda: "1.25", lambda: formatdate(time.time() + 2, usegmt=True)])
def test_a_busy_server_is_given_the_time_it_asks_for(written: Callable[[], str]) -> None:
    with serving(lambda asked, n: refused(429, "busy", Retry_After=written()) if n == 1 else said("two")) as server:
        started = time.perf_counter()
        assert ask(OpenAIChatModel("m", server.url)).text == "two"
    assert 0.9 <= time.perf_counter() - started < 10
    assert len(server.asked) == 2


@pytest.mark.parametrize("written", ["soon", "-5", "nan", "inf", "3000", "Wed, 99 Nov 2026 00:00:00 GMT"])
def test_a_busy_server_cannot_make_us_wait_beyond_the_retry_time(written: str) -> None:
    with serving(refused(429, "slow down", Retry_After=written)) as server:
        started = time.perf_counter()
        with pytest.raises(SamplingFailed, match=r"after 1 attempts: .*returned an error \(429\): slow down"):
            call(OpenAIChatModel("m", server.url, retry_seconds=0.6), retries=0)
    assert time.perf_counter() - started < 5 and len(server.asked) <= 3


def test_pauses_get_longer_while_the_server_stays_busy() -> None:
    times: list[float] = []

    def busy(asked: dict[str, Any], number: int) -> Reply:
        times.append(time.perf_counter())
        return refused(503, "loading") if number < 4 else said("two")

    with serving(busy) as server:
        assert ask(OpenAIChatModel("m", server.url)).text == "two"
    first, second, third = (later - earlier for earlier, later in pairwise(times))
    assert 0.25 <= first < second + 0.3 and 0.5 <= second < third + 0.6 and 1.0 <= third < 5


def test_a_server_that_goes_away_and_comes_back() -> None:
    """A server that has answered once is waited for; one that never did is not (its URL is wrong)."""
    with serving(said("two")) as server:
        model = OpenAIChatModel("m", server.url)
        assert ask(model).text == "two"
        port = server.server_port

    async def once() -> ChatReply:
        async with model:
            return await model.chat(CHAT, SamplingParams(9))

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(asyncio.run, once())
        time.sleep(0.4)
        with serving(said("three"), port):
            assert waiting.result(20).text == "three"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(429, b'{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'),
        refused(402, "Insufficient Balance"),
    ],
)
def test_a_spent_quota_is_not_asked_again(reply: Reply) -> None:
    with serving(reply) as server:
        with pytest.raises(MetaAgentXError, match=r"has no quota left for the key in OPENAI_API_KEY \(4\d\d\): "):
            call(OpenAIChatModel("m", server.url))
    assert len(server.asked) == 1


def test_a_server_that_stays_broken_is_an_infra_fault(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    async def faults(url: str) -> list[tuple[str, str] | None]:
        async with OpenAIChatModel("m", url, retry_seconds=0.1) as model:
            shared = with_speakers(resources(model, model, sandbox, graders), retries=1)
            rollouts = await rollout_batch(
                [TASK, other], shared, RolloutOptions(RolloutConfig(designs=1, executions=1, retries=0)), ("test",)
            )
            executions = executions_of(rollouts)
            assert [execution.reward is None for execution in executions] == [False, True]
            return [(e.fault.kind, e.fault.message) if e.fault else None for e in executions]

    def breaks(asked: dict[str, Any], number: int) -> Reply:
        chat = asked["messages"]
        executes = chat[0]["content"] != DESIGNER_LINE
        return refused(500, "CUDA error") if executes and "4 by 4" in chat[1]["content"] else by_role(asked, number)

    other = replace(TASK, id="more", question="How many squares are there on a 4 by 4 board?")
    with serving(breaks) as server:
        well, broken = runner.run(faults(server.url))
    assert well is None and broken is not None and broken[0] == "infra"
    assert "after 2 attempts: 'm' at http://127.0.0.1" in broken[1] and broken[1].endswith(
        "returned an error (500): CUDA error"
    )


def test_a_conversation_that_the_server_refuses_is_the_script_s_fault(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    def picky(asked: dict[str, Any], number: int) -> Reply:
        chat = asked["messages"]
        if chat[-1]["content"] == "Hello":
            return said("Hello to you")
        executes = chat[0]["content"] != DESIGNER_LINE
        return refused(400, "invalid characters") if executes else by_role(asked, number)

    async def tree(url: str) -> Rollout:
        async with OpenAIChatModel("m", url) as model:
            shared = with_speakers(resources(model, model, sandbox, graders))
            options = RolloutOptions(RolloutConfig(designs=1, executions=1, retries=1))
            return (await rollout_batch([TASK], shared, options, ("test",)))[0]

    with serving(picky) as server:
        (execution,) = runner.run(tree(server.url)).designs[0].executions
    assert execution.fault is not None and execution.fault.kind == "budget"
    assert "returned an error (400): invalid characters" in execution.fault.message
    assert execution.reward is not None and execution.reward.total == 0


@pytest.mark.parametrize("refuses", ["system messages", "long replies"])
def test_settings_that_the_server_refuses_are_not_the_script_s_fault(refuses: str, runner: asyncio.Runner) -> None:
    def picky(asked: dict[str, Any], number: int) -> Reply:
        roles = [message["role"] for message in asked["messages"]]
        limit = next(value for name, value in asked.items() if name.startswith("max_"))
        if (refuses == "system messages" and "system" in roles) or (refuses == "long replies" and limit > 1000):
            return refused(400, f"no {refuses} here")
        return said("Hello to you")

    async def ask(url: str) -> None:
        async with OpenAIChatModel("m", url) as model:
            chat = [{"role": "system", "content": "Think."}, {"role": "user", "content": "What is 1 + 1?"}]
            await model.chat(chat, SamplingParams(4000))

    with serving(picky) as server, pytest.raises(BackendError, match=f"no {refuses} here"):
        runner.run(ask(server.url))


def test_a_run_ends_when_the_server_answers_nothing(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    async def tree(url: str) -> None:
        async with OpenAIChatModel("m", url) as model:
            shared = with_speakers(resources(model, model, sandbox, graders))
            await rollout_batch(
                [TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=1, retries=0)), ("test",)
            )

    with serving(refused(400, "Unsupported value: 'temperature'")) as server:
        with pytest.raises(
            MetaAgentXError,
            match=r"every execution failed with an infrastructure fault.*returned an error \(400\): Unsupported value",
        ):
            runner.run(tree(server.url))


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "refuses access (401) with the key in OPENAI_API_KEY"),
        (403, "refuses access (403) with the key in OPENAI_API_KEY: Wrong: *** is no good"),
        (404, "was not found (404), check the model's name and that the URL has its path, such as /v1: Wrong"),
        (500, "returned an error (500): Wrong: *** is no good"),
    ],
)
def test_refusals_are_one_line_without_the_key(status: int, says: str) -> None:
    with serving(refused(status, f"Wrong:\n{KEY}\nis no good")) as server:
        with pytest.raises(BackendError if status == 500 else MetaAgentXError) as caught:
            ask(OpenAIChatModel("m", server.url, retry_seconds=0))
    text = str(caught.value)
    assert text.startswith(f"'m' at {server.url} {says}") and "\n" not in text
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert len(server.asked) == 1


def test_a_wrong_key_ends_the_run_with_its_line(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    def executes_not(asked: dict[str, Any], number: int) -> Reply:
        designs = asked["messages"][0]["content"] == DESIGNER_LINE
        return by_role(asked, number) if designs else refused(401, f"Incorrect API key provided: {KEY}")

    async def tree(url: str) -> None:
        async with OpenAIChatModel("m", url) as model:
            await rollout_batch(
                [TASK],
                resources(model, model, sandbox, graders),
                RolloutOptions(RolloutConfig(designs=2, executions=4)),
                ("test",),
            )

    with serving(executes_not) as server:
        with pytest.raises(MetaAgentXError, match=r"'m' at http.* refuses access \(401\) with the key"):
            runner.run(tree(server.url))
    assert len(server.asked) <= 2 + 8, "nothing is asked again"


def test_a_server_without_keys_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with serving(lambda asked, number: said("two") if number == 1 else refused(401, "who?")) as server:
        assert call(OpenAIChatModel("m", server.url)) == "two"
        with pytest.raises(MetaAgentXError, match=r"\(401\) with no key; put one in MY_KEY$"):
            ask(OpenAIChatModel("m", server.url, "MY_KEY"))
    assert server.keys == ["Bearer none"] * 2
    with pytest.raises(MetaAgentXError, match=r"api\.openai\.com/v1 needs an API key: put it in OPENAI_API_KEY, or"):
        OpenAIChatModel("m")


def test_the_key_may_be_in_another_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", " other\n")
    with serving(said("two")) as server:
        ask(OpenAIChatModel("m", server.url, "MY_KEY"))
    assert server.keys == ["Bearer other"]


def test_what_cannot_be_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-sécret")
    with pytest.raises(MetaAgentXError, match=r"^OPENAI_API_KEY does not contain a valid API key") as caught:
        OpenAIChatModel("m")
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "127.0.0.1", "ftp://host/v1", "http:///v1"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(MetaAgentXError, match=r"invalid URL .*: expected one like http://localhost:8000/v1"):
        OpenAIChatModel("m", url)


@pytest.mark.parametrize("url", ["http://me:hidden@host/v1", "http://host/v1?key=hidden"])
def test_an_address_with_a_secret_is_not_shown(url: str) -> None:
    with pytest.raises(MetaAgentXError, match="put the key in an environment variable") as caught:
        OpenAIChatModel("m", url)
    assert "hidden" not in str(caught.value)


def test_no_variable_but_the_key_changes_where_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert str(OpenAIChatModel("m")) == "'m' at https://api.openai.com/v1"


def test_a_reply_that_was_cut() -> None:
    with serving(said("It is tw", "length")) as server:
        done = ask(OpenAIChatModel("m", server.url))
    assert done == ChatReply("It is tw", "length", prompt_tokens=7, completion_tokens=3)


@pytest.mark.parametrize("told", ["stop_reason", "matched_stop"])
def test_a_stop_text_is_put_back_where_the_server_tells_it(told: str) -> None:
    params = SamplingParams(100, stop=("</code>", "END"))
    with serving(lambda asked, n: said("<code>x", **({told: "</code>"} if n == 1 else {}))) as server:
        model = OpenAIChatModel("m", server.url)
        assert ask(model, params=params).text == "<code>x</code>"
        assert ask(model, params=params).text == "<code>x"


def test_a_stop_text_that_is_there_is_not_doubled() -> None:
    with serving(said("x END", stop_reason="END")) as server:
        assert ask(OpenAIChatModel("m", server.url), params=SamplingParams(9, stop=("END",))).text == "x END"


def test_the_end_token_of_a_server_is_no_stop_text() -> None:
    with serving(said("two", stop_reason=151645)) as server:
        assert ask(OpenAIChatModel("m", server.url)).text == "two"


def test_stop_tokens_are_refused() -> None:
    with pytest.raises(MetaAgentXError, match="only stop strings: use `stop`"):
        ask(OpenAIChatModel("m", "http://localhost/v1"), params=SamplingParams(9, stop_tokens=(10,)))


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_comes_first_and_is_not_sent_back(name: str) -> None:
    async def talk(url: str) -> list[str]:
        async with OpenAIChatModel("m", url) as model:
            sampler = RoleSampler(Role.EXECUTOR, model, 100)
            first = await sampler.call("Solver", CHAT, seed=1)
            chat = [*CHAT, {"role": "assistant", "content": first.text}, {"role": "user", "content": "Sure?"}]
            second = await sampler.call("Solver", chat, seed=2, earlier=[first])
            return [first.text, second.text]

    with serving(said("two", message={name: "1, 1, so"})) as server:
        assert asyncio.run(talk(server.url)) == ["<think>\n1, 1, so\n</think>\n\ntwo"] * 2
    assert server.asked[1]["messages"][2:] == [
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "Sure?"},
    ]


def test_a_reply_that_was_cut_while_thinking_stays_open() -> None:
    with serving(said(None, "length", message={"reasoning_content": "1, 1"})) as server:
        done = ask(OpenAIChatModel("m", server.url))
    assert done.text == "<think>\n1, 1" and done.finish == "length"


def test_a_reply_without_text_is_empty() -> None:
    with serving(said(None, "content_filter")) as server:
        assert ask(OpenAIChatModel("m", server.url)) == ChatReply("", "stop", prompt_tokens=7, completion_tokens=3)


def test_a_server_that_knows_only_the_newer_name_of_the_length() -> None:
    def newer(asked: dict[str, Any], number: int) -> Reply:
        if "max_tokens" in asked:
            return refused(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return said("two")

    with serving(newer) as server:
        model = OpenAIChatModel("m", server.url)
        ask(model), ask(model)
    names = [next(name for name in asked if name.startswith("max")) for asked in server.asked]
    assert names == ["max_tokens", "max_completion_tokens", "max_completion_tokens"]
    assert server.asked[2]["max_completion_tokens"] == 100 and model.stats()["requests"] == 3


def test_a_length_that_is_refused_under_both_names() -> None:
    with serving(refused(400, "max_tokens or max_completion_tokens is too large: 100")) as server:
        model = OpenAIChatModel("m", server.url)
        for _ in range(2):
            with pytest.raises(BackendError, match=r"returned an error \(400\): max_tokens or .* too large: 100"):
                ask(model)
    assert "max_tokens" in server.asked[2], "what did not help is not kept"


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "the request exceeds the available context size, try increasing it",
        "prompt is too long: 5000 tokens",
    ],
)
def test_a_conversation_beyond_the_servers_context(words: str) -> None:
    with serving(refused(400, words)) as server:
        with pytest.raises(ContextOverflow, match=f"has no room for the conversation: {words}"):
            call(OpenAIChatModel("m", server.url))
    assert len(server.asked) == 1


ROOM = (
    "This model's maximum context length is 4096 tokens. However, you requested 5096 tokens (4000 in the messages, "
    "1096 in the completion). Please reduce the length of the messages or completion.",
    "'max_tokens' or 'max_completion_tokens' is too large: 1096. This model's maximum context length is 4096 tokens "
    "and your request has 4000 input tokens (1096 > 4096 - 4000). (parameter=max_tokens, value=1096)",
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5096 "
    "tokens: 4000 tokens from the input messages and 1096 tokens for the completion.",
    "This model's maximum context length is 4096 tokens. However, you requested 1096 output tokens and your prompt "
    "contains at least 3001 input tokens, for a total of at least 4097 tokens.",
)


@pytest.mark.parametrize("words", ROOM)
def test_a_reply_gets_the_room_that_the_prompt_leaves(words: str) -> None:
    """As in training, where the length of a reply is cut to the rest of the context."""
    exact = "at least" not in words

    def room(asked: dict[str, Any], number: int) -> Reply:
        return said("two") if asked.get("max_tokens", 0) <= 96 else refused(400, words)

    with serving(room) as server:
        assert ask(OpenAIChatModel("m", server.url), params=SamplingParams(1096)).text == "two"
    lengths = [asked["max_tokens"] for asked in server.asked]
    assert lengths == ([1096, 96] if exact else [1096, 548, 274, 137, 68])


@pytest.mark.parametrize("words", ROOM)
def test_a_prompt_without_room_for_a_reply_overflows(words: str) -> None:
    with serving(refused(400, words.replace("4000", "4096"))) as server:
        with pytest.raises(ContextOverflow, match="has no room for the conversation"):
            call(OpenAIChatModel("m", server.url))
    assert len(server.asked) <= 3


def test_a_context_overflow_that_only_the_code_tells() -> None:
    body = b'{"error": {"message": "Please shorten your messages.", "code": "context_length_exceeded"}}'
    with serving(Reply(400, body)) as server, pytest.raises(ContextOverflow):
        call(OpenAIChatModel("m", server.url))


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(BackendError, match=rf"^http://127\.0\.0\.1:{port}/v1 cannot be reached: \w+"):
        ask(OpenAIChatModel("m", f"http://127.0.0.1:{port}/v1"))


def test_a_connection_that_breaks_off() -> None:
    with serving(Reply(200, b'{"choices', {"Content-Length": "1000", "Connection": "close"})) as server:
        with pytest.raises(BackendError, match=r"cannot be reached: peer closed connection"):
            ask(OpenAIChatModel("m", server.url))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Welcome</html>",
        b"[]",
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": [{"message": null}]}',
        b'{"error": {"message": "upstream"}}',
        b'{"choices": [{"message": {"content": "\\ud800"}}]}',
        b'{"choices": [{"message": {"content": "two"}, "finish_reason": "abort"}]}',
    ],
)
def test_a_reply_that_is_none(body: bytes) -> None:
    with serving(lambda asked, number: Reply(200, body) if number == 1 else said("two")) as server:
        model = OpenAIChatModel("m", server.url)
        with pytest.raises(BackendError, match=r"did not return a chat completion, but|aborted its reply"):
            ask(model)
        assert ask(model).text == "two"


def test_a_hanging_server_is_cut_by_the_deadline() -> None:
    done = threading.Event()

    def hangs(asked: dict[str, Any], number: int) -> Reply:
        if number <= 2:
            done.wait(30)
        return said("two")

    with serving(hangs) as server:
        model = OpenAIChatModel("m", server.url, max_concurrency=1)
        started = time.perf_counter()
        with pytest.raises(SamplingFailed, match=r"after 2 attempts: no reply within 0\.3 s"):
            call(model, attempt_seconds=0.3, retries=1)
        assert call(model) == "two", "what was cut holds no turn"
        assert time.perf_counter() - started < 10
        done.set()


def test_64_requests_at_once() -> None:
    together = threading.Barrier(64, timeout=60)

    def answers(asked: dict[str, Any], number: int) -> Reply:
        together.wait()
        return said("reply to " + asked["messages"][-1]["content"])

    async def ask_all(model: OpenAIChatModel) -> list[str]:
        async with model:
            chats = [[{"role": "user", "content": str(n)}] for n in range(64)]
            done = await asyncio.gather(*(model.chat(chat, SamplingParams(9)) for chat in chats))
            return [reply.text for reply in done]

    with serving(answers) as server:
        model = OpenAIChatModel("m", server.url, max_concurrency=64)
        assert asyncio.run(ask_all(model)) == [f"reply to {n}" for n in range(64)]
    assert server.most_under_way == 64 and model.stats()["requests"] == 64


def test_no_more_at_once_than_wanted() -> None:
    def slowly(asked: dict[str, Any], number: int) -> Reply:
        time.sleep(0.05)
        return said("two")

    async def ask_all(model: OpenAIChatModel) -> None:
        async with model:
            await asyncio.gather(*(model.chat(CHAT, SamplingParams(9)) for _ in range(16)))

    with serving(slowly) as server:
        asyncio.run(ask_all(OpenAIChatModel("m", server.url, max_concurrency=4)))
    assert server.most_under_way == 4


def test_all_of_unicode_both_ways() -> None:
    text = "žluťoučký 🦊\u200d🔥 שלום \x00\x1f\u2028 \U0010ffff assistant: user: "
    with serving(lambda asked, number: said(asked["messages"][-1]["content"])) as server:
        done = ask(OpenAIChatModel("m", server.url), [{"role": "user", "content": text}])
    assert server.asked[0]["messages"] == [{"role": "user", "content": text}]
    assert done.text == text


def test_one_model_in_one_event_loop_after_another_and_after_its_end() -> None:
    async def twice(model: OpenAIChatModel) -> None:
        for _ in range(2):
            await model.chat(CHAT, SamplingParams(9))
            await model.aclose()
        await model.aclose()

    with serving(said("two")) as server:
        model = OpenAIChatModel("m", server.url)
        for _ in range(3):
            asyncio.run(twice(model))
    assert model.stats()["requests"] == 6


def test_one_model_in_four_event_loops_at_once() -> None:
    together = threading.Barrier(4, timeout=60)

    def answers(asked: dict[str, Any], number: int) -> Reply:
        together.wait()
        return said("two")

    with serving(answers) as server, ThreadPoolExecutor(4) as threads:
        model = OpenAIChatModel("m", server.url)
        done = [threads.submit(ask, model) for _ in range(4)]
        assert [one.result().text for one in done] == ["two"] * 4
    assert model.stats()["requests"] == 4


def check(model: OpenAIChatModel, seconds: float = 20) -> None:
    async def once() -> None:
        async with model:
            await model.check(seconds)

    asyncio.run(once())


@pytest.mark.parametrize("models", [[], ["m"], ["a", "m"], ["a", "b"]])
def test_a_check_is_one_short_request(models: list[str]) -> None:
    """A server with many models routes by name, so that its own reply counts: aliases are not always listed."""
    with serving(said("Hi")) as server:
        server.models = models
        check(OpenAIChatModel("m", server.url, extra_body={"top_k": 3}))
    assert [(asked["max_tokens"], asked["top_k"]) for asked in server.asked] == [(16, 3)]


@pytest.mark.parametrize(
    ("reply", "models", "says"),
    [
        (refused(401, f"bad {KEY}"), [], r"'m' at {url} refuses access (401) with the key in OPENAI_API_KEY"),
        (refused(404, "no m"), ["a", "b"], r"'m' at {url} was not found (404), .*: no m; the server has 'a', 'b'"),
        (refused(404, "no m"), list("abcdefg"), r".*; the server has 'a', 'b', 'c', 'd', 'e', ..."),
        (refused(404, "no m"), ["m"], r"'m' at {url} was not found (404), .*: no m"),
        (said("I am x"), ["x"], r"{url} has no model 'm'; the server has 'x'"),
        (Reply(400, b'{"detail": "pinned to x"}'), [], r"'m' at {url} returned an error (400): pinned to x"),
        (Reply(200, b"<html>"), [], r"'m' at {url} did not return a chat completion, but '<html>'"),
        (refused(500, "broken"), [], r"'m' at {url} returned an error (500): broken"),
        (refused(400, "context length"), [], r"'m' at {url} has no room for the conversation: context length"),
    ],
)
def test_a_check_says_what_is_wrong_in_one_line(reply: Reply, models: list[str], says: str) -> None:
    with serving(reply) as server:
        server.models = models
        with pytest.raises(MetaAgentXError) as caught:
            check(OpenAIChatModel("m", server.url, retry_seconds=0))
    pattern = re.escape(says.replace("{url}", server.url)).replace(r"\.\*", ".*")
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_a_check_has_a_deadline() -> None:
    done = threading.Event()
    with serving(lambda asked, number: said(str(done.wait(30)))) as server:
        with pytest.raises(MetaAgentXError, match=r"'m' at http.* did not reply within 0\.3 s"):
            check(OpenAIChatModel("m", server.url), 0.3)
        done.set()


def test_it_cannot_be_trained() -> None:
    with pytest.raises(MetaAgentXError, match=r"the designer is a chat model \(OpenAIChatModel\).*the local backend"):
        require_trainable(Role.DESIGNER, OpenAIChatModel("m", "http://localhost/v1"))


def test_the_package_is_imported_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, metaagentx.backends.openai; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MetaAgentXError, match=r"^the openai backend needs: pip install 'metaagentx\[openai\]'$"):
        OpenAIChatModel("m")


def test_a_teacher_behind_a_server_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the manual, and what it solved is kept without. Tokens are counted. What is done is not asked again."""
    teacher = ProgrammedTeacher()

    def taught(asked: dict[str, Any], number: int) -> Reply:
        reply = asyncio.run(teacher.chat(asked["messages"], SamplingParams(8192, seed=asked["seed"])))
        return said(reply.text)

    with serving(taught) as server:
        words = ["coldstart", "gym:products?max_digits=3", "--out", tmp_path, "--count", 8, "--teacher", "m"]
        words += ["--base-url", server.url, "--price-read", 1e5, "--price-written", 1e6, "--key-env", "MY_KEY"]
        words += ["--extra-body", '{"top_k": 5}', "--set", "rollout.temperature=0.5", "--max-tokens", 99]
        monkeypatch.setenv("MY_KEY", "mine")
        done = command(*words)
        assert done.returncode == 0, done.stderr
        calls = len(server.asked)
        cost = 0.7 * calls + 3 * calls
        assert f"{7 * calls} prompt tokens, {3 * calls} completion tokens, cost {cost:.2f}" in done.stdout
        assert set(server.keys) == {"Bearer mine"}
        assert {(a["top_k"], a["temperature"], a["max_tokens"]) for a in server.asked} == {(5, 0.5, 99)}
        designers = [a["messages"][0]["content"] for a in server.asked if DESIGNER_LINE in a["messages"][0]["content"]]
        assert len(designers) == 8 and min(map(len, designers)) > 10 * len(DESIGNER_LINE)
        rows = read_rows(tmp_path / "coldstart.jsonl")
        assert {row.messages[0]["content"] for row in rows if row.role is Role.DESIGNER} == {DESIGNER_LINE}
        assert {row.teacher for row in rows} == {"m"}
        again = command(*words)
        assert (again.stdout, len(server.asked)) == (done.stdout, calls)
