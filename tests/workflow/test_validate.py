import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.workflow.validate import ScriptProblem, validate

HEAD = "from workflow import *\n"
GOOD = "from workflow import AgentNode, Workflow\nw = Workflow()\nw.add_node(AgentNode('A', 'p'))\nw.run(question)\n"


def test_a_good_script_has_no_problems() -> None:
    assert validate(GOOD) == []


@pytest.mark.parametrize(
    ("script", "place", "said"),
    [
        ("x = (", (1, 5), "not Python"),
        ("ok = 1\n\tx = 2", (2, 1), "not Python"),
        ("return 3", (1, 1), "not Python"),
        ("a\n b\0", (2, 3), "character"),
        ("x = '\ud800'", (1, 6), "character"),
        (GOOD + "import socket", (5, 8), "no network"),
        (GOOD + "import json, threading", (5, 14), "at the same time"),
        (GOOD + "from asyncio import run", (5, 1), "at the same time"),
        (GOOD + "import numpy as np", (5, 8), "only the standard library"),
        (GOOD + "import madeup", (5, 8), "plain modules"),
        (GOOD + "from . import x", (5, 1), "no package"),
        (GOOD + "from workflow.core import Message", (5, 1), "workflow.nodes"),
        (GOOD + "from workflow import AgentNodes", (5, 22), "AgentNode"),
        (GOOD + "from workflow.nodes import Workflow", (5, 28), "EnsembleNode"),
        (GOOD + "AgentNode('A', 'p', ai_client=None)", (5, 1), "ai_client"),
        (GOOD + "AgentNode('A')", (5, 1), "system_prompt"),
        (GOOD + "x = Workflow('a', 'b')", (5, 5), "too many positional"),
        (GOOD + "AgentNode('A', 'p', max_turns=500)", (5, 31), "from 1 to 20"),
        (GOOD + "AgentNode('A', 'p', max_turns='3')", (5, 31), "whole number"),
        ("import workflow as w\nf = w.Workflow(names=1)\nf.run(question)", (2, 5), "names"),
        (HEAD + "w = Workflow()\nw.add_node(EnsembleNode('e', []))\nw.run(question)", (3, 30), "at least one agent"),
        (HEAD + "w = Workflow()\nw.add_node(EnsembleNode('e', a, 'vote'))\nw.run(question)", (3, 33), "majority_vote"),
        (HEAD + "w = Workflow()\nEnsembleNode('e', a, 'consensus')\nw.run(1)", (3, 22), "needs a consensus_agent"),
        (HEAD + "w = Workflow()\nDebateNode('e', a, num_rounds=99)\nw.run(1)", (3, 31), "from 1 to 10"),
        ("print(1)", (1, 1), "no workflow is built"),
        ("from workflow import Workflow\nw = Workflow()", (2, 5), "never run"),
        ("import subprocess\n" + HEAD + "w = Workflow()\nsubprocess.run(['ls'])", (3, 5), "never run"),
    ],
)
def test_a_refusal_says_where_and_what(script: str, place: tuple[int, int], said: str) -> None:
    problems = validate(script)
    assert [(problem.line, problem.column) for problem in problems] == [place]
    assert said in problems[0].message


@pytest.mark.parametrize(
    "script", ["(" * 3000 + ")" * 3000, "x = " + "-" * 9000 + "1", "x = " + "9" * 9999, "x" + ".a" * 9000, "1+" * 9000]
)
def test_what_the_parser_cannot_take_is_one_problem(script: str) -> None:
    (problem,) = validate(script)
    assert problem.line == 1
    assert problem.message


def test_problems_come_in_order_and_read_well() -> None:
    problems = validate("import socket\nimport requests\nx = 1\n")
    assert [problem.line for problem in problems] == [1, 1, 2]
    assert str(ScriptProblem(3, 4, "bad")) == "line 3, column 4: bad"


def test_size_is_limited() -> None:
    assert "characters" in validate("#" * 30_000)[0].message


def test_subclasses_and_other_spellings_are_fine() -> None:
    for script in (
        HEAD + "class Mine(Workflow):\n    pass\nMine().run(question)",
        HEAD + "Workflow().add_node(AgentNode('A', 'p')).run(question)",
        HEAD + "ws = [Workflow()]\nws[0].run(question)",
        HEAD + "g = AgentGraph()\ng.run(question)",
        "import workflow\nw = workflow.Workflow()\nw.run(question)",
        HEAD + "options = {'max_turns': 3}\na = AgentNode('A', 'p', **options)\nWorkflow().add_node(a).run(question)",
        GOOD + "import re, json, math, random, subprocess, collections.abc\nfrom itertools import chain",
        GOOD + "s = '\\d \\boxed{}'",
    ):
        assert validate(script) == []


def test_defect_18_validation_only_reads() -> None:
    script = "\r\n# \\boxed{} \\frac \t\n" + GOOD + "s = '\\d'\n"
    before = script.encode()
    assert validate(script) == []
    assert script.encode() == before


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80) | st.text(alphabet="()[]{}:=.,'\"\\\n\t #@*ax1", max_size=60))
def test_any_text_gives_problems_and_never_an_exception(script: str) -> None:
    for problem in validate(script):
        assert problem.line >= 1
        assert problem.message
