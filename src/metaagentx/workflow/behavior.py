"""The behavior of programs: each is run outside the script, on inputs from the question or else on a few general ones.

Two programs behave the same when all their outputs are the same. Functions are called in one run per program; programs
that read their input are run once per input.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence

from .runtime import PythonOutcome, gather, run_python

MAX_INPUTS = 6
SECONDS_PER_RUN = 5.0
_FAILED = "failed"
_STDINS = ("3\n1 2 3\n", "5\n", "1\n1\n", "4 7\n", "2\nab\nba\n", "")
_VALUES = ("3", "0", "[3, 1, 2]", "'abca'", "[[1, 2], [3, 4]]", "2.5")
_INPUT = re.compile(r"^\W{0,4}(?:sample |example )?(?:std)?input(?: ?#?\d+)?\W{0,4}(?::(.*))?$", re.IGNORECASE)
_SECTION = re.compile(
    r"^\W{0,4}(?:sample |example |expected )?(?:std)?(?:output|explanation|note|input)\b", re.IGNORECASE
)
_CALL_LINE = re.compile(r"^\s*(?:>>> ?|assert )(.*)$")

# Runs in the process of the program under test; prints one JSON list of results.
_HARNESS = """
import contextlib, io, json, sys
def plain(value):
    if isinstance(value, float): return format(value, ".9g")
    if isinstance(value, (set, frozenset)): return ["set", *sorted(map(repr, map(plain, value)))]
    if isinstance(value, (list, tuple)): return [type(value).__name__, *map(plain, value)]
    if isinstance(value, dict): return ["dict", *([plain(k), plain(v)] for k, v in value.items())]
    return repr(value)
source, calls = json.loads(sys.stdin.readline())
results, space = [], {"__name__": "program"}
with contextlib.redirect_stdout(io.StringIO()):
    exec(source, space)
    for call in calls:
        try: results.append(json.dumps(plain(eval(call, space))))
        except Exception: results.append("failed")
print(json.dumps(results))
"""


async def behaviors(question: str, programs: Sequence[str]) -> dict[str, str | None]:
    """Return the outputs of each program as a text to compare; None for one that fails everywhere while another works.

    Where no program works on any input, the programs' syntax is compared instead.
    """
    distinct = list(dict.fromkeys(programs))
    if len(distinct) == 1:
        return {distinct[0]: ""}
    probe = _Probe(question, distinct)
    outcomes = dict(zip(distinct, await gather([probe.run(program) for program in distinct]), strict=True))
    working = [outcome for outcome in outcomes.values() if set(outcome) != {_FAILED}]
    if not working:
        return {program: _syntax(program) for program in distinct}
    indices = list(range(len(probe.inputs)))
    if probe.guessed:
        # A guessed input on which some working program fails may be one that the task does not allow.
        allowed = [i for i in indices if all(outcome[i] != _FAILED for outcome in working)]
        indices = allowed or indices
    return {
        program: None if set(outcome) == {_FAILED} else json.dumps([outcome[i] for i in indices])
        for program, outcome in outcomes.items()
    }


class _Probe:
    """The inputs for the programs of one vote: calls of a function, or texts on standard input."""

    def __init__(self, question: str, programs: Sequence[str]) -> None:
        self._functions = {program: _functions(program) for program in programs}
        calls = [call for name, call in _example_calls(question) if all(name in f for f in self._functions.values())]
        texts = list(_example_inputs(question))
        self.guessed = not calls and not texts
        self._calls = bool(calls)
        self.inputs = (calls or texts)[:MAX_INPUTS]
        if self.guessed:
            self._calls = any(self._functions.values()) and not any(map(_reads_input, programs))
            arity = max((n for functions in self._functions.values() for n in list(functions.values())[-1:]), default=0)
            self.inputs = list(_general_calls(arity)) if self._calls else list(_STDINS)

    async def run(self, program: str) -> list[str]:
        """Return the output for each input."""
        if self._calls:
            # The last function is most often the one the task asks for.
            name = next(reversed(self._functions[program]), "")
            calls = [name + call for call in self.inputs] if self.guessed else self.inputs
            return self._results(await run_python(_HARNESS, json.dumps([program, calls]) + "\n", SECONDS_PER_RUN))
        outcomes = await gather([run_python(program, text, SECONDS_PER_RUN) for text in self.inputs])
        printed = ["" if o.returncode or o.timed_out else " ".join(o.stdout.split()) for o in outcomes]
        return [text or _FAILED for text in printed]

    def _results(self, outcome: PythonOutcome) -> list[str]:
        try:
            results = json.loads(outcome.stdout)
        except (ValueError, RecursionError):
            results = None
        if not isinstance(results, list) or len(results) != len(self.inputs) or outcome.returncode:
            return [_FAILED] * len(self.inputs)
        return [str(result) for result in results]


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _syntax(program: str) -> str:
    tree = _parse(program)
    try:
        return ast.dump(tree) if tree else program
    except RecursionError:
        return program


def _functions(program: str) -> dict[str, int]:
    """Return the functions one can call, with how many arguments they need; methods as `Solution().name`."""
    tree = _parse(program)
    arities: dict[str, int] = {}
    for item in tree.body if tree else []:
        if isinstance(item, ast.FunctionDef):
            arities[item.name] = len(item.args.args) - len(item.args.defaults)
        elif isinstance(item, ast.ClassDef) and item.name == "Solution":
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    arities[f"Solution().{method.name}"] = len(method.args.args) - len(method.args.defaults) - 1
    return arities


def _reads_input(program: str) -> bool:
    return "input(" in program or "stdin" in program


def _example_calls(question: str) -> Iterator[tuple[str, str]]:
    """Yield calls in the question, `>>> f(2)` or `assert f(2) == 4`: the function's name and the whole call."""
    for line in question.splitlines():
        example = _CALL_LINE.match(line)
        tree = _parse(example[1].strip()) if example and len(line) < 1000 else None
        for part in ast.walk(tree) if tree else ():
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                yield part.func.id, ast.unparse(part)
                break


def _example_inputs(question: str) -> Iterator[str]:
    """Yield the texts between a heading "Input" and the next heading."""
    lines: list[str] | None = None
    for line in [*question.splitlines(), "Output"]:
        heading = _INPUT.match(line)
        if lines is not None and (heading or _SECTION.match(line)):
            text = "\n".join(lines).strip("\n")
            # Prose under a heading "Input" describes the format.
            if text and len(text) < 2000 and not re.search(r"[a-z]{2,}[^\n]* [a-z]{2,} [a-z]{2,} [a-z]{2,}", text):
                yield text + "\n"
            lines = None
        if heading:
            lines = [heading[1].strip()] if heading[1] else []
        elif lines is not None and not line.strip().startswith("```"):
            lines.append(line)


def _general_calls(arity: int) -> Iterator[str]:
    """Yield arguments that many functions take, as written after the name of a function."""
    for value in _VALUES if arity else ():
        yield f"({', '.join([value] * arity)})"
    if arity > 1:
        yield f"({', '.join(str(2 + 3 * i) for i in range(arity))})"
        yield f"([3, 1, 2]{', 2' * (arity - 1)})"
        yield f"('abca'{', chr(97)' * (arity - 1)})"
    if not arity:
        yield "()"
