from collections.abc import Sequence

import pytest

from metaagentx.workflow import (
    AgentNode,
    Context,
    DebateNode,
    EnsembleNode,
    Message,
    ReflectionNode,
    RouterNode,
    ToolRegistry,
    Workflow,
    WorkflowError,
    WorkflowNode,
    use,
)
from tests.workflow.scripted import Scripted, boxed, model_asks, prompts


def agents(*names: str) -> list[WorkflowNode]:
    return [AgentNode(name, f"You are {name}.") for name in names]


def agent(name: str) -> AgentNode:
    return AgentNode(name, f"You are {name}.")


def test_a_majority_wins_with_the_message_of_its_first_member() -> None:
    with use(Scripted({"A": boxed(3), "B": boxed("1/2"), "C": boxed("0.5")})):
        winner = EnsembleNode("vote", agents("A", "B", "C")).run("q")
    assert (winner.sender, winner.call, winner.answer.value) == ("B", 1, "1/2")


def test_a_tie_goes_to_the_first_member() -> None:
    with use(Scripted({"A": boxed(3), "B": boxed(4), "C": boxed(4), "D": boxed(3)})):
        assert EnsembleNode("vote", agents("A", "B", "C", "D")).run("q").sender == "A"


def test_weights_decide_a_weighted_vote() -> None:
    replies = {"A": boxed(3), "B": boxed(3), "C": boxed(4)}
    with use(Scripted(replies)):
        assert EnsembleNode("v", agents(*"ABC"), "weighted_vote", weights=[1, 1, 3]).run("q").sender == "C"
        assert EnsembleNode("v", agents(*"ABC"), "weighted_vote", weights=[1, 1, 1.5]).run("q").sender == "A"


def test_the_judge_decides_only_without_a_majority() -> None:
    judge = agent("Judge")
    vote = EnsembleNode("vote", agents("A", "B", "C"), consensus_agent=judge)
    with use(Scripted({"A": boxed(1), "B": boxed(1), "C": boxed(2), "Judge": boxed(9)})) as session:
        assert vote.run("q").answer.value == "1"
    assert not model_asks(session, "Judge")
    with use(Scripted({"A": boxed(1), "B": boxed(2), "C": boxed(3), "Judge": boxed(9)})) as session:
        assert vote.run("q").answer.value == "9"
    assert len(model_asks(session, "Judge")) == 1


def test_a_judge_sees_question_and_deliveries_and_no_reasoning() -> None:
    with use(Scripted({"A": boxed(1), "B": "Rough. <delivery>two</delivery>", "Judge": boxed(9)})) as session:
        EnsembleNode("vote", agents("A", "B"), strategy="consensus", consensus_agent=agent("Judge")).run("What?")
    (seen,) = prompts(session, "Judge")
    assert seen.startswith("Question:\nWhat?\n\nFrom A:\n\\boxed{1}\n\nFrom B:\ntwo\n\n")
    assert "Rough" not in seen
    assert "Let me think" not in seen


def test_the_same_agent_may_stand_several_times() -> None:
    solver = agent("S")
    with use(Scripted({"S": [boxed(1), boxed(2), boxed(2)]})) as session:
        winner = EnsembleNode("vote", [solver] * 3).run("q")
    assert (winner.answer.value, winner.call) == ("2", 1)
    assert prompts(session, "S") == ["q", "q", "q"]


def test_members_do_not_see_what_another_changes() -> None:
    class Meddler(WorkflowNode):
        def process(self, context: Context) -> Message:
            seen = [*context.deliveries, *context.state.values()]
            context.add_message(Message("mine"))
            context.set_state("key", "changed")
            return Message(f"saw {seen}", self.name)

    with use(Scripted({})):
        result = EnsembleNode("vote", [Meddler("A"), Meddler("B"), Meddler("C")]).run("q", {"key": "given"})
        debate = DebateNode("debate", [Meddler("A"), Meddler("B")], num_rounds=1).run("q", {"key": "given"})
    assert result.content == debate.content == "saw ['given']"
    with use(Scripted({"J": boxed(1)})) as session:
        EnsembleNode("v", [Meddler("A"), Meddler("B")], "consensus", agent("J")).run("q", {"key": "given"})
    assert prompts(session, "J")[0].count("saw ['given']") == 2


def test_members_may_be_whole_workflows() -> None:
    pair = Workflow("pair").add_nodes(agents("A", "B"))
    with use(Scripted({"A": boxed(1), "B": boxed(2), "C": boxed(2)})) as session:
        winner = EnsembleNode("vote", [pair, agent("C")]).run("q")
    assert winner.answer.value == "2"
    assert prompts(session, "C") == ["q"]
    assert "From A" in prompts(session, "B")[0]


def test_defect_10_incorrect_does_not_end_a_reflection() -> None:
    node = ReflectionNode("r", agent("S"), agent("Critic"), num_iterations=2)
    critic = "<delivery>Sign error. Verdict: INCORRECT</delivery>"
    with use(Scripted({"S": [boxed(1), boxed(2), boxed(3)], "Critic": critic})) as session:
        assert node.run("q").answer.value == "3"
    assert len(session.asks) == 5


def test_a_reflection_ends_on_approval() -> None:
    node = ReflectionNode("r", agent("S"), agent("Critic"), num_iterations=5)
    replies = {"S": [boxed(1), boxed(2), boxed(3)], "Critic": ["not correct", "Hm.", "Verdict: CORRECT"]}
    with use(Scripted(replies)) as session:
        assert node.run("q").answer.value == "3"
    assert [ask.agent for ask in session.asks] == ["S", "Critic", "S", "Critic", "S", "Critic"]
    assert "From Critic:\nnot correct" in prompts(session, "S")[1]


def test_reflection_prompts_can_be_replaced_and_the_critic_left_out() -> None:
    node = ReflectionNode(
        "r", agent("S"), num_iterations=1, reflection_prompt="Look twice.", refinement_prompt="Again."
    )
    with use(Scripted({"S": [boxed(1), "INCORRECT", boxed(2)]})) as session:
        assert node.run("q").answer.value == "2"
    assert [prompt.split("\n")[-1] for prompt in prompts(session, "S")] == ["q", "Look twice.", "Again."]


def test_what_is_asked_of_a_node_reaches_the_nodes_inside_it() -> None:
    critics = EnsembleNode("critics", agents("A", "B"), strategy="consensus", consensus_agent=agent("Judge"))
    node = ReflectionNode("r", agent("S"), critics, num_iterations=1, reflection_prompt="Say CORRECT or INCORRECT.")
    with use(Scripted({"S": boxed(1), "A": "fine", "B": "bad", "Judge": "CORRECT"})) as session:
        node.run("q")
    assert all("Say CORRECT or INCORRECT." in prompts(session, name)[0] for name in ("A", "B", "Judge"))


def test_debaters_see_one_another_and_the_judge_sees_the_last_round() -> None:
    replies = {"A": [boxed(1), boxed(11)], "B": [boxed(2), boxed(22)], "Judge": boxed(22)}
    with use(Scripted(replies)) as session:
        assert DebateNode("d", agents("A", "B"), judge=agent("Judge"), num_rounds=2).run("q").sender == "Judge"
    assert [ask.agent for ask in session.asks] == ["A", "B", "A", "B", "Judge"]
    for name in "AB":
        first, second = prompts(session, name)
        assert first == "q"
        assert "From A:\n\\boxed{1}" in second
        assert "From B:\n\\boxed{2}" in second
    (last,) = prompts(session, "Judge")
    assert "\\boxed{11}" in last
    assert "\\boxed{1}" not in last


def test_without_a_judge_a_debate_is_put_to_the_vote() -> None:
    replies: dict[str, Sequence[str]] = {
        "A": [boxed(1), boxed(2)],
        "B": [boxed(2), boxed(2)],
        "C": [boxed(3), boxed(1)],
    }
    with use(Scripted(replies)):
        assert DebateNode("d", agents(*"ABC")).run("q").sender == "A"


def route(context: Context) -> str:
    return str(context.get_state("route"))


def test_a_router_takes_the_named_branch_and_else_the_default() -> None:
    router = RouterNode("r", {"a": agent("A"), "other": agent("B")}, route, default_route="other")
    with use(Scripted({"A": "<delivery>a</delivery>", "B": "<delivery>b</delivery>"})):
        assert router.run("q", {"route": "a"}).sender == "A"
        assert router.run("q", {"route": "nonsense"}).sender == "B"
        assert router.run("q").sender == "B"


def test_a_router_without_a_default_says_so() -> None:
    router = RouterNode("r", {"a": agent("A")}, route)
    with use(Scripted({})), pytest.raises(WorkflowError, match=r"no default route 'default'\. Routes: a"):
        router.run("q", {"route": "nonsense"})


def test_a_routing_function_may_ask_an_agent() -> None:
    classifier = agent("Classifier")
    router = RouterNode("r", {"a": agent("A"), "b": agent("B")}, lambda c: classifier.run(c.question).content)
    with use(Scripted({"Classifier": "<delivery>b</delivery>", "A": "x", "B": "<delivery>y</delivery>"})):
        assert router.run("q").sender == "B"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: EnsembleNode("e", []), "at least one agent"),
        (lambda: EnsembleNode("e", ["A"]), "needs a node such as AgentNode, not str"),  # type: ignore[list-item]
        (lambda: EnsembleNode("e", agents("A"), "vote"), "strategy must be one of"),  # type: ignore[arg-type]
        (lambda: EnsembleNode("e", agents("A"), "consensus"), "needs a consensus_agent"),
        (lambda: EnsembleNode("e", agents("A"), weights=[1, 2]), "weights"),
        (lambda: EnsembleNode("e", agents("A"), weights=[float("nan")]), "weights"),
        (lambda: DebateNode("d", agents("A"), num_rounds=0), "num_rounds"),
        (lambda: ReflectionNode("r", agent("A"), num_iterations=-1), "num_iterations"),
        (lambda: RouterNode("r", {}, route), "at least one agent"),
        (lambda: RouterNode("r", agents("A"), route), "a dict of nodes"),  # type: ignore[arg-type]
        (lambda: ToolRegistry().register("t", print, "d", ["a"]), "must be a dict"),  # type: ignore[arg-type]
        (lambda: AgentNode(3, "p"), "must be a str"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_built_says_why(build: object, reason: str) -> None:
    assert callable(build)
    with pytest.raises(WorkflowError, match=reason):
        build()
