"""The two dialects: unknown keyword arguments are a fault, or they are ignored with a note."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx import workflow
from metaagentx.workflow import use
from metaagentx.workflow.inputs import LENIENT_INPUT
from metaagentx.workflow.validate import CONSTRUCTORS, validate
from tests.workflow.conftest import RunScript

PUBLISHED = """
from workflow import AgentNode, Workflow, ToolRegistry
from workflow.nodes import DebateNode, EnsembleNode, ReflectionNode, RouterNode

tools = ToolRegistry(sandbox="docker")
tools.register("double", lambda x: 2 * x, description="Doubles.", required=["x"])
solvers = [AgentNode(name=n, system_prompt="Solve.", llm_config={"model": "m"}, temperature=0.2) for n in ("A", "B")]
judge = AgentNode(name="Judge", system_prompt="Judge.", tool_registry=tools, max_turns=2, verbose=True)
workflow = Workflow(name="w", description="a vote")
workflow.add_node(EnsembleNode(name="vote", agents=solvers, strategy="consensus", consensus_agent=judge, timeout=9))
workflow.add_node(ReflectionNode(name="check", agent=judge, num_iterations=1, stop_word="ok"), position=1)
workflow.add_node(DebateNode(name="debate", debaters=solvers, num_rounds=1, style="calm"))
workflow.add_node(RouterNode(name="route", routes={"a": judge}, routing_func=lambda c: "a", log=True))
result = workflow.run(question, trace=True)
print(result.content)
"""
NOTES = [
    "ToolRegistry has no sandbox: ignored",
    "ToolRegistry.register has no required: ignored",
    "AgentNode has no llm_config, temperature: ignored",
    "AgentNode has no verbose: ignored",
    "Workflow has no description: ignored",
    "EnsembleNode has no timeout: ignored",
    "ReflectionNode has no stop_word: ignored",
    "Workflow.add_node has no position: ignored",
    "DebateNode has no style: ignored",
    "RouterNode has no log: ignored",
    "Flow.run has no trace: ignored",
]


@pytest.fixture
def lenient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], LENIENT_INPUT, True, raising=False)
        yield


def test_a_script_in_the_published_manner_runs_with_notes(lenient: None, run_script: RunScript) -> None:
    assert validate(PUBLISHED, lenient=True) == []
    with use(lambda ask: r"<delivery>\boxed{4}</delivery>") as session:
        printed = run_script(PUBLISHED, "2 + 2?")["stdout"]
    assert session.answer == {"kind": "boxed", "value": "4", "call": len(session.asks) - 1}
    assert session.notes == NOTES
    assert printed == "".join(f"note: {text}\n" for text in NOTES) + "\\boxed{4}\n"


def test_strict_is_the_default(run_script: RunScript) -> None:
    assert "unexpected keyword argument 'sandbox'" in validate(PUBLISHED)[0].message
    with use(lambda ask: "") as session, pytest.raises(TypeError, match="unexpected keyword argument 'sandbox'"):
        run_script(PUBLISHED, "2 + 2?")
    assert session.notes == []


def test_what_is_missing_or_wrong_is_a_fault_in_both_dialects(lenient: None) -> None:
    for call in ('AgentNode(name="A", prompt="p")', 'AgentNode(name="A", system_prompt="p", max_turns=99)'):
        script = f"from workflow import AgentNode, Workflow\nw = Workflow()\nw.add_node({call})\nw.run(question)\n"
        assert len(validate(script, lenient=True)) == len(validate(script)) == 1


@given(
    st.sampled_from(sorted(CONSTRUCTORS)),
    st.sets(st.sampled_from(["name", "system_prompt", "agents", "max_turns", "model", "timeout", "strategy"])),
    st.booleans(),
)
def test_validator_and_runtime_agree_on_keyword_arguments(name: str, keywords: set[str], is_lenient: bool) -> None:
    """A call that the validator accepts is not refused for its keywords when it runs, and the other way round."""
    agent = workflow.AgentNode("a", "p")
    values = {"agents": [agent], "max_turns": 2, "strategy": "majority_vote"}
    shown = {"agents": "[a]", "max_turns": "2", "strategy": "'majority_vote'"}
    call = f"{name}({', '.join(f'{key}={shown.get(key, repr(key))}' for key in sorted(keywords))})"
    script = f"from workflow import *\na = AgentNode('a', 'p')\nWorkflow().run(question)\n{call}\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], LENIENT_INPUT, is_lenient, raising=False)
        try:
            CONSTRUCTORS[name](**{key: values.get(key, key) for key in keywords})
        except TypeError:
            assert validate(script, is_lenient) != []
        else:
            assert validate(script, is_lenient) == []
