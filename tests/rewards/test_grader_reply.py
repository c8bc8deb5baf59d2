"""Whose fault it is: what libraries raise on an answer is a wrong answer, a failed check of a grader is ours."""

import asyncio
import unittest
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from metaagentx.rewards import gym, mathematics
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.graders import Graders
from metaagentx.rewards.reply import BrokenGrader, GraderReply, run_grader
from metaagentx.types import JSON, CustomGrader, FinalAnswer, GymEntry


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[Graders]:
    pool = Graders(workers=2)
    yield pool
    runner.run(pool.__aexit__())


def raising(error: BaseException) -> GraderReply:
    def grader(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
        raise error

    return run_grader(grader, {})


def test_a_failed_check_of_our_own_is_our_fault() -> None:
    request: dict[str, JSON] = {"answer": 42, "gold": {}, "task": {}}
    for grader in (mathematics.grade_request, gym.grade_request):
        reply = run_grader(grader, request)
        assert "AssertionError" in reply.broken and reply == GraderReply(broken=reply.broken)


@pytest.mark.parametrize(
    "change", [{"answers": "42"}, {"answers": [42]}, {"tolerances": "0.1"}, {"tolerances": ["0.1"]}, {"unit": 1}]
)
def test_a_malformed_gold_is_never_a_wrong_answer(change: dict[str, JSON]) -> None:
    gold: dict[str, JSON] = {"answers": ["42"], "tolerances": [], "unit": ""}
    assert run_grader(mathematics.grade_request, {"answer": "42", "gold": gold}).solved
    assert run_grader(mathematics.grade_request, {"answer": "42", "gold": gold | change}).broken


def test_a_failed_check_of_a_library_makes_the_answer_wrong() -> None:
    def grader(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
        unittest.TestCase().fail("garbage")

    reply = run_grader(grader, {})
    assert reply.solved is False and not reply.broken and "AssertionError: garbage" in reply.reason


def test_other_outcomes() -> None:
    assert raising(BrokenGrader("it is broken")) == GraderReply(broken="it is broken")
    assert raising(ValueError("\ud800")).reason == "it could not be graded (ValueError: ?)"
    assert raising(MemoryError()).over_limit is True and raising(MemoryError()).last
    assert raising(RecursionError()).solved is False and raising(RecursionError()).last
    assert run_grader(lambda request: (0.5, False, "half"), {}) == GraderReply(0.5, False, "half")


def test_the_pool_reports_a_failed_check_as_unavailable(runner: asyncio.Runner, pool: Graders) -> None:
    with pytest.raises(GraderUnavailable, match="a check of the grader itself failed"):
        runner.run(pool._ask("math", pool._jailed["math"], {"answer": 42, "gold": {}}))


def test_a_users_assertion_is_the_graders_fault(runner: asyncio.Runner, pool: Graders, tmp_path: Path) -> None:
    (tmp_path / "checking_grader.py").write_text(
        "def grade(answer, data):\n    assert data == 1, 'no data'\n    return 1\n"
    )
    file = str(tmp_path / "tasks.jsonl")
    assert runner.run(pool.grade_custom(FinalAnswer.parse(""), CustomGrader("checking_grader:grade", 1, file))).solved
    with pytest.raises(GraderUnavailable, match="checking_grader:grade raised AssertionError: no data"):
        runner.run(pool.grade_custom(FinalAnswer.parse(""), CustomGrader("checking_grader:grade", None, file)))


def test_a_gym_task_that_cannot_be_graded_is_no_wrong_answer(runner: asyncio.Runner, pool: Graders) -> None:
    entry: dict[str, JSON] = {"question": "", "answer": "1", "metadata": {}}
    for task in (
        GymEntry("no_such_generator", {}, entry),
        GymEntry("chain_sum", {"no_such_setting": 1}, entry),
        GymEntry("puzzle24", {}, entry),
    ):
        with pytest.raises(GraderUnavailable, match=f"a task of {task.generator} cannot be graded"):
            runner.run(pool.grade_gym(FinalAnswer.parse("1"), task))


def test_what_a_scorer_raises_on_garbage_is_a_wrong_answer(runner: asyncio.Runner, pool: Graders) -> None:
    metadata: dict[str, JSON] = {"numbers": [1, 2, 3, 4]}
    digits = GymEntry("puzzle24", {}, {"question": "", "answer": "1*2*3*4", "metadata": metadata})
    assert not runner.run(pool.grade_gym(FinalAnswer.parse("1" * 5000), digits)).solved
    factors = GymEntry(
        "prime_factorization", {}, {"question": "", "answer": "2 × 3", "metadata": {"number": 6, "factors": [2, 3]}}
    )
    garbage = runner.run(pool.grade_gym(FinalAnswer.parse("garbage"), factors))
    assert not garbage.solved and "could not score it" in garbage.reason
