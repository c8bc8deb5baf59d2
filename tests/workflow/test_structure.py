import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metaagentx.workflow
from metaagentx.workflow import AgentNode, Ask, EnsembleNode, ReflectionNode, Workflow, WorkflowNode, use
from metaagentx.workflow.outline import structure_of
from metaagentx.workflow.structure import classify
from metaagentx.workflow.validate import Limits, validate
from tests.workflow.conftest import RunScript
from tests.workflow.scripted import model_asks

HEAD = "from workflow import *\n"


def test_values_are_followed_through_loops_functions_and_comprehensions() -> None:
    script = HEAD + (
        "def make(name, turns=2):\n    return AgentNode(name=f'{name}!', system_prompt='p', max_turns=turns)\n"
        "agents = []\n"
        "for i, name in enumerate(['a', 'b']):\n    agents.append(make(name))\n"
        "agents += [make(n) for n in ('c', 'd') if n == 'd'] + [make('e')] * 2\n"
        "names = {'judge': 'J'}\n"
        "w = Workflow()\n"
        "w.add_node(EnsembleNode('e', agents, strategy='consensus', consensus_agent=make(names['judge'])))\n"
        "def main():\n    return w.run(question)\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    structure = classify(script)
    assert [agent.name for agent in structure.agents] == ["a!", "b!", "d!", "e!", "J!"]
    assert (structure.kind, structure.worst_case_calls, structure.exact) == ("ensemble", 6, True)


def test_calls_of_every_run_are_counted() -> None:
    script = HEAD + "w = Workflow().add_node(AgentNode('A', 'p'))\nfor _ in range(3):\n    r = w.run(question)\n"
    assert classify(script).worst_case_calls == 3


@pytest.mark.parametrize(
    "tail",
    [
        "while True:\n    w.run(question)",
        "import os\nfor i in os.listdir():\n    w.run(question)",
        "t = ToolRegistry()\nt.register('x', lambda: a.run('q'))\nw.add_node(AgentNode('B', 'p', t))\nw.run(question)",
        "class Mine(WorkflowNode):\n    pass\nw.add_node(Mine('m'))\nw.run(question)",
        "x = something()\nw.add_node(x)\nw.run(question)",
    ],
)
def test_what_cannot_be_counted_is_said_to_be_unknown(tail: str) -> None:
    structure = classify(HEAD + "a = AgentNode('A', 'p')\nw = Workflow().add_node(a)\n" + tail)
    assert structure.worst_case_calls is None
    assert not structure.exact


@pytest.mark.parametrize(
    "tail",
    [
        "if question:\n    w.add_node(AgentNode('B', 'p'))\nw.run(question)",
        "t = ToolRegistry()\nt.register_python()\nw.add_node(AgentNode('B', 'p', t, len(question)))\nw.run(question)",
        "pass",
    ],
)
def test_what_is_not_sure_is_marked(tail: str) -> None:
    assert not classify(HEAD + "w = Workflow().add_node(AgentNode('A', 'p'))\n" + tail).exact


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
def test_no_script_troubles_the_readers(script: str) -> None:
    classify(script)
    validate(script, Limits(characters=10**6))


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
def test_any_text_can_be_classified_and_validated(script: str) -> None:
    classify(script)
    validate(script)


def test_outlines_of_shared_nodes_stay_small() -> None:
    node: WorkflowNode = AgentNode("A", "p")
    for _ in range(30):
        node = ReflectionNode("r", EnsembleNode("e", [node, node, node]), node)
    structure = structure_of(Workflow().add_node(node).outline())
    assert structure.kind == "mixed"
    assert structure.worst_case_calls is not None


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
def test_no_accepted_script_escapes_its_call_budget(seed: int, stubborn: str | None) -> None:
    random = Random(seed)
    script = ScriptWriter(random).script()
    assert validate(script, Limits(agents=10**6, calls=10**9)) == []
    told = classify(script)
    assert told.worst_case_calls is not None
    if told.worst_case_calls > 3000:
        return

    def reply(ask: Ask) -> str:
        if ask.kind == "python":
            return "1\n"
        return random.choice(REPLIES) if stubborn is None else stubborn

    with pytest.MonkeyPatch.context() as patch, use(reply) as session:
        variables = run_text(patch, script)
    flow = variables["workflow"]
    assert isinstance(flow, Workflow)
    assert len(model_asks(session)) <= told.worst_case_calls
    assert structure_of(flow.outline()) == told


def run_text(patch: pytest.MonkeyPatch, script: str) -> dict[str, object]:
    patch.setitem(sys.modules, "workflow", metaagentx.workflow)
    patch.setitem(sys.modules, "workflow.nodes", metaagentx.workflow.nodes)
    variables: dict[str, object] = {"question": "q"}
    exec(script, variables)
    return variables


def test_the_bound_is_reached_by_an_agent_that_never_stops(run_script: RunScript) -> None:
    script = HEAD + (
        "t = ToolRegistry()\nt.register_python()\n"
        "a = AgentNode('A', 'p', t, max_turns=4)\n"
        "w = Workflow().add_node(ReflectionNode('r', EnsembleNode('e', [a] * 2), a, num_iterations=2))\n"
        "w.run(question)"
    )
    with use(lambda ask: "```python\n1\n```") as session:
        run_script(script, "q")
    assert len(model_asks(session)) == classify(script).worst_case_calls == 8 + 2 * (4 + 8)
