"""The structure of really built workflows: its label and bounds, how it is reported, and that no report is believed."""

import json
import sys
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metaagentx.workflow
from metaagentx.workflow import (  # fmt: skip
    AgentGraph,
    AgentNode,
    Ask,
    Context,
    DebateNode,
    EnsembleNode,
    LoopWorkflow,
    Message,
    ReflectionNode,
    RouterNode,
    ToolRegistry,
    Workflow,
    WorkflowError,
    WorkflowNode,
    use,
)
from metaagentx.workflow.inputs import CALLS_INPUT
from metaagentx.workflow.structure import (
    MAX_LINKS,
    MAX_NAME,
    MAX_NODES,
    MAX_REPORTS,
    Structure,
    StructureNode,
    inspect_workflow,
    join_structures,
    parse_structure,
)
from metaagentx.workflow.validate import validate
from tests.workflow.conftest import RunScript
from tests.workflow.scripted import boxed, model_asks

HEAD = "from workflow import *\n"


def agent(name: str, *tools: str) -> AgentNode:
    registry = ToolRegistry()
    for tool in tools:
        registry.register(tool, lambda: 1)
    return AgentNode(name, "p", registry, max_turns=3)


class Bodies:
    """A transport that keeps what was sent and replies the same to everything."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self._unanswered: list[int] = []

    def send(self, body: dict[str, Any]) -> int:
        self.sent.append(json.loads(json.dumps(body)))
        self._unanswered.append(len(self.sent))
        return len(self.sent)

    def receive(self) -> tuple[int, Any]:
        return self._unanswered.pop(0), boxed(1)

    def answer(self, value: Any) -> None:
        pass

    def reports(self) -> list[tuple[int, Structure | None]]:
        """The place of each ask with a structure, and the structure as the host reads it."""
        return [(i, parse_structure(b["structure"])) for i, b in enumerate(self.sent) if "structure" in b]


# --- what a workflow says of itself


def test_nodes_edges_loops_and_tools_are_what_was_built() -> None:
    solver, critic, judge = agent("Solver", "python"), agent("Critic"), agent("Judge")
    review = ReflectionNode("review", solver, critic, num_iterations=2)
    debate = DebateNode("debate", [solver, judge], judge, num_rounds=2)
    flow = LoopWorkflow("loop", 3).add_nodes([review, debate])
    found = inspect_workflow(flow)
    nodes = {node.name: node for node in found.structure.nodes}
    names = [node.name for node in found.structure.nodes]
    assert names[0] == "loop" and (nodes["loop"].kind, nodes["loop"].rounds) == ("loop", 3)
    assert [names[child] for child in nodes["loop"].children] == ["review", "debate"]
    assert [names[child] for child in nodes["debate"].children] == ["Solver", "Judge", "Judge"]
    assert nodes["Solver"] == StructureNode("agent", "Solver", tools=("python",), rounds=3)
    assert {(names[source], names[target]) for source, target in found.structure.edges} == {
        ("review", "debate"), ("debate", "review"), ("Solver", "Critic"), ("Critic", "Solver"),
        ("Solver", "Judge"), ("Judge", "Solver"), ("Judge", "Judge"),
    }  # fmt: skip
    assert (found.structure.pattern, found.agents) == ("mixed+tools", 3)
    assert found.calls == 3 * ((3 + 2 * (1 + 3)) + (2 * (3 + 1) + 1))


@pytest.mark.parametrize(
    ("node", "pattern", "calls"),
    [
        (agent("A"), "single", 1),
        (Workflow().add_node(Workflow().add_node(agent("A", "t"))), "single+tools", 3),
        (EnsembleNode("e", [agent("A")] * 5), "ensemble", 5),
        (ReflectionNode("r", agent("A"), num_iterations=0), "reflection", 1),
        (ReflectionNode("r", agent("A"), agent("B"), num_iterations=0), "reflection", 1),
        (DebateNode("d", [agent("A"), agent("B", "t")], num_rounds=1), "debate+tools", 4),
        (RouterNode("r", {"a": agent("A"), "b": agent("B", "t")}, lambda context: "a"), "router+tools", 3),
        (RouterNode("r", {"a": EnsembleNode("e", [agent("A")])}, lambda context: "a"), "mixed", 1),
        (Workflow().add_nodes([agent("A"), agent("B")]), "mixed", 2),
        (LoopWorkflow("l", 4).add_node(agent("A")), "mixed", 4),
        (AgentGraph("g", 9).add_node("a", agent("A")).add_node("b", agent("B")).add_edge("a", "b"), "mixed", 2),
        (AgentGraph("g", 9).add_node("a", agent("A")).add_edge("a", "a"), "mixed", 9),
        (AgentGraph("empty"), "mixed", 0),
        (Workflow().add_node(WorkflowNode("mine")), "mixed", inf),
    ],
)
def test_every_kind_has_its_label_and_its_bound(node: WorkflowNode, pattern: str, calls: float) -> None:
    found = inspect_workflow(node)
    assert (found.structure.pattern, found.calls) == (pattern, calls)
    assert parse_structure(json.loads(json.dumps(found.structure.to_json()))) == found.structure


def test_agents_that_are_alike_count_once() -> None:
    alike = EnsembleNode("e", [agent("A") for _ in range(40)])
    assert (inspect_workflow(alike).agents, len(inspect_workflow(alike).structure.nodes)) == (1, 2)
    assert inspect_workflow(alike).structure.nodes[0].children == (1,) * 40
    assert inspect_workflow(EnsembleNode("e", [agent(f"A{i}") for i in range(17)])).agents == 17


def test_structures_of_shared_nodes_stay_small() -> None:
    node: WorkflowNode = AgentNode("A", "p")
    for _ in range(30):
        node = ReflectionNode("r", EnsembleNode("e", [node, node, node]), node)
    found = inspect_workflow(Workflow().add_node(node))
    assert found.structure.pattern == "mixed"
    assert found.calls < inf and len(found.structure.nodes) == 62


def test_a_workflow_too_large_to_draw_is_reported_by_its_pattern() -> None:
    many = EnsembleNode("e", [agent(f"A{i}", "t") for i in range(MAX_NODES)])
    wide = EnsembleNode("e", [agent("A")] * (MAX_LINKS + 1))
    assert inspect_workflow(many).structure == Structure("ensemble+tools")
    assert inspect_workflow(wide).structure == Structure("ensemble")
    assert inspect_workflow(Workflow("n" * 10_000 + "\ud800")).structure.nodes[0].name == "n" * MAX_NAME
    assert inspect_workflow(Workflow("\ud800")).structure.nodes[0].name == "?"


def test_classes_of_the_script_break_nothing() -> None:
    class Bare(EnsembleNode):
        def __init__(self) -> None:
            self.members = [agent("A"), agent("B")]

        async def process(self, context: Context) -> Message:
            return Message("done")

    unhashable = agent("A")
    unhashable.system_prompt = ["p"]  # type: ignore[assignment]
    inside = Workflow("inside")
    inside.add_node(inside)
    twice = Workflow("twice")
    twice.add_nodes([twice, twice, agent("A")])
    for node in (Bare(), unhashable, inside, twice):
        found = inspect_workflow(Workflow().add_node(node))
        assert found.calls == inf
        assert found.structure.pattern in ("mixed", "single")
    with use(Bodies()):
        assert Workflow().add_node(Bare()).run("q").content == "done"


# --- how it travels


def test_the_structure_travels_once_with_the_first_model_call_of_a_run() -> None:
    transport = Bodies()
    vote = EnsembleNode("vote", [agent("A"), agent("B"), agent("C")])
    with use(transport):
        Workflow("w").add_node(vote).add_node(agent("D")).run("q")
    assert len(transport.sent) == 4
    (report,) = transport.reports()
    assert report == (0, inspect_workflow(Workflow("w").add_node(vote).add_node(agent("D"))).structure)


def test_each_other_workflow_is_reported_when_it_runs() -> None:
    transport, single = Bodies(), Workflow("w").add_node(agent("A"))
    with use(transport):
        for _ in range(3):
            single.run("q")
        single.add_node(agent("B")).run("q")
        agent("C", "t").run("q")
    reports = transport.reports()
    assert [place for place, _ in reports] == [0, 3, 5]
    structures = [structure for _, structure in reports if structure]
    assert [structure.pattern for structure in structures] == ["single", "mixed", "single+tools"]
    script = join_structures(structures)
    assert script is not None and script.pattern == "mixed+tools"
    assert script.nodes[0] == StructureNode("sequence", "script", (1, 3, 6))
    assert [script.nodes[index].name for index in (1, 3, 6)] == ["w", "w", "C"]
    assert parse_structure(json.loads(json.dumps(script.to_json()))) == script
    assert join_structures(structures[:1]) == structures[0]
    assert join_structures([]) is None


def test_no_more_than_a_few_workflows_are_reported() -> None:
    transport = Bodies()
    with use(transport):
        for i in range(3 * MAX_REPORTS):
            agent(f"A{i}").run("q")
    assert [place for place, _ in transport.reports()] == list(range(MAX_REPORTS))


def test_a_run_inside_another_and_one_without_calls_report_nothing() -> None:
    class Quiet(WorkflowNode):
        def process(self, context: Context) -> Message:
            return Message("x")

    class Around(WorkflowNode):
        def process(self, context: Context) -> Message:
            return agent("Inner").run(context.question)

    transport = Bodies()
    with use(transport):
        Workflow().add_node(Quiet("quiet")).run("q")
        Workflow().add_node(Around("around")).run("q")
    ((place, structure),) = transport.reports()
    assert place == 0 and structure is not None
    assert [node.name for node in structure.nodes] == ["workflow", "around"]


# --- limits


def test_a_workflow_with_too_many_agents_or_calls_is_refused_before_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = Workflow().add_nodes([agent(f"A{i}") for i in range(30)])
    often = LoopWorkflow("l", 10).add_node(EnsembleNode("e", [agent("A")] * 40))
    transport = Bodies()
    with use(transport):
        with pytest.raises(WorkflowError, match="30 agents are too many; at most 16 are allowed"):
            many.run("q")
        with pytest.raises(WorkflowError, match="up to 400 model calls are too many; at most 64 are allowed"):
            often.run("q")
        monkeypatch.setattr(sys.modules["__main__"], CALLS_INPUT, 399, raising=False)
        with pytest.raises(WorkflowError, match="at most 399 are allowed"):
            often.run("q")
        assert transport.sent == []
        monkeypatch.setattr(sys.modules["__main__"], CALLS_INPUT, 400)
        often.run("q")
    assert len(transport.sent) == 400


# --- what a script says is not believed

NODE = {"kind": "agent", "name": "A", "children": [], "tools": [], "rounds": 1}
GOOD = {"pattern": "single", "nodes": [NODE], "edges": []}


def with_node(**fields: object) -> dict[str, object]:
    return {**GOOD, "nodes": [{**NODE, **fields}, NODE]}


LIES: list[object] = [
    None, 3, "single", [], {}, {"pattern": "single"}, {**GOOD, "pattern": "best"}, {**GOOD, "pattern": ["single"]},
    {**GOOD, "pattern": "single+tools+tools"}, {**GOOD, "nodes": {}}, {**GOOD, "nodes": [None]},
    {**GOOD, "nodes": [NODE] * (MAX_NODES + 1)}, {**GOOD, "nodes": [NODE] * 100_000},
    {**GOOD, "edges": [[0, 0]] * (MAX_LINKS + 1)}, {**GOOD, "edges": [[0]]}, {**GOOD, "edges": [[0, 1]]},
    {**GOOD, "edges": [[0, 0, 0]]}, {**GOOD, "edges": [[True, False]]}, {**GOOD, "edges": [[-1, 0]]},
    {**GOOD, "edges": ["00"]}, {**GOOD, "edges": [{}]}, {**GOOD, "edges": [[[], []]]},
    with_node(kind="king"), with_node(kind=None), with_node(name=3), with_node(name="x" * (MAX_NAME + 1)),
    with_node(children=[0]), with_node(children=[2]), with_node(children=["1"]), with_node(children="1"),
    with_node(children=[True]), with_node(children=[1] * (MAX_LINKS + 1)), with_node(tools="ab"),
    with_node(tools=[3]), with_node(tools=["x" * (MAX_NAME + 1)]), with_node(tools=["t"] * (MAX_LINKS + 1)),
    with_node(rounds="1"), with_node(rounds=True), with_node(rounds=None), with_node(rounds=1.5),
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_what_is_not_a_structure_is_ignored(lie: object) -> None:
    assert parse_structure(lie) is None


def test_what_is_one_is_read_and_its_numbers_are_bounded() -> None:
    assert parse_structure({**GOOD, "more": 3}) == Structure("single", (StructureNode("agent", "A"),))
    for rounds, read in ((10**4000, 10**6), (-5, 0)):
        structure = parse_structure(with_node(rounds=rounds))
        assert structure is not None and structure.nodes[0].rounds == read


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["agent", "single", "mixed+tools", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["pattern", "nodes", "edges", "kind", "name", "children", "tools", "rounds"]),
            inner,
            max_size=5,
        )
    ),
)


@settings(max_examples=200, deadline=None)
@given(VALUES, VALUES, VALUES)
def test_no_report_raises_and_what_is_read_is_sound(nodes: object, edges: object, node: object) -> None:
    for value in (nodes, {**GOOD, "nodes": nodes, "edges": edges}, {**GOOD, "nodes": [node, NODE], "edges": edges}):
        structure = parse_structure(value)
        for index, found in enumerate(structure.nodes if structure else ()):
            assert all(index < child < len(structure.nodes) for child in found.children)  # type: ignore[union-attr]


# --- any text


HOSTILE = [
    "",
    "(" * 5000,
    "x" + ".a" * 5000,
    "-" * 5000 + "1",
    "\0",
    "\ud800",
    "9" * 10000,
    HEAD + "a = [AgentNode('A', 'p')]\n" + "a = [EnsembleNode('e', a * 100)]\n" * 40 + "a[0].run(question)",
    HEAD + "r = AgentNode('A', 'p')\n" + "r = ReflectionNode('r', r, r)\n" * 60 + "r.run('q')",
    HEAD + "w = Workflow()\nw.add_node(w)\nw.run(question)",
    HEAD + "def f():\n    return f()\nf()",
    HEAD + "for i in range(10**9):\n pass",
    HEAD + "for a in range(200):\n for b in range(200):\n  for c in range(200):\n   AgentNode('A', 'p')",
    "s = 'a' * 10**9\ns = f'{1:>1000000000}'\nx = 2 ** 10**9\nt = [0] * 10**9",
    "x = 'ab'\n" + "x = x + x\n" * 100,
    "x = [1]\n" + "x = x + x\n" * 100,
    "x = []\n" + "x.append(x)\n" * 10 + "for a in x:\n for b in a:\n  for c in b:\n   for d in c:\n    d = d",
    "x = 'ab'\n" + "x = f'{x}{x}'\n" * 100,
    "x = 'ab'\n" + "x = ''.join([x, x])\n" * 100,
    "x = []\ny = []\n" + "x = [x, x]\ny = [y, y]\n" * 50 + "x == y\n{a: a for a in x}\n[f'{x}']",
    HEAD + "RouterNode('r', [], 3)\nEnsembleNode('e', 3, weights='ab')\nAgentGraph().add_edge([], {})\nToolRegistry(3)",
]  # fmt: skip


@pytest.mark.parametrize("script", HOSTILE, ids=range(len(HOSTILE)))
def test_no_script_troubles_the_validator(script: str) -> None:
    validate(script)


STATEMENTS = """\
from workflow import *
w = Workflow()
a = AgentNode('A', 'p')
w.add_node(a)
w.run(question)
a = [a] * 2
for x in a:
    w.add_node(x)
if a:
    a = a[0]
def f(x, *y, z=3, **k):
    return x
f(a, *a, **a)
a, b = b, a
w += 1
while w:
try:
except Exception:
lambda: f(a)
{a: a for a in a}
EnsembleNode(agents=a)
[*a, *w]
w.add_node(w)
del a
class A(Workflow):
with w as a:
    yield
async def g():
return a
(
match a:
    case 1:
        pass
x = [y := 3]
AgentGraph().add_node('a', a).add_edge('a', 'b')
""".splitlines()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(STATEMENTS), max_size=12).map("\n".join) | st.text(max_size=60))
def test_any_text_can_be_validated(script: str) -> None:
    validate(script)


class ScriptWriter:
    """Writes random workflows of bounded depth as scripts."""

    def __init__(self, random: Random) -> None:
        self.random, self.count = random, 0

    def name(self) -> str:
        self.count += 1
        return f"N{self.count}"

    def nodes(self, depth: int, most: int = 3) -> str:
        return f"[{', '.join(self.node(depth) for _ in range(self.random.randint(1, most)))}]"

    def node(self, depth: int) -> str:
        kinds = [self.agent] if depth <= 0 else [self.agent, self.ensemble, self.reflection, self.debate, self.router,
                                                self.workflow, self.loop, self.graph]  # fmt: skip
        return self.random.choice(kinds)(depth - 1)

    def agent(self, depth: int) -> str:
        tools = self.random.choice(["", ", tools", ", python, max_turns=2", ", ToolRegistry()", ", python, 3"])
        return f"AgentNode('{self.name()}', 'p'{tools})"

    def ensemble(self, depth: int) -> str:
        judge = self.random.choice(["", f", 'consensus', {self.node(0)}", f", consensus_agent={self.node(0)}"])
        return f"EnsembleNode('{self.name()}', {self.nodes(depth)} * {self.random.randint(1, 2)}{judge})"

    def reflection(self, depth: int) -> str:
        critic = self.random.choice(["", f"critic_agent={self.node(depth)}, "])
        return (
            f"ReflectionNode('{self.name()}', {self.node(depth)}, {critic}num_iterations={self.random.randint(0, 3)})"
        )

    def debate(self, depth: int) -> str:
        judge = self.random.choice(["", f", judge={self.node(0)}"])
        return f"DebateNode('{self.name()}', {self.nodes(depth)}{judge}, num_rounds={self.random.randint(1, 3)})"

    def router(self, depth: int) -> str:
        return f"RouterNode('{self.name()}', {{'a': {self.node(depth)}, 'default': {self.node(depth)}}}, pick)"

    def workflow(self, depth: int) -> str:
        return f"Workflow('{self.name()}').add_nodes({self.nodes(depth)}).add_node({self.node(depth)}, chance)"

    def loop(self, depth: int) -> str:
        text = f"LoopWorkflow('{self.name()}', {self.random.randint(1, 3)})"
        return f"{text}.set_loop_condition(chance).add_nodes({self.nodes(depth, 2)})"

    def graph(self, depth: int) -> str:
        names = "abcd"[: self.random.randint(1, 4)]
        text = f"AgentGraph('{self.name()}', {self.random.randint(1, 6)})"
        text += "".join(f".add_node('{name}', {self.node(depth if name == 'a' else 0)})" for name in names)
        for _ in range(self.random.randint(0, 5)):
            source, target = self.random.choice(names), self.random.choice(names)
            text += f".add_edge('{source}', '{target}'{self.random.choice(['', ', chance'])})"
        if self.random.random() < 0.3:
            text += f".add_conditional_edges('{names[0]}', lambda context: '{names[-1]}')"
        return text

    def script(self) -> str:
        return f"""
from workflow import AgentGraph, AgentNode, LoopWorkflow, ToolRegistry, Workflow
from workflow.nodes import DebateNode, EnsembleNode, ReflectionNode, RouterNode
import random
dice = random.Random({self.random.randint(0, 999)})
def chance(context):
    return dice.random() < 0.7
def pick(context):
    return dice.choice("ab")
tools = ToolRegistry()
tools.register("t", lambda: 1)
python = ToolRegistry()
python.register_python()
workflow = Workflow(name="random").add_nodes({self.nodes(3, 2)})
result = workflow.run(question)
"""


REPLIES = [
    '<tool_call>{"name": "t"}</tool_call>', '<tool_call>{"name": "x"}</tool_call>', "```python\nprint(1)\n```",
    "<tool_call>{</tool_call>", "", "INCORRECT", "CORRECT", "<delivery>\\boxed{1}</delivery>", "\\boxed{2}",
    "<delivery><solution>print(1)</solution></delivery>", "<think>for ever",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), stubborn=st.sampled_from([*REPLIES, None]))
def test_no_workflow_makes_more_calls_than_its_bound(seed: int, stubborn: str | None) -> None:
    random = Random(seed)
    script = ScriptWriter(random).script()
    assert validate(script) == []

    def reply(ask: Ask) -> str:
        if ask.kind == "python":
            return "1\n"
        return random.choice(REPLIES) if stubborn is None else stubborn

    with pytest.MonkeyPatch.context() as patch, use(reply) as session:
        patch.setattr("metaagentx.workflow.structure.MAX_AGENTS", 10**6)
        patch.setattr(sys.modules["__main__"], CALLS_INPUT, 3000, raising=False)
        variables: dict[str, object] = {"question": "q"}
        try:
            run_text(patch, script, variables)
        except WorkflowError as error:
            assert "model calls are too many; at most 3000 are allowed" in str(error)
    flow = variables["workflow"]
    assert isinstance(flow, Workflow)
    bound = inspect_workflow(flow).calls
    assert len(model_asks(session)) <= bound < inf
    assert bool(model_asks(session)) == (bound <= 3000)


def run_text(patch: pytest.MonkeyPatch, script: str, variables: dict[str, object]) -> None:
    patch.setitem(sys.modules, "workflow", metaagentx.workflow)
    patch.setitem(sys.modules, "workflow.nodes", metaagentx.workflow.nodes)
    exec(script, variables)


def test_the_bound_is_reached_by_an_agent_that_never_stops(run_script: RunScript) -> None:
    script = HEAD + (
        "t = ToolRegistry()\nt.register_python()\n"
        "a = AgentNode('A', 'p', t, max_turns=4)\n"
        "w = Workflow().add_node(ReflectionNode('r', EnsembleNode('e', [a] * 2), a, num_iterations=2))\n"
        "w.run(question)"
    )
    with use(lambda ask: "```python\n1\n```") as session:
        flow = run_script(script, "q")["w"]
    assert isinstance(flow, Workflow)
    assert len(model_asks(session)) == inspect_workflow(flow).calls == 8 + 2 * (4 + 8)
