"""How fast the math grader is, and what hostile answers do to it. Part of `python -m benchmarks.grading`."""

import asyncio
import os
import time
from pathlib import Path

from benchmarks.math_perturbations import Pair, pairs
from metaagentx.rewards.graders import Graders
from metaagentx.types import FinalAnswer, MathGold


def _determinant(size: int, cell: str) -> str:
    cells = [[cell % (row * size + column + 2) for column in range(size)] for row in range(size)]
    return r"\begin{vmatrix}" + r"\\".join("&".join(row) for row in cells) + r"\end{vmatrix}"


# The first seven burn whatever time they are given (sympy 1.14); the others are refused early or fail fast.
HOSTILE = (
    _determinant(8, "x_{%d}"),
    _determinant(9, r"\sqrt{%d}"),
    r"\lfloor 9^{9^9} \rfloor",
    r"\lfloor \pi^{9^{8}}\rfloor",
    r"\lfloor\sqrt{7}^{9^8}\rfloor",
    r"\lfloor e^{9^{9}}\rfloor",
    r"\binom{n^{n}}{n^{n^n}}",
    r"9^{9^{9^9}}",
    r"(10^8)!",
    "(" * 60 + "1" + ")" * 60,
    "1" * 1_100_000,
    r"\frac{1}{" * 10 + "2" + "}" * 10,
    r"\sum_{k=1}^{10^{12}} \frac{1}{k}",
    r"\begin{pmatrix}" + "&".join(["1"] * 900) + r"\end{pmatrix}",
)


def honest_pairs() -> list[Pair]:
    """A mixture as training meets it: two thirds plain numbers (of MATH's golds three quarters are), then the rest.

    Without answers that are the gold to the letter, which need no worker.
    """
    differing = [pair for pair in pairs() if pair.answer != pair.gold]
    numbers = [pair for pair in differing if pair.kind in ("gsm8k", "aime")]
    others = [pair for pair in differing if pair.kind not in ("gsm8k", "aime")]
    return others + numbers[: 2 * len(others)]


async def measure_math() -> dict[str, float]:
    """`math_per_s`: honest grades for each second of processor time, the host's share included, so that a busy
    neighbor does not change it; `math_per_s_wall`: one after the other, by the clock. `hostile_max_s`: the longest a
    hostile answer took, all asked at once with honest ones; `honest_among_hostile_s`: the longest one of those took."""
    chosen = honest_pairs()
    async with Graders(workers=2) as pool:
        await pool.start()
        begun, used = time.perf_counter(), _cpu_seconds(pool)
        for pair in chosen:
            await pool.grade_math(FinalAnswer.parse(rf"\boxed{{{pair.answer}}}"), MathGold((pair.gold,)))
        wall, used = time.perf_counter() - begun, _cpu_seconds(pool) - used

        async def timed(answer: str, gold: str) -> float:
            begun = time.perf_counter()
            await pool.grade_math(FinalAnswer.parse(rf"\boxed{{{answer}}}"), MathGold((gold,)))
            return time.perf_counter() - begun

        honest = [timed("(x+1)^2", "x^2+2x+1") for _ in range(28)]
        times = await asyncio.gather(*(timed(answer, "42") for answer in HOSTILE), *honest)
    return {
        "math_per_s": len(chosen) / used,
        "math_per_s_wall": len(chosen) / wall,
        "hostile_max_s": max(times[: len(HOSTILE)]),
        "honest_among_hostile_s": max(times[len(HOSTILE) :]),
    }


def _cpu_seconds(pool: Graders) -> float:
    """What the host, the living workers and those that were replaced have used so far."""
    fields = [_stat(pid) for pid in pool.worker_pids()]
    server = _stat(int(fields[0][1]))
    ticks = sum(int(field[11]) + int(field[12]) for field in fields) + int(server[13]) + int(server[14])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
