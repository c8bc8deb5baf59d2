"""Code grading on published tasks: references pass, known bugs fail, equal programs get equal grades."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metaagentx.rewards.code import STOP_AFTER_FAILURES, CodeGrader
from metaagentx.types import AssertTest, CodeTests, FunctionTest, Grade, StdinTest
from tests.commands import command

DATA = Path(__file__).parent.parent / "data"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def grader(runner: asyncio.Runner) -> Iterator[CodeGrader]:
    grader = CodeGrader()
    runner.run(grader.__aenter__())
    yield grader
    runner.run(grader.__aexit__(None, None, None))


@pytest.fixture
def grade(runner: asyncio.Runner, grader: CodeGrader) -> Callable[..., Grade]:
    def grade(source: str, tests: CodeTests, strict: bool = True) -> Grade:
        return runner.run(grader.grade(source, tests, strict))

    return grade


def grade_all(runner: asyncio.Runner, grader: CodeGrader, work: list[tuple[str, CodeTests]]) -> list[Grade]:
    async def grade_all_answers() -> list[Grade]:
        return await asyncio.gather(*(grader.grade(source, tests) for source, tests in work))

    return runner.run(grade_all_answers())


def humaneval(row: dict[str, Any]) -> CodeTests:
    test = AssertTest(f"{row['test']}\ncheck({row['entry_point']})")
    return CodeTests((test,), entry_point=row["entry_point"], prompt=row["prompt"])


def test_every_humaneval_reference_passes(runner: asyncio.Runner, grader: CodeGrader) -> None:
    data = rows("humaneval_164.jsonl")
    grades = grade_all(runner, grader, [(row["canonical_solution"], humaneval(row)) for row in data])
    assert {row["task_id"]: g.reason for row, g in zip(data, grades, strict=True) if not g.solved} == {}
    assert len(grades) == 164


def test_every_humaneval_reference_passes_as_a_whole_function(runner: asyncio.Runner, grader: CodeGrader) -> None:
    data = rows("humaneval_164.jsonl")[:40]
    grades = grade_all(runner, grader, [(row["prompt"] + row["canonical_solution"], humaneval(row)) for row in data])
    assert {row["task_id"]: g.reason for row, g in zip(data, grades, strict=True) if not g.solved} == {}


def test_no_empty_humaneval_function_passes(runner: asyncio.Runner, grader: CodeGrader) -> None:
    grades = grade_all(runner, grader, [("    pass\n", humaneval(row)) for row in rows("humaneval_164.jsonl")])
    assert not any(grade.solved for grade in grades)


def test_every_mbpp_reference_passes(runner: asyncio.Runner, grader: CodeGrader) -> None:
    data = rows("mbpp_sanitized_train_ids601+.jsonl")
    work = [
        (row["code"], CodeTests(tuple(AssertTest("\n".join([*row["test_imports"], t])) for t in row["test_list"])))
        for row in data
    ]
    grades = grade_all(runner, grader, work)
    assert {row["task_id"]: g.reason for row, g in zip(data, grades, strict=True) if not g.solved} == {}


def quixbugs(row: dict[str, Any], cpu_seconds: float) -> CodeTests:
    return CodeTests((AssertTest(row["tests"]),), entry_point=row["name"], cpu_seconds=cpu_seconds)


def test_quixbugs_fixed_programs_pass_and_buggy_ones_fail(runner: asyncio.Runner, grader: CodeGrader) -> None:
    data = rows("quixbugs_40.jsonl")
    fixed = grade_all(runner, grader, [(row["solution"], quixbugs(row, 20)) for row in data])
    assert {row["name"]: g.reason for row, g in zip(data, fixed, strict=True) if not g.solved} == {}
    buggy = grade_all(runner, grader, [(row["buggy_program"], quixbugs(row, 2)) for row in data])
    assert [row["name"] for row, g in zip(data, buggy, strict=True) if g.solved] == []


def test_every_codecontests_reference_passes(runner: asyncio.Runner, grader: CodeGrader) -> None:
    data = rows("codecontests_40_clean.jsonl")
    work = [
        (row["solution"], CodeTests(tuple(StdinTest(t["input"], t["output"]) for t in row["tests"]))) for row in data
    ]
    grades = grade_all(runner, grader, work)
    assert {row["name"]: g.reason for row, g in zip(data, grades, strict=True) if not g.solved} == {}


ADD = CodeTests(tuple(FunctionTest((a, b), a + b) for a, b in ((1, 2), (3, 4), (-5, 5), (10, 0))), entry_point="add")


def test_functions_are_called_and_compared_by_the_host(grade: Callable[..., Grade]) -> None:
    assert grade("def add(a, b): return a + b", ADD) == Grade(1.0, True)
    assert grade("class Solution:\n    def add(self, a, b): return a + b", ADD).solved
    half = grade("def add(a, b): return a + b if a > 0 and b else 0", ADD)
    assert (half.score, half.solved) == (0.75, False)
    assert half.reason == "test 4 of 4: returned 0, expected 10"
    assert "does not define 'add'" in grade("def sub(a, b): return a", ADD).reason


def test_names_in_scope_for_convenience_solve_nothing(grade: Callable[..., Grade]) -> None:
    gcd = CodeTests((FunctionTest((12, 18), 6),), entry_point="gcd")
    assert not grade("x = 1", gcd).solved
    assert grade("def gcd(a, b): return gcd(b, a % b) if b else a", gcd).solved
    for tests in (
        CodeTests((AssertTest("assert gcd(12, 18) == 6"),)),
        CodeTests((AssertTest("assert gcd(12, 18) == 6"),), "gcd"),
    ):
        assert not grade("x = 1", tests).solved
        assert grade("def gcd(a, b): return gcd(b, a % b) if b else a", tests).solved


def test_a_failing_call_does_not_end_the_others(grade: Callable[..., Grade]) -> None:
    grade_ = grade("def add(a, b):\n    if a == 3: raise ValueError('three')\n    return a + b", ADD)
    assert (grade_.score, grade_.reason) == (0.75, "test 2 of 4: ValueError: three")


def test_a_solution_that_ends_fails_what_is_left(grade: Callable[..., Grade]) -> None:
    grade_ = grade("import os\ndef add(a, b):\n    if a == 3: os._exit(0)\n    return a + b", ADD)
    assert grade_.score == 0.25
    assert "ended" in grade_.reason


@pytest.mark.parametrize(
    ("expected", "returned", "same"),
    [
        ("1", "1", True), ("True", "1", False), ("1", "True", False), ("1.0", "1", True), ("1", "1.0", True),
        ("1", "1.0000001", False), ("0.1", "0.1 + 1e-9", True), ("0.1", "0.101", False), ("'1'", "1", False),
        ("[1, 2]", "(1, 2)", True), ("[1, 2]", "[2, 1]", False), ("[]", "''", False), ("None", "None", True),
        ("None", "0", False), ("{'a': 1}", "{'a': 1}", True), ("{'1': 2}", "{1: 2}", True), ("[1]", "{1}", False),
        ("10 ** 30", "10 ** 30", True), ("10 ** 30", "10 ** 30 + 1", False), ("1e300", "float('inf')", False),
        ("'ü'", "'ü'", True), ("[[1], [2]]", "iter([[1], [2]])", False),
    ],
)  # fmt: skip
def test_values_are_compared_with_strict_types(
    grade: Callable[..., Grade], expected: str, returned: str, same: bool
) -> None:
    tests = CodeTests((FunctionTest((), eval(expected)),), entry_point="f")
    assert grade(f"def f(): return {returned}", tests).solved is same


def test_apps_may_wrap_an_expected_value_in_a_list(grade: Callable[..., Grade]) -> None:
    wrapped = CodeTests((FunctionTest((), [5]),), entry_point="f", wrapped_outputs=True)
    assert grade("def f(): return 5", wrapped).solved
    assert not grade("def f(): return 6", wrapped).solved
    assert not grade("def f(): return 5", CodeTests((FunctionTest((), [5]),), entry_point="f")).solved


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("1 2\n3\n", "1 2 3", True), ("3", "3.0", True), ("3", "4", False), ("0.333333", "0.33333333", True),
        ("0.5", "0.51", False), ("1000000007", "1000000008", False), ("1000000007", "1000000007.0", True),
        ("YES", "Yes", False), ("a", "a b", False), ("", "", True), ("1e-3", "0.001", True), ("nan", "nan", True),
        ("1.0", "nan", False), ("12", "1 2", False), ("-0", "0", True), ("1_000", "1000", False),
    ],
)  # fmt: skip
def test_output_is_compared_by_tokens_with_tolerance_for_floats_only(
    grade: Callable[..., Grade], expected: str, printed: str, same: bool
) -> None:
    assert grade(f"print({printed!r})", CodeTests((StdinTest("", expected),))).solved is same


def test_programs_read_a_file_with_a_final_newline_and_have_the_usual_names(grade: Callable[..., Grade]) -> None:
    tests = CodeTests((StdinTest("3 4", "7"),))
    assert grade("import os\nn = os.fstat(0).st_size\nprint(sum(map(int, os.read(0, n).split())))", tests).solved
    assert grade("line = open(0).readline()[:-1]\nprint(sum(map(int, line.split())))", tests).solved
    source = (
        "d = deque(map(int, input().split())); heapify(d := list(d)); x: List[int] = d\nprint(pow(7, 1, 10), sep='')"
    )
    assert grade(source, tests).solved
    assert grade("from __future__ import annotations\nprint(gcd(21, 14))", tests).solved
    assert grade("if __name__ == '__main__':\n    print(7)", tests).solved


def test_a_test_that_takes_too_long_fails_with_a_reason(grade: Callable[..., Grade]) -> None:
    tests = CodeTests(tuple(StdinTest(str(n), str(n)) for n in range(3)), cpu_seconds=0.5)
    grade_ = grade("n = int(input())\nwhile n == 1: pass\nprint(n)", tests)
    assert grade_.score == pytest.approx(2 / 3)
    assert grade_.reason.startswith("test 2 of 3: cpu")
    assert grade("n = int(input())\nwhile n == 1: pass\nprint(n)", tests, strict=False).score == pytest.approx(1 / 3)


def test_each_call_has_its_own_cpu_time(grade: Callable[..., Grade]) -> None:
    source = (
        "import time\ndef f(s):\n    t = time.process_time()\n    while time.process_time() < t + s: pass\n    return s"
    )
    calls = tuple(FunctionTest((s,), s) for s in (0.3, 0.3, 0.3))
    assert grade(source, CodeTests(calls, entry_point="f", cpu_seconds=0.8)).solved
    late = grade(
        source, CodeTests((FunctionTest((0.1,), 0.1), FunctionTest((30.0,), 30.0)), entry_point="f", cpu_seconds=1)
    )
    assert late.score == 0.5


def test_training_stops_early_and_evaluation_does_not(grade: Callable[..., Grade]) -> None:
    tests = CodeTests(tuple(StdinTest(str(n), "no" if n < 5 else str(n)) for n in range(10)))
    assert grade("print(input())", tests, strict=True).score == 0.5
    assert STOP_AFTER_FAILURES == 3
    assert grade("print(input())", tests, strict=False).score == 0.0


def test_defect_15_the_same_program_gets_the_same_grade(grade: Callable[..., Grade]) -> None:
    source = "import random\nprint(list({'a', 'b', 'c'})[0] + str(random.random() < 0.5) + str(hash('x') % 2))"
    assert len({grade(source, CodeTests((StdinTest("", "aTrue1"),))).reason for _ in range(8)}) == 1


def test_no_tests_is_an_error_and_no_pass(grade: Callable[..., Grade]) -> None:
    with pytest.raises(ValueError, match="not a pass"):
        grade("print(1)", CodeTests(()))
    with pytest.raises(ValueError, match="one kind"):
        grade("print(1)", CodeTests((StdinTest("", ""), AssertTest("assert True"))))


@pytest.mark.parametrize(
    "source", ["", "   \n", "def f(:", "raise SystemExit", "import nothing_like_this", "\0", "x" * 10**6]
)
def test_what_is_no_program_is_a_wrong_answer(grade: Callable[..., Grade], source: str) -> None:
    for tests in (ADD, CodeTests((StdinTest("1", "1"),)), CodeTests((AssertTest("assert f(1) == 1"),))):
        assert grade(source, tests).score == 0


def test_arguments_changed_in_place_and_objects_reach_the_tests(grade: Callable[..., Grade]) -> None:
    source = """
def sort_it(items, seen): items.sort(); seen.add(1)
def link(node):
    node.next.value, node.tag = 7, (1, {2: [3]})
    return node.next
class Counter2: pass
def fresh():
    c = Counter2(); c.n = 5; return c
def numbers():
    yield from (1, 2)
"""
    checks = """
items, seen = [3, 1, 2], set()
assert sort_it(items, seen) is None and items == [1, 2, 3] and seen == {1}
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
a = Node(1, Node(2))
a.next.next = a
b = link(a)
assert b is a.next and b.value == 7 and a.tag == (1, {2: [3]}) and b.next is a
assert fresh().n == 5
assert list(numbers()) == [1, 2]
"""
    assert grade(source, CodeTests((AssertTest(checks),))) == Grade(1.0, True)


# --- every grade ends, whatever the solution says to the host

DOUBLE = CodeTests((FunctionTest((21,), 42), FunctionTest((-3,), -6)), entry_point="double", cpu_seconds=1)
DOUBLE_ASSERT = CodeTests((AssertTest("assert double(21) == 42 and double(-3) == -6"),), "double", cpu_seconds=1)
HONEST = "def double(n): return 2 * n"
SPEAKS_AT_IMPORT = f"import sys\nsys.modules['door'].transport.send(0)\n{HONEST}"
BAD_SPEAKERS = {
    "an ask at import": SPEAKS_AT_IMPORT,
    "an ask at import that says it is ready": f"import door\ndoor.transport.send({{'ready': True}})\n{HONEST}",
    "two asks at import": f"import door\ndoor.transport.send({{'ready': True}})\ndoor.transport.send(0)\n{HONEST}",
    "an ask in each call": "import door\ndef double(n):\n    door.transport.send(0)\n    return 2 * n",
    "a request read away": "import os\ndef double(n):\n    os.read(3, 100)\n    return 2 * n",
    "the door closed": f"import os\nos.close(4)\n{HONEST}",
    "half a message": f"import os\nos.write(4, b'\\0\\0')\n{HONEST}",
}


@pytest.mark.parametrize("tests", [DOUBLE, DOUBLE_ASSERT], ids=["function", "assert"])
def test_solutions_that_speak_out_of_turn_end_and_block_nobody(runner: asyncio.Runner, tests: CodeTests) -> None:
    async def both() -> tuple[list[Grade], Grade]:
        async with CodeGrader(concurrency=2) as grader:
            bad = [asyncio.create_task(grader.grade(source, tests)) for source in BAD_SPEAKERS.values()]
            honest = await asyncio.wait_for(grader.grade(HONEST, tests), 120)
            return await asyncio.wait_for(asyncio.gather(*bad), 120), honest

    grades, honest = runner.run(both())
    assert honest.solved
    for name, grade in zip(BAD_SPEAKERS, grades, strict=True):
        assert not grade.solved and grade.reason, name
    assert "protocol" in grades[0].reason


def test_the_command_grades_a_solution_that_speaks_out_of_turn(tmp_path: Path) -> None:
    tests, program = tmp_path / "tests.json", tmp_path / "answer.py"
    tests.write_text(json.dumps({"entry_point": "double", "tests": [{"arguments": [21], "expected": 42}]}))
    program.write_text(SPEAKS_AT_IMPORT)
    done = command("grade", "--kind", "code", "--program", program, "--tests", tests)  # which has a timeout
    assert done.returncode == 1 and "protocol" in done.stdout, done


def ahead(body: str) -> str:
    """A solution that answers by itself, one ask ahead of its requests as far as it can, and takes its time."""
    return f"""
import door, json, os, struct, threading, time
def frame(value):
    data = json.dumps(value).encode()
    return struct.pack(">I", len(data)) + data
def read():
    return door.read_frame()["body"]
number = 0
def say(value):
    global number
    number += 1
    os.write(4, frame({{"ask": number, "body": value}}))
def burn(seconds):
    t = time.process_time()
    while time.process_time() < t + seconds: pass
def double(n): return 2 * n
say({{"ready": True}})
{body}
"""


LATE = {
    "sleeps before it answers": (
        "while True:\n    n = read()['arguments'][0]\n    time.sleep(8)\n    say({'value': 2 * n})"
    ),
    "sleeps in slices": (
        "while True:\n    n = read()['arguments'][0]\n    for _ in range(160): time.sleep(0.05)\n"
        "    say({'value': 2 * n})"
    ),
    "computes before it answers": (
        "while True:\n    n = read()['arguments'][0]\n    burn(3.2)\n    say({'value': 2 * n})"
    ),
    "stays one ask ahead and sleeps": (
        "say(0)\nwhile True:\n    n = read()['arguments'][0]\n    time.sleep(4)\n    say({'value': 2 * n})"
    ),
    "answers before it reads": "while True:\n    say({'value': 42})\n    time.sleep(2)\n    read()",
    "computes in a thread that began while the host owed a request": (
        "thread = threading.Thread(target=burn, args=(3.2,))\nthread.start()\n"
        "while True:\n    n = read()['arguments'][0]\n    thread.join()\n    say({'value': 2 * n})"
    ),
    "computes in two threads": (
        "while True:\n    n = read()['arguments'][0]\n"
        "    threads = [threading.Thread(target=burn, args=(3.2,)) for _ in 'ab']\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
        "    say({'value': 2 * n})"
    ),
}


def test_no_solution_gets_more_time_by_answering_itself(runner: asyncio.Runner, grader: CodeGrader) -> None:
    grades = grade_all(runner, grader, [(ahead(body), DOUBLE) for body in LATE.values()])
    for name, grade in zip(LATE, grades, strict=True):
        assert not grade.solved, (name, grade)
    honest = ahead("while True:\n    n = read()['arguments'][0]\n    say({'value': 2 * n})")
    assert runner.run(grader.grade(honest, DOUBLE)).solved  # or none of them tests what it says


@pytest.mark.slow
def test_a_slow_solution_is_no_fault_of_ours(runner: asyncio.Runner) -> None:
    """Its calls take a good part of the time that the tests have: that is not the host being late."""
    tests = CodeTests((AssertTest("for n in range(9): assert f(n) == n"),) * 8, "f", cpu_seconds=0.2)

    async def graded() -> Grade:
        async with CodeGrader(2) as grader:
            return await asyncio.wait_for(
                grader.grade("import time\ndef f(n):\n    time.sleep(4.5)\n    return n", tests, strict=False), 300
            )

    assert not runner.run(graded()).solved


def test_grades_go_on_when_every_fork_server_is_killed(runner: asyncio.Runner) -> None:
    async def under_fire() -> tuple[list[Grade], list[str]]:
        lost: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(str(context)))
        async with CodeGrader(8) as grader:
            grades = [asyncio.create_task(grader.grade(HONEST, tests)) for tests in (DOUBLE, DOUBLE_ASSERT) * 30]
            await asyncio.sleep(0.1)
            for server in grader._sandbox._servers:
                assert server._pid is not None
                os.kill(server._pid, signal.SIGKILL)
            result = await asyncio.wait_for(asyncio.gather(*grades), 120)
        asyncio.get_running_loop().set_exception_handler(None)
        return result, lost

    grades, lost = runner.run(under_fire())
    assert all(grade.solved for grade in grades)
    assert lost == []
