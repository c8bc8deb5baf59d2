import pytest

from metaagentx.workflow import END, AgentGraph, AgentNode, Context, Message, Workflow, WorkflowError, WorkflowNode, use
from tests.workflow.scripted import Scripted, boxed, model_asks, prompts

SAY = {name: f"<delivery>{name.lower()}</delivery>" for name in "ABCDE"}


def graph_of(edges: str, max_steps: int = 50) -> AgentGraph:
    graph = AgentGraph("g", max_steps)
    for name in sorted(set(edges) - {" "}):
        graph.add_node(name, AgentNode(name, "work"))
    for edge in edges.split():
        graph.add_edge(edge[0], edge[1])
    return graph


def order(graph: AgentGraph) -> str:
    with use(Scripted(SAY)) as session:
        graph.run("q")
    return "".join(ask.agent for ask in session.asks)


def test_defect_11_graphs_work() -> None:
    assert order(graph_of("AB BC")) == "ABC"


def test_branches_run_together_and_their_join_waits() -> None:
    graph = graph_of("AB AC BD CE ED")
    with use(Scripted(SAY)) as session:
        result = graph.run("q")
    assert "".join(ask.agent for ask in session.asks) == "ABCED"
    assert result.sender == "D"
    assert "From B" not in prompts(session, "C")[0]
    assert prompts(session, "D")[0].count("From") == 4


def test_a_cycle_is_bounded_by_max_steps() -> None:
    assert order(graph_of("AB BA", max_steps=5)) == "ABABA"


def test_a_join_in_a_cycle_waits_in_the_first_round() -> None:
    graph = graph_of("AB AC BD CD", max_steps=9)
    graph.add_conditional_edges("D", lambda context: "B" if len(context.messages) < 6 else END, targets=["B"])
    assert order(graph) == "ABCDBD"


def test_conditions_choose_edges() -> None:
    graph = graph_of("AB")
    graph.add_node("C", AgentNode("C", "work"))
    graph.add_edge("A", "C", condition=lambda context: context.latest.content == "nothing")
    assert order(graph) == "AB"


def test_routing_functions_choose_nodes() -> None:
    choices: list[tuple[str | list[str] | None, str]] = [
        ("D", "ABCD"),
        (["D", "B"], "ABCBD"),
        (END, "ABCD"),
        (None, "ABCD"),
    ]
    for choice, expected in choices:
        pending = [choice]

        def route(context: Context, pending: list[str | list[str] | None] = pending) -> str | list[str] | None:
            return pending.pop() if pending else None

        routed = graph_of("AB AC BD")
        routed.add_conditional_edges("C", route)
        assert "".join(sorted(order(routed))) == "".join(sorted(expected))
    graph = graph_of("AB AC BD")
    graph.add_conditional_edges("D", lambda context: "Z")
    with use(Scripted(SAY)), pytest.raises(WorkflowError, match="no node 'Z'"):
        graph.run("q")


def test_a_routing_function_keeps_to_its_targets() -> None:
    graph = graph_of("AB")
    graph.add_conditional_edges("B", lambda context: "A", targets=["B"])
    with use(Scripted(SAY)), pytest.raises(WorkflowError, match="not among its targets"):
        graph.run("q")


def test_a_finish_point_ends_the_run_with_its_message() -> None:
    graph = graph_of("AB BC CA")
    graph.set_finish_point("C")
    graph.set_entry_point("B")
    with use(Scripted(SAY)) as session:
        assert graph.run("q").content == "c"
    assert "".join(ask.agent for ask in session.asks) == "BC"
    assert session.answer == {"kind": "text", "value": "c", "call": 1}


def test_state_set_in_one_branch_survives_the_other() -> None:
    class Note(WorkflowNode):
        def process(self, context: Context) -> Message:
            context.set_state(self.name, "new")
            return Message(self.name, self.name)

    graph = AgentGraph("g")
    for name in ("start", "left", "right"):
        graph.add_node(name, Note(name))
    graph.add_node("end", AgentNode("A", "work"))
    for source, target in (("start", "left"), ("start", "right"), ("left", "end"), ("right", "end")):
        graph.add_edge(source, target)
    graph.add_conditional_edges("end", lambda context: END if set(context.state.values()) == {"new"} else "wrong")
    with use(Scripted({"A": boxed(1)})):
        graph.run("q", {"left": "old", "right": "old"})


def test_a_graph_nests_in_a_workflow() -> None:
    with use(Scripted(SAY)) as session:
        Workflow().add_node(graph_of("AB")).add_node(AgentNode("E", "work")).run("q")
    assert prompts(session, "E") == ["Question:\nq\n\nFrom B:\nb"]
    assert len(model_asks(session)) == 3


def test_what_is_missing_is_named() -> None:
    with pytest.raises(WorkflowError, match="no node 'B'"):
        AgentGraph("g").add_node("A", AgentNode("A", "p")).add_edge("A", "B")
    with use(Scripted({})), pytest.raises(WorkflowError, match="add_node"):
        AgentGraph("g").run("q")
    with pytest.raises(WorkflowError, match="name first"):
        AgentGraph("g").add_node(AgentNode("A", "p"), "A")  # type: ignore[arg-type]
