"""The pool: every request is answered or its worker killed, neighbours notice nothing, our faults are never scores."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.math_figures import HOSTILE
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.pool import BlockingGraderPool, GraderPool
from metaagentx.rewards.workers import Limits, WorkerGroup
from metaagentx.types import JSON, CustomGrader, Grade, MathGold

QUICK = Limits(cpu_seconds=0.6, wall_seconds=2.0, memory_bytes=256 << 20)
ACT = "own_graders:act"


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[GraderPool]:
    pool = GraderPool(workers=2, custom_limits=QUICK)
    runner.run(pool.start("math"))
    yield pool
    runner.run(pool.__aexit__())


def act(runner: asyncio.Runner, pool: GraderPool, answer: str, data: JSON = None) -> Grade:
    return runner.run(pool.grade_custom(answer, CustomGrader(ACT, data)))


def own(runner: asyncio.Runner, pool: GraderPool, function: str, answer: str = "", data: JSON = None) -> Grade:
    return runner.run(pool.grade_custom(answer, CustomGrader(function, data)))


def test_a_users_function_grades(runner: asyncio.Runner, pool: GraderPool) -> None:
    data: JSON = {"half": "b", "full": "a"}
    assert own(runner, pool, "own_graders:half", "a", data) == Grade(1.0, True)
    assert own(runner, pool, "own_graders:half", "b", data).score == 0.5
    assert not own(runner, pool, "own_graders:half", "b", data).solved
    assert own(runner, pool, "own_graders:yes", "yes").solved


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("own_graders:raises", "own_graders:raises raised KeyError"),
        ("own_graders:too_much", "own_graders:too_much returned 7.0"),
        ("own_graders:missing", "own_graders has no function missing"),
        ("own_graders:not_a_function", "has no function not_a_function"),
        ("no_such_module_at_all:f", "no_such_module_at_all:f.*ModuleNotFoundError"),
        ("no_colon", "module:function"),
    ],
)
def test_a_broken_function_is_named_and_never_a_reward(
    runner: asyncio.Runner, pool: GraderPool, function: str, message: str
) -> None:
    with pytest.raises(GraderUnavailable, match=message):
        own(runner, pool, function)


def test_what_libraries_print_disturbs_nobody(runner: asyncio.Runner, pool: GraderPool) -> None:
    assert all(own(runner, pool, "own_graders:noisy").solved for _ in range(3))


@pytest.mark.parametrize("answer", ["burn", "sleep"])
def test_an_answer_over_its_time_is_wrong_with_a_reason(runner: asyncio.Runner, pool: GraderPool, answer: str) -> None:
    begun = time.monotonic()
    grade = act(runner, pool, answer)
    assert not grade.solved and grade.score == 0 and "longer than 0.6 s" in grade.reason
    assert time.monotonic() - begun < QUICK.wall_seconds + 3


def test_an_answer_over_its_memory_is_wrong_with_a_reason(runner: asyncio.Runner, pool: GraderPool) -> None:
    assert "more memory" in act(runner, pool, "memory").reason


def test_a_crash_that_repeats_is_no_score_for_a_users_function(runner: asyncio.Runner, pool: GraderPool) -> None:
    with pytest.raises(GraderUnavailable, match=r"own_graders:act.*crashed the grader twice"):
        act(runner, pool, "segfault")
    with pytest.raises(GraderUnavailable, match="exit code 3"):
        act(runner, pool, "exit")


def test_a_crash_that_repeats_is_the_answers_doing(runner: asyncio.Runner) -> None:
    async def ask() -> dict[str, JSON]:
        setup: dict[str, JSON] = {"kind": "custom", "function": ACT, "path": list(sys.path)}
        group = WorkerGroup(setup, 2, QUICK)
        try:
            return await group.ask({"answer": "segfault", "data": None})
        finally:
            await group.close()

    reply = runner.run(ask())
    assert reply["solved"] is False and "SIGSEGV" in str(reply["reason"])


def test_a_kill_from_outside_is_ours(runner: asyncio.Runner, pool: GraderPool, tmp_path: Path) -> None:
    assert act(runner, pool, "killed once", str(tmp_path / "killed")).solved
    assert act(runner, pool, "segfault once", str(tmp_path / "crashed")).solved
    with pytest.raises(GraderUnavailable, match="SIGKILL"):
        act(runner, pool, "killed")


def test_workers_and_nursery_killed_by_an_operator(runner: asyncio.Runner, pool: GraderPool) -> None:
    async def killed(what: str) -> Grade:
        gold = MathGold(("4",))
        assert (await pool.grade_math(r"\boxed{4}", gold)).solved
        pids = pool.worker_pids("math")
        victims = pids if what == "workers" else [parent(pids[0])]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return await pool.grade_math(r"\boxed{4}", gold)

    assert runner.run(killed("workers")).solved
    assert runner.run(killed("nursery")).solved


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_cancelled_grade_leaves_the_pool_whole(runner: asyncio.Runner, pool: GraderPool) -> None:
    async def cancel() -> Grade:
        grading = asyncio.create_task(pool.grade_custom("sleep", CustomGrader(ACT, None)))
        await asyncio.sleep(0.2)
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading
        return await pool.grade_custom("", CustomGrader(ACT, None))

    assert runner.run(cancel()).solved


async def grade_hostile(pool: GraderPool) -> tuple[list[float], list[float]]:
    """How long the hostile answers and the honest ones behind them took, all asked at once."""

    async def timed(answer: str, gold: str, solved: bool) -> float:
        begun = time.monotonic()
        grade = await pool.grade_math(rf"\boxed{{{answer}}}", MathGold((gold,)))
        assert grade.solved is solved and bool(grade.reason) is not solved
        return time.monotonic() - begun

    hostile = [timed(answer, "42", False) for answer in HOSTILE]
    honest = [timed(f"{n}+1", str(n + 1), True) for n in range(20)]
    times = await asyncio.gather(*hostile, *honest)
    return times[: len(hostile)], times[len(hostile) :]


def test_hostile_answers_many_at_once_beside_honest_ones(runner: asyncio.Runner, pool: GraderPool) -> None:
    async def check() -> None:
        await pool.start("math")  # other tests have killed what they could
        await asyncio.sleep(0.3)
        descriptors = len(os.listdir("/proc/self/fd"))
        hostile, honest = await grade_hostile(pool)
        assert len(HOSTILE) == 14
        # Within their deadlines, on however crowded a machine; benchmarks.grading has the times of an idle one.
        assert max(hostile) < 60 and max(honest) < max(hostile)
        await whole(pool, descriptors)

    runner.run(check())


async def whole(pool: GraderPool, descriptors: int) -> None:
    for _ in range(100):
        pids = pool.worker_pids("math")
        if len(pids) == 2 and len(os.listdir("/proc/self/fd")) <= descriptors:
            break
        await asyncio.sleep(0.05)
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
    assert len(pids) == 2 and set(states) <= {"S", "R"}
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    nursery = parent(pids[0])
    children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
    assert sorted(map(int, children)) == sorted(pids)  # no zombie, nothing forgotten
    assert (await pool.grade_math(r"\boxed{5}", MathGold(("5",)))).solved


def test_hostile_answers_from_plain_threads() -> None:
    grades: dict[str, Grade] = {}
    with BlockingGraderPool(workers=2, limits=Limits(cpu_seconds=0.5, wall_seconds=2.0)) as pool:

        def grade(answer: str) -> None:
            grades[answer] = pool.grade_math(rf"\boxed{{{answer}}}", MathGold(("42",)))

        threads = [threading.Thread(target=grade, args=(answer,)) for answer in (*HOSTILE, "42")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(grades) == 15
    assert [answer for answer, grade in grades.items() if grade.solved] == ["42"]


HOST = """
import asyncio, os
from metaagentx.rewards.pool import GraderPool
from metaagentx.types import CustomGrader, MathGold

async def main():
    pool = GraderPool(workers=2)
    grader = CustomGrader("own_graders:act", None)
    await pool.grade_custom("", grader)
    group = pool._groups["custom", "own_graders:act", ""]
    working = [asyncio.create_task(pool.grade_custom(answer, grader)) for answer in ("burn", "sleep")]
    await asyncio.sleep(0.3)
    print(group._nursery.process.pid, *group.worker_pids, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_workers_die_with_the_host() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True, env=environment) as host:
        assert host.stdout is not None
        pids = [int(word) for word in host.stdout.readline().split()]
        host.kill()
    assert len(pids) >= 3
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
