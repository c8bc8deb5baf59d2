"""Each published format, with its quirks: real extracts where they may be committed, made-up rows elsewhere."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from metaagentx.tasks import SOURCES, load
from metaagentx.tasks.code_sources import PROGRAM_FORM, flat_statement
from metaagentx.tasks.math_sources import final_box, split_answers
from metaagentx.tasks.rows import RowError, TaskError
from metaagentx.types import AssertTest, CodeTests, FunctionTest, MathGold, StdinTest, Task
from tests.tasks.files import CODECONTESTS, DATA, GSM8K, HUMANEVAL, MBPP, made_up, write


def task_of(source: str, row: dict[str, Any], folder: Path, split: str = "test") -> Task:
    return load(f"{source}?file={write(folder / 'rows.jsonl', [row])}", split)[0]


def gold(source: str, row: dict[str, Any], folder: Path, split: str = "test") -> MathGold:
    grading = task_of(source, row, folder, split).grading
    assert isinstance(grading, MathGold)
    return grading


def code(task: Task) -> CodeTests:
    assert isinstance(task.grading, CodeTests)
    return task.grading


def test_gsm8k_real_rows() -> None:
    tasks = load(GSM8K, "train")
    assert len(tasks) == 300 and not tasks.problems
    rows = [json.loads(line) for line in (DATA / "gsm8k_train_300.jsonl").read_text().splitlines()]
    for task, row in zip(tasks, rows, strict=True):
        assert task.question == row["question"]
        assert task.grading == MathGold((row["answer"].rsplit("####", 1)[1].strip().replace(",", ""),))
        assert (task.kind, task.split, task.license) == ("math", "train", "MIT")


def test_gsm8k_commas_in_thousands(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "#### no\nso it is\n#### -1,234,000.5"}
    assert gold("gsm8k", row, tmp_path).answers == ("-1234000.5",)


def test_math_takes_the_last_box_and_the_level(tmp_path: Path) -> None:
    row = {"problem": "p", "solution": r"First \boxed{1}, no: $\boxed{\frac{1}{\sqrt{2}}}$.", "level": "Level 5"}
    assert gold("math", row, tmp_path, "train").answers == (r"\frac{1}{\sqrt{2}}",)
    assert task_of("math", row, tmp_path, "train").difficulty == 1.0
    assert task_of("math", {**row, "level": "Level ?"}, tmp_path, "train").difficulty is None
    assert gold("math", {**row, "answer": "7"}, tmp_path, "train").answers == ("7",)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"\boxed{a\}b}", r"a\}b"),
        (r"so $\boxed 5$.", "5"),
        (r"\fbox{3}", "3"),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{}", None),
        ("none", None),
        ("\\boxed{" * 5000, None),
    ],
)
def test_final_box(solution: str, answer: str | None) -> None:
    assert final_box(solution) == answer


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        ("aime24", "025", "25"),
        ("aime24", "000", "0"),
        ("aime24", 204, "204"),
        ("aime25", r"336^\circ", "336"),
        ("aime25", " $70$ ", "70"),
    ],
)
def test_aime_answers(source: str, answer: object, expected: str, tmp_path: Path) -> None:
    assert gold(source, {**made_up(source, 1), "answer": answer}, tmp_path).answers == (expected,)


def test_aime_takes_the_other_spelling_of_its_fields(tmp_path: Path) -> None:
    task = task_of("aime24", {"ID": "2024-I-1", "Problem": "p", "Answer": 7}, tmp_path)
    assert (task.id, task.question) == ("aime24/test/2024-I-1", "p")


def test_olympiadbench(tmp_path: Path) -> None:
    base = {"id": 7, "question": "q", "is_multiple_answer": False, "unit": None, "error": None, "context": None}
    assert gold("olympiadbench", {**base, "final_answer": ["$(1,2)$"]}, tmp_path).answers == ("(1,2)",)
    several = {**base, "final_answer": [r"$1$, $\{2,3\}$, $4\,000$"], "is_multiple_answer": True}
    assert gold("olympiadbench", several, tmp_path).answers == ("1", r"\{2,3\}", r"4\,000")
    assert "separated by commas" in task_of("olympiadbench", several, tmp_path).question
    measured = {**base, "final_answer": ["3.5"], "unit": r"$\mathrm{~m}$", "error": "1e-1", "context": "A pole."}
    task = task_of("olympiadbench", measured, tmp_path)
    assert task.grading == MathGold(("3.5",), (0.1,), r"\mathrm{~m}")
    assert task.question.startswith("A pole.\n\nq") and r"\mathrm{~m}" in task.question


def test_split_answers() -> None:
    assert split_answers("(1,2),[3,4),{5,6}") == ("(1,2)", "[3,4)", "{5,6}")
    assert split_answers("1)),2") == ("1))", "2")


def test_polaris_counts_successes(tmp_path: Path) -> None:
    assert task_of("polaris", made_up("polaris", 1), tmp_path, "train").difficulty == 0.125
    assert task_of("polaris", {**made_up("polaris", 1), "difficulty": "0/8"}, tmp_path, "train").difficulty == 1.0


def test_humaneval_real_rows() -> None:
    tasks = load(HUMANEVAL, "test")
    assert len(tasks) == 164 and not tasks.problems
    for task in tasks:
        grading = code(task)
        (test,) = grading.tests
        assert isinstance(test, AssertTest) and test.source.rstrip().endswith(f"check({grading.entry_point})")
        assert task.question.startswith(grading.prompt.rstrip())


def test_mbpp_real_rows() -> None:
    tasks = load(MBPP, "train")
    rows = [json.loads(line) for line in (DATA / "mbpp_sanitized_train_ids601+.jsonl").read_text().splitlines()]
    assert len(tasks) == 120 and not tasks.problems
    for task, row in zip(tasks, rows, strict=True):
        grading = code(task)
        assert f"def {grading.entry_point}" in row["code"] and f"`{grading.entry_point}`" in task.question
        assert [test.source.splitlines()[-1] for test in grading.tests if isinstance(test, AssertTest)] == [
            assertion.splitlines()[-1] for assertion in row["test_list"]
        ]
        # The other assertions stay hidden: a program that knows them could answer by heart.
        assert row["test_list"][1] not in task.question


def test_mbpp_puts_imports_before_each_assertion(tmp_path: Path) -> None:
    row = {**made_up("mbpp", 602), "test_imports": ["import math"], "test_list": ["assert math.isclose(f(1), 2)"]}
    row["code"] = "def helper(): ...\ndef f(x): return 2 * x"
    grading = code(task_of("mbpp", row, tmp_path, "train"))
    assert grading == CodeTests((AssertTest("import math\nassert math.isclose(f(1), 2)"),), "f")


def apps_row(cases: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"problem_id": 3, "question": "q", "input_output": json.dumps(cases), "difficulty": "interview", **fields}


def test_apps_programs(tmp_path: Path) -> None:
    task = task_of("apps", apps_row({"inputs": ["1\n", ["2", "3"]], "outputs": ["1\n", ["4"]]}), tmp_path)
    assert code(task).tests == (StdinTest("1\n", "1\n"), StdinTest("2\n3", "4"))
    assert (task.id, task.difficulty, code(task).entry_point) == ("apps/test/3", 0.5, "")
    assert task.question == f"q\n\n{PROGRAM_FORM}"


def test_apps_functions(tmp_path: Path) -> None:
    plain = apps_row({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}, starter_code="def add(a, b):\n\t")
    grading = code(task_of("apps", plain, tmp_path))
    assert (grading.entry_point, grading.wrapped_outputs) == ("add", True)
    assert grading.tests == (FunctionTest((1, 2), [3]),)
    starter = "class Solution:\n    def pair(self, n: int) -> List[int]:\n        "
    method = apps_row({"fn_name": "pair", "inputs": [[1]], "outputs": [[3]]}, starter_code=starter)
    task = task_of("apps", method, tmp_path)
    assert (code(task).entry_point, code(task).wrapped_outputs) == ("Solution.pair", False)
    assert starter.rstrip() in task.question
    mixed = apps_row({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]})
    assert not code(task_of("apps", mixed, tmp_path)).wrapped_outputs


def test_codecontests_real_rows() -> None:
    tasks = load(CODECONTESTS, "train")
    assert len(tasks) == 40 and not tasks.problems
    for task in tasks:
        assert all(isinstance(test, StdinTest) for test in code(task).tests) and code(task).tests
        assert "./run.sh" not in task.question and "## " not in task.question
        assert task.question.endswith(PROGRAM_FORM)
    special = [head.id for head in tasks.heads if head.special_judge]
    assert special == ["codecontests/train/460_d_little_victor_and_set_2650"]


def test_codecontests_as_on_the_hub(tmp_path: Path) -> None:
    row = {
        **made_up("codecontests", 1),
        "private_tests": {"input": ["2\n"], "output": ["4\n"]},
        "generated_tests": {"input": [], "output": []},
        "time_limit": {"seconds": 7, "nanos": 500_000_000},
        "cf_rating": 2150,
        "input_file": "",
    }
    task = task_of("codecontests", row, tmp_path)
    assert code(task).tests == (StdinTest("1\n", "3\n"), StdinTest("2\n", "4\n"))
    assert (code(task).cpu_seconds, task.difficulty) == (7.5, 0.5)
    # A limit set for C++ is not a limit for Python.
    assert code(task_of("codecontests", {**row, "time_limit": {"seconds": 1, "nanos": 0}}, tmp_path)).cpu_seconds == 4
    with pytest.raises(Exception, match=r"input\.txt"):
        task_of("codecontests", {**row, "input_file": "input.txt"}, tmp_path)


def test_special_judge_flag_before_guess(tmp_path: Path) -> None:
    row = made_up("codecontests", 1)
    assert not code(task_of("codecontests", row, tmp_path)).special_judge
    guess = {**row, "description": "If there are several answers, print any of them."}
    assert code(task_of("codecontests", guess, tmp_path)).special_judge
    assert not code(task_of("codecontests", {**guess, "special_judge": False}, tmp_path)).special_judge
    assert code(task_of("codecontests", {**row, "special_judge": True}, tmp_path)).special_judge


def test_flat_statement() -> None:
    assert flat_statement("# T\n\n## Description\n\nText\n\n## Testing\n\nrun") == "Text"
    assert flat_statement("Text") == "Text"


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def lcb_row(private: str, **fields: object) -> dict[str, Any]:
    return {**made_up("livecodebench", 1), "private_test_cases": private, "difficulty": "hard", **fields}


def test_livecodebench_programs_with_packed_private_tests(tmp_path: Path) -> None:
    private = [{"input": "9\n", "output": "19\n", "testtype": "stdin"}] * 50
    task = task_of("livecodebench", lcb_row(packed(json.dumps(private))), tmp_path)
    assert len(code(task).tests) == 51 and code(task).tests[-1] == StdinTest("9\n", "19\n")
    assert task.difficulty == 1.0


def test_livecodebench_functions(tmp_path: Path) -> None:
    cases = [{"input": '[1, 2]\n"ab"\n3', "output": "[6, null]", "testtype": "functional"}]
    starter = "class Solution:\n    def find(self, nums: List[int], s: str, k: int) -> List[int]:\n        "
    row = lcb_row("[]", public_test_cases=json.dumps(cases), starter_code=starter)
    for metadata in ('{"func_name": "find"}', "{}"):
        grading = code(task_of("livecodebench", {**row, "metadata": metadata}, tmp_path))
        assert grading.entry_point == "Solution.find"
        assert grading.tests == (FunctionTest(([1, 2], "ab", 3), [6, None]),)


class Trap:
    """Unpickling this would create the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


def test_livecodebench_never_unpickles(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    for value in (Trap(trap), [], ["[]", "[]"], {"a": "[]"}, b"[]", None):
        with pytest.raises(Exception, match="refused, convert it to JSON"):
            task_of("livecodebench", lcb_row(packed(value)), tmp_path)
    for broken in ("AAAA", "no base64!", base64.b64encode(zlib.compress(b"\x80\x04")).decode(), packed("[]")[:-8]):
        with pytest.raises(Exception, match="private_test_cases"):
            task_of("livecodebench", lcb_row(broken), tmp_path)
    assert not trap.exists()


def test_livecodebench_without_private_tests_is_not_silently_easier(tmp_path: Path) -> None:
    row = made_up("livecodebench", 1)
    del row["private_test_cases"]
    with pytest.raises(Exception, match="public tests alone"):
        task_of("livecodebench", row, tmp_path)


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("apps", {"input_output": json.dumps({"inputs": [], "outputs": []})}),
        ("apps", {"input_output": ""}),
        ("apps", {"input_output": json.dumps({"inputs": ["1"], "outputs": []})}),
        ("mbpp", {"test_list": []}),
        ("mbpp", {"test_list": [" "]}),
        ("codecontests", {"public_tests": {"input": [], "output": []}}),
        ("codecontests", {"public_tests": {"input": ["1"], "output": []}}),
        ("livecodebench", {"public_test_cases": "[]"}),
        ("humaneval", {"test": ""}),
        ("humaneval", {"entry_point": "f(); import os"}),
        ("gsm8k", {"answer": "no number"}),
        ("math", {"solution": "no box"}),
        ("aime24", {"answer": "1000"}),
        ("olympiadbench", {"final_answer": ["1", "2"]}),
        ("olympiadbench", {"final_answer": ["$ $"]}),
        ("olympiadbench", {"error": "wide"}),
        ("polaris", {"difficulty": "9/8"}),
    ],
)
def test_rows_that_cannot_be_graded_are_refused(source: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RowError):
        SOURCES[source].draft({**made_up(source, 700), **fields})


def test_every_source_takes_its_made_up_row() -> None:
    for source in SOURCES.values():
        draft = source.draft(made_up(source.name, 700))
        assert draft.question and source.license and source.splits
        assert set(source.fields) & set(made_up(source.name, 700))


# Which rows and which tests


def groups_of(folder: Path) -> str:
    tests = [
        {"input": [f"{n}\n" for n in numbers], "output": ["x\n"] * len(numbers)}
        for numbers in ((1, 2), (3, 4, 5), (6,))
    ]
    names = ("public_tests", "private_tests", "generated_tests")
    row = {**made_up("codecontests", 1), **dict(zip(names, tests, strict=True))}
    flat = {"name": "flat", "description": "d", "tests": [{"input": "7\n", "output": "x\n"}]}
    return f"codecontests?file={write(folder / 'rows.jsonl', [row, flat])}"


def inputs(task: Task) -> str:
    return "".join(test.input.strip() for test in code(task).tests if isinstance(test, StdinTest))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", ["123456", "7"]),
        ("&tests=public", ["12"]),
        ("&tests=private", ["345"]),
        ("&tests=generated", ["6"]),
        ("&max_tests=4", ["1234", "7"]),
        ("&tests=private&max_tests=2", ["34"]),
        ("&rows=1", ["123456"]),
        ("&rows=9", ["123456", "7"]),
    ],
)
def test_rows_and_tests_are_chosen_by_name(settings: str, expected: list[str], tmp_path: Path) -> None:
    tasks = load(groups_of(tmp_path) + settings, "test")
    assert [inputs(task) for task in tasks] == expected
    assert len(tasks.problems) == (1 if "tests=p" in settings or "tests=g" in settings else 0)


def test_public_tests_of_livecodebench(tmp_path: Path) -> None:
    cases = [json.dumps([{"input": f"{n}\n", "output": "x\n", "testtype": "stdin"}]) for n in (1, 2)]
    row = {**made_up("livecodebench", 1), "public_test_cases": cases[0], "private_test_cases": cases[1]}
    source = f"livecodebench?file={write(tmp_path / 'rows.jsonl', [row])}"
    read = {group: inputs(load(f"{source}&tests={group}", "test")[0]) for group in ("public", "private")}
    assert read == {"public": "1", "private": "2"} and inputs(load(source, "test")[0]) == "12"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("codecontests?tests=publc", "has no tests 'publc': did you mean public?"),
        ("codecontests?max_tests=0", "max_tests=0 is not an integer >= 1"),
        ("apps?rows=many", "rows=many is not an integer >= 1"),
        ("apps?tests=public", "apps has no setting 'tests'"),
        ("aime24?max_tests=1", "aime24 has no setting 'max_tests'"),
    ],
)
def test_choices_that_do_not_exist_are_one_line_before_anything_is_fetched(setting: str, message: str) -> None:
    with pytest.raises(TaskError) as refused:
        load(setting, "test")
    assert message in str(refused.value)
