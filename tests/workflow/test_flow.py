import pytest

from metaagentx.workflow import (
    AgentNode,
    ConditionalWorkflow,
    Context,
    LoopWorkflow,
    Message,
    Workflow,
    WorkflowError,
    WorkflowNode,
    use,
)
from tests.workflow.scripted import Scripted, boxed, prompts


def agent(name: str) -> AgentNode:
    return AgentNode(name, "work")


def test_nodes_run_in_order_and_see_earlier_deliveries() -> None:
    with use(Scripted({"A": boxed(1), "B": boxed(2), "C": boxed(3)})) as session:
        result = Workflow("w").add_nodes([agent("A"), agent("B"), agent("C")]).run("q")
    assert result.sender == "C"
    assert prompts(session, "C") == ["Question:\nq\n\nFrom A:\n\\boxed{1}\n\nFrom B:\n\\boxed{2}"]
    assert session.answer == {"kind": "boxed", "value": "3", "call": 2}


def test_the_answer_of_a_fabricated_message_names_no_call() -> None:
    class Cheat(WorkflowNode):
        def process(self, context: Context) -> Message:
            return Message("\\boxed{42}")

    with use(Scripted({})) as session:
        Workflow().add_node(Cheat("c")).run("q")
    assert session.answer == {"kind": "boxed", "value": "42", "call": None}


def test_a_node_that_returns_no_message_is_named() -> None:
    class Careless(WorkflowNode):
        def process(self, context: Context) -> Message:
            return "text"  # type: ignore[return-value]

    with use(Scripted({})), pytest.raises(WorkflowError, match="careless: process must return a Message, not str"):
        Workflow().add_node(Careless("careless")).run("q")


def test_a_workflow_in_a_workflow_shows_only_its_result_and_shares_the_state() -> None:
    inner = Workflow("inner").add_node(agent("A")).add_node(agent("B"), lambda context: context.get_state("go") is True)
    outer = Workflow("outer").add_node(inner).add_node(agent("C"))
    with use(Scripted({"A": boxed(1), "B": boxed(2), "C": boxed(3)})) as session:
        outer.run("q", initial_state={"go": True})
    assert prompts(session, "C") == ["Question:\nq\n\nFrom B:\n\\boxed{2}"]


def test_an_empty_workflow_says_what_is_missing() -> None:
    with use(Scripted({})), pytest.raises(WorkflowError, match="add_node"):
        Workflow("w").run("q")
    with use(Scripted({})), pytest.raises(WorkflowError, match="conditions were false"):
        ConditionalWorkflow("c").add_node(agent("A"), lambda context: False).run("q")


def test_a_question_must_be_a_text() -> None:
    with use(Scripted({})), pytest.raises(WorkflowError, match="must be a str"):
        Workflow().add_node(agent("A")).run(None)  # type: ignore[arg-type]


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        Workflow(name="w", ai_client=None)  # type: ignore[call-arg]


def test_defect_11_conditions_work() -> None:
    flow = ConditionalWorkflow("c")
    flow.add_node(agent("Solver"))
    flow.add_node(agent("Fixer"), lambda context: "unsure" in context.latest.content)
    with use(Scripted({"Solver": "<delivery>unsure</delivery>", "Fixer": boxed(2)})):
        assert flow.run("q").sender == "Fixer"
    with use(Scripted({"Solver": boxed(1), "Fixer": boxed(2)})):
        assert flow.run("q").sender == "Solver"


def test_defect_11_loops_work() -> None:
    loop = LoopWorkflow("l", max_iterations=5)
    loop.add_node(agent("Solver")).add_node(agent("Critic"))
    loop.set_loop_condition(lambda context: not context.latest.verdict)
    with use(Scripted({"Solver": boxed(1), "Critic": ["INCORRECT", "Verdict: INCORRECT", "CORRECT"]})) as session:
        loop.run("q")
    assert [ask.agent for ask in session.asks] == ["Solver", "Critic"] * 3
    assert "From Critic (2):" in prompts(session, "Solver")[2]


def test_a_loop_is_bounded_and_without_a_condition_runs_to_its_bound() -> None:
    for condition in (None, lambda context: True):
        loop = LoopWorkflow("l", max_iterations=3)
        loop.add_node(agent("A"))
        if condition:
            loop.set_loop_condition(condition)
        with use(Scripted({"A": boxed(1)})) as session:
            loop.run("q")
        assert len(session.asks) == 3


def test_defect_11_a_condition_inside_a_loop_inside_a_workflow() -> None:
    loop = LoopWorkflow("l", max_iterations=4)
    loop.add_node(agent("A"))
    loop.add_node(agent("B"), lambda context: len(context.messages) >= 2)
    loop.set_loop_condition(lambda context: context.latest.sender != "B")
    with use(Scripted({"A": boxed(1), "B": boxed(2), "C": boxed(3)})) as session:
        Workflow().add_node(loop).add_node(agent("C")).run("q")
    assert [ask.agent for ask in session.asks] == ["A", "A", "B", "C"]


def test_conditions_share_state_with_each_other() -> None:
    def count(context: Context) -> bool:
        rounds = context.get_state("rounds", 0)
        assert isinstance(rounds, int)
        context.set_state("rounds", rounds + 1)
        return rounds < 2

    loop = LoopWorkflow("l", max_iterations=9)
    loop.add_node(agent("A"))
    loop.set_loop_condition(count)
    with use(Scripted({"A": boxed(1)})) as session:
        loop.run("q")
    assert len(session.asks) == 3


def test_before_anyone_has_spoken_the_latest_message_is_the_question() -> None:
    assert Context("q").get_latest_message().content == "q"
    assert Context("q", [Message("a")]).deliveries == ["a"]
