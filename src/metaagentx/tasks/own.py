"""Users' own tasks: one JSON object per line, with a question, and a grader by name with the fields it needs.

`grader` is math, code or gym, or a user's own `module:function`. docs/tasks.md has the fields with an example of each.
An unknown field makes a row unusable: a misspelled `tolerance` must not be silently ignored.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any

from ..errors import MetaAgentXError
from ..types import (
    JSON,
    AssertTest,
    CodeTest,
    CodeTests,
    CustomGrader,
    FunctionTest,
    Grading,
    GymEntry,
    MathGold,
    StdinTest,
)
from .address import nearest
from .fields import answer_text, flag, items, mapping, number, optional_text, python_source, text, texts
from .gym_library import NOT_GRADED, generator_settings
from .rows import Row, RowError
from .source import Draft

OWN_SPLITS = ("train", "validation", "test")
_COMMON = ("id", "question", "grader", "split", "difficulty", "license", "licence")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TEST_FILE_FIELDS = ("tests", "entry_point", "prompt", "cpu_seconds")


def own_draft(row: Row, file: str = "") -> Draft:
    """Parse a row of a user's task file. A custom grader's module is looked for beside `file`."""
    grader = text(row, "grader")
    if grader in _GRADERS:
        fields, parse = _GRADERS[grader]
    elif _FUNCTION.fullmatch(grader):
        data: Any = row.get("data")
        fields, parse = ("data",), lambda row: CustomGrader(grader, data, file)
    else:
        raise RowError(f"grader {grader[:60]!r} is not {', '.join(_GRADERS)} or module:function")
    _refuse_unknown_fields(row, (*_COMMON, *fields))
    difficulty = None if row.get("difficulty") is None else number(row["difficulty"], "difficulty")
    if difficulty is not None and difficulty > 1:
        raise RowError("difficulty is not between 0 (easy) and 1 (hard)")
    own_id = answer_text(row, "id") if row.get("id") is not None else ""
    terms = optional_text(row, "license") or optional_text(row, "licence")
    return Draft(text(row, "question"), parse(row), id=own_id, difficulty=difficulty, license=terms)


def read_tests(content: str, name: str) -> CodeTests:
    """Parse a test file: a JSON list of tests, or an object with `tests` and settings. Errors name file and test."""
    try:
        data = json.loads(content)
        row = data if isinstance(data, dict) else {"tests": data}
        _refuse_unknown_fields(row, _TEST_FILE_FIELDS)
        tests = parse_code_tests(row)
        if isinstance(tests.tests[0], FunctionTest) and not tests.entry_point:
            raise RowError('tests with arguments need "entry_point", the name of the function')
    except RowError as error:
        raise MetaAgentXError(f"{name}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise MetaAgentXError(f"{name} is not JSON: {error}") from None
    return tests


def _refuse_unknown_fields(row: Row, known: Collection[str]) -> None:
    for name in row:
        if name not in known and not name.startswith("_"):
            raise RowError(f"unknown field {name[:40]!r}: {nearest(name, known)}")


def _parse_math(row: Row) -> MathGold:
    answer, tolerance = row.get("answer"), row.get("tolerance")
    answers = tuple(texts(answer, "answer")) if isinstance(answer, list) else (answer_text(row, "answer"),)
    if not answers or not all(value.strip() for value in answers):
        raise RowError("answer is empty")
    stated = tolerance if isinstance(tolerance, list) else [] if tolerance is None else [tolerance]
    tolerances = tuple(number(value, "tolerance") for value in stated)
    if len(tolerances) not in (0, 1, len(answers)):
        raise RowError(f"{len(tolerances)} tolerances for {len(answers)} answers")
    return MathGold(answers, tolerances, optional_text(row, "unit"))


def _parse_code(row: Row) -> CodeTests:
    tests = parse_code_tests(row)
    if isinstance(tests.tests[0], StdinTest) == bool(tests.entry_point):
        raise RowError("entry_point is for tests that call a function, and only for them")
    return tests


def parse_code_tests(row: Row) -> CodeTests:
    """Parse `tests` and the settings beside them."""
    tests: list[CodeTest] = []
    for position, test in enumerate(items(row, "tests"), start=1):
        try:
            tests.append(_parse_test(mapping(test, "a test")))
        except RowError as error:
            raise RowError(f"test {position}: {error}") from None
    if not tests:
        raise RowError("tests is empty")
    if len({type(test) for test in tests}) > 1:
        raise RowError("tests are of several kinds: all must be of one kind")
    entry_point = optional_text(row, "entry_point")
    if entry_point and not all(part.isidentifier() for part in entry_point.split(".")):
        raise RowError(f"entry_point {entry_point[:40]!r} is not a function or Class.method")
    cpu_seconds = number(row["cpu_seconds"], "cpu_seconds") if row.get("cpu_seconds") is not None else 4.0
    if cpu_seconds <= 0:
        raise RowError("cpu_seconds is not above 0")
    special_judge = flag(row, "special_judge") or False
    prompt = optional_text(row, "prompt")
    return CodeTests(tuple(tests), entry_point, prompt=prompt, cpu_seconds=cpu_seconds, special_judge=special_judge)


def _parse_test(test: dict[str, JSON]) -> CodeTest:
    """Parse one test; its fields tell its kind."""
    match sorted(test):
        case ["input", "output"]:
            given, expected = test["input"], test["output"]
            if isinstance(given, str) and isinstance(expected, str):
                return StdinTest(given, expected)
        case ["arguments", "expected"]:
            return FunctionTest(tuple(items(test, "arguments")), test["expected"])
        case ["assert"]:
            return AssertTest(python_source(text(test, "assert"), "assert"))
    raise RowError("a test is {input, output} as text, {arguments, expected} or {assert}")


def _parse_gym(row: Row) -> GymEntry:
    entry = mapping(row.get("entry"), "entry")
    text(entry, "question")
    optional_text(entry, "answer")
    mapping(entry.get("metadata"), "entry.metadata")
    settings = mapping({} if row.get("settings") is None else row["settings"], "settings")
    generator = text(row, "generator")
    if generator in NOT_GRADED:
        raise RowError(f"tasks of {generator} are not graded: {NOT_GRADED[generator]}")
    if (known := generator_settings()) is not None:
        if generator not in known:
            raise RowError(f"unknown generator {generator[:40]!r}: {nearest(generator, known)}")
        for name in settings:
            if name not in known[generator]:
                raise RowError(f"{generator} has no setting {name[:40]!r}: {nearest(name, known[generator])}")
    return GymEntry(generator, settings, entry)


_GRADERS: dict[str, tuple[tuple[str, ...], Callable[[Row], Grading]]] = {
    "math": (("answer", "tolerance", "unit"), _parse_math),
    "code": ((*_TEST_FILE_FIELDS, "special_judge"), _parse_code),
    "gym": (("generator", "settings", "entry"), _parse_gym),
}
