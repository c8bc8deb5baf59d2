import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.workflow import (  # fmt: skip
    AgentNode,
    Ask,
    Context,
    EnsembleNode,
    Message,
    PythonOutcome,
    ToolRegistry,
    Workflow,
    WorkflowError,
    WorkflowNode,
    ask,
    use,
)
from metaagentx.workflow.protocol import JSON
from metaagentx.workflow.runtime import Transport, ask_model, gather, run_python, run_to_end
from tests.workflow.scripted import Scripted, boxed, model_asks


class Recorder:
    """A transport that notes sends and receives, and answers pending asks in the order `pick` chooses."""

    def __init__(self, reply: Callable[[dict[str, Any]], JSON], pick: Callable[[list[int]], int] = min) -> None:
        self.events: list[str] = []
        self.answers: list[JSON] = []
        self.pending: dict[int, dict[str, Any]] = {}
        self._reply, self._pick, self._next = reply, pick, 100

    def send(self, body: dict[str, JSON]) -> int:
        self._next += 1
        body = json.loads(json.dumps(body))
        self.events.append("send")
        self.pending[self._next] = body
        return self._next

    def receive(self) -> tuple[int, JSON]:
        assert self.pending, "waits for a reply that nobody asked for"
        self.events.append("receive")
        chosen = self._pick(list(self.pending))
        return chosen, self._reply(self.pending.pop(chosen))

    def answer(self, value: JSON) -> None:
        self.answers.append(value)


def agent(name: str) -> AgentNode:
    return AgentNode(name=name, system_prompt="work")


def test_without_a_transport_the_error_says_what_to_do() -> None:
    with pytest.raises(WorkflowError, match=r"workflow\.use"):
        agent("A").run("q")


def test_members_are_asked_before_any_reply_is_awaited() -> None:
    transport = Recorder(lambda body: boxed(1))
    with use(transport):
        Workflow().add_node(EnsembleNode("e", [agent("A"), agent("B"), agent("C")])).run("q")
    assert transport.events[:4] == ["send", "send", "send", "receive"]


def test_the_final_answer_names_the_call_it_came_from() -> None:
    transport = Recorder(lambda body: {"text": boxed(7)})
    with use(transport) as session:
        message = Workflow().add_node(agent("A")).run("q")
    assert message.call == 101
    assert transport.answers == [{"kind": "boxed", "value": "7", "call": 101}] == [session.answer]


def test_the_last_outermost_run_wins_and_nodes_alone_answer_nothing() -> None:
    transport = Recorder(lambda body: boxed(body["messages"][-1]["content"]))
    flow = Workflow().add_node(agent("A"))
    with use(transport):
        agent("B").run("0")
        flow.run("1")
        flow.run("2")
    assert [a["value"] for a in transport.answers if isinstance(a, dict)] == ["1", "2"]


def test_replies_may_come_in_any_order() -> None:
    transport = Recorder(lambda body: boxed(body["agent"]), pick=max)
    seen: list[str] = []

    class Collect(WorkflowNode):
        async def process(self, context: Context) -> Message:
            messages = await gather([ask(agent(name), context) for name in "ABC"])
            seen.extend(message.sender for message in messages)
            return messages[0]

    with use(transport):
        Collect("all").run("q")
    assert seen == ["A", "B", "C"]


def test_a_tool_may_run_an_agent_while_others_wait() -> None:
    helper = agent("Helper")
    tools = ToolRegistry()
    tools.register("consult", lambda topic: helper.run(topic).content, "asks the helper")
    call = '<tool_call>{"name": "consult", "arguments": {"topic": "t"}}</tool_call>'

    def reply(body: dict[str, Any]) -> JSON:
        if body["agent"] == "Helper":
            return "<delivery>advice</delivery>"
        told = [message["content"] for message in body["messages"] if "advice" in message["content"]]
        return boxed(body["agent"]) if told or body["agent"] == "B" else call

    members = [AgentNode("A", "p", tools), agent("B"), AgentNode("C", "p", tools)]
    for pick in (min, max):
        transport = Recorder(reply, pick)
        with use(transport):
            message = EnsembleNode("e", members).run("q")
        assert message.content == "\\boxed{A}"
        assert not transport.pending


def test_a_workflow_run_inside_another_does_not_answer() -> None:
    inner = Workflow("inner").add_node(agent("Helper"))
    tools = ToolRegistry()
    tools.register("consult", lambda: inner.run("t").content)
    replies = Scripted({"A": ['<tool_call>{"name": "consult"}</tool_call>', boxed(2)], "Helper": boxed(1)})
    transport = Recorder(lambda body: str(replies(Ask("model", body["agent"]))))
    with use(transport):
        Workflow().add_node(AgentNode("A", "p", tools)).run("q")
    assert len(transport.answers) == 1


def test_an_error_reply_ends_the_run_with_its_text() -> None:
    with use(Recorder(lambda body: {"error": "the budget is used up"})), pytest.raises(WorkflowError, match="budget"):
        agent("A").run("q")


@pytest.mark.parametrize("reply", [None, 3, [], {}, {"text": 3}])
def test_a_reply_that_is_no_text_is_an_error(reply: JSON) -> None:
    with use(Recorder(lambda body: reply)), pytest.raises(WorkflowError, match="not a text"):
        agent("A").run("q")


def test_one_failing_branch_fails_the_gather_after_all_have_ended() -> None:
    ended: list[str] = []

    async def branch(name: str) -> str:
        await ask_model(name, [])
        ended.append(name)
        if name == "B":
            raise ValueError("B fails")
        return name

    async def together() -> list[str]:
        return await gather([branch(name) for name in "ABC"])

    with use(lambda ask: "x"), pytest.raises(ValueError, match="B fails"):
        run_to_end(together())
    assert ended == ["A", "B", "C"]


def test_awaiting_asyncio_is_a_clear_error() -> None:
    class Sleeper(WorkflowNode):
        async def process(self, context: Context) -> Message:
            await asyncio.sleep(0)
            return Message("never")

    with use(lambda ask: "x"), pytest.raises(WorkflowError, match="asyncio"):
        Sleeper("s").run("q")


def test_a_keyboard_interrupt_passes_through_and_leaves_nothing_open() -> None:
    def interrupt(ask: Ask) -> str:
        raise KeyboardInterrupt

    with use(interrupt), pytest.raises(KeyboardInterrupt):
        EnsembleNode("e", [agent("A"), agent("B")]).run("q")


def test_use_puts_back_what_was_in_use() -> None:
    with use(lambda ask: "outer") as outer:
        with use(lambda ask: "inner") as inner:
            assert agent("A").run("q").content == "inner"
        assert agent("A").run("q").content == "outer"
    assert (len(outer.asks), len(inner.asks)) == (1, 1)
    with pytest.raises(WorkflowError):
        agent("A").run("q")


def test_a_function_answers_python_asks_with_an_outcome_or_just_what_is_printed() -> None:
    async def both() -> list[PythonOutcome]:
        return await gather([run_python("a"), run_python("b", stdin="in", timeout=1.0)])

    with use(lambda ask: "printed" if ask.code == "a" else PythonOutcome("o", "e", 3, True)) as session:
        assert run_to_end(both()) == [PythonOutcome("printed"), PythonOutcome("o", "e", 3, True)]
    assert session.asks[1].body() == {"kind": "python", "code": "b", "stdin": "in", "timeout": 1.0}


def test_the_budget_stops_a_script_that_never_stops() -> None:
    with use(lambda ask: "again", max_calls=25) as session, pytest.raises(WorkflowError, match="budget"):
        while True:
            agent("A").run("q")
    assert len(model_asks(session)) == 25


def test_a_recorder_is_a_transport() -> None:
    assert isinstance(Recorder(lambda body: None), Transport)


Tree = list[Any]
trees = st.recursive(st.integers(0, 99), lambda inner: st.lists(inner, max_size=4), max_leaves=25)


def leaves(tree: int | Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for part in tree for leaf in leaves(part)]


@settings(max_examples=100, deadline=None)
@given(tree=trees, turns=st.integers(1, 3), seed=st.integers(0, 999))
def test_any_tree_of_branches_gives_its_results_in_order(tree: int | Tree, turns: int, seed: int) -> None:
    async def visit(part: int | Tree) -> list[str]:
        if isinstance(part, int):
            return [(await ask_model(f"{part}.{turn}", []))[1] for turn in range(turns)][-1:]
        return [text for texts in await gather([visit(inner) for inner in part]) for text in texts]

    transport = Recorder(lambda body: body["agent"], pick=Random(seed).choice)
    with use(transport):
        assert run_to_end(visit(tree)) == [f"{leaf}.{turns - 1}" for leaf in leaves(tree)]
    first_wave = len(leaves(tree))
    assert transport.events[:first_wave] == ["send"] * first_wave
    assert not transport.pending
