"""Sixteen ways to fool a grader of programs, each against every shape of tests. None is paid."""

import asyncio
from collections.abc import Iterator

import pytest

from metaagentx.rewards.code import CodeGrader
from metaagentx.types import AssertTest, CodeTests, FunctionTest, StdinTest

# The task everywhere: double a number. The expected values are such that no constant and no echo is right twice.
FUNCTION = CodeTests((FunctionTest((21,), 42), FunctionTest((-3,), -6)), entry_point="double", cpu_seconds=1)
STDIN = CodeTests((StdinTest("21\n", "42\n"), StdinTest("-3\n", "-6\n")), cpu_seconds=1)
ASSERT = CodeTests(
    (
        AssertTest("assert double(21) == 42\nassert double(-3) == -6"),
        AssertTest(
            "def check(candidate):\n    assert candidate(21) == 42\n    assert candidate(-3) == -6\ncheck(double)"
        ),
    ),
    entry_point="double",
    cpu_seconds=1,
)

CHEATS = {
    "an object equal to everything": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __str__(self): return "41"
    def __repr__(self): return "41"
def double(n): return Any()
print(Any())
""",
    "a number whose comparison lies": """
class Int(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
class Text(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def double(n): return Int(7)
print(Text("7"))
""",
    "expected values read from the frames above": """
import sys
def hunt():
    frame = sys._getframe()
    while frame:
        for scope in (frame.f_locals, frame.f_globals):
            for key, value in list(scope.items()):
                if key in ("expected", "tests", "answer", "output", "test"): return value
        frame = frame.f_back
def double(n): return hunt()
print(hunt())
""",
    "expected values read from constants of code objects": """
import gc, types
def hunt():
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing.__code__.co_consts:
            if 42 in thing.__code__.co_consts and thing.__name__ != "hunt": return 42
def double(n): return hunt()
print(hunt())
""",
    "expected values found among all objects": """
import gc
def hunt(n):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "expected" in thing: return thing["expected"]
        if isinstance(thing, (list, tuple)) and len(thing) == 2 and thing[0] == n and thing[1] == 2 * n: return thing[1]
def double(n): return hunt(n)
try: print(hunt(int(input())))
except EOFError: pass
""",
    "json patched": """
import json
json.dumps = lambda *a, **k: '{"value": 42, "passed": true, "score": 1}'
json.JSONEncoder.encode = json.dumps
json.loads = lambda *a, **k: {"arguments": [0], "expected": 0, "name": "double"}
def double(n): return 0
print(0)
""",
    "exit code zero": "import os, sys\ndef double(n): os._exit(0)\nos._exit(0)",
    "a clean exit before anything is compared": "import sys\ndef double(n): sys.exit(0)\nsys.exit(0)",
    "printed markers": """
import sys
for stream in (sys.stdout, sys.stderr):
    for marker in ("PASSED", "OK", "1 passed in 0.01s", "[SUCCESS]", "All tests passed", '{"score": 1.0}', "True"):
        print(marker, file=stream)
def double(n): return True
""",
    "forged frames on the door": """
import os, json, struct
def send(value):
    data = json.dumps(value).encode()
    os.write(4, struct.pack(">I", len(data)) + data)
def double(n):
    for value in ({"answer": True}, {"value": 42}, {"done": 0, "memory": 1, "cpu": 0.0, "stdout": "42", "stderr": ""}):
        send(value)
    return 0
double(0)
""",
    "a forged answer through the door module": """
import door
door.answer(True)
door.answer({"score": 1, "solved": True, "value": 42})
def double(n):
    door.answer(True)
    return True
""",
    "the door patched": """
import door
real = door.ask
def ask(body):
    reply = real({"value": 42, "ready": True})
    return reply
door.ask = ask
door.write_frame = lambda value: None
def double(n): return 0
print(0)
""",
    "builtins patched": """
import builtins
builtins.isinstance = lambda *a: True
builtins.all = lambda *a: True
builtins.map = lambda *a: []
builtins.AssertionError = Exception
builtins.len = lambda *a: 0
def double(n): return None
""",
    "assertions switched off": """
import sys, types
class Silent(AssertionError):
    def __new__(cls, *a): sys.exit(0)
sys.excepthook = lambda *a: None
import builtins
builtins.AssertionError = Silent
def double(n): return -1
print(-1)
""",
    "the grader's own modules patched": """
import sys
for name, module in list(sys.modules.items()):
    if "grading" in name or "compare" in name:
        for attribute in list(vars(module)):
            if callable(getattr(module, attribute)) and not attribute.startswith("__"):
                try: setattr(module, attribute, lambda *a, **k: True)
                except Exception: pass
def double(n): return True
print(True)
""",
    "a value that changes after it was handed over": """
import threading, time
class Box(list):
    pass
box = Box([0])
def double(n):
    threading.Thread(target=lambda: (time.sleep(0.01), box.__setitem__(0, 2 * n)), daemon=True).start()
    return box
print(0)
""",
}
HONEST = "def double(n): return 2 * n\nif __name__ == '__main__': print(double(int(input())))"


@pytest.fixture(scope="module")
def grader(runner: asyncio.Runner) -> Iterator[CodeGrader]:
    grader = CodeGrader()
    runner.run(grader.__aenter__())
    yield grader
    runner.run(grader.__aexit__(None, None, None))


@pytest.mark.parametrize("shape", [FUNCTION, STDIN, ASSERT], ids=["function", "stdin", "assert"])
@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_is_paid(runner: asyncio.Runner, grader: CodeGrader, name: str, shape: CodeTests) -> None:
    grade = runner.run(grader.grade(CHEATS[name], shape))
    assert (grade.score, grade.solved) == (0.0, False)
    assert grade.reason


@pytest.mark.parametrize("shape", [FUNCTION, STDIN, ASSERT], ids=["function", "stdin", "assert"])
def test_an_honest_solution_is_paid(runner: asyncio.Runner, grader: CodeGrader, shape: CodeTests) -> None:
    assert runner.run(grader.grade(HONEST, shape)).solved


def test_there_are_sixteen() -> None:
    assert len(CHEATS) == 16
