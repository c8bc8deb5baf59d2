"""Code sources: HumanEval, MBPP, APPS, CodeContests, LiveCodeBench. All tests of a task are of one kind.

The question tells the form of the answer: a program that reads standard input, or a function by its signature. Where
the data does not flag a special judge, a statement that allows any of several answers counts as one.
"""

import ast
import re
from dataclasses import replace

from ..types import JSON, AssertTest, CodeTests, FunctionTest, StdinTest
from .fields import decode, flag, integer, items, mapping, number, optional_text, python_source, text, texts
from .packed import unpack_json
from .rows import Row, RowError
from .source import Draft, Hub, Source

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
    """The prompt is a signature with a docstring; the test defines check(candidate) and does not call it."""
    prompt, entry_point = text(row, "prompt"), identifier(text(row, "entry_point"))
    source = f"{python_source(text(row, 'test'), 'test')}\ncheck({entry_point})\n"
    tests = CodeTests((AssertTest(source),), entry_point, prompt=prompt)
    form = f"Complete the Python function `{entry_point}`. Write all of it, with its imports."
    return Draft(prompt.rstrip(), tests, form, id=text(row, "task_id").rsplit("/", 1)[-1])


def mbpp(row: Row) -> Draft:
    """Each assertion is a test of its own. The first is shown: without it nobody could know the function's name."""
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
    """The published splits are ranges of task_id, in the full set and in the sanitized one."""
    task_id = integer(row, "task_id")
    for split, first, last in (("prompt", 1, 10), ("test", 11, 510), ("validation", 511, 600), ("train", 601, 974)):
        if first <= task_id <= last:
            return split
    raise RowError(f"task_id {task_id} is not one of MBPP's, 1 to 974")


def called_function(assertion: str, code: str) -> str:
    """The function an assertion is about: one that the reference defines, else the first that is called."""
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
    """input_output is JSON with inputs and outputs: of a function when it has fn_name, else of a program."""
    cases = mapping(decode(text(row, "input_output"), "input_output"), "input_output")
    inputs, outputs = items(cases, "inputs"), items(cases, "outputs")
    if len(inputs) != len(outputs):
        raise RowError(f"input_output has {len(inputs)} inputs and {len(outputs)} outputs")
    if not inputs:
        raise RowError("input_output has no tests")
    statement, starter = text(row, "question"), optional_text(row, "starter_code")
    task_id = row.get("problem_id", row.get("id"))
    difficulty = LEVELS.get(optional_text(row, "difficulty"))
    if cases.get("fn_name"):
        tests = function_tests(text(cases, "fn_name"), inputs, outputs, starter)
        tests = replace(tests, special_judge=is_special(row, statement))
        form = function_form(tests.entry_point, starter)
    else:
        pairs = [StdinTest(lines(given), lines(wanted)) for given, wanted in zip(inputs, outputs, strict=True)]
        tests = CodeTests(tuple(pairs), special_judge=is_special(row, statement))
        form = PROGRAM_FORM
    return Draft(statement, tests, form, str(task_id) if isinstance(task_id, (int, str)) else "", difficulty)


def function_tests(name: str, inputs: list[JSON], outputs: list[JSON], starter: str) -> CodeTests:
    """Some rows wrap every result in a list of one. Where all are such lists, nobody can tell, unless the signature
    says that the function returns a list.
    """
    returns = re.search(r"->\s*(\w+)", starter)
    returns_list = returns is not None and returns[1].lower() in ("list", "tuple", "sequence", "optional")
    wrapped = all(isinstance(value, list) and len(value) == 1 for value in outputs) and not returns_list
    tests = []
    for given, expected in zip(inputs, outputs, strict=True):
        if not isinstance(given, list):
            raise RowError("inputs of a function are not lists of arguments")
        tests.append(FunctionTest(tuple(given), expected))
    return CodeTests(tuple(tests), entry_point_of(name, starter), wrapped_outputs=wrapped)


def codecontests(row: Row) -> Draft:
    """Tests are three groups of parallel lists on the hub, or one list of {input, output} in flat files."""
    if optional_text(row, "input_file").strip():
        raise RowError(f"programs read the file {optional_text(row, 'input_file')}, not standard input")
    if row.get("tests") is not None:
        pairs = [mapping(case, "tests") for case in items(row, "tests")]
        tests = [StdinTest(lines(case.get("input")), lines(case.get("output"))) for case in pairs]
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
    if len(inputs) != len(outputs):
        raise RowError(f"{name} has {len(inputs)} inputs and {len(outputs)} outputs")
    return [StdinTest(given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]


def flat_statement(description: str) -> str:
    """Flat files put the statement between headings of their own, after which come how-to-run and the hidden tests."""
    match = re.search(r"^## Description\n(.*?)(?=^## |\Z)", description, re.DOTALL | re.MULTILINE)
    return match[1].strip() if match and match[1].strip() else description


def contest_difficulty(row: Row) -> float | None:
    """From the Codeforces rating (800 to 3500), else from the letter of the problem, A to G and beyond."""
    rating, letter = row.get("cf_rating"), row.get("difficulty")
    if isinstance(rating, int) and rating > 0:
        return min(1.0, max(0.0, (rating - 800) / 2700))
    if isinstance(letter, int) and letter >= 7:  # 7 is A in the published enumeration
        return min(1.0, (letter - 7) / 6)
    return None


def cpu_seconds(row: Row) -> float:
    """The contest's own limit, which was set for C++: never below what other tasks get, never without end."""
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
    """Public and private tests are JSON as text. Public ones alone pass wrong programs, so both must be
    there; an explicit empty list says that there are none.
    """
    if row.get("private_test_cases") is None:
        raise RowError('no private_test_cases: write "[]" to grade by the public tests alone')
    public = items({"tests": decode(text(row, "public_test_cases"), "public_test_cases")}, "tests")
    private = items({"tests": unpack_json(text(row, "private_test_cases"), "private_test_cases")}, "tests")
    cases = [mapping(case, "a test") for case in (*public, *private)]
    if not cases:
        raise RowError("no tests")
    kinds = {text(case, "testtype") for case in cases}
    statement, starter = text(row, "question_content"), optional_text(row, "starter_code")
    if kinds == {"functional"}:
        details = decode(optional_text(row, "metadata") or "{}", "metadata")
        name = optional_text(mapping(details, "metadata"), "func_name") or _method_name(starter)
        calls = tuple(FunctionTest(arguments(case), decode(lines(case.get("output")), "output")) for case in cases)
        special = is_special(row, statement)
        tests = CodeTests(calls, entry_point_of(name, starter), cpu_seconds=6.0, special_judge=special)
        form = function_form(tests.entry_point, starter)
    elif kinds == {"stdin"}:
        pairs = tuple(StdinTest(lines(case.get("input")), lines(case.get("output"))) for case in cases)
        tests = CodeTests(pairs, cpu_seconds=6.0, special_judge=is_special(row, statement))
        form = PROGRAM_FORM
    else:
        raise RowError(f"tests are of {' and '.join(sorted(kinds))[:60]}, not all stdin or all functional")
    return Draft(statement, tests, form, text(row, "question_id"), LEVELS.get(optional_text(row, "difficulty")))


def arguments(case: dict[str, JSON]) -> tuple[JSON, ...]:
    """One JSON value a line."""
    return tuple(decode(line, "input") for line in lines(case.get("input")).split("\n") if line.strip())


def _method_name(starter: str) -> str:
    match = re.search(r"def (\w+)\s*\(\s*self", starter)
    if match is None:
        raise RowError("neither metadata nor starter_code names the function")
    return match[1]


def lines(value: object) -> str:
    """Text, or a list of lines, as APPS has both."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise RowError("a test's input or output is not text")


def identifier(name: str) -> str:
    """A Python name, or RowError: it is put into source text."""
    if not name.isidentifier():
        raise RowError(f"{name[:40]!r} is not the name of a function")
    return name


def entry_point_of(name: str, starter: str) -> str:
    """`Solution.method` where the starter code has the class."""
    return (
        f"Solution.{identifier(name)}" if re.search(r"^class Solution\b", starter, re.MULTILINE) else identifier(name)
    )


def function_form(entry_point: str, starter: str) -> str:
    """How to answer with a function."""
    if starter.strip():
        return f"Complete this Python code:\n\n```python\n{starter.rstrip()}\n```"
    return f"Write a Python function `{entry_point}` that returns the answer."


def is_special(row: Row, statement: str) -> bool:
    """The row's flag where it has one, else what the statement says."""
    stated = flag(row, "special_judge")
    return bool(_ANY_ANSWER.search(statement)) if stated is None else stated


def _instalments(count: int) -> dict[str, str]:
    return {f"v{number}": f"test{number if number > 1 else ''}" for number in range(1, count + 1)}


CODE_SOURCES = (
    Source(
        "humaneval",
        "code",
        humaneval,
        {"test": (Hub("openai/openai_humaneval", "", "test"),)},
        ("task_id", "prompt", "entry_point", "test"),
        licence="MIT",
    ),
    Source(
        "mbpp",
        "code",
        mbpp,
        {
            split: (Hub("google-research-datasets/mbpp", "sanitized", split),)
            for split in ("train", "validation", "test", "prompt")
        },
        ("task_id", "prompt", "test_list"),
        licence="CC-BY-4.0",
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
        licence="MIT",
        optional_fields=("problem_id", "id", "starter_code", "difficulty", "special_judge", "split"),
    ),
    Source(
        "codecontests",
        "code",
        codecontests,
        {split: (Hub("deepmind/code_contests", "", split),) for split in ("train", "valid", "test")},
        ("name", "description", "public_tests", "private_tests", "generated_tests"),
        licence="CC-BY-4.0, Google DeepMind CodeContests",
        optional_fields=("tests", "time_limit", "input_file", "cf_rating", "difficulty", "special_judge", "split"),
    ),
    Source(
        "livecodebench",
        "code",
        livecodebench,
        {
            "test": (
                Hub("livecodebench/code_generation_lite", files=tuple(f"{s}.jsonl" for s in _instalments(6).values())),
            )
        },
        ("question_id", "question_content", "public_test_cases", "private_test_cases"),
        licence="CC (unspecified); problems of LeetCode, AtCoder and Codeforces",
        optional_fields=("starter_code", "metadata", "difficulty", "special_judge"),
        parts=_instalments(6),
    ),
)
