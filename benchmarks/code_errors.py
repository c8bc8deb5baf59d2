"""How often the code grader is wrong: published references and rewritings of them, known bugs, near misses, cheats.

Part of `python -m benchmarks.grading_errors`; alone: python -m benchmarks.code_errors. Near misses are made from the
references of CodeContests by changing what they print.
"""

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metaagentx.rewards.code import CodeGrader
from metaagentx.types import AssertTest, CodeTests, StdinTest

DATA = Path(__file__).parent.parent / "tests" / "data"
REPRINT = """
import io, sys
_out, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), write_through=True)
try:
    exec(compile({source!r}, "solution.py", "exec"), globals())
except SystemExit:
    pass
_text, sys.stdout = sys.stdout.buffer.getvalue().decode(), _out
_words = _text.split()
print({changed}, end="")
"""
# Each must be accepted, or refused.
SAME = {
    "spread over lines": r"'\n'.join(_words)",
    "blanks around": r"'\n  ' + _text + '  \n\n'",
    "Windows lines": r"_text.replace('\n', '\r\n')",
}
DIFFERENT = {
    "last number off by one": "' '.join(_words[:-1] + [str(int(_words[-1]) + 1) if _words[-1].isdigit() else 'x'])",
    "last word missing": "' '.join(_words[:-1])",
    "one word more": "_text + ' 0'",
    "other case": "_text.swapcase() if _text.swapcase() != _text else '~'",
    "nothing": "''",
    "words run together": "''.join(_words) if len(_words) > 1 else _text + _text",
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    kind: str
    programs: int
    wrongly_judged: int


def rows(name: str) -> list[dict[str, Any]]:
    """A data file."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def contests() -> list[tuple[str, CodeTests]]:
    """References that read standard input."""
    return [
        (row["solution"], CodeTests(tuple(StdinTest(t["input"], t["output"]) for t in row["tests"]), cpu_seconds=20))
        for row in rows("codecontests_40_clean.jsonl")
    ]


def asserts() -> dict[str, list[tuple[str, CodeTests]]]:
    """References and bugs with assert-style tests, by kind."""
    human = [
        (
            row,
            CodeTests((AssertTest(f"{row['test']}\ncheck({row['entry_point']})"),), row["entry_point"], row["prompt"]),
        )
        for row in rows("humaneval_164.jsonl")
    ]
    quix = [
        (row, CodeTests((AssertTest(row["tests"]),), row["name"], cpu_seconds=20)) for row in rows("quixbugs_40.jsonl")
    ]
    mbpp = [
        (row["code"], CodeTests(tuple(AssertTest("\n".join([*row["test_imports"], t])) for t in row["test_list"])))
        for row in rows("mbpp_sanitized_train_ids601+.jsonl")
    ]
    return {
        "HumanEval references": [(row["canonical_solution"], tests) for row, tests in human],
        "MBPP references": mbpp,
        "QuixBugs, fixed": [(row["solution"], tests) for row, tests in quix],
        "HumanEval, empty functions": [("    pass\n", tests) for _, tests in human],
        "QuixBugs, buggy": [(row["buggy_program"], replace(tests, cpu_seconds=3)) for row, tests in quix],
    }


async def count_wrong(grader: CodeGrader, kind: str, work: list[tuple[str, CodeTests]], right: bool) -> Row:
    """Grade all of them and count those judged otherwise than they should be."""
    grades = await asyncio.gather(*(grader.grade(source, tests) for source, tests in work))
    return Row(kind, len(work), sum(grade.solved is not right for grade in grades))


async def code_error_rates() -> tuple[list[Row], list[Row]]:
    """Right programs with how many were refused, wrong programs with how many were accepted."""
    references, by_kind = contests(), asserts()
    right: list[Row] = []
    wrong: list[Row] = []
    async with CodeGrader() as grader:
        right.append(await count_wrong(grader, "CodeContests references", references, True))
        for kind, work in by_kind.items():
            is_right = kind.endswith(("references", "fixed"))
            (right if is_right else wrong).append(await count_wrong(grader, kind, work, is_right))
        rewritable = [(source, tests) for source, tests in references if "fileno" not in source]  # those go round us
        for table, changes, is_right in ((right, SAME, True), (wrong, DIFFERENT, False)):
            for name, changed in changes.items():
                work = [(REPRINT.format(source=source, changed=changed), tests) for source, tests in rewritable]
                table.append(await count_wrong(grader, f"CodeContests, {name}", work, is_right))
    return right, wrong


def main() -> None:
    """Print both tables as Markdown."""
    right, wrong = asyncio.run(code_error_rates())
    for title, verdict, table in (("right programs", "refused", right), ("wrong programs", "accepted", wrong)):
        print(f"| {title} | programs | {verdict} |\n|---|---|---|")
        for row in table:
            print(f"| {row.kind} | {row.programs} | {row.wrongly_judged} |")
        print()


if __name__ == "__main__":
    main()
