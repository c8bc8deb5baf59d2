"""What the graders remember: answers that repeat, and nothing that depends on the machine or on chance."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.math_figures import HOSTILE
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.graders import Graders
from metaagentx.rewards.memo import MAX_CHARACTERS, MAX_GRADES, GradeMemo
from metaagentx.rewards.workers import GraderLimits
from metaagentx.types import CustomGrader, FinalAnswer, Grade, GymEntry, MathGold

PRODUCTS = GymEntry("products", {}, {"question": "3 * 4", "answer": "12", "metadata": {}})


def requests_served(pool: Graders, kind: str) -> int:
    return sum(pool._jailed[kind]._served.values())


def test_a_worker_grades_an_answer_to_a_task_once(runner: asyncio.Runner) -> None:
    async def check() -> None:
        async with Graders(workers=2) as pool:
            wrong, other = FinalAnswer.parse(r"so \boxed{13}"), FinalAnswer.parse(r"\boxed{14}")
            half = MathGold(("0.5",))

            async def grade(answer: FinalAnswer) -> Grade:
                is_math = kind == "math"
                return await (pool.grade_math(answer, half) if is_math else pool.grade_gym(answer, PRODUCTS))

            for kind in ("math", "gym"):
                first = await grade(wrong)
                assert not first.solved and first.reason
                assert [await grade(wrong) for _ in range(3)] == [first] * 3
                assert requests_served(pool, kind) == 1
                assert not (await grade(other)).solved
                assert requests_served(pool, kind) == 2
            right = FinalAnswer.parse(r"\boxed{\frac{1}{2}}")
            assert [await pool.grade_math(right, half) for _ in range(2)] == [Grade(1.0, True)] * 2
            assert requests_served(pool, "math") == 3
            assert not (await pool.grade_math(right, MathGold(("0.25",)))).solved  # another task

    runner.run(check())


def test_what_broke_a_limit_or_a_worker_is_graded_again(runner: asyncio.Runner) -> None:
    async def check() -> None:
        gold, hostile = MathGold(("7",)), FinalAnswer.parse(rf"\boxed{{{HOSTILE[0]}}}")
        async with Graders(workers=2, limits=GraderLimits(cpu_seconds=0.02)) as pool:
            grades = [await pool.grade_math(hostile, gold) for _ in range(2)]
            assert all(not grade.solved and "CPU time" in grade.reason for grade in grades)
            assert not pool._memo._grades

    runner.run(check())


def test_own_graders_are_called_every_time(runner: asyncio.Runner, tmp_path: Path) -> None:
    code = "count = 0\ndef grade(answer, data):\n    global count\n    count += 1\n    return count == 1\n"
    (tmp_path / "stateful.py").write_text(code)

    async def check() -> None:
        async with Graders(workers=2) as pool:
            grader = CustomGrader("stateful:grade", None, str(tmp_path / "tasks.jsonl"))
            grades = [await pool.grade_custom(FinalAnswer.parse("same"), grader) for _ in range(2)]
            assert [grade.solved for grade in grades] == [True, False]

    runner.run(check())


def test_a_fault_is_not_kept(runner: asyncio.Runner) -> None:
    async def check() -> None:
        broken = GymEntry("products", {"min_digits": 9, "max_digits": 1}, PRODUCTS.entry)
        async with Graders(workers=2) as pool:
            for _ in range(2):
                with pytest.raises(GraderUnavailable):
                    await pool.grade_gym(FinalAnswer.parse("5"), broken)
            assert not pool._memo._grades

    runner.run(check())


def test_the_memory_is_bounded_and_never_mistakes_a_task() -> None:
    memo, right = GradeMemo(), Grade(1.0, True)
    kept = MathGold(("1",))
    memo.keep(kept, "kept", right)
    for number in range(MAX_GRADES + 10):
        memo.keep(MathGold((str(number),)), "1", right)  # the memo alone refers to these tasks
        assert memo.find(kept, "kept") == right
        assert memo.find(MathGold(("1",)), "1") is None  # equal, but never graded
    assert len(memo._grades) == MAX_GRADES
    memo.keep(kept, "x" * (MAX_CHARACTERS + 1), right)
    assert memo.find(kept, "x" * (MAX_CHARACTERS + 1)) is None
