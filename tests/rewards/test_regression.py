"""A sample of the regression set: every rewritten gold matches itself, no neighbor's does. Any error fails.

`python -m benchmarks.grader_regression` grades all of it.
"""

import asyncio

import pytest

from benchmarks.grader_regression import DATA, Case, check_code, check_gym, check_math, read_rows, references, tally
from benchmarks.regression_math import different, math_golds, rewrite
from metaagentx.rewards.code import CodeGrader
from metaagentx.rewards.graders import Graders

EVERY = {"written by hand": 3, "GSM8K": 15, "OlympiadBench examples": 3}
TOWER = "10^{10^{10^{10}}}"  # each answer to it costs a worker its whole time


def test_math_golds(runner: asyncio.Runner) -> None:
    async def check() -> None:
        async with Graders(workers=2) as pool:
            for source, golds in math_golds(DATA):
                if source in EVERY:
                    sample = [gold for gold in golds if gold != TOWER][:: EVERY[source]]
                    row = await check_math(pool, source, sample)
                    assert not row.errors and row.matched >= 5 * row.golds and row.neighbors >= 5 * row.golds

    runner.run(check())


def test_gym_golds(runner: asyncio.Runner) -> None:
    async def check() -> None:
        async with Graders(workers=2) as pool:
            rows = read_rows(DATA / "reasoning_gym_24x10_seed1234.jsonl")
            row = await check_gym(pool, [row for number, row in enumerate(rows) if number % 10 < 2])
            assert not row.errors and row.matched >= 5 * row.golds and row.neighbors > row.golds

    runner.run(check())


def test_reference_programs(runner: asyncio.Runner) -> None:
    async def check() -> None:
        async with CodeGrader() as grader:
            for source, programs in references(DATA):
                row = await check_code(grader, source, programs[:4])
                assert not row.errors and row.matched >= 7 * row.golds and row.neighbors == row.golds

    runner.run(check())


def test_every_gold_has_five_rewritings() -> None:
    for source, golds in math_golds(DATA):
        for gold in golds:
            assert len(rewrite(gold).rewritings) >= 5, f"{source}: {gold}"


def test_errors_are_counted() -> None:
    cases = [Case("1", "itself", "1", True), Case("1", "itself", "1.0", True), Case("1", "neighbor", "2", False)]
    row = tally("numbers", 1, cases, [True, False, True])
    assert (row.answers, row.matched, row.neighbors, row.neighbor_matches) == (2, 1, 1, 1)
    assert row.errors == (cases[1], cases[2])


@pytest.mark.parametrize(("one", "other"), [("18", r"18^\circ"), (r"3,\!250", "3250"), ("0.50", r"\$.5"), ("x=1", "1")])
def test_equal_values_are_no_neighbors(one: str, other: str) -> None:
    assert not different(one, other) and different(one, "7")
