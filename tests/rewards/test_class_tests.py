"""Assert-style tests that make instances: right classes pass, wrong ones fail, and no object decides its own grade."""

import asyncio
from collections.abc import Iterator

import pytest

from metaagentx.rewards.code import CodeGrader
from metaagentx.types import AssertTest, CodeTests, Grade
from tests.rewards.class_tasks import METHOD_TASKS, STATEFUL_TASKS, ClassTask

TASKS = (*METHOD_TASKS, *STATEFUL_TASKS)


@pytest.fixture(scope="module")
def grader(runner: asyncio.Runner) -> Iterator[CodeGrader]:
    grader = CodeGrader()
    runner.run(grader.__aenter__())
    yield grader
    runner.run(grader.__aexit__(None, None, None))


def grade(runner: asyncio.Runner, grader: CodeGrader, source: str, *tests: str, entry_point: str = "") -> Grade:
    return runner.run(grader.grade(source, CodeTests(tuple(map(AssertTest, tests)), entry_point)))


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_right_classes_pass_and_wrong_ones_fail(runner: asyncio.Runner, grader: CodeGrader, task: ClassTask) -> None:
    assert grade(runner, grader, task.solution, task.tests) == Grade(1.0, True)
    for before, after in task.wrong:
        assert before in task.solution
        wrong = grade(runner, grader, task.solution.replace(before, after), task.tests)
        assert not wrong.solved and wrong.reason, after


def test_there_are_enough_tasks() -> None:
    assert len(METHOD_TASKS) >= 12 and len(STATEFUL_TASKS) >= 5
    assert sum(len(task.wrong) for task in TASKS) >= 45


ADD = "class Solution:\n    def add(self, a, b): return a + b\n"


@pytest.mark.parametrize(
    "test",
    [
        "check = lambda candidate: candidate(1, 2) == 3\nassert check(Solution().add)",
        "assert Solution().add(1, 2) == 3",
        "s = Solution(); assert s.add(1, b=2) == 3",
        "assert Solution().add(b=2, a=1) == 3 and Solution().add([1], [2]) == [1, 2]",
        "add = Solution().add\nassert [add(n, n) for n in range(3)] == [0, 2, 4]",
        "assert list(map(Solution().add, [1, 2], [3, 4])) == [4, 6]",
        "def check(kind: Callable[..., Any]) -> None:\n    assert kind().add(1, 2) == 3\ncheck(Solution)",
        "assert Solution.add(Solution(), 1, 2) == 3",
        "assert getattr(Solution(), 'add')(1, 2) == 3 and not hasattr(Solution(), 'subtract')",
    ],
)
def test_forms_of_calling(runner: asyncio.Runner, grader: CodeGrader, test: str) -> None:
    for entry_point in ("", "Solution", "Solution.add"):
        assert grade(runner, grader, ADD, test, entry_point=entry_point) == Grade(1.0, True)
        assert not grade(runner, grader, ADD.replace("a + b", "a - b if a != [1] else a"), test).solved
        assert not grade(runner, grader, "def add(a, b): return a + b", test, entry_point=entry_point).solved


def test_each_test_starts_with_its_own_objects(runner: asyncio.Runner, grader: CodeGrader) -> None:
    source = (
        "class Bag:\n    def __init__(self): self.items = []\n    def add(self, node): self.items.append(node.value)\n"
    )
    first = "class Node: pass\nn = Node(); n.value = 1\nb = Bag(); b.add(n)\nassert b.items == [1]"
    second = first.replace("Node", "Other").replace("1", "2") + "\nassert vars(n) == {'value': 2}"
    assert grade(runner, grader, source, first, second) == Grade(1.0, True)


CHEATS = {
    "an instance equal to everything": (
        "class Money:\n    def __init__(self, *a): pass\n    def __eq__(self, other): return True\n",
        "assert Money(5) == 5",
    ),
    "a result equal to everything": (
        "class Any2:\n    def __eq__(self, other): return True\nclass Solution:\n    def f(self, n): return Any2()\n",
        "assert Solution().f(1) == 1",
    ),
    "the instance itself as the result": (
        "class Solution:\n    def f(self, n): return self\n    def __eq__(self, other): return True\n"
        "    def __len__(self): return 1\n    def __sub__(self, other): return 0\n    def __abs__(self): return 0\n",
        "assert abs(Solution().f(1) - 1) < 1e-6",
    ),
    "a result with methods": (
        "class Text:\n    def startswith(self, a): return True\nclass Solution:\n    def f(self, n): return Text()\n",
        "assert Solution().f('abc').startswith('a')",
    ),
    "a function that is a class": (
        "class f:\n    def __init__(self, *a): pass\n    def startswith(self, text): return True\n"
        "    def __contains__(self, item): return True\n",
        "assert f('abc').startswith('a')",
    ),
    "an instance that contains everything": (
        "class Diff:\n    def __init__(self, *a): pass\n    def __contains__(self, item): return True\n"
        "    def __iter__(self): return iter(())\n",
        "assert 3 in Diff([3], [4])",
    ),
    "an instance with arithmetic": (
        "class Diff:\n    def __init__(self, *a): pass\n    def __sub__(self, a): return 0.0\n    __rsub__ = __sub__\n",
        "assert abs(Diff(1.5, 1) - 0.5) < 1e-6",
    ),
    "an instance larger and smaller than everything": (
        "class Size:\n    def __init__(self, *a): pass\n    def __lt__(self, a): return True\n    __gt__ = __lt__\n",
        "assert 1 < Size(3) < 5",
    ),
    "the end of an iteration": (
        "class Solution:\n    def f(self, n): raise StopIteration\n",
        "for got, want in zip(map(Solution().f, [1, 2]), [1, 2]):\n    assert got == want",
    ),
    "an assertion caught by the tests": (
        "class Solution:\n    def f(self, n): raise AssertionError\n",
        "try:\n    assert Solution().f(1) == 2\nexcept AssertionError:\n    pass",
    ),
    "an exit": ("import os\nclass Solution:\n    def f(self, n): os._exit(0)\n", "assert Solution().f(1) == 1"),
    "forged replies": (
        "import door\nclass Solution:\n    def f(self, n):\n        door.answer(True)\n"
        "        door.ask({'method': True})\n        door.ask({'instance': 7, 'parcel': {'root': None, 'heap': []}})\n",
        "assert Solution().f(1) == 1",
    ),
    "the stand-ins patched": (
        "import grading.checks, grading.values\ngrading.checks._Instance.__eq__ = lambda *a: True\n"
        "class Solution:\n    def f(self, n): return self\n",
        "assert Solution().f(1) == 1",
    ),
    "an instance put in the place of a number": (
        "class Solution:\n    def __init__(self): self.n = self\n    def f(self, n): return [self, {1: self}]\n",
        "assert Solution().f(1) == [1, {1: 1}] or Solution().n == 1",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_with_instances_is_paid(runner: asyncio.Runner, grader: CodeGrader, name: str) -> None:
    source, test = CHEATS[name]
    cheat = grade(runner, grader, source, test)
    assert (cheat.score, cheat.solved) == (0.0, False) and cheat.reason


def test_expected_values_do_not_reach_the_solution(runner: asyncio.Runner, grader: CodeGrader) -> None:
    source = """import gc
class Solution:
    def f(self, n):
        secret = int("123456789"[::-1])
        everything = [x for x in gc.get_objects() if type(x) in (list, tuple, dict)]
        inside = [list(x.values()) if type(x) is dict else x for x in everything]
        return secret if any(secret in list(x) for x in inside) else len(inside)
"""
    hidden = grade(runner, grader, source, "assert Solution().f(1) == 987654321")
    assert not hidden.solved and "AssertionError" in hidden.reason
    assert grade(runner, grader, source, "assert Solution().f([987654321]) == 987654321").solved  # what it looks for
