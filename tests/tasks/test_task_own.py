"""Users' own tasks: the manual's example loads as the manual says, and mistakes are named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from metaagentx.tasks import SOURCES, load
from metaagentx.tasks.own import own_draft
from metaagentx.tasks.rows import RowError
from metaagentx.types import AssertTest, CodeTests, CustomGrader, FunctionTest, GymEntry, MathGold, StdinTest
from tests.tasks.files import write

MANUAL = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()


def block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```", MANUAL, re.DOTALL | re.MULTILINE)
    assert match
    return match[1]


def test_the_manual_example(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(block("jsonl"))
    tasks = load(f"jsonl:{tmp_path / 'own.jsonl'}", "train")
    assert not tasks.problems
    assert [task.grading for task in tasks] == [
        MathGold((r"\frac{5}{6}",)),
        MathGold(("2", "-2")),
        MathGold(("3.14",), (0.01,), "m"),
        CodeTests((StdinTest("1 2\n", "3\n"),), cpu_seconds=2.0),
        CodeTests((FunctionTest((1, 2), 3),), "add"),
        CodeTests((AssertTest("assert double(2) == 4"),), "double"),
        GymEntry("chain_sum", {}, {"question": "3 + 4 =", "answer": "7", "metadata": {}}),
        CustomGrader("my_graders:haiku", {"syllables": [5, 7, 5]}),
    ]
    assert [task.kind for task in tasks] == ["math"] * 3 + ["code"] * 3 + ["gym", "custom"]
    assert tasks[1].id.endswith("/train/quadratic-1") and tasks[1].difficulty == 0.1
    assert tasks[7].license == "CC0"


def test_a_license_may_be_spelled_either_way(tmp_path: Path) -> None:
    rows = [{"question": word, "grader": "math", "answer": "1", word: "MIT"} for word in ("license", "licence")]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [task.license for task in load(f"jsonl:{tmp_path / 'own.jsonl'}", "train")] == ["MIT", "MIT"]


def test_the_manual_python_runs(capsys: Any) -> None:
    exec(compile(block("python"), "docs/tasks.md", "exec"), {})
    assert capsys.readouterr().out.count("gym:") == 4


def test_the_manual_names_every_source_with_its_splits_and_licence() -> None:
    for source in SOURCES.values():
        (line,) = (line for line in MANUAL.splitlines() if line.startswith(f"| `{source.name}` | {source.kind} |"))
        repository = next(iter(source.hub.values()))[0].repository
        assert ", ".join(source.splits) in line and repository in line and source.license in line
        fields = " ".join(line for line in MANUAL.splitlines() if line.startswith("| `") and f"`{source.name}`" in line)
        assert all(field in fields for field in source.fields)


def test_rows_of_other_splits_are_left_out(tmp_path: Path) -> None:
    base = {"grader": "math", "answer": "1"}
    rows = [{**base, "question": f"q{n}", "split": split} for n, split in enumerate(("train", "test", "train"))]
    address = f"jsonl:{write(tmp_path / 'own.jsonl', rows)}"
    assert [task.question for task in load(address, "train")] == ["q0", "q2"]
    assert [task.question for task in load(address, "test")] == ["q1"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"grader": "maths", "answer": "1"}, "grader 'maths' is not math, code, gym or module:function"),
        ({"grader": "math", "answer": "1", "tolerence": 1}, "unknown field 'tolerence': did you mean tolerance?"),
        ({"grader": "math"}, "no field answer"),
        ({"grader": "math", "answer": []}, "answer is empty"),
        ({"grader": "math", "answer": ["1", "2", "3"], "tolerance": [1, 2]}, "2 tolerances for 3 answers"),
        ({"grader": "math", "answer": "1", "tolerance": -1}, "tolerance is not a number >= 0"),
        ({"grader": "math", "answer": "1", "difficulty": 7}, "difficulty is not between 0"),
        ({"grader": "code", "tests": []}, "tests is empty"),
        ({"grader": "code", "tests": [{"input": "1"}]}, "a test is"),
        ({"grader": "code", "tests": [{"input": "", "output": ""}, {"assert": "x"}]}, "tests are of several kinds"),
        ({"grader": "code", "tests": [{"assert": "assert f()"}]}, "entry_point is for tests that call"),
        ({"grader": "code", "tests": [{"assert": "x"}], "entry_point": "f()"}, "not a function or Class.method"),
        ({"grader": "gym", "generator": "gcd"}, "entry is not an object"),
        (
            {"grader": "gym", "generator": "coin_flip", "entry": {"question": "q", "metadata": {}}},
            "coin_flip are not graded",
        ),
        ({"grader": "os:system; x"}, "is not math, code, gym or module:function"),
    ],
)
def test_mistakes_are_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError) as caught:
        own_draft({"question": "q", **row})
    assert message in str(caught.value)


def test_an_underscore_makes_a_field_yours() -> None:
    assert own_draft({"question": "q", "grader": "math", "answer": 1, "_note": "mine"}).grading == MathGold(("1",))
    assert json.loads(block("jsonl").splitlines()[0])["grader"] == "math"
