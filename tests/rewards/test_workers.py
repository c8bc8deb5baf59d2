"""The pool: every request is answered or its worker ended, neighbors notice nothing, our faults are never scores."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.math_figures import HOSTILE
from metaagentx.config import RolloutConfig
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.graders import Graders
from metaagentx.rewards.jailed import PROFILES, JailedGraders
from metaagentx.rewards.reply import GraderReply
from metaagentx.rewards.workers import GraderLimits
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.sandbox import Limits, Sandbox, Tier, self_attack
from metaagentx.types import JSON, CustomGrader, FinalAnswer, Grade, MathGold, Rollout
from tests.rollout_helpers import RIGHT, TASK, VOTE, WRONG, Actor, design, executions_of, resources, timeless

QUICK = GraderLimits(cpu_seconds=0.6, wall_seconds=2.0, memory_bytes=256 << 20)
ACT = "own_graders:act"


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[Graders]:
    pool = Graders(workers=2, custom_limits=QUICK)
    runner.run(pool.start("math"))
    yield pool
    runner.run(pool.__aexit__())


def act(runner: asyncio.Runner, pool: Graders, answer: str, data: JSON = None) -> Grade:
    return runner.run(pool.grade_custom(FinalAnswer.parse(answer), CustomGrader(ACT, data)))


def own(runner: asyncio.Runner, pool: Graders, function: str, answer: str = "", data: JSON = None) -> Grade:
    return runner.run(pool.grade_custom(FinalAnswer.parse(answer), CustomGrader(function, data)))


def test_a_users_function_grades(runner: asyncio.Runner, pool: Graders) -> None:
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
    runner: asyncio.Runner, pool: Graders, function: str, message: str
) -> None:
    with pytest.raises(GraderUnavailable, match=message):
        own(runner, pool, function)


def test_what_libraries_print_disturbs_nobody(runner: asyncio.Runner, pool: Graders) -> None:
    assert all(own(runner, pool, "own_graders:noisy").solved for _ in range(3))


def test_an_answer_over_its_time_is_wrong_with_a_reason(runner: asyncio.Runner, pool: Graders) -> None:
    grade = act(runner, pool, "burn")
    assert not grade.solved and grade.score == 0 and "longer than 0.6 s" in grade.reason


def test_a_users_function_that_sleeps_for_ever_is_no_score(runner: asyncio.Runner, pool: Graders) -> None:
    with pytest.raises(GraderUnavailable, match=r"own_graders:act.*longer than 0.6 s \(2 s by the clock\)"):
        act(runner, pool, "sleep")


def test_an_answer_over_its_memory_is_wrong_with_a_reason(runner: asyncio.Runner, pool: Graders) -> None:
    assert "more memory" in act(runner, pool, "memory").reason


def test_a_crash_that_repeats_is_no_score_for_a_users_function(runner: asyncio.Runner, pool: Graders) -> None:
    with pytest.raises(GraderUnavailable, match=r"own_graders:act.*crashed the grader twice"):
        act(runner, pool, "segfault")
    with pytest.raises(GraderUnavailable, match="exit code 3"):
        act(runner, pool, "exit")


def test_a_kill_from_outside_is_ours(runner: asyncio.Runner, pool: Graders, tmp_path: Path) -> None:
    assert act(runner, pool, "killed once", str(tmp_path / "killed")).solved
    assert act(runner, pool, "segfault once", str(tmp_path / "crashed")).solved
    with pytest.raises(GraderUnavailable, match="SIGKILL"):
        act(runner, pool, "killed")


def test_a_canceled_grade_leaves_the_pool_whole(runner: asyncio.Runner, pool: Graders) -> None:
    async def cancel() -> Grade:
        grading = asyncio.create_task(pool.grade_custom(FinalAnswer.parse("sleep"), CustomGrader(ACT, None)))
        await asyncio.sleep(0.2)
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading
        return await pool.grade_custom(FinalAnswer.parse(""), CustomGrader(ACT, None))

    assert runner.run(cancel()).solved


async def grade_hostile(pool: Graders) -> tuple[list[float], list[float]]:
    """How long the hostile answers and the honest ones behind them took, all asked at once."""

    async def timed(answer: str, gold: str, solved: bool) -> float:
        begun = time.monotonic()
        grade = await pool.grade_math(FinalAnswer.parse(rf"\boxed{{{answer}}}"), MathGold((gold,)))
        assert grade.solved is solved and bool(grade.reason) is not solved
        return time.monotonic() - begun

    hostile = [timed(answer, "42", False) for answer in HOSTILE]
    honest = [timed(f"{n}+1", str(n + 1), True) for n in range(20)]
    times = await asyncio.gather(*hostile, *honest)
    return times[: len(hostile)], times[len(hostile) :]


def test_hostile_answers_many_at_once_beside_honest_ones(runner: asyncio.Runner, pool: Graders) -> None:
    async def check() -> None:
        await pool.start("math")  # other tests have killed what they could
        await asyncio.sleep(0.3)
        hostile, honest = await grade_hostile(pool)
        assert len(HOSTILE) == 14
        # Within their deadlines, on however crowded a machine; benchmarks.grading has the times of an idle one.
        assert max(hostile) < 60 and max(honest) < max(hostile)
        await whole(pool)

    runner.run(check())


async def whole(pool: Graders) -> None:
    """After what is being ended has ended: two workers at most and one in reserve, none of them a zombie."""
    deadline = time.monotonic() + 10
    while len(pool.worker_pids()) > 3 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    pids = pool.worker_pids()
    assert len(pids) <= 3 and all(map(alive, pids))
    assert (await pool.grade_math(FinalAnswer.parse(r"\boxed{5}"), MathGold(("5",)))).solved


# --- workers in the jail


# Serves like a grading child, and does to itself whatever the answer says.
ACTOR = """
import ctypes, os, time, door
reply = {"ready": True}
while True:
    answer = door.ask(reply)["answer"]
    reply = {"score": 1.0, "solved": True, "reason": "", "broken": "", "over_limit": False, "cpu": 0.0, "last": False}
    if answer == "burn":
        while True: pass
    elif answer == "sleep": time.sleep(600)
    elif answer == "memory": b"x" * (1 << 40)
    elif answer == "segfault": ctypes.string_at(0)
    elif answer == "exit": os._exit(3)
    elif answer == "exit 0": os._exit(0)
    elif answer == "trace": ctypes.CDLL(None).syscall(101 if os.uname().machine == "x86_64" else 117, 0, 0, 0, 0)
    elif answer == "a list": reply = [1]
    elif answer == "score 7": reply["score"] = 7.0
    elif answer == "score true": reply["solved"] = 1
    elif answer == "no reason": del reply["reason"]
    elif answer == "not JSON": os.write(4, bytes([0, 0, 0, 1]) + b"{")
    elif answer == "used too much": reply["cpu"] = 99.0
"""


@pytest.fixture(scope="module")
def actors(runner: asyncio.Runner) -> Iterator[JailedGraders]:
    actors = JailedGraders("math", 2, QUICK, ACTOR)
    yield actors
    runner.run(actors.close())


def tell(runner: asyncio.Runner, actors: JailedGraders, answer: str) -> GraderReply:
    return runner.run(actors.ask({"answer": answer}))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("burn", "grading it took longer than 0.6 s of CPU time"),
        ("used too much", "grading it took longer than 0.6 s of CPU time"),
        ("memory", "grading it took more memory than allowed"),
        ("segfault", r"it crashed the grader twice \(killed by SIGSEGV\)"),
        ("exit", r"it crashed the grader twice \(exit code 3\)"),
        ("exit 0", r"it crashed the grader twice \(ok\)"),
        ("trace", "it crashed the grader twice .*system call"),
        ("a list", "it crashed the grader twice .*malformed reply"),
        ("score 7", "it crashed the grader twice .*malformed reply"),
        ("score true", "it crashed the grader twice .*malformed reply"),
        ("no reason", "it crashed the grader twice .*malformed reply"),
        ("not JSON", "it crashed the grader twice .*not JSON"),
    ],
)
def test_what_an_answer_does_to_its_worker_is_its_own_doing(
    runner: asyncio.Runner, actors: JailedGraders, answer: str, reason: str
) -> None:
    reply = tell(runner, actors, answer)
    assert reply.score == 0 and reply.solved is False
    assert re.match(reason, reply.reason), reply
    assert tell(runner, actors, "").solved is True


def test_a_jailed_child_that_sleeps_is_the_machines_doing(runner: asyncio.Runner, actors: JailedGraders) -> None:
    with pytest.raises(GraderUnavailable, match="slept for more than 2 s in one turn"):
        tell(runner, actors, "sleep")
    assert tell(runner, actors, "").solved is True


def test_memory_counts_on_top_of_the_libraries(runner: asyncio.Runner) -> None:
    code = "import door\nreply = {'ready': True}\nwhile True:\n    reply = len(bytearray(door.ask(reply)))"

    async def allocate(size: int) -> bool:
        async with Sandbox(profile=PROFILES["gym"], servers=1, max_runs=8) as sandbox:
            async with sandbox.serve(code, limits=Limits(memory_bytes=64 << 20)) as session:
                return await session.request(size) == size

    assert runner.run(allocate(48 << 20))
    with pytest.raises(Exception, match="more than 64 MiB"):
        runner.run(allocate(80 << 20))


# --- the jail


PROBES = {
    "its own sources": ("open('/packages/metaagentx/__init__.py').read(); door.answer(True)", True),
    "write beside them": ("open('/packages/metaagentx/x.py', 'w'); door.answer(True)", False),
    "the host's root": ("import os; os.listdir('/'); door.answer(True)", False),
    "the usual places": (
        "import os; door.answer(any(map(os.path.exists, ['/etc', '/home', '/root', '/tmp', '/proc', '/dev', '/usr'])))",
        False,
    ),
    "where the project is": ("import os; door.answer(os.path.exists(target['project']))", False),
    "installed packages that grading does not need": ("import pytest; door.answer(True)", False),
    "a home": ("import os; os.listdir('/root'); door.answer(True)", False),
    "an environment": ("import os; door.answer(bool(set(os.environ) - set(target['known'])))", False),
    "processes": ("import os; os.listdir('/proc'); door.answer(True)", False),
    "a temporary file": ("import tempfile; tempfile.TemporaryFile(); door.answer(True)", False),
    "a socket": ("import socket; socket.socket(); door.answer(True)", False),
    "a process by the real subprocess": (
        "import importlib.util, sys; del sys.modules['subprocess']; import subprocess\n"
        "subprocess.run(['/python/bin/python', '-c', '']); door.answer(True)",
        False,
    ),
}


@pytest.mark.parametrize("kind", ["math", "gym"])
def test_a_jailed_child_has_nothing_of_the_host(runner: asyncio.Runner, kind: str) -> None:
    known: list[JSON] = ["PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PWD", "LC_CTYPE"]

    async def probe() -> dict[str, bool]:
        async with Sandbox(profile=PROFILES[kind], tier=Tier.T1, servers=1, max_runs=64) as sandbox:
            with self_attack.targets() as target:
                attempts = {name: code for name, (code, _) in PROBES.items()} | self_attack.ATTACKS
                outcomes = {}
                for name, code in attempts.items():
                    inputs: dict[str, JSON] = {
                        "target": target | {"known": known, "project": str(Path(__file__).parents[2])}
                    }
                    result = await sandbox.run(self_attack.script_of(code), inputs=inputs)
                    outcomes[name] = result.answer is True
                return outcomes

    expected = {name: outcome for name, (_, outcome) in PROBES.items()} | dict.fromkeys(self_attack.ATTACKS, False)
    assert runner.run(probe()) == expected


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2, Tier.T3])
def test_every_tier_grades(runner: asyncio.Runner, tier: Tier) -> None:
    """The warm-up has imported all that an answer of each usual form needs, also where nothing can be opened."""
    code = """
import door, sys
from metaagentx.rewards import jailed_child
before = set(sys.modules)
def ask(reply):
    if reply != {"ready": True}: reply["imported"] = sorted(set(sys.modules) - before)
    return ask_host(reply)
ask_host, door.ask = door.ask, ask
jailed_child.serve("math")
"""

    async def grade() -> list[JSON]:
        async with Sandbox(profile=PROFILES["math"], tier=tier, servers=1, max_runs=64) as sandbox:
            async with sandbox.serve(code, limits=Limits(cpu_seconds=20)) as session:
                return [
                    await session.request({"answer": answer, "gold": {"answers": [gold], "tolerances": [], "unit": ""}})
                    for gold, answer in ((r"x^2+2x+1", r"(x+1)^2"), (r"[3,\infty)", r"x\ge 3"), ("42", "43"))
                ]

    replies = runner.run(grade())
    assert [isinstance(reply, dict) and reply["solved"] for reply in replies] == [True, True, False]
    assert [isinstance(reply, dict) and reply["imported"] for reply in replies] == [[], [], []]


# --- an operator, or a machine that stops


EASY = [(r"\frac{1}{2}", "0.5"), ("(x+1)^2", "x^2+2x+1"), ("17", "17"), ("(1,2)", "(1,2)"), (r"\sqrt{8}", r"2\sqrt{2}")]


async def grade_easy(pool: Graders, count: int) -> list[bool]:
    async def grade(number: int) -> bool:
        answer, gold = EASY[number % len(EASY)]
        wrong = number % 3 == 0
        answer = rf"\boxed{{{answer}+1}}" if wrong else rf"\boxed{{{answer}}}"
        return (await pool.grade_math(FinalAnswer.parse(answer), MathGold((gold,)))).solved is not wrong

    return await asyncio.gather(*map(grade, range(count)))


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("who", ["children", "server", "all"])
def test_signals_under_load_change_no_grade(runner: asyncio.Runner, who: str, number: int) -> None:
    async def disturb() -> tuple[list[bool], float]:
        async with Graders(workers=2) as pool:
            assert all(await grade_easy(pool, 20))
            grading = asyncio.create_task(grade_easy(pool, 400))
            await asyncio.sleep(0.1)
            server, *children = pool._jailed["math"].process_ids
            signal_all({"children": children, "server": [server], "all": [server, *children]}[who], number)
            struck = time.monotonic()
            assert (await pool.grade_math(FinalAnswer.parse(r"\boxed{4}"), MathGold(("4",)))).solved
            return await grading, time.monotonic() - struck

    right, seconds = runner.run(disturb())
    assert all(right)
    assert seconds < 5 + 10 * machine_is_busy(), seconds


def machine_is_busy() -> bool:
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)


def test_idle_workers_that_are_all_stopped_cost_one_attempt(runner: asyncio.Runner) -> None:
    async def strike() -> Grade:
        async with Graders(workers=6) as pool:
            assert all(await grade_easy(pool, 60))
            signal_all(pool.worker_pids(), signal.SIGSTOP)
            return await pool.grade_math(FinalAnswer.parse(r"\boxed{4}"), MathGold(("4",)))

    assert runner.run(strike()).solved


def test_a_child_that_has_grown_is_replaced(runner: asyncio.Runner) -> None:
    code = """
import door
from metaagentx.rewards import jailed_child
kept = []
def grade(request):
    kept.append(bytearray(b"x") * (40 << 20))
    return 1.0, True, str(len(kept))
jailed_child._graders["math"] = grade
jailed_child.serve("math")
"""

    async def grade() -> list[str]:
        graders = JailedGraders("math", 2, QUICK, code)
        try:
            return [(await graders.ask({})).reason for _ in range(6)]
        finally:
            await graders.close()

    assert runner.run(grade()) == ["1", "2", "1", "2", "1", "2"]


def test_stopped_for_five_seconds_a_right_answer_is_right(runner: asyncio.Runner, pool: Graders) -> None:
    async def hold() -> Grade:
        assert all(await grade_easy(pool, 20))
        pids = pool._jailed["math"].process_ids
        signal_all(pids, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(5, signal_all, pids, signal.SIGCONT)
        return await pool.grade_math(FinalAnswer.parse(r"\boxed{(x+1)^2}"), MathGold(("x^2+2x+1",)))

    assert runner.run(hold()) == Grade(1.0, True)


def test_a_users_function_that_is_stopped_is_asked_again(runner: asyncio.Runner, pool: Graders) -> None:
    grader = CustomGrader(ACT, None)

    async def hold() -> Grade:
        await pool.grade_custom(FinalAnswer.parse(""), grader)
        (group,) = [group for key, group in pool._custom.items() if key[0] == ACT]
        for worker in group._idle:
            signal_all([worker._process.pid], signal.SIGSTOP)  # type: ignore[attr-defined]
        return await pool.grade_custom(FinalAnswer.parse(""), grader)

    assert runner.run(hold()).solved


def told_by_seed(conversation: list[dict[str, str]], seed: int) -> str:
    if "You design" in conversation[0]["content"]:
        return design(VOTE)
    return [RIGHT, WRONG, r"<delivery>\boxed{\frac{28}{2}}</delivery>", r"<delivery>\boxed{x}</delivery>"][seed % 4]


def test_rewards_are_the_same_when_grading_processes_are_stopped_again_and_again(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    tasks = [replace(TASK, id=f"squares {number}") for number in range(4)]

    async def trees(disturb: bool) -> list[Rollout]:
        async with Graders() as graders:
            assert all(await grade_easy(graders, 20))
            over = threading.Event()
            stopper = threading.Thread(target=stop_and_continue, args=(graders, over))
            if disturb:
                stopper.start()
            try:
                shared = resources(Actor(told_by_seed), Actor(told_by_seed), sandbox, graders)
                rollouts = []
                for number in range(3):
                    options = RolloutOptions(RolloutConfig(designs=3, executions=4))
                    rollouts += await rollout_batch(tasks, shared, options, ("run", str(number)))
                return rollouts
            finally:
                over.set()
                if disturb:
                    await asyncio.to_thread(stopper.join)

    calm = runner.run(trees(False))
    outcomes = {execution.reward.outcome for execution in executions_of(calm) if execution.reward}
    assert outcomes == {0.0, 1.0}
    assert timeless(runner.run(trees(True))) == timeless(calm)


def stop_and_continue(pool: Graders, over: threading.Event) -> None:
    """Stops now the children, now the server too; once for so long that they are given up and replaced."""
    for number in range(1000):
        pids = pool._jailed["math"].process_ids[number % 2 :]
        signal_all(pids, signal.SIGSTOP)
        ended = over.wait(3.0 if number == 1 else 0.4)
        signal_all(pids, signal.SIGCONT)
        if ended or over.wait(0.3):
            return


# --- nothing is left behind


HOST = r"""
import asyncio, os
from metaagentx.rewards.graders import Graders
from metaagentx.types import CustomGrader, FinalAnswer, MathGold

async def main():
    pool = Graders(workers=2)
    grader = CustomGrader("own_graders:act", None)
    await pool.grade_custom(FinalAnswer.parse(""), grader)
    await pool.start("math")
    await pool.start("gym")
    hostile = pool.grade_math(FinalAnswer.parse(r"\boxed{\lfloor 9^{9^9} \rfloor}"), MathGold(("4",)))
    working = [asyncio.ensure_future(hostile)]
    acts = map(FinalAnswer.parse, ("burn", "sleep"))
    working += [asyncio.ensure_future(pool.grade_custom(answer, grader)) for answer in acts]
    custom = []
    while len(custom) < 2:
        await asyncio.sleep(0.5)
        custom = [worker._process.pid for group in pool._custom.values() for worker in group._busy]
    print(*custom, *(pid for kind in ("math", "gym") for pid in pool._jailed[kind].process_ids), flush=True)
    await asyncio.sleep(60 if os.environ.get("KILLED") else 0)
    await pool.__aexit__()
    [task.cancel() for task in working]
    print("closed", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "closed"])
def test_no_process_outlives_the_pool_or_its_host(killed: bool) -> None:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path} | ({"KILLED": "1"} if killed else {})
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True, env=environment) as host:
        assert host.stdout is not None
        pids = [int(word) for word in host.stdout.readline().split()]
        if killed:
            host.kill()
        else:
            assert host.stdout.readline() == "closed\n"
    assert len(pids) >= 8
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_closed_pool_leaves_no_descriptor(runner: asyncio.Runner) -> None:
    async def use() -> None:
        async with Graders(workers=2) as pool:
            await pool.grade_math(FinalAnswer.parse(r"\boxed{4}"), MathGold(("4",)))
            await pool.grade_custom(FinalAnswer.parse("yes"), CustomGrader("own_graders:yes", None))
            with pytest.raises(GraderUnavailable):
                await pool.grade_custom(FinalAnswer.parse("exit"), CustomGrader(ACT, None))

    runner.run(use())
    before = len(os.listdir("/proc/self/fd"))
    runner.run(use())
    assert len(os.listdir("/proc/self/fd")) <= before


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
