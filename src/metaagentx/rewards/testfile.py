"""Tests of a program in a JSON file that a person writes: a list of tests, or an object with settings and `tests`.

A test is {"input": ..., "output": ...}, {"arguments": [...], "expected": ...} or {"assert": "python source"}; settings
are `entry_point`, `prompt` and `cpu_seconds`.
"""

import ast
import json
from collections.abc import Mapping

from ..errors import MetaAgentXError
from ..types import AssertTest, CodeTest, CodeTests, FunctionTest, StdinTest

_SETTINGS = {"entry_point": str, "prompt": str, "cpu_seconds": (int, float)}


def read_tests(text: str, name: str) -> CodeTests:
    """The tests in a file's text; anything wrong is told with the file's name and the test's number."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise MetaAgentXError(f"{name} is not JSON: {error}") from None
    settings = data if isinstance(data, dict) else {"tests": data}
    rows = settings.get("tests")
    if not isinstance(rows, list) or not rows:
        raise MetaAgentXError(f"{name}: there must be a list of tests, and not an empty one")
    given = {key: value for key, value in settings.items() if key != "tests"}
    for key, value in given.items():
        wrong = key not in _SETTINGS or not isinstance(value, _SETTINGS[key])  # type: ignore[arg-type]
        if wrong or isinstance(value, bool) or (key == "cpu_seconds" and value <= 0):
            raise MetaAgentXError(
                f"{name}: {key!r} is no setting, or not of its type; there are {', '.join(_SETTINGS)}"
            )
    tests = tuple(_test(row, f"{name}, test {number}") for number, row in enumerate(rows, 1))
    if len({type(test) for test in tests}) > 1:
        raise MetaAgentXError(f"{name}: all tests must be of one kind")
    if isinstance(tests[0], FunctionTest) and not given.get("entry_point"):
        raise MetaAgentXError(f'{name}: tests with arguments need "entry_point", the name of the function')
    return CodeTests(tests, **given)


def _test(row: object, where: str) -> CodeTest:
    if isinstance(row, Mapping):
        if row.keys() == {"input", "output"} and isinstance(row["input"], str) and isinstance(row["output"], str):
            return StdinTest(row["input"], row["output"])
        if row.keys() == {"arguments", "expected"} and isinstance(row["arguments"], list):
            return FunctionTest(tuple(row["arguments"]), row["expected"])
        if row.keys() == {"assert"} and isinstance(row["assert"], str):
            try:
                ast.parse(row["assert"])
            except (SyntaxError, ValueError) as error:
                raise MetaAgentXError(f"{where}: the assert is not Python: {error}") from None
            return AssertTest(row["assert"])
    raise MetaAgentXError(f'{where}: needs "input" and "output" texts, "arguments" and "expected", or an "assert" text')
