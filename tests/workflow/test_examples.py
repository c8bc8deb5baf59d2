from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import metaagentx.workflow
from metaagentx.workflow import AgentGraph, Message, Workflow, WorkflowSession, use
from metaagentx.workflow.structure import inspect_workflow
from metaagentx.workflow.validate import validate
from tests.workflow.conftest import RunScript
from tests.workflow.scripted import Scripted, boxed, model_asks, program, prompts

FOLDER = Path(metaagentx.workflow.__file__).parent / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
QUESTION = "How many squares are there on a 3 by 3 board?"


def source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text()


@dataclass
class Case:
    replies: Mapping[str, str | Sequence[str]]
    answer: tuple[str, str]
    agents: str
    kind: str
    worst_case_calls: int


GOOD = "a, b = map(int, input().split())\nprint(a + b)"
CHECK = "```python\nprint(9 + 4 + 1)\n```"
PLAN = "<delivery>Count by size.</delivery>"
CASES = {
    "math_single_agent": Case({"Solver": boxed(14)}, ("boxed", "14"), "Solver", "single", 1),
    "math_ensemble_vote": Case(
        {"Forward": boxed(9), "Backward": boxed(14), "Cases": boxed(13), "Judge": boxed(14)},
        ("boxed", "14"), "Forward Backward Cases Judge", "ensemble", 4,
    ),
    "math_ensemble_judge": Case(
        {"Algebra": boxed(9), "Cases": boxed(9), "Backward": boxed(14), "Judge": boxed(14)},
        ("boxed", "14"), "Algebra Cases Backward Judge", "ensemble", 4,
    ),
    "math_solver_critic": Case(
        {"Solver": [boxed(9), boxed(14)], "Critic": ["Larger squares count. INCORRECT", "Verdict: CORRECT"]},
        ("boxed", "14"), "Solver Critic Solver Critic", "reflection", 5,
    ),
    "math_self_consistency": Case(
        {"Solver": [boxed(9), boxed(14), boxed(13), boxed("14.0"), boxed(9)]},
        ("boxed", "9"), "Solver " * 5, "ensemble", 5,
    ),
    "math_ensemble_verify": Case(
        {"Direct": boxed(9), "Structure": boxed(14), "Small": boxed(14), "Verifier": [CHECK, boxed(14)]},
        ("boxed", "14"), "Direct Structure Small Verifier Verifier", "mixed", 7,
    ),
    "code_solver_unit_tests": Case(
        {"CodeSolver": program("print(0)"), "UnitTestAgent": ["```python\nprint(6 * 7)\n```", program(GOOD)]},
        ("solution", GOOD), "CodeSolver UnitTestAgent UnitTestAgent", "mixed", 6,
    ),
    "router": Case({"Counter": [CHECK, boxed(14)]}, ("boxed", "14"), "Counter Counter", "router", 4),
    "debate": Case(
        {"Bold": [boxed(9), boxed(14)], "Sceptic": boxed(14), "Judge": boxed(14)},
        ("boxed", "14"), "Bold Sceptic Bold Sceptic Judge", "debate", 5,
    ),
    "graph_review_loop": Case(
        {"Planner": PLAN, "First": [boxed(9), boxed(14)], "Second": boxed(14),
         "Reviewer": ["They differ. INCORRECT", "<delivery>\\boxed{14} Verdict: CORRECT</delivery>"]},
        ("boxed", "14"), "Planner First Second Reviewer First Reviewer", "mixed", 7,
    ),
    "tool_math": Case(
        {"Solver": ['<tool_call>{"name": "exact_sum", "arguments": {"terms": ["1/2", "1/3"]}}</tool_call>', CHECK,
                    boxed("5/6")]},
        ("boxed", "5/6"), "Solver Solver Solver", "single", 6,
    ),
}  # fmt: skip


def run_example(name: str, run_script: RunScript) -> tuple[WorkflowSession, dict[str, object]]:
    with use(Scripted(CASES[name].replies)) as session:
        return session, run_script(source(name), QUESTION)


def test_every_example_has_a_case() -> None:
    assert sorted(CASES) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_unchanged_and_answers(name: str, run_script: RunScript) -> None:
    case = CASES[name]
    session, variables = run_example(name, run_script)
    assert [ask.agent for ask in model_asks(session)] == case.agents.split()
    result = variables["result"]
    assert isinstance(result, Message)
    assert session.answer == {"kind": case.answer[0], "value": case.answer[1], "call": result.call}
    assert result.call is not None
    assert session.asks[result.call].agent == result.sender
    assert variables["stdout"] == result.content + "\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_accepted_and_read_rightly(name: str, run_script: RunScript) -> None:
    assert validate(source(name)) == []
    _, variables = run_example(name, run_script)
    built = variables.get("workflow", variables.get("graph"))
    assert isinstance(built, Workflow | AgentGraph)
    found = inspect_workflow(built)
    pattern, tools, _ = found.structure.pattern.partition("+tools")
    assert (pattern, found.calls) == (CASES[name].kind, CASES[name].worst_case_calls)
    assert any(node.tools for node in found.structure.nodes) == bool(tools)


def test_the_judge_sees_three_deliveries_and_no_reasoning(run_script: RunScript) -> None:
    session, _ = run_example("math_ensemble_judge", run_script)
    (seen,) = prompts(session, "Judge")
    assert seen.startswith(f"Question:\n{QUESTION}\n\nFrom Algebra:\n\\boxed{{9}}\n\nFrom Cases:\n\\boxed{{9}}")
    assert "Let me think" not in seen
    for name in ("Algebra", "Cases", "Backward"):
        assert prompts(session, name) == [QUESTION]


def test_the_critic_sees_the_solution_and_the_solver_the_criticism(run_script: RunScript) -> None:
    session, _ = run_example("math_solver_critic", run_script)
    assert "From Solver:\n\\boxed{9}" in prompts(session, "Critic")[0]
    assert "From Critic:\nLarger squares count. INCORRECT" in prompts(session, "Solver")[1]


def test_the_unit_tester_sees_the_program_and_its_tool_runs_code(run_script: RunScript) -> None:
    session, _ = run_example("code_solver_unit_tests", run_script)
    first, second = prompts(session, "UnitTestAgent")
    assert "From CodeSolver:\n<solution>" in first
    assert second == "Output of execute_code:\n42\n"
    assert all(ask.kind == "model" for ask in session.asks)


def test_the_verifier_computes_away_from_the_script(run_script: RunScript) -> None:
    session, _ = run_example("math_ensemble_verify", run_script)
    assert [ask.code for ask in session.asks if ask.kind == "python"] == ["print(9 + 4 + 1)"]
    assert prompts(session, "Verifier")[1] == "Output of python:\n14"


def test_the_router_chooses_by_the_question(run_script: RunScript) -> None:
    with use(Scripted({"Reasoner": boxed(1)})) as session:
        run_script(source("router"), "Solve x + 1 = 2.")
    assert [ask.agent for ask in session.asks] == ["Reasoner"]


def test_a_script_may_assign_its_own_question(run_script: RunScript) -> None:
    script = 'question = "mine"\n' + source("math_single_agent")
    assert validate(script) == []
    with use(Scripted({"Solver": boxed(1)})) as session:
        run_script(script, QUESTION)
    assert prompts(session, "Solver") == ["mine"]


def test_defect_18_the_text_that_was_accepted_is_the_text_that_runs(run_script: RunScript) -> None:
    for name in EXAMPLES:
        text = source(name)
        before = text.encode()
        validate(text)
        assert text.encode() == before
    # A backslash, a CR and an odd indent survive: what the agents are told is what the script says.
    script = source("math_single_agent").replace("You are a careful", "\\\\alpha \\frac{a}{b} \\t You are a careful")
    assert validate(script) == []
    with use(Scripted({"Solver": boxed(1)})) as session:
        run_script(script, QUESTION)
    assert "\\alpha \\frac{a}{b} \t You are" in session.asks[0].messages[0]["content"].replace("\x0c", "\\f")
