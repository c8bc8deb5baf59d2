"""A gold of the wrong shape is an error where it is made or loaded, with its place: never an answer that scores 0."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaagentx.errors import MetaAgentXError
from metaagentx.tasks import TaskError, load
from metaagentx.tasks.own import read_tests
from metaagentx.types import AssertTest, CodeTests, CustomGrader, FunctionTest, GymEntry, MathGold, StdinTest

untyped: Callable[[type], Any] = lambda kind: kind  # noqa: E731 - what a caller without a type checker does


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: untyped(MathGold)("42"), "MathGold.answers: expected tuple, got str '42'"),
        (lambda: untyped(MathGold)(["42"]), "MathGold.answers: expected tuple, got list"),
        (lambda: untyped(MathGold)((42,)), "MathGold.answers: invalid item 42, a int"),
        (lambda: untyped(MathGold)(("42",), "0.1"), "MathGold.tolerances: expected tuple, got str"),
        (lambda: untyped(MathGold)(("42",), 0.1), "MathGold.tolerances: expected tuple, got float"),
        (lambda: untyped(MathGold)(("42",), ("0.1",)), "MathGold.tolerances: invalid item '0.1'"),
        (lambda: untyped(MathGold)(("42",), (True,)), "MathGold.tolerances: invalid item True"),
        (lambda: untyped(MathGold)(("42",), (), None), "MathGold.unit: expected str, got NoneType"),
        (lambda: untyped(CodeTests)([StdinTest("", "")]), "CodeTests.tests: expected tuple, got list"),
        (lambda: untyped(CodeTests)(("assert f()",)), "CodeTests.tests: invalid item 'assert f()'"),
        (lambda: untyped(CodeTests)((), cpu_seconds="4"), "CodeTests.cpu_seconds: expected int or float, got str"),
        (lambda: untyped(StdinTest)(1, "1"), "StdinTest.input: expected str, got int"),
        (lambda: untyped(StdinTest)("1", ["1"]), "StdinTest.output: expected str, got list"),
        (lambda: untyped(FunctionTest)([1], 1), "FunctionTest.arguments: expected tuple, got list"),
        (lambda: untyped(AssertTest)(["assert f()"]), "AssertTest.source: expected str, got list"),
        (lambda: untyped(GymEntry)("gcd", [], {}), "GymEntry.config: expected dict, got list"),
        (lambda: untyped(GymEntry)("gcd", {}, "2"), "GymEntry.entry: expected dict, got str"),
        (lambda: untyped(CustomGrader)(len, None), "CustomGrader.function: expected str"),
    ],
)
def test_a_wrong_shape_is_an_error_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert message in str(caught.value)


GOOD: dict[str, dict[str, Any]] = {
    "own": {"question": "one", "grader": "math", "answer": "1"},
    "gsm8k": {"question": "one", "answer": "#### 1"},
    "math": {"problem": "one", "answer": "1"},
    "aime24": {"problem": "one", "answer": "1"},
    "olympiadbench": {"question": "one", "final_answer": ["1"]},
    "polaris": {"problem": "one", "answer": "1"},
    "humaneval": {"task_id": "HumanEval/1", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f): pass"},
    "mbpp": {"task_id": 601, "prompt": "one", "code": "def f(): pass", "test_list": ["assert f()"]},
    "apps": {"question": "one", "input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]})},
    "codecontests": {"name": "one", "description": "one", "tests": [{"input": "1", "output": "1"}]},
}
GYM = {"grader": "gym", "entry": {"question": "q", "answer": "7", "metadata": {}}, "answer": ...}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("own", {"answer": {"value": "1"}}, "answer is not text but dict"),
    ("own", {"answer": ["1", 2]}, "answer is not a list of texts"),
    ("own", {"answer": 0.5}, "answer is not text but float"),
    ("own", {"answer": "1", "tolerance": "small"}, "tolerance is not a number"),
    ("own", {"answer": "1", "tolerance": {"value": 1}}, "tolerance is not a number"),
    ("own", {"answer": "1", "unit": ["cm"]}, "unit is not text"),
    ("own", {"grader": "code", "answer": ..., "tests": "assert f()", "entry_point": "f"}, "tests is not a list"),
    ("own", {"grader": "code", "answer": ..., "tests": ["assert f()"], "entry_point": "f"}, "a test is not an object"),
    ("own", {"grader": "code", "answer": ..., "tests": [{"input": 1, "output": "1"}]}, "a test is {input, output}"),
    ("own", {"grader": "code", "answer": ..., "tests": [{"arguments": 1, "expected": 1}], "entry_point": "f"},
     "arguments is not a list"),
    ("own", {"grader": "code", "answer": ..., "tests": [{"assert": "assert f("}], "entry_point": "f"},
     "assert is not Python"),
    ("own", {**GYM, "generator": "chain_sums"}, "unknown generator 'chain_sums': did you mean chain_sum?"),
    ("own", {**GYM, "generator": "chain_sum", "settings": {"terms": 3}}, "chain_sum has no setting 'terms'"),
    ("own", {**GYM, "generator": "chain_sum", "settings": [3]}, "settings is not an object"),
    ("own", {**GYM, "generator": "chain_sum", "entry": {"question": "q", "answer": 7, "metadata": {}}},
     "answer is not text but int"),
    ("own", {**GYM, "generator": "chain_sum", "entry": {"question": "q", "answer": "7"}}, "entry.metadata is not"),
    ("gsm8k", {"answer": "7"}, "answer does not end in ####"),
    ("gsm8k", {"answer": ["#### 7"]}, "answer is not text but list"),
    ("math", {"answer": ["7"]}, "answer is not text but list"),
    ("aime24", {"answer": "1000"}, "answer '1000' is not an integer"),
    ("olympiadbench", {"final_answer": "7"}, "final_answer is not a list"),
    ("olympiadbench", {"final_answer": [7]}, "final_answer is not a list of one text"),
    ("olympiadbench", {"final_answer": ["7"], "error": 0.1}, "error is not text"),
    ("polaris", {"answer": {"value": 7}}, "answer is not text but dict"),
    ("humaneval", {"task_id": "HumanEval/2", "test": "def check(candidate)"}, "test is not Python"),
    ("humaneval", {"task_id": "HumanEval/2", "test": ["assert f()"]}, "test is not text"),
    ("mbpp", {"task_id": 602, "test_list": "assert f()"}, "test_list is not a list of texts"),
    ("mbpp", {"task_id": 602, "test_list": ["assert f()", "assert f("]}, "test_list is not Python"),
    ("apps", {"input_output": "[1]"}, "input_output is not an object"),
    ("apps", {"input_output": json.dumps({"inputs": "1", "outputs": ["1"]})}, "inputs is not a list"),
    ("codecontests", {"name": "two", "tests": "1"}, "tests is not a list"),
    ("codecontests", {"name": "two", "tests": [["1", "1"]]}, "tests is not an object"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "change", "message"), BAD)
def test_a_row_of_the_wrong_shape_is_named_with_its_line(
    source: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    question = next(name for name in ("question", "problem", "description", "prompt") if name in GOOD[source])
    bad = {key: value for key, value in (GOOD[source] | {question: "two"} | change).items() if value is not ...}
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(GOOD[source])}\n\n{json.dumps(bad)}\n")
    split = "test" if source in ("aime24", "olympiadbench", "humaneval") else "train"
    tasks = load(f"jsonl:{file}" if source == "own" else f"{source}?file={file}", split)
    assert len(tasks) == 1
    (problem,) = tasks.problems
    assert problem.startswith(f"{file}:3: ") and message in problem
    file.write_text(f"{json.dumps(bad)}\n")
    with pytest.raises(TaskError, match="none of 1 rows can be used") as caught:
        load(f"jsonl:{file}" if source == "own" else f"{source}?file={file}", split)
    assert f"{file}:1: " in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"assert": "assert f("}], "tests.json: test 1: assert is not Python"),
        ([{"input": "1", "output": "1"}, {"input": 1, "output": "1"}], "tests.json: test 2: a test is {input, output}"),
        ({"tests": "assert f()"}, "tests.json: tests is not a list"),
        ({"tests": [{"input": "", "output": ""}], "cpu_seconds": 0}, "tests.json: cpu_seconds"),
        ({"tests": [{"input": "", "output": ""}], "cpu_seconds": True}, "tests.json: cpu_seconds"),
        ({"tests": [{"input": "", "output": ""}], "prompt": ["x"]}, "tests.json: prompt is not text"),
    ],
)
def test_a_test_file_of_the_wrong_shape_is_named(data: object, message: str) -> None:
    with pytest.raises(MetaAgentXError) as caught:
        read_tests(json.dumps(data), "tests.json")
    assert message in str(caught.value)
