"""Users' own tasks, one JSON object a line: a question, and a grader by name with what it needs.

`grader` is math, code or gym, or a user's own `module:function`. docs/tasks.md has the fields with an example of each.
A field that is not known is a problem of the row: a misspelt `tolerance` must not be a silent none.
"""

import difflib
import re
from collections.abc import Callable

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
from .fields import answer_text, flag, items, mapping, number, optional_text, python_source, text, texts
from .gym_library import generator_settings
from .rows import Row, RowError
from .source import Draft

OWN_SPLITS = ("train", "validation", "test")
_COMMON = ("id", "question", "grader", "split", "difficulty", "licence")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def own_draft(row: Row) -> Draft:
    """A row in our own schema."""
    grader = text(row, "grader")
    if grader in _GRADERS:
        fields, read = _GRADERS[grader]
    elif _FUNCTION.fullmatch(grader):
        fields, read = ("data",), _custom
    else:
        raise RowError(f"grader {grader[:60]!r} is not {', '.join(_GRADERS)} or module:function")
    for name in row:
        if name not in (*_COMMON, *fields) and not name.startswith("_"):
            close = difflib.get_close_matches(name, (*_COMMON, *fields), n=1)
            raise RowError(f"unknown field {name[:40]!r}" + (f", did you mean {close[0]}?" if close else ""))
    difficulty = row.get("difficulty")
    if difficulty is not None:
        difficulty = number(difficulty, "difficulty")
        if difficulty > 1:
            raise RowError("difficulty is not between 0 (easy) and 1 (hard)")
    own_id = answer_text(row, "id") if row.get("id") is not None else ""
    licence = optional_text(row, "licence")
    return Draft(text(row, "question"), read(row), id=own_id, difficulty=difficulty, licence=licence)


def _math(row: Row) -> MathGold:
    several = row.get("answer")
    answers = tuple(texts(several, "answer")) if isinstance(several, list) else (answer_text(row, "answer"),)
    if not answers or not all(answer.strip() for answer in answers):
        raise RowError("answer is empty")
    stated = row.get("tolerance")
    listed = stated if isinstance(stated, list) else [] if stated is None else [stated]
    tolerances = tuple(number(value, "tolerance") for value in listed)
    if len(tolerances) not in (0, 1, len(answers)):
        raise RowError(f"{len(tolerances)} tolerances for {len(answers)} answers")
    return MathGold(answers, tolerances, optional_text(row, "unit"))


def _code(row: Row) -> CodeTests:
    tests = tuple(_test(mapping(case, "a test")) for case in items(row, "tests"))
    if not tests:
        raise RowError("tests is empty")
    if len({type(test) for test in tests}) > 1:
        raise RowError("tests are of several kinds")
    entry_point = optional_text(row, "entry_point")
    if isinstance(tests[0], StdinTest) == bool(entry_point):
        raise RowError("entry_point is for tests that call a function, and only for them")
    if entry_point and not all(part.isidentifier() for part in entry_point.split(".")):
        raise RowError(f"entry_point {entry_point[:40]!r} is not a function or Class.method")
    seconds = number(row["cpu_seconds"], "cpu_seconds") if row.get("cpu_seconds") is not None else 4.0
    if seconds <= 0:
        raise RowError("cpu_seconds is not above 0")
    return CodeTests(
        tests,
        entry_point,
        prompt=optional_text(row, "prompt"),
        cpu_seconds=seconds,
        special_judge=flag(row, "special_judge") or False,
    )


def _test(case: dict[str, JSON]) -> CodeTest:
    """Its fields say of what kind it is."""
    match sorted(case):
        case ["input", "output"]:
            given, wanted = case["input"], case["output"]
            if isinstance(given, str) and isinstance(wanted, str):
                return StdinTest(given, wanted)
        case ["arguments", "expected"]:
            return FunctionTest(tuple(items(case, "arguments")), case["expected"])
        case ["assert"]:
            return AssertTest(python_source(text(case, "assert"), "assert"))
    raise RowError("a test is {input, output} as text, {arguments, expected} or {assert}")


def _gym(row: Row) -> GymEntry:
    entry = mapping(row.get("entry"), "entry")
    text(entry, "question")
    optional_text(entry, "answer")
    mapping(entry.get("metadata"), "entry.metadata")
    settings = mapping(row.get("settings") if row.get("settings") is not None else {}, "settings")
    generator = text(row, "generator")
    if (known := generator_settings()) is not None:
        if generator not in known:
            close = difflib.get_close_matches(generator, known, n=1)
            raise RowError(f"unknown generator {generator[:40]!r}" + (f", did you mean {close[0]}?" if close else ""))
        for name in settings:
            if name not in known[generator]:
                raise RowError(f"{generator} has no setting {name[:40]!r}")
    return GymEntry(generator, settings, entry)


def _custom(row: Row) -> CustomGrader:
    data = row.get("data")
    if not isinstance(data, (bool, int, float, str, list, dict, type(None))):
        raise RowError("data is not JSON")
    return CustomGrader(text(row, "grader"), data)


_GRADERS: dict[str, tuple[tuple[str, ...], Callable[[Row], Grading]]] = {
    "math": (("answer", "tolerance", "unit"), _math),
    "code": (("tests", "entry_point", "prompt", "cpu_seconds", "special_judge"), _code),
    "gym": (("generator", "settings", "entry"), _gym),
}
