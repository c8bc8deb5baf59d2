"""Every run ends within a bound that follows from its limits; only evidence of the host's own makes an infra fault."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.sandbox import JSON, Limits, Result, Sandbox, Tier, Verdict
from metaagentx.sandbox.clock import LATE_SECONDS, TICK_SECONDS, Scheduling, TurnClock
from metaagentx.sandbox.fork_server import Child

SHORT = Limits(cpu_seconds=2, wall_seconds=1.5, idle_seconds=2.0, total_seconds=8.0)


async def echo(body: JSON) -> JSON:
    return body


async def timed(sandbox: Sandbox, code: str, limits: Limits) -> tuple[Result, float]:
    started = time.monotonic()
    result = await sandbox.run(code, limits=limits, on_ask=echo)
    return result, time.monotonic() - started


@pytest.mark.parametrize("busy", [True, False])
def test_a_server_that_is_busy_with_others_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch, runner: asyncio.Runner, busy: bool
) -> None:
    """No reading of the run arrives; its server answers others meanwhile, or is silent."""
    monkeypatch.setattr("metaagentx.sandbox.supervisor.KILL_SECONDS", 0.6)
    monkeypatch.setattr(Child, "watch", lambda child, on_reading: None)

    async def run() -> Result:
        async with Sandbox(servers=1, warm=0) as sandbox:
            sleeper = asyncio.create_task(
                sandbox.run("import door, time; time.sleep(2); door.answer(1)", limits=Limits(wall_seconds=5))
            )
            await asyncio.sleep(0.1)
            while busy and not sleeper.done():
                await sandbox.run("pass")
            return await sleeper

    verdict = runner.run(run()).verdict
    assert verdict is (Verdict.OK if busy else Verdict.INFRA)


# Its programs are stopped at what is left of its time; what it does about that is its own business.
PROGRAMS_LATE = {Verdict.WALL, Verdict.BUDGET, Verdict.SCRIPT_ERROR}

SLEEPERS = {
    "sleeps between programs": """
import subprocess, time
for _ in range(40):
    time.sleep(0.3)
    subprocess.run(["python", "-c", "pass"])
""",
    "sleeps between asks": "import door, time\nfor _ in range(200):\n    time.sleep(0.2)\n    door.ask(1)",
    "sleeps in slices shorter than a look": """
import door, time
for _ in range(250):
    time.sleep(0.05)
    door.ask(1)
""",
    "computes a twentieth of the time": """
import time
while True:
    t = time.perf_counter()
    while time.perf_counter() < t + 0.005: pass
    time.sleep(0.095)
""",
    "threads that all wake up at once": """
import hashlib, threading, time
data = b"x" * 100_000
def work(start):
    for n in range(400):
        time.sleep(max(0, start + 0.1 * n - time.perf_counter()))
        hashlib.sha256(data).digest()
start = time.perf_counter() + 0.1
threads = [threading.Thread(target=work, args=(start,)) for _ in range(24)]
for thread in threads: thread.start()
""",
    "sleeps in programs": """
import subprocess
while True:
    subprocess.run(["python", "-c", "import time; time.sleep(0.4)"])
""",
    "programs that compute a twentieth of the time": """
import subprocess
code = '''
import time
for _ in range(8):
    t = time.perf_counter()
    while time.perf_counter() < t + 0.005: pass
    time.sleep(0.095)
'''
while True:
    subprocess.run(["python", "-c", code])
""",
    "sleeps by turns with its programs": """
import subprocess, time
while True:
    time.sleep(0.2)
    subprocess.run(["python", "-c", "import time; time.sleep(0.2)"])
""",
    "many programs that sleep, asked for at once": """
from door import transport
nap = {"kind": "python", "code": "import time; time.sleep(1)", "stdin": "", "timeout": 5}
asked = [transport.send(nap) for _ in range(20)]
for _ in asked: transport.receive()
""",
    "sleeps while an ask is on its way": """
import door, time
from door import transport
for _ in range(250):
    transport.send(1)
    time.sleep(0.1)
""",
    "sleeps, then never reads": "import door, time\ndoor.transport.send('x' * 100_000)\ntime.sleep(100)",
    "closes the door and sleeps": "import os, time\nos.close(3); os.close(4)\ntime.sleep(100)",
    "half a message, then sleep": "import os, time\nos.write(4, b'\\0\\0\\1')\ntime.sleep(100)",
    "one byte now and then": """
import os, struct, time
for byte in struct.pack(">I", 1000) + b" " * 1000:
    os.write(4, bytes([byte])); time.sleep(0.2)
""",
}


def test_no_way_of_sleeping_outlasts_the_limits_or_passes_for_a_fault_of_ours(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    async def all_of_them() -> list[tuple[Result, float]]:
        return await asyncio.gather(*(timed(sandbox, code, SHORT) for code in SLEEPERS.values()))

    for name, (result, seconds) in zip(SLEEPERS, runner.run(all_of_them()), strict=True):
        expected = PROGRAMS_LATE if "program" in name else {Verdict.WALL}
        assert result.verdict in expected, (name, result)
        assert seconds < SHORT.bound_seconds, name
        # None of them computes for long, so its sleep is what ends it, well before its total.
        assert seconds - result.starved_seconds < 7.0, (name, seconds, result)


def test_a_sleeper_that_resets_the_window_with_each_ask_is_a_wall_fault(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    result, _ = runner.run(timed(sandbox, SLEEPERS["sleeps between programs"], SHORT))
    assert result.verdict is Verdict.WALL and "slept for more than 2 s in total" in result.detail


def test_short_turns_are_looked_at_and_their_cpu_time_counts(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = """
import door, time
for _ in range(200):
    t = time.process_time()
    while time.process_time() < t + 0.1: pass
    door.ask(1)
"""
    limits = Limits(cpu_seconds=1, wall_seconds=3)
    result, _ = runner.run(timed(sandbox, code, limits))
    assert result.verdict is Verdict.CPU
    assert result.cpu_seconds < 3


def test_computing_in_short_turns_is_not_taken_for_sleep(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = """
import door, time
for _ in range(30):
    t = time.process_time()
    while time.process_time() < t + 0.05: pass
    door.ask(1)
"""
    result, _ = runner.run(timed(sandbox, code, Limits(cpu_seconds=10, wall_seconds=1, idle_seconds=1)))
    assert result.verdict is Verdict.OK, result


def test_a_late_handler_is_our_fault_and_a_slow_solution_is_not(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    async def late(body: JSON) -> JSON:
        await asyncio.sleep(60)
        return body

    limits = Limits(total_seconds=1)
    result = runner.run(sandbox.run("import door; door.ask(1)", limits=limits, on_ask=late))
    assert result.verdict is Verdict.INFRA and "the host took too long" in result.detail
    result = runner.run(sandbox.run("import door; door.ask(1)", limits=limits, on_ask=late, excuse_slow_replies=False))
    assert result.verdict is Verdict.WALL


def test_a_cancelled_run_that_does_not_listen_is_killed(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    async def cancel(code: str) -> int:
        before = children_of_servers(sandbox)
        run = asyncio.create_task(sandbox.run(code, limits=Limits(wall_seconds=60)))
        await asyncio.sleep(0.3)
        run.cancel()
        await asyncio.wait([run])
        return await settled(sandbox, before)

    for code in ("import time; time.sleep(100)", "while True: pass", "import os, time; os.close(3); time.sleep(100)"):
        assert runner.run(cancel(code)) <= 0, code


def children_of_servers(sandbox: Sandbox) -> int:
    """Processes of runs, the warm ones apart."""
    return sum(server.load for server in sandbox._servers) - len(sandbox._pool)


async def settled(sandbox: Sandbox, before: int) -> int:
    for _ in range(100):
        if children_of_servers(sandbox) <= before:
            break
        await asyncio.sleep(0.05)
    return children_of_servers(sandbox) - before


def test_a_flood_after_the_end_is_not_read(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = """
import os, struct
def frame(data): return struct.pack(">I", len(data)) + data
os.write(4, frame(b'{"done":0,"memory":1,"cpu":0.0,"stdout":"","stderr":""}'))
block = frame(b'{"answer":0}') * 4096
while True: os.write(4, block)
"""
    started = time.thread_time()
    for _ in range(5):
        result, seconds = runner.run(timed(sandbox, code, Limits(cpu_seconds=5)))
        assert result.verdict in (Verdict.OK, Verdict.CPU, Verdict.SCRIPT_ERROR) and seconds < 5
    assert time.thread_time() - started < 2  # eight seconds each, when it was read


HOST = """
import asyncio, sys
from metaagentx.sandbox import Limits, Sandbox

HONEST = '''
import door, time
for _ in range(4):
    t = time.process_time()
    while time.process_time() < t + 0.05: pass
    time.sleep(0.3)
    door.ask(1)
door.answer(1)
'''

async def echo(body):
    return body

async def main():
    async with Sandbox(max_runs=32) as sandbox:
        limits = Limits(cpu_seconds=5, wall_seconds=3, idle_seconds=6, total_seconds=TOTAL)
        print("ready", flush=True)
        results = await asyncio.gather(*(sandbox.run(HONEST, limits=limits, on_ask=echo) for _ in range(8)))
    print(sorted({str(result.verdict) for result in results}), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("total", [pytest.param(60, marks=pytest.mark.slow), 4])
def test_a_host_that_stands_still_blames_no_run(total: int) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST.replace("TOTAL", str(total))], stdout=subprocess.PIPE, text=True
    )
    with host:
        assert host.stdout is not None and host.stdout.readline() == "ready\n"
        time.sleep(0.6)
        os.kill(host.pid, signal.SIGSTOP)
        time.sleep(5)
        os.kill(host.pid, signal.SIGCONT)
        verdicts = host.stdout.readline()
        assert host.wait(60) == 0
    # With a total of 4 s some cannot be done in time, and that is the host's fault.
    assert verdicts in (["['ok']\n"] if total == 60 else ["['ok']\n", "['infra']\n", "['infra', 'ok']\n"])


# --- the clock alone


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, float, float, float, bool]]:
    """Steps of a run: what happens, after how long, and how much of that it computed, queued, or was stopped."""
    step = st.tuples(
        st.sampled_from(["begin", "end", "look"]),
        st.floats(0.0, 2.0),
        st.floats(0.0, 1.0),
        st.floats(0.0, 1.0),
        st.booleans(),
    )
    return draw(st.lists(step, max_size=40))


@given(histories(), st.booleans())
def test_times_are_never_negative_and_add_up(
    history: list[tuple[str, float, float, float, bool]], kernel_tells: bool
) -> None:
    clock, now, cpu, queued, in_turns = TurnClock(), 0.0, 0.0, 0.0, 0.0
    for what, seconds, computed, waited, stopped in history:
        now += seconds
        if clock.started is not None:
            in_turns += seconds
            cpu += computed * seconds
            queued += waited * (1 - computed) * seconds
        if what == "begin" and clock.started is None:
            clock.begin(now)
        elif what == "end":
            clock.end(now)
        elif what == "look":
            clock.look(now, cpu, Scheduling({1: queued} if kernel_tells else None, stopped))
        times = [clock.idle_seconds, clock.starved_seconds, clock.turn_idle_seconds, clock.turn_cpu_seconds]
        times += [clock.turn_starved_seconds, clock.stopped_seconds, clock.turn_seconds]
        assert min(times) >= 0
    clock.end(now)
    clock.finish(cpu)
    assert clock.idle_seconds + clock.starved_seconds + cpu <= in_turns + 1e-6
    assert clock.turn_seconds <= in_turns + 1e-6


@given(st.lists(st.floats(0.01, TICK_SECONDS), min_size=1, max_size=200), st.floats(0.0, 0.3))
def test_a_sleeper_is_found_however_it_cuts_its_turns(turns: list[float], share: float) -> None:
    clock, now, cpu, slept = TurnClock(), 0.0, 0.0, 0.0
    since_look = 0.0
    for seconds in turns:
        clock.begin(now)
        now += seconds
        cpu += share * seconds
        slept += (1 - share) * seconds
        clock.end(now)
        since_look += seconds
        if since_look > TICK_SECONDS:
            clock.look(now, cpu, Scheduling({1: 0.0}, False))
            since_look = 0.0
    clock.finish(cpu)
    assert clock.idle_seconds == pytest.approx(slept)
    assert clock.starved_seconds == 0


@given(st.floats(TICK_SECONDS + LATE_SECONDS, 1000), st.booleans())
def test_a_host_that_stood_still_counts_that_as_nobodys_sleep(stall: float, in_the_middle: bool) -> None:
    clock = TurnClock()
    clock.begin(0.0)
    if in_the_middle:
        clock.look(TICK_SECONDS + stall, 0.0, Scheduling({1: 0.0}, False))
    clock.end(TICK_SECONDS + stall)
    clock.finish(0.0)
    assert clock.idle_seconds <= TICK_SECONDS + 1e-9


def test_threads_that_wait_for_one_another_are_no_evidence_of_a_busy_machine() -> None:
    clock = TurnClock()
    clock.begin(0.0)
    # 32 threads wake up at once and compute 1 ms each on two cores: in all they queue for 256 ms.
    clock.look(0.25, 0.032, Scheduling({n: n * 0.0005 for n in range(32)}, False))
    assert clock.starved_seconds < 0.02
    assert clock.idle_seconds > 0.19


def test_the_bound_is_told(sandboxes: Callable[[Tier], Sandbox]) -> None:
    assert Limits(total_seconds=5).bound_seconds == 15
