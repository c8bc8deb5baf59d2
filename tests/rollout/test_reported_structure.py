"""The structure that a script reports of itself: kept where it is one, harmless where it is a lie."""

import asyncio
from dataclasses import replace

import pytest

from metaagentx.config import RolloutConfig
from metaagentx.evaluation.methods import Method
from metaagentx.evaluation.outcomes import Outcome
from metaagentx.evaluation.sampling import Evaluator, SampleKey
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.runs.trees import rollout_from_json, rollout_to_json
from metaagentx.sandbox import Sandbox
from metaagentx.types import Design, Role
from metaagentx.workflow.structure import MAX_LINKS, MAX_NODES, MAX_REPORTS, Structure, StructureNode
from tests.rollout_helpers import (
    COMPUTE,
    HEAD,
    RIGHT,
    RUN,
    SINGLE,
    TASK,
    TOOL,
    VOTE,
    Actor,
    by_agent,
    design,
    resources,
)

# A script that speaks to the door itself, in place of the runtime.
LIAR = """from workflow import Workflow
import sys
door = sys.modules["door"]
def ask(structure):
    messages = [{"role": "user", "content": "q"}]
    return door.ask({"kind": "model", "agent": "A", "messages": messages, "structure": structure})
reply = STATEMENT
door.answer({"kind": "boxed", "value": "14", "call": reply["call"]})
if False:
    Workflow().run(question)
"""
GOOD = '{"pattern": "debate", "nodes": [], "edges": []}'
NODE = '{"kind": "agent", "name": "A", "children": [], "tools": [], "rounds": 1}'
LONG_NAME = NODE.replace('"A"', '"A" * 100_000')


def grow(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders, script: str, executor: Actor, executions: int = 1
) -> Design:
    shared = resources(Actor(design(script)), executor, sandbox, graders)
    options = RolloutOptions(RolloutConfig(designs=1, executions=executions, calls=12))
    (tree,) = runner.run(rollout_batch([TASK], shared, options, ("test",)))
    assert rollout_from_json(rollout_to_json(tree)).designs[0].structure == tree.designs[0].structure
    return tree.designs[0]


def test_a_design_has_the_structure_that_its_executions_report(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    made = grow(runner, sandbox, graders, TOOL, Actor(by_agent({"Compute.": [COMPUTE, RIGHT]})), executions=2)
    nodes = (
        StructureNode("sequence", "w", (1,)),
        StructureNode("agent", "Coder", tools=("python",), rounds=3),
    )
    assert made.structure == Structure("single+tools", nodes)
    assert (made.pattern, [e.structure for e in made.executions]) == ("single+tools", [made.structure] * 2)


def test_workflows_that_run_one_after_the_other_are_one_script(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    second = 'vote = EnsembleNode("vote", [AgentNode(name, name) for name in "ABC"])\n'
    script = SINGLE + second + 'Workflow("v").add_node(vote).run(question)'
    made = grow(runner, sandbox, graders, script, Actor(RIGHT))
    assert made.executions[0].fault is None and made.structure is not None
    assert made.pattern == "mixed"
    names = [node.name for node in made.structure.nodes]
    assert [names[child] for child in made.structure.nodes[0].children] == ["w", "v"]


def test_a_design_that_made_no_call_has_no_structure(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    made = grow(runner, sandbox, graders, HEAD + "1 / 0" + RUN, Actor(RIGHT))
    assert (made.pattern, made.structure, made.executions[0].structure) == ("", None, None)


def test_a_first_call_that_fails_was_reported_all_the_same(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    executor = Actor(RIGHT)
    executor.context_length = 20
    made = grow(runner, sandbox, graders, SINGLE, executor)
    assert made.executions[0].fault and made.executions[0].fault.kind == "budget"
    assert made.pattern == "single"


def test_a_fixed_script_has_the_pattern_of_its_execution(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    shared = resources(Actor(""), Actor(RIGHT), sandbox, graders)
    evaluator = Evaluator(shared, RolloutOptions(), at_once=1)
    method = Method("vote", shared.samplers[Role.EXECUTOR], script=VOTE)
    broken = replace(method, script=VOTE.replace(RUN, "1 / 0" + RUN))
    for each, pattern in ((method, "ensemble"), (broken, "")):
        outcomes: list[Outcome] = []
        runner.run(evaluator.run(each, [(TASK, ("test",))], [SampleKey(0, 0)], outcomes.append))
        assert [outcome.pattern for outcome in outcomes] == [pattern]


LIES = {
    "nothing": "None",
    "a text": "'single'",
    "another pattern": '{"pattern": "best", "nodes": [], "edges": []}',
    "wrong types": '{"pattern": "single", "nodes": {"a": 1}, "edges": 3}',
    "too many nodes": f'{{"pattern": "single", "nodes": [{NODE}] * {MAX_NODES + 1}, "edges": []}}',
    "too many edges": f'{{"pattern": "single", "nodes": [{NODE}], "edges": [[0, 0]] * {MAX_LINKS + 1}}}',
    "thousands of nodes": f'{{"pattern": "single", "nodes": [{NODE}] * 5000, "edges": []}}',
    "a long name": f'{{"pattern": "single", "nodes": [{LONG_NAME}], "edges": []}}',
    "a node within itself": f'{{"pattern": "single", "nodes": [{NODE.replace("[]", "[0]", 1)}], "edges": []}}',
    "nested": "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]",
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_that_is_no_structure_is_ignored(
    name: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    made = grow(runner, sandbox, graders, LIAR.replace("STATEMENT", f"ask({LIES[name]})"), Actor(RIGHT))
    (execution,) = made.executions
    assert (made.pattern, made.structure) == ("", None)
    assert execution.fault is None and execution.reward is not None and execution.reward.solved


PROTOCOL_FAULTS = {
    "nested too deeply": "structure = []\nfor _ in range(200):\n    structure = [structure]\nreply = ask(structure)",
    "too large to read": "reply = ask('x' * (2 << 20))",
}


@pytest.mark.parametrize("name", PROTOCOL_FAULTS)
def test_a_report_that_no_frame_can_hold_is_the_scripts_fault(
    name: str, runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    script = LIAR.replace("reply = STATEMENT", PROTOCOL_FAULTS[name])
    made = grow(runner, sandbox, graders, script, Actor(RIGHT))
    (execution,) = made.executions
    assert execution.fault is not None and execution.fault.kind == "protocol"
    assert execution.reward is not None and execution.reward.total == 0.0


def test_reports_in_every_call_are_bounded(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    big = f'{{"pattern": "router", "nodes": [{NODE}] * {MAX_NODES}, "edges": [[0, 0]] * {MAX_LINKS}}}'
    small = f'{{"pattern": "router+tools", "nodes": [{NODE}], "edges": []}}'
    for report, structure in ((big, Structure("mixed")), (small, None)):
        script = LIAR.replace("STATEMENT", f"[ask({report}) for _ in range(12)][-1]")
        made = grow(runner, sandbox, graders, script, Actor(RIGHT))
        assert made.executions[0].fault is None
        if structure is None:
            assert made.structure is not None and made.pattern == "mixed+tools"
            assert len(made.structure.nodes) == 1 + MAX_REPORTS
        else:
            assert made.structure == structure


def test_a_lie_about_the_limit_buys_nothing(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    many = VOTE.replace('("A", "B", "C")', '"ABCDEFGHIJKLM"')
    told = grow(runner, sandbox, graders, many, Actor(RIGHT))
    lied = grow(runner, sandbox, graders, "__max_calls__ = 10**9\n" + many, Actor(RIGHT))
    assert told.fault is not None and (told.fault.kind, told.executions) == ("invalid_script", [])
    fault = lied.executions[0].fault
    assert fault is not None and (fault.kind, len(lied.executions[0].calls)) == ("budget", 12)


def test_who_has_made_a_call_cannot_declare_itself_too_large(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    refuses = (
        "\nimport sys\nsys.modules['door'].answer({'kind': 'too_large', 'value': 'I lost', 'call': None})\n1 / 0\n"
    )
    made = grow(runner, sandbox, graders, SINGLE + refuses, Actor(RIGHT))
    assert made.fault is None
    assert made.executions[0].fault is not None and made.executions[0].fault.kind == "script_error"


def test_a_label_can_be_forged_and_is_worth_nothing(runner: asyncio.Runner, sandbox: Sandbox, graders: Graders) -> None:
    made = grow(runner, sandbox, graders, LIAR.replace("STATEMENT", f"ask({GOOD})"), Actor(RIGHT))
    assert (made.pattern, made.structure) == ("debate", Structure("debate"))
    assert made.executions[0].reward == grow(runner, sandbox, graders, SINGLE, Actor(RIGHT)).executions[0].reward
