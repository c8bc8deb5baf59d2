"""What programs do: each is run, away from the script, on inputs found in the question or else on a few general ones.

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


async def behaviours(question: str, programs: Sequence[str]) -> dict[str, str | None]:
    """What each program does, as a text to compare; None for one that fails everywhere while another does not.

    Where no program works on any input, inputs say nothing, and the syntax has to do.
    """
    distinct = list(dict.fromkeys(programs))
    if len(distinct) == 1:
        return {distinct[0]: ""}
    probe = _Probe(question, distinct)
    outcomes = await gather([probe.run(program) for program in distinct])
    if all(set(outcome) <= {_FAILED} for outcome in outcomes):
        return {program: _syntax(program) for program in distinct}
    return {
        program: None if set(outcome) <= {_FAILED} else json.dumps(outcome)
        for program, outcome in zip(distinct, outcomes, strict=True)
    }


class _Probe:
    """The inputs for the programs of one vote: the same for all of them."""

    def __init__(self, question: str, programs: Sequence[str]) -> None:
        functions = [_functions(program) for program in programs]
        shared = [name for name in functions[0] if all(name in f for f in functions)]
        called = [(name, call) for name, call in _example_calls(question) if name in shared]
        self.calls = [call for _, call in called][:MAX_INPUTS]
        self.stdins = [] if self.calls else list(_example_inputs(question))[:MAX_INPUTS]
        if self.calls or self.stdins:
            return
        if shared and not any(_reads_input(program) for program in programs):
            # The last one is most often the one the task asks for.
            self.calls = list(_general_calls(shared[-1], max(f[shared[-1]] for f in functions)))
        else:
            self.stdins = list(_STDINS)

    async def run(self, program: str) -> list[str]:
        if self.calls:
            stdin = json.dumps([program, self.calls]) + "\n"
            return _results(await run_python(_HARNESS, stdin, SECONDS_PER_RUN))
        outcomes = await gather([run_python(program, stdin, SECONDS_PER_RUN) for stdin in self.stdins])
        return [_FAILED if o.returncode or o.timed_out else " ".join(o.stdout.split()) for o in outcomes]


def _results(outcome: PythonOutcome) -> list[str]:
    try:
        results = json.loads(outcome.stdout)
    except (ValueError, RecursionError):
        return [_FAILED]
    failed = outcome.returncode or outcome.timed_out or not isinstance(results, list)
    return [_FAILED] if failed else [str(result) for result in results]


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
    """The functions one can call, with how many arguments they need; methods as `Solution().name`."""
    tree = _parse(program)
    found: dict[str, int] = {}
    for item in tree.body if tree else []:
        if isinstance(item, ast.FunctionDef):
            found[item.name] = len(item.args.args) - len(item.args.defaults)
        elif isinstance(item, ast.ClassDef) and item.name == "Solution":
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    found[f"Solution().{method.name}"] = len(method.args.args) - len(method.args.defaults) - 1
    return found


def _reads_input(program: str) -> bool:
    return "input(" in program or "stdin" in program


def _example_calls(question: str) -> Iterator[tuple[str, str]]:
    """Calls shown in the question, `>>> f(2)` or `assert f(2) == 4`: the function's name and the whole call."""
    for line in question.splitlines():
        shown = _CALL_LINE.match(line)
        tree = _parse(shown[1].strip()) if shown and len(line) < 1000 else None
        for part in ast.walk(tree) if tree else ():
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                yield part.func.id, ast.unparse(part)
                break


def _example_inputs(question: str) -> Iterator[str]:
    """The texts between a heading "Input" and the next heading."""
    taken: list[str] | None = None
    for line in [*question.splitlines(), "Output"]:
        heading = _INPUT.match(line)
        if taken is not None and (heading or _SECTION.match(line)):
            text = "\n".join(taken).strip("\n")
            # Prose under a heading "Input" describes the format and is no example.
            if text and len(text) < 2000 and not re.search(r"[a-z]{2,}[^\n]* [a-z]{2,} [a-z]{2,} [a-z]{2,}", text):
                yield text + "\n"
            taken = None
        if heading:
            taken = [heading[1].strip()] if heading[1] else []
        elif taken is not None and not line.strip().startswith("```"):
            taken.append(line)


def _general_calls(name: str, arity: int) -> Iterator[str]:
    for value in _VALUES:
        yield f"{name}({', '.join([value] * arity)})"
        if not arity:
            return
    if arity > 1:
        yield f"{name}({', '.join(str(2 + 3 * i) for i in range(arity))})"
        yield f"{name}([3, 1, 2]{', 2' * (arity - 1)})"
        yield f"{name}('abca'{', chr(97)' * (arity - 1)})"
