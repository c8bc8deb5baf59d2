"""Our own processes are killed and stopped under load: nothing hangs, no verdict is wrong, nothing is left."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from metaagentx.rewards.code import CodeGrader
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.sandbox import JSON, Limits, Result, Sandbox, SandboxUnavailable, Verdict
from metaagentx.sandbox.clock import children_of
from metaagentx.types import AssertTest, CodeTests, FunctionTest, StdinTest

HONEST = """
import door, time
total = 0
for n in range(5):
    t = time.process_time()
    while time.process_time() < t + 0.01: pass
    total += door.ask(n)
door.answer(total)
"""
LIMITS = Limits(cpu_seconds=20, wall_seconds=20, total_seconds=60)


async def slow_echo(body: JSON) -> JSON:
    await asyncio.sleep(0.05)
    return body


def processes_below(pid: int) -> list[int]:
    return [one for child in children_of(pid) for one in (child, *processes_below(child))]


def ours(sandbox: Sandbox) -> dict[str, list[int]]:
    """The processes on the sandbox's side, by what they are."""
    servers = [server._pid for server in sandbox._servers if server.alive and server._pid is not None]
    jails = [server._process.pid for server in sandbox._servers if server._process is not None]
    runs = [child for server in servers for child in children_of(server)]
    inside = [one for jail in jails for one in processes_below(jail) if one not in servers and one not in runs]
    return {"servers": servers, "jails": jails, "inner jails": inside, "runs": runs}


def hit(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


@asynccontextmanager
async def watched(sandbox_of: Callable[[], Sandbox]) -> AsyncIterator[list[str]]:
    """Collects exceptions that nobody sees, and looks that no process and no descriptor is left.

    The session's own sandboxes share the loop, and their servers may still be creating warm children: what descends
    from a process that was there before does not count.
    """
    lost: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: lost.append(str(context)))
    known = set(children_of(os.getpid()))
    descriptors = await settled_descriptors()
    try:
        yield lost
    finally:
        loop.set_exception_handler(None)
    for _ in range(100):
        started = [child for child in children_of(os.getpid()) if child not in known]
        left = [one for child in started for one in (child, *processes_below(child))]
        if not left and len(os.listdir("/proc/self/fd")) <= descriptors:
            break
        await asyncio.sleep(0.05)
    assert left == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert lost == []


async def settled_descriptors() -> int:
    """How many files are open, once warm children of the session's own sandboxes no longer add to them."""
    counts = [len(os.listdir("/proc/self/fd"))]
    for _ in range(100):
        await asyncio.sleep(0.05)
        counts.append(len(os.listdir("/proc/self/fd")))
        if len(set(counts[-4:])) == 1 and len(counts) > 3:
            break
    return counts[-1]


async def until_done(sandbox: Sandbox) -> tuple[Result, int]:
    """An honest run, started again after infra faults, as its callers do."""
    for tries in range(1, 200):
        result = await sandbox.run(HONEST, limits=LIMITS, on_ask=slow_echo)
        if result.verdict is not Verdict.INFRA:
            return result, tries
    raise AssertionError("200 infra faults")


async def back_in_order(sandbox: Sandbox) -> None:
    started = time.monotonic()
    result, _ = await until_done(sandbox)
    assert (result.verdict, result.answer) == (Verdict.OK, 10)
    while not (len(sandbox._servers) == 2 and all(server.alive for server in sandbox._servers)):
        await asyncio.sleep(0.05)
        assert time.monotonic() - started < 15
    assert time.monotonic() - started < 15  # five on an idle machine


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("what", ["servers", "jails", "inner jails", "runs"])
@pytest.mark.parametrize("how_many", [1, 1000], ids=["one", "all"])
def test_honest_runs_get_there(runner: asyncio.Runner, what: str, how_many: int, number: signal.Signals) -> None:
    async def under_fire() -> list[tuple[Result, int]]:
        async with watched(lambda: sandbox):
            async with Sandbox(max_runs=64, servers=2) as sandbox:
                turns = sandbox._shared.turns._value
                runs = [asyncio.create_task(until_done(sandbox)) for _ in range(24)]
                await asyncio.sleep(0.25)
                hit(ours(sandbox)[what][:how_many], number)
                results = await asyncio.wait_for(asyncio.gather(*runs), 60)
                await back_in_order(sandbox)
                await asyncio.sleep(0)
                assert sandbox._shared.turns._value == turns
            return results

    for result, _ in runner.run(under_fire()):
        assert (result.verdict, result.answer) == (Verdict.OK, 10), result


TESTS = [
    ("def double(n): return 2 * n", CodeTests((FunctionTest((21,), 42), FunctionTest((-3,), -6)), "double"), 1.0),
    ("def double(n): return n + 21", CodeTests((FunctionTest((21,), 42), FunctionTest((-3,), -6)), "double"), 0.5),
    ("print(2 * int(input()))", CodeTests((StdinTest("21\n", "42"), StdinTest("3\n", "6"))), 1.0),
    ("def double(n): return 2 * n", CodeTests((AssertTest("for n in range(20): assert double(n) == 2 * n"),)), 1.0),
    ("def double(n): return 3 * n", CodeTests((AssertTest("for n in range(20): assert double(n) == 2 * n"),)), 0.0),
]


async def graded(grader: CodeGrader, source: str, tests: CodeTests) -> float:
    while True:
        try:
            return (await grader.grade(source, tests)).score
        except GraderUnavailable:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_random_faults_for_some_seconds(runner: asyncio.Runner, seed: int) -> None:
    async def chaos(sandboxes: list[Sandbox], seconds: float) -> None:
        draw, end = random.Random(seed), time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(draw.uniform(0.05, 0.5))
            processes = ours(draw.choice(sandboxes))[draw.choice(["servers", "jails", "inner jails", "runs", "runs"])]
            if not processes:
                continue
            targets = processes if draw.random() < 0.2 else [draw.choice(processes)]
            if draw.random() < 0.5:
                hit(targets, signal.SIGKILL)
            else:
                hit(targets, signal.SIGSTOP)
                if draw.random() < 0.7:
                    asyncio.get_running_loop().call_later(draw.uniform(1, 3), hit, targets, signal.SIGCONT)

    async def under_fire() -> None:
        async with watched(lambda: sandbox):
            async with Sandbox(max_runs=128, servers=2) as sandbox, CodeGrader(8) as grader:
                work = [asyncio.create_task(chaos([sandbox, grader._sandbox], 6))]
                runs = [asyncio.create_task(until_done(sandbox)) for _ in range(60)]
                grades = [asyncio.create_task(graded(grader, source, tests)) for source, tests, _ in TESTS * 6]
                await asyncio.wait_for(asyncio.gather(*work, *runs, *grades), 150)
                for result, _ in (run.result() for run in runs):
                    assert (result.verdict, result.answer) == (Verdict.OK, 10), result
                assert [grade.result() for grade in grades] == [score for *_, score in TESTS * 6]
                await back_in_order(sandbox)

    runner.run(under_fire())


def test_all_servers_gone_at_once_is_no_exception_for_anybody(runner: asyncio.Runner) -> None:
    async def under_fire() -> list[Result]:
        async with watched(lambda: sandbox):
            async with Sandbox(max_runs=128, servers=2) as sandbox:
                hit(ours(sandbox)["servers"], signal.SIGKILL)
                code = "import door; door.answer(1)"
                return await asyncio.gather(*(sandbox.run(code, limits=LIMITS) for _ in range(100)))

    assert {result.verdict for result in runner.run(under_fire())} == {Verdict.OK}


def test_a_server_that_is_stopped_while_it_starts_is_noticed(runner: asyncio.Runner) -> None:
    async def under_fire() -> tuple[Result, float]:
        async with watched(lambda: sandbox):
            async with Sandbox(max_runs=8, servers=1, warm=0) as sandbox:
                hit(ours(sandbox)["servers"], signal.SIGKILL)
                while sandbox._servers[0].alive:
                    await asyncio.sleep(0.001)
                started = time.monotonic()
                run = asyncio.create_task(until_done(sandbox))
                while not (jails := ours(sandbox)["jails"]) or not processes_below(jails[0]):
                    await asyncio.sleep(0.001)
                hit([*jails, *processes_below(jails[0])], signal.SIGSTOP)
                return (await run)[0], time.monotonic() - started

    try:
        result, seconds = runner.run(under_fire())
    except SandboxUnavailable as error:
        # The run that waited for this very start is told; the next one gets another.
        assert "stopped from outside" in str(error)
    else:
        assert result.verdict is Verdict.OK and seconds < 15
