"""The language and the sandbox together: scripts as the Designer writes them, unchanged, behind the wall."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaagentx.sandbox import JSON, Limits, Result, Sandbox, Tier, Verdict
from metaagentx.workflow import Ask
from metaagentx.workflow.inputs import CALLS_INPUT
from metaagentx.workflow.protocol import reply_answer
from metaagentx.workflow.validate import validate
from tests.workflow.scripted import Scripted
from tests.workflow.test_examples import CASES, EXAMPLES, QUESTION, source


class Host:
    """Answers model asks from a script and keeps every call, as the trainer will."""

    def __init__(self, scripted: Callable[[Ask], object]) -> None:
        self._scripted = scripted
        self.calls: list[tuple[str, str]] = []

    async def answer(self, body: JSON) -> JSON:
        assert isinstance(body, dict) and body["kind"] == "model"
        messages = tuple({str(k): str(v) for k, v in m.items()} for m in body["messages"])  # type: ignore[union-attr]
        reply = self._scripted(Ask("model", str(body["agent"]), messages))
        self.calls.append((str(body["agent"]), str(reply)))
        return str(reply)


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2, Tier.T3])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_the_same_answer_behind_the_wall(
    name: str, tier: Tier, runner: asyncio.Runner, sandboxes: Callable[[Tier], Sandbox]
) -> None:
    case, host = CASES[name], Host(Scripted(CASES[name].replies))
    limits = Limits(wall_seconds=20)
    run = sandboxes(tier).run(source(name), inputs={"question": QUESTION}, on_ask=host.answer, limits=limits)
    result = runner.run(run)
    assert result.verdict is Verdict.OK, result
    assert [agent for agent, _ in host.calls] == case.agents.split()
    answer = result.answer
    assert isinstance(answer, dict) and (answer["kind"], answer["value"]) == case.answer
    assert isinstance(answer["call"], int) and answer["call"] >= 1


def test_the_answer_names_a_call_whose_reply_the_host_can_check(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    name = "math_solver_critic"
    host = Host(Scripted(CASES[name].replies))
    answer = runner.run(sandbox.run(source(name), inputs={"question": QUESTION}, on_ask=host.answer)).answer
    assert isinstance(answer, dict) and isinstance(answer["call"], int)
    agent, text = host.calls[answer["call"] - 1]  # asks are numbered from 1; this script makes no other asks
    assert agent == "Solver"
    assert reply_answer(text).value == answer["value"]


def test_a_script_that_answers_by_itself_names_no_call(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    script = """
from workflow import Workflow, Message
from workflow.nodes import WorkflowNode

class Oracle(WorkflowNode):
    def process(self, context):
        return Message(r"\\boxed{14}", sender="me")

workflow = Workflow("cheat")
workflow.add_node(Oracle("oracle"))
print(workflow.run(question).content)
"""
    answer = runner.run(sandbox.run(script, inputs={"question": QUESTION})).answer
    assert isinstance(answer, dict) and answer["call"] is None


def test_members_of_an_ensemble_ask_at_the_same_time(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    together = asyncio.Event()
    asked: list[str] = []

    async def answer(body: JSON) -> JSON:
        assert isinstance(body, dict)
        asked.append(str(body["agent"]))
        if len(asked) == 3:
            together.set()
        await asyncio.wait_for(together.wait(), 10)
        return "<delivery>\\boxed{14}</delivery>"

    name = "math_ensemble_judge"
    result = runner.run(sandbox.run(source(name), inputs={"question": QUESTION}, on_ask=answer))
    assert result.verdict is Verdict.OK
    assert asked == ["Algebra", "Cases", "Backward", "Judge"]


ENDLESS = """
from workflow import AgentNode, LoopWorkflow, ToolRegistry, Workflow
from workflow.nodes import EnsembleNode, ReflectionNode

tools = ToolRegistry()
tools.register_python()
agent = AgentNode("A", "Work.", tool_registry=tools, max_turns={turns})
workflow = Workflow("w")
workflow.add_node(EnsembleNode("e", [ReflectionNode("r", agent, num_iterations={rounds})] * {width}))
while True:
    try:
        workflow.run(question)
    except Exception:
        pass
"""


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 8), st.integers(0, 30))
def test_no_accepted_script_escapes_its_call_budget(
    runner: asyncio.Runner, sandbox: Sandbox, turns: int, rounds: int, width: int, budget: int
) -> None:
    script = ENDLESS.format(turns=turns, rounds=rounds, width=width)
    assert validate(script) == []
    asked = 0

    async def answer(body: JSON) -> JSON:
        nonlocal asked
        asked += 1
        return "```python\nprint(1)\n```"

    inputs: dict[str, JSON] = {"question": "q", CALLS_INPUT: 10**6}
    run = sandbox.run(script, inputs=inputs, on_ask=answer, limits=Limits(asks=budget, wall_seconds=20))
    result: Result = runner.run(run)
    assert result.verdict is Verdict.BUDGET, result
    assert asked <= budget
    assert result.asks <= budget
