"""Grading tasks of reasoning-gym: the generator's own scorer, in a worker; only full marks count as solved.

The scorers are generous and some are unsafe, so each answer passes guards first (docs/graders.md has the measurements):
- a generator whose scorer accepts anything is refused (`tasks.gym_library.NOT_GRADED`);
- several scorers evaluate the answer as Python: an audit hook allows such code known functions of sympy and nothing
  else, and the worker has no files and cannot start processes;
- comparisons with `nan` do not fail, so it must not reach a scorer; puzzle24 does not check which numbers were used,
  and number_sorting accepts each number off by one, so both are checked here.
"""

import json
import re
import string
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from ..tasks.gym_library import import_reasoning_gym
from ..types import JSON, FinalAnswer, GymEntry
from .reply import BrokenGrader

MAX_GYM_ANSWER = 20_000
_ARITHMETIC = {"countdown", "puzzle24"}
_ARITHMETIC_TEXT = re.compile(r"[\d\s+\-*/().]*")
_NO_NUMBER = re.compile(r"(?<![a-z])(?:nan|inf|infinity)j?(?![a-z])|\d[eE][-+]?\d{3}", re.IGNORECASE)
_WRAPPED = re.compile(r"\\text(?:tt|bf)?\{([^{}]*)\}")
COMPARES_TEXT = frozenset(
    """
acre aiw arc_1d base_conversion basic_arithmetic bf binary_alternation caesar_cipher count_bits count_primes
course_schedule gcd isomorphic_strings largest_island lcm leg_counting letter_counting list_functions mahjong_puzzle
maze modulo_grid number_filtering number_sequence ransom_note rotate_matrix rotten_oranges simple_equations
simple_geometry
string_manipulation string_splitting string_synthesis syllogism word_sequence_reversal
""".split()  # noqa: SIM905 - a list of quoted names would fill a page
)
"""Generators with the library's default scorer, which gives full marks to the text of the gold. A test compares."""
# Generators whose scorers compare rows with tuples, which JSON does not have.
_TUPLES = {"arc_agi", "rearc"}
# What an answer may name when a scorer evaluates it: what sympy's parser writes, and elementary functions.
# Not Integral: the integral that was asked for, left as it stands, would be a full answer.
_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log")
_WRITTEN_BY_SYMPY = ("Integer", "Float", "Rational", "Symbol", "Function", "factorial", "factorial2", "Abs")
_LETTERS = frozenset(string.ascii_letters) - frozenset("NOQS")  # the four are functions of sympy
_NAMES = _LETTERS.union(_FUNCTIONS, _WRITTEN_BY_SYMPY, ("abs", "ln", "pi", "sqrt"))


def read_answer(stated: FinalAnswer, generator: str) -> tuple[str, str]:
    """Return the text to score and '', or '' and why it is refused. The text is the last box or solution, else the
    delivery, else all of it.
    """
    answer = stated.value if len(stated.text) < 1_000_000 else stated.text
    if wrapped := _WRAPPED.fullmatch(answer.strip()):
        answer = wrapped[1]
    answer = answer.strip().encode("utf-8", "replace").decode("utf-8")
    if not answer:
        return "", "no answer"
    if len(answer) > MAX_GYM_ANSWER:
        return "", f"the answer is longer than {MAX_GYM_ANSWER} characters"
    if generator in _ARITHMETIC and not _ARITHMETIC_TEXT.fullmatch(answer):
        return "", "only numbers, + - * / and parentheses are allowed"
    return answer, ""


def is_gold(answer: str, task: GymEntry) -> bool:
    """Return whether an answer is the gold to the letter, where that is all that the scorer asks for."""
    return task.generator in COMPARES_TEXT and task.entry.get("answer") == answer


def grade_request(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
    """Grade one answer in a worker; return score, solved and reason."""
    answer, task = request["answer"], request["task"]
    assert isinstance(answer, str) and isinstance(task, dict)
    generator, entry = str(task["generator"]), task["entry"]
    assert isinstance(entry, dict)
    if _NO_NUMBER.search(answer) and not _NO_NUMBER.search(str(entry.get("answer"))):
        return 0.0, False, "nan, inf and very large exponents are not accepted"
    try:
        if generator == "puzzle24" and not _uses_the_numbers(answer, entry):
            return 0.0, False, "it does not use the given numbers, each once"
        if generator == "number_sorting" and _numbers(answer) != _numbers(str(entry["answer"])):
            return 0.0, False, "these are not the given numbers in order"
        dataset = _dataset(generator, json.dumps(task["config"], sort_keys=True))
        if generator in _TUPLES:
            entry = entry | {"metadata": _as_tuples(entry["metadata"])}
    except Exception as error:  # no scorer has seen the answer yet: the task is at fault
        raise BrokenGrader(f"a task of {generator} cannot be graded: {type(error).__name__}: {error}") from error
    return _score(dataset, generator, answer, entry)


def _score(dataset: Any, generator: str, answer: str, entry: dict[str, JSON]) -> tuple[float, bool, str]:
    try:
        _Watch.scoring = True
        score = float(dataset.score_answer(answer, entry))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - scorers raise anything, assertions too, on garbage
        reason = f"{generator} could not score it ({type(error).__name__}: {error})"
        return 0.0, False, reason[:500].encode("ascii", "replace").decode()
    finally:
        _Watch.scoring = False
    solved = score >= 1 - 1e-9
    # Scorers give part marks for the form of an answer, often to garbage.
    return float(solved), solved, "" if solved else f"{generator} gives it {score:.2g} of 1"


def _uses_the_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    # As text: a number in an answer may have more digits than Python converts.
    used = sorted(number.lstrip("0") or "0" for number in re.findall(r"\d+", answer))
    return used == sorted(map(str, entry["metadata"]["numbers"]))


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


@lru_cache(maxsize=64)
def _dataset(generator: str, config: str) -> Any:
    return import_reasoning_gym().create_dataset(generator, **json.loads(config))


class _Watch:
    """State of the audit hook: whether a scorer is running."""

    scoring = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to run evaluated code that is more than a formula."""
    if event != "exec" or not _Watch.scoring:
        return
    code = arguments[0]
    if isinstance(code, CodeType) and code.co_filename == "<string>" and not _is_formula(code):
        raise PermissionError("the answer is a program")


# How sympy's parser fills the namespace it evaluates in.
_PREPARATION = compile("from sympy import *", "<string>", "exec")


def _is_formula(code: CodeType) -> bool:
    if (code.co_code, code.co_names) == (_PREPARATION.co_code, _PREPARATION.co_names):
        return True
    nested = any(isinstance(constant, CodeType) for constant in code.co_consts)
    return not nested and _NAMES.issuperset(code.co_names)


def warm_up() -> None:
    """Import everything, then watch what scorers evaluate."""
    dataset = import_reasoning_gym().create_dataset("countdown", seed=1, size=1)
    dataset.score_answer("1+2", dataset[0])
    sys.addaudithook(_audit)
