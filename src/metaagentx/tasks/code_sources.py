"""Code sources: HumanEval, MBPP, APPS, CodeContests, LiveCodeBench. All tests of a task are of one kind.

The question tells the form of the answer: a program that reads standard input, or a function with its signature. Where
the data has no flag for a special judge, a statement that allows any of several answers counts as one.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from ..types import JSON, AssertTest, CodeTests, FunctionTest, StdinTest
from .fields import (
    decode,
    flag,
    integer,
    items,
    mapping,
    number,
    optional_id,
    optional_text,
    python_source,
    text,
    texts,
)
from .packed import unpack_json
from .rows import Row, RowError
from .source import Draft, Hub, Source, hub_splits

Value = TypeVar("Value")

PROGRAM_FORM = "Write a Python program that reads from standard input and prints the answer to standard output."
DEFAULT_CPU_SECONDS = 4.0
MAX_CPU_SECONDS = 30.0
LEVELS = {"introductory": 0.0, "interview": 0.5, "competition": 1.0, "easy": 0.0, "medium": 0.5, "hard": 1.0}

_ANY_ANSWER = re.compile(
    r"\b(?:print|output|return|find|give|construct)\s+any\b|\bany (?:one )?of them\b|\bany valid\b|"
    r"\b(?:print|output|return)\b[^.]{0,80}\bin any order\b|"
    r"\b(?:multiple|several|many|more than one)(?: \w+){0,2} (?:answers?|solutions?|outputs?|ways)\b[^.]{0,60}\bany\b",
    re.IGNORECASE,
)


def humaneval(row: Row) -> Draft:
    """Parse a prompt (a signature with a docstring) and a test that defines check(candidate) and does not call it."""
    prompt, entry_point = text(row, "prompt"), identifier(text(row, "entry_point"))
    source = f"{python_source(text(row, 'test'), 'test')}\ncheck({entry_point})\n"
    tests = CodeTests((AssertTest(source),), entry_point, prompt=prompt)
    form = f"Complete the Python function `{entry_point}`. Write all of it, with its imports."
    return Draft(prompt.rstrip(), tests, form, id=text(row, "task_id").rsplit("/", 1)[-1])


def mbpp(row: Row) -> Draft:
    """Parse assertions, each a test of its own. The first one is shown: only it tells the function's name."""
    assertions = texts(row.get("test_list"), "test_list")
    imports = texts(row.get("test_imports") or [], "test_imports")
    if not any(assertion.strip() for assertion in assertions):
        raise RowError("test_list is empty")
    name = called_function(assertions[0], optional_text(row, "code"))
    sources = ["\n".join([*imports, assertion]) for assertion in assertions if assertion.strip()]
    tests = tuple(AssertTest(python_source(source, "test_list")) for source in sources)
    form = f"Write a Python function `{name}`. For example, this must hold:\n\n```python\n{assertions[0].strip()}\n```"
    return Draft(text(row, "prompt", "text"), CodeTests(tests, name), form, id=str(integer(row, "task_id")))


def mbpp_split(row: Row) -> str:
    """Return the published split, which is a range of task_id in the full set and in the sanitized one."""
    task_id = integer(row, "task_id")
    for split, first, last in (("prompt", 1, 10), ("test", 11, 510), ("validation", 511, 600), ("train", 601, 974)):
        if first <= task_id <= last:
            return split
    raise RowError(f"task_id {task_id} is not one of MBPP's, 1 to 974")


def called_function(assertion: str, code: str) -> str:
    """Return the function that an assertion tests: one that the reference defines, else the first that is called."""
    try:
        called = [node.func for node in ast.walk(ast.parse(assertion)) if isinstance(node, ast.Call)]
        defined = {node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise RowError("test_list or code is not Python") from None
    names = [function.id for function in called if isinstance(function, ast.Name)]
    for name in [name for name in names if name in defined] or names:
        return name
    raise RowError("the first test calls no function")


def apps(row: Row) -> Draft:
    """Parse input_output, JSON with inputs and outputs: of a function if it has fn_name, else of a program."""
    cases = mapping(decode(text(row, "input_output"), "input_output"), "input_output")
    pairs = _pairs(items(cases, "inputs"), items(cases, "outputs"), "input_output")
    if not pairs:
        raise RowError("input_output has no tests")
    statement, starter = text(row, "question"), optional_text(row, "starter_code")
    special = is_special(row, statement)
    if cases.get("fn_name"):
        calls = tuple(FunctionTest(_arguments(given), expected) for given, expected in pairs)
        entry_point = entry_point_of(text(cases, "fn_name"), starter)
        wrapped = may_be_wrapped([expected for _, expected in pairs], starter)
        tests = CodeTests(calls, entry_point, wrapped_outputs=wrapped, special_judge=special)
    else:
        programs = tuple(StdinTest(lines(given), lines(expected)) for given, expected in pairs)
        tests = CodeTests(programs, special_judge=special)
    task_id = optional_id(row.get("problem_id", row.get("id")))
    return Draft(statement, tests, answer_form(tests, starter), task_id, LEVELS.get(optional_text(row, "difficulty")))


def _pairs(inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> list[tuple[Value, Value]]:
    if len(inputs) != len(outputs):
        raise RowError(f"{name} has {len(inputs)} inputs and {len(outputs)} outputs")
    return list(zip(inputs, outputs, strict=True))


def _arguments(given: JSON) -> tuple[JSON, ...]:
    if not isinstance(given, list):
        raise RowError("inputs of a function are not lists of arguments")
    return tuple(given)


def may_be_wrapped(outputs: list[JSON], starter: str) -> bool:
    """Return whether every result may be wrapped in a list of one, as in some rows of APPS.

    Where all results are such lists, this cannot be told, unless the signature says that the function returns a list.
    """
    returns = re.search(r"->\s*(\w+)", starter)
    returns_list = returns is not None and returns[1].lower() in ("list", "tuple", "sequence", "optional")
    return all(isinstance(value, list) and len(value) == 1 for value in outputs) and not returns_list


def codecontests(row: Row) -> Draft:
    """Parse tests, three groups of parallel lists as on the hub or one list of {input, output} as in flat files."""
    if optional_text(row, "input_file").strip():
        raise RowError(f"programs read the file {optional_text(row, 'input_file')}, not standard input")
    if row.get("tests") is not None:
        cases = [mapping(case, "tests") for case in items(row, "tests")]
        tests = [StdinTest(lines(case.get("input")), lines(case.get("output"))) for case in cases]
    else:
        tests = [test for group in ("public_tests", "private_tests", "generated_tests") for test in _group(row, group)]
    if not tests:
        raise RowError("no tests")
    statement = flat_statement(text(row, "description"))
    grading = CodeTests(tuple(tests), cpu_seconds=cpu_seconds(row), special_judge=is_special(row, statement))
    return Draft(statement, grading, PROGRAM_FORM, id=text(row, "name"), difficulty=contest_difficulty(row))


def _group(row: Row, name: str) -> list[StdinTest]:
    if row.get(name) is None:
        return []
    group = mapping(row[name], name)
    inputs, outputs = texts(group.get("input"), f"{name}.input"), texts(group.get("output"), f"{name}.output")
    return [StdinTest(given, expected) for given, expected in _pairs(inputs, outputs, name)]


def test_groups(fields: Mapping[str, str], without: JSON) -> dict[str, Callable[[Row], Row]]:
    """Return for each group of tests how to keep it alone. `fields`: by group; `without`: a field without tests."""

    def keep(row: Row, name: str) -> Row:
        if row.get(name) is None:
            raise RowError(f"no {name}")
        return {**row, "tests": None, **dict.fromkeys(fields.values(), without), name: row[name]}

    return {group: partial(keep, name=name) for group, name in fields.items()}


def flat_statement(description: str) -> str:
    """Return the statement without what flat files add: headings, how to run, and the hidden tests."""
    match = re.search(r"^## Description\n(.*?)(?=^## |\Z)", description, re.DOTALL | re.MULTILINE)
    return match[1].strip() if match and match[1].strip() else description


def contest_difficulty(row: Row) -> float | None:
    """Return the difficulty by the Codeforces rating (800 to 3500), else by the problem's letter, A to G and beyond."""
    rating, letter = row.get("cf_rating"), row.get("difficulty")
    if isinstance(rating, int) and rating > 0:
        return min(1.0, max(0.0, (rating - 800) / 2700))
    if isinstance(letter, int) and letter >= 7:  # 7 is A in the published enumeration
        return min(1.0, (letter - 7) / 6)
    return None


def cpu_seconds(row: Row) -> float:
    """Return the contest's limit, within bounds: it was set for C++, so it is never below that of other tasks."""
    limit = row.get("time_limit")
    if limit is None:
        return DEFAULT_CPU_SECONDS
    if isinstance(limit, dict):
        seconds = number(limit.get("seconds") or 0, "time_limit.seconds")
        seconds += number(limit.get("nanos") or 0, "time_limit.nanos") / 1e9
    else:
        seconds = number(limit, "time_limit")
    return min(MAX_CPU_SECONDS, max(DEFAULT_CPU_SECONDS, seconds))


def livecodebench(row: Row) -> Draft:
    """Parse public and private tests, JSON as text. Both must be present, because public ones alone pass wrong
    programs; an explicit empty list says that there are none.
    """
    if row.get("private_test_cases") is None:
        raise RowError('no private_test_cases: write "[]" to grade by the public tests alone')
    public = decode(text(row, "public_test_cases"), "public_test_cases")
    private = unpack_json(text(row, "private_test_cases"), "private_test_cases")
    cases = [mapping(case, "a test") for part in (public, private) for case in items({"tests": part}, "tests")]
    if not cases:
        raise RowError("no tests")
    kinds = {text(case, "testtype") for case in cases}
    statement, starter = text(row, "question_content"), optional_text(row, "starter_code")
    special = is_special(row, statement)
    if kinds == {"functional"}:
        details = mapping(decode(optional_text(row, "metadata") or "{}", "metadata"), "metadata")
        entry_point = entry_point_of(optional_text(details, "func_name") or _method_name(starter), starter)
        calls = tuple(FunctionTest(_line_values(case), decode(lines(case.get("output")), "output")) for case in cases)
        tests = CodeTests(calls, entry_point, cpu_seconds=6.0, special_judge=special)
    elif kinds == {"stdin"}:
        programs = tuple(StdinTest(lines(case.get("input")), lines(case.get("output"))) for case in cases)
        tests = CodeTests(programs, cpu_seconds=6.0, special_judge=special)
    else:
        raise RowError(f"tests are of {' and '.join(sorted(kinds))[:60]}, not all stdin or all functional")
    level = LEVELS.get(optional_text(row, "difficulty"))
    return Draft(statement, tests, answer_form(tests, starter), text(row, "question_id"), level)


def _line_values(case: dict[str, JSON]) -> tuple[JSON, ...]:
    """Return the arguments of a call, one JSON value per line."""
    return tuple(decode(line, "input") for line in lines(case.get("input")).split("\n") if line.strip())


def _method_name(starter: str) -> str:
    match = re.search(r"def (\w+)\s*\(\s*self", starter)
    if match is None:
        raise RowError("neither metadata nor starter_code names the function")
    return match[1]


def lines(value: object) -> str:
    """Return text, also of a list of lines: APPS has both."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if isinstance(value, str):
        return value
    raise RowError("a test's input or output is not text")


def identifier(name: str) -> str:
    """Return a Python name, or raise RowError: it is put into source text."""
    if not name.isidentifier():
        raise RowError(f"{name[:40]!r} is not the name of a function")
    return name


def entry_point_of(name: str, starter: str) -> str:
    """Return the function to call, `Solution.method` if the starter code has the class."""
    in_class = re.search(r"^class Solution\b", starter, re.MULTILINE)
    return f"{'Solution.' if in_class else ''}{identifier(name)}"


def answer_form(tests: CodeTests, starter: str) -> str:
    """Return how to answer: with a program or with a function."""
    if not tests.entry_point:
        return PROGRAM_FORM
    if starter.strip():
        return f"Complete this Python code:\n\n```python\n{starter.rstrip()}\n```"
    return f"Write a Python function `{tests.entry_point}` that returns the answer."


def is_special(row: Row, statement: str) -> bool:
    """Return the row's flag if it has one, else whether the statement allows several answers."""
    stated = flag(row, "special_judge")
    return bool(_ANY_ANSWER.search(statement)) if stated is None else stated


_LIVECODEBENCH_PARTS = {"v1": "test", **{f"v{number}": f"test{number}" for number in range(2, 7)}}
_LIVECODEBENCH_FILES = tuple(f"{stem}.jsonl" for stem in _LIVECODEBENCH_PARTS.values())

CODE_SOURCES = (
    Source(
        "humaneval",
        "code",
        humaneval,
        hub_splits("openai/openai_humaneval", "", "test"),
        ("task_id", "prompt", "entry_point", "test"),
        license="MIT",
    ),
    Source(
        "mbpp",
        "code",
        mbpp,
        hub_splits("google-research-datasets/mbpp", "sanitized", "train", "validation", "test", "prompt"),
        ("task_id", "prompt", "test_list"),
        license="CC-BY-4.0",
        optional_fields=("code", "test_imports", "text"),
        row_split=mbpp_split,
        ids_decide=True,
    ),
    Source(
        "apps",
        "code",
        apps,
        {split: (Hub("codeparrot/apps", files=(f"{split}.jsonl",)),) for split in ("train", "test")},
        ("question", "input_output"),
        license="MIT",
        optional_fields=("problem_id", "id", "starter_code", "difficulty", "special_judge", "split"),
    ),
    Source(
        "codecontests",
        "code",
        codecontests,
        hub_splits("deepmind/code_contests", "", "train", "valid", "test"),
        ("name", "description", "public_tests", "private_tests", "generated_tests"),
        license="CC-BY-4.0, Google DeepMind CodeContests",
        optional_fields=("tests", "time_limit", "input_file", "cf_rating", "difficulty", "special_judge", "split"),
        test_groups=test_groups({group: f"{group}_tests" for group in ("public", "private", "generated")}, None),
    ),
    Source(
        "livecodebench",
        "code",
        livecodebench,
        {"test": (Hub("livecodebench/code_generation_lite", files=_LIVECODEBENCH_FILES),)},
        ("question_id", "question_content", "public_test_cases", "private_test_cases"),
        license="CC (unspecified); problems of LeetCode, AtCoder and Codeforces",
        optional_fields=("starter_code", "metadata", "difficulty", "special_judge"),
        parts=_LIVECODEBENCH_PARTS,
        test_groups=test_groups({group: f"{group}_test_cases" for group in ("public", "private")}, "[]"),
    ),
)
