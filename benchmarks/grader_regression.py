r"""Every gold, rewritten, matches itself and not its neighbor: python -m benchmarks.grader_regression [--data DIR].

Math golds are rewritten by the rules of `regression_math` (at least five apply to each). Golds of reasoning-gym are
delivered in the forms that agents use. Reference programs are rewritten without changing what they do. The neighbor is
the next row with another value: none of its forms may be accepted. DIR holds the JSON Lines files of tests/data (the
default), and may hold math_*.jsonl and polaris_*.jsonl, which are not part of the project.

The exit code is 1 when anything is judged wrongly.
"""

import argparse
import ast
import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.regression_math import Gold, different, math_golds, rewrite
from metaagentx.rewards.code import CodeGrader
from metaagentx.rewards.graders import Graders
from metaagentx.types import AssertTest, CodeTests, FinalAnswer, Grade, GymEntry, MathGold, StdinTest

DATA = Path(__file__).parent.parent / "tests" / "data"
GYM_FORMS = {
    "boxed": r"So \boxed{%s}.",
    "delivery": "<delivery>\n%s\n</delivery>",
    "solution": "<solution>%s</solution>",
    "after thinking": "<think>7 or 8?</think>%s",
    "spaces around": "\n  %s \n",
}


@dataclass(frozen=True)
class Case:
    """An answer to grade, and whether it is right."""

    gold: str
    form: str
    answer: str
    right: bool


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    source: str
    golds: int
    answers: int
    matched: int
    neighbors: int
    neighbor_matches: int
    errors: tuple[Case, ...]


def tally(source: str, golds: int, cases: Sequence[Case], accepted: Sequence[bool]) -> Row:
    """Count verdicts; what is judged wrongly is kept."""
    judged = list(zip(cases, accepted, strict=True))
    return Row(
        source,
        golds,
        sum(case.right for case in cases),
        sum(verdict for case, verdict in judged if case.right),
        sum(not case.right for case in cases),
        sum(verdict for case, verdict in judged if not case.right),
        tuple(case for case, verdict in judged if verdict is not case.right),
    )


def math_cases(golds: Sequence[Gold]) -> Iterator[Case]:
    """Each gold against its own forms and, where the values differ, its neighbor's."""
    for gold, neighbor in zip(golds, [*golds[1:], *golds[:1]], strict=True):
        yield Case(gold.text, "itself", gold.text, True)
        yield from (Case(gold.text, form, text, True) for form, text in gold.rewritings.items())
        if different(gold.text, neighbor.text):
            yield Case(gold.text, "neighbor", neighbor.text, False)
            yield from (Case(gold.text, form, text, False) for form, text in neighbor.rewritings.items())


async def check_math(pool: Graders, source: str, golds: Sequence[str]) -> Row:
    """Grade every form of every gold of a source."""
    rewritten = [rewrite(gold) for gold in golds]
    cases = list(math_cases(rewritten))
    grades = await asyncio.gather(
        *(pool.grade_math(FinalAnswer.parse(rf"\boxed{{{c.answer}}}"), MathGold((c.gold,))) for c in cases)
    )
    return tally(source, len(golds), cases, [grade.solved for grade in grades])


async def check_gym(pool: Graders, rows: Sequence[dict[str, Any]]) -> Row:
    """Deliver every gold of reasoning-gym in every form; the neighbor is of the same generator."""
    cases: list[Case] = []
    work: list[Awaitable[Grade]] = []
    for row, neighbor in zip(rows, [*rows[1:], *rows[:1]], strict=True):
        task = GymEntry(row["dataset"], {}, {key: row[key] for key in ("question", "answer", "metadata")})
        other = neighbor["answer"] if neighbor["dataset"] == row["dataset"] else row["answer"]
        for answer in dict.fromkeys((row["answer"], other)):
            for name, form in {"itself": "%s", **GYM_FORMS}.items():
                if "{" in answer and name == "boxed":
                    continue
                cases.append(Case(f"{row['dataset']}: {row['answer']}", name, form % answer, answer == row["answer"]))
                work.append(pool.grade_gym(FinalAnswer.parse(form % answer), task))
    grades = await asyncio.gather(*work)
    return tally("reasoning-gym", len(rows), cases, [grade.solved for grade in grades])


@dataclass(frozen=True)
class Reference:
    """A published program with its tests."""

    name: str
    source: str
    tests: CodeTests


# A rewriting must not change what a program does: each works on programs and on files of functions.
CODE_FORMS: dict[str, Callable[[str], str]] = {
    "itself": lambda source: source,
    "formatting lost": lambda source: ast.unparse(ast.parse(source)),
    "comments and blank lines": lambda source: f"# A solution.\n\n{source}\n\n\n# The end.\n",
    "Windows lines": lambda source: source.replace("\n", "\r\n"),
    "run by exec": lambda source: f"exec(compile({source!r}, 'inner.py', 'exec'), globals())",
    "imports in front": lambda source: f"import os, sys, re\nfrom typing import *\nfrom math import inf\n{source}",
    "output wrapped": lambda source: f"import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\n{source}",
    "names at the end": lambda source: f"{source}\n_answer, _version = 42, '1.0'\ndef _unused(): return _answer\n",
}


def references(data: Path) -> Iterator[tuple[str, list[Reference]]]:
    """Programs by their source, for the files that are there."""
    for name, pattern, read in (
        ("HumanEval", "humaneval_*.jsonl", _humaneval),
        ("MBPP", "mbpp_*.jsonl", _mbpp),
        ("QuixBugs", "quixbugs_*.jsonl", _quixbugs),
        ("CodeContests", "codecontests_*.jsonl", _contests),
    ):
        for file in sorted(data.glob(pattern)):
            yield name, [read(row) for row in read_rows(file)]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def _humaneval(row: dict[str, Any]) -> Reference:
    tests = CodeTests((AssertTest(f"{row['test']}\ncheck({row['entry_point']})"),), row["entry_point"])
    return Reference(row["entry_point"], row["prompt"] + row["canonical_solution"], tests)


def _mbpp(row: dict[str, Any]) -> Reference:
    tests = tuple(AssertTest("\n".join([*row["test_imports"], test])) for test in row["test_list"])
    name = row["test_list"][0].split("(")[0].split()[-1]
    defined = [node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)]
    return Reference(name if name in defined else defined[-1], row["code"], CodeTests(tests))


def _quixbugs(row: dict[str, Any]) -> Reference:
    return Reference(row["name"], row["solution"], CodeTests((AssertTest(row["tests"]),), row["name"], cpu_seconds=20))


def _contests(row: dict[str, Any]) -> Reference:
    tests = tuple(StdinTest(test["input"], test["output"]) for test in row["tests"])
    return Reference("", row["solution"], CodeTests(tests, cpu_seconds=20))


async def check_code(grader: CodeGrader, source: str, programs: Sequence[Reference]) -> Row:
    """Grade every form of every reference, and its neighbor under this one's name."""
    cases: list[Case] = []
    work: list[Awaitable[Grade]] = []
    for program, neighbor in zip(programs, [*programs[1:], *programs[:1]], strict=True):
        for form, change in CODE_FORMS.items():
            if form == "output wrapped" and "fileno" in program.source:
                continue  # it writes past the wrapper, in another order than it printed
            cases.append(Case(program.name, form, change(program.source), True))
            work.append(grader.grade(cases[-1].answer, program.tests))
        renamed = f"{neighbor.source}\n{program.name} = {neighbor.name}" if program.name else neighbor.source
        cases.append(Case(program.name, "neighbor", renamed, False))
        work.append(grader.grade(renamed, program.tests, strict=False))
    grades = await asyncio.gather(*work)
    return tally(source, len(programs), cases, [grade.solved for grade in grades])


async def check_all(data: Path, progress: Callable[[str], None]) -> list[Row]:
    """Every source that is there."""
    rows: list[Row] = []
    async with Graders() as pool:
        for source, golds in math_golds(data):
            progress(source)
            rows.append(await check_math(pool, source, golds))
        for file in sorted(data.glob("reasoning_gym_*.jsonl")):
            progress(file.name)
            rows.append(await check_gym(pool, read_rows(file)))
    async with CodeGrader() as grader:
        for source, programs in references(data):
            progress(source)
            rows.append(await check_code(grader, source, programs))
    return rows


def report(rows: Sequence[Row]) -> str:
    """A table for people, and what was judged wrongly."""
    lines = [
        "| source | golds | rewritings | self-matches | neighbors' answers | matches |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        counts = (row.golds, row.answers, row.matched, row.neighbors, row.neighbor_matches)
        lines.append(f"| {row.source} | {' | '.join(map(str, counts))} |")
    for case in itertools.chain.from_iterable(row.errors for row in rows):
        lines.append(
            f"{'refused' if case.right else 'accepted'} ({case.form}): {case.answer!r:.120} for {case.gold!r:.80}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table; exit with 1 when there is an error in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the directory of the JSON Lines files")
    data: Path = parser.parse_args().data
    rows = asyncio.run(check_all(data, lambda source: print(f"grading {source} ...", file=sys.stderr)))
    print(report(rows))
    sys.exit(any(row.errors for row in rows))


if __name__ == "__main__":
    main()
