"""Graders against their demands: python -m benchmarks.grading [--json].

`math_per_s` is per core: one worker, honest answers. `code_function_ms` is a function solution with four calls,
`code_stdin_ms` one standard-input test, `code_assert_ms` one assert test, each graded alone. `hostile_max_s` is the
longest any of the hostile math answers took, all of them at once.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks.math_figures import measure_math
from benchmarks.report import Demand, report
from metaagentx.rewards.code import CodeGrader
from metaagentx.types import AssertTest, CodeTests, FunctionTest, StdinTest

DEMANDS = {
    "math_per_s": Demand(300, at_least=True),
    "code_function_ms": Demand(8),
    "code_stdin_ms": Demand(8),
    "code_assert_ms": Demand(15),
    "hostile_max_s": Demand(6),
}
DOUBLE = "def double(n): return 2 * n\nif __name__ == '__main__': print(double(int(input())))"
SHAPES = {
    "code_function_ms": CodeTests(tuple(FunctionTest((n,), 2 * n) for n in range(4)), entry_point="double"),
    "code_stdin_ms": CodeTests((StdinTest("21", "42"),)),
    "code_assert_ms": CodeTests((AssertTest("assert double(21) == 42"),), entry_point="double"),
}
ROUNDS, GRADES = 3, 50


async def measure_code() -> dict[str, float]:
    """Milliseconds of a grade, the median of each round, the best of the rounds."""
    figures: dict[str, float] = {}
    async with CodeGrader() as grader:
        for name, tests in SHAPES.items():
            medians = []
            for _ in range(ROUNDS):
                times = []
                for _ in range(GRADES):
                    await asyncio.sleep(0.02)
                    started = time.perf_counter()
                    grade = await grader.grade(DOUBLE, tests)
                    times.append(1000 * (time.perf_counter() - started))
                    assert grade.solved, grade
                medians.append(statistics.median(times))
            figures[name] = min(medians)
    return figures


async def measure(progress: Callable[[str], None]) -> dict[str, float]:
    """Every figure."""
    progress("code")
    figures = await measure_code()
    progress("math")
    return figures | await measure_math()


if __name__ == "__main__":
    figures = asyncio.run(measure(lambda what: print(f"measuring {what} ...", file=sys.stderr)))
    report(figures, DEMANDS, __doc__)
