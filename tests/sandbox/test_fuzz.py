"""Runs that say anything to the host, in any order: each ends in time with a verdict of its own, and leaves nothing."""

import asyncio
import os
import time
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaagentx.sandbox import JSON, Limits, Result, Sandbox, SessionEnded, Verdict
from metaagentx.sandbox.clock import TICK_SECONDS

# What is said inside: each step is a list of its name and its arguments.
ACTOR = """
import json, os, struct, threading, time

number = 0

def raw(data):
    view = memoryview(data)
    while view:
        view = view[os.write(4, view):]

def frame(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack(">I", len(data)) + data

def ask(body, ahead):
    global number
    number += ahead
    raw(frame(json.dumps({"ask": number, "body": body})))

def read(size):
    while size:
        size -= len(os.read(3, size) or b"x" * size)

def read_reply():
    header = os.read(3, 4)
    if len(header) == 4:
        read(struct.unpack(">I", header)[0])

def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass

def slowly(text, seconds):
    for byte in frame(text):
        raw(bytes([byte]))
        time.sleep(seconds)

def flood(text, count):
    block = frame(text)
    for _ in range(count): raw(block)

def close(fd):
    os.close(fd)

def print_bytes(size):
    os.write(1, b"x" * size)

def in_thread(inner):
    threading.Thread(target=play, args=(inner,), daemon=True).start()

def together(inner):
    threads = [threading.Thread(target=play, args=([one],), daemon=True) for one in inner]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

ACTIONS = {
    "bytes": lambda data: raw(bytes.fromhex(data)),
    "header": lambda size, data: raw(struct.pack(">I", size) + bytes.fromhex(data)),
    "frame": lambda text: raw(frame(text)),
    "ask": ask, "read": read, "read_reply": read_reply, "sleep": time.sleep, "spin": spin, "slowly": slowly,
    "flood": flood, "close": close, "exit": os._exit, "print": print_bytes, "thread": in_thread, "together": together,
}

def play(steps):
    for name, *arguments in steps:
        try:
            ACTIONS[name](*arguments)
        except Exception:
            pass

play(steps)
"""
LIMITS = Limits(
    cpu_seconds=0.6,
    wall_seconds=0.4,
    idle_seconds=0.8,
    total_seconds=20,
    asks=16,
    open_asks=8,
    door_bytes=8 << 20,
    output_bytes=1 << 16,
)

DONE = [
    '{"done":0,"memory":1,"cpu":0.0,"stdout":"forged","stderr":""}',
    '{"done":0,"memory":-1,"cpu":-1e300,"stdout":"","stderr":""}',
    '{"done":0,"memory":1,"cpu":0.0}',
    '{"done":77,"memory":99999999999999999999,"cpu":1e300}',
    '{"done":256,"memory":1,"cpu":0.0}',
    '{"done":0,"memory":1,"cpu":0.0,"stdout":7,"stderr":""}',
    '{"done":[]}',
]
FRAMES = [
    *DONE,
    '{"ready":true}', '{"answer":1}', '{"answer":1,"ask":1}', '{"reply":1,"body":0}', '{"ask":1,"body":0}',
    '{"ask":2,"body":0}', '{"ask":0,"body":0}', '{"ask":-1,"body":null}', '{"ask":1.0,"body":0}',
    '{"ask":true,"body":0}', '{"ask":1}', "[]", "null", "0", "", "{", "NaN", '"\\ud800"', '{"answer":1e999}',
    '{"exit":1,"status":0}',
    '{"ask":1,"body":{"kind":"python","code":"import time; time.sleep(9)","timeout":1e300}}',
    '{"ask":1,"body":{"kind":"python","code":7}}', '{"ask":1,"body":{"kind":"python","code":"while 1: pass"}}',
    "[" * 5000, "9" * 5000, '{"answer":"' + "x" * 200_000 + '"}', '{"answer":[' + "1.5," * 40_000 + "0]}",
    '{"ask":1,"body":"' + "y" * 100_000 + '"}',
]  # fmt: skip
BODIES: list[JSON] = [
    0, {"ready": True}, "x" * 5000, {"big": True}, {"late": True},
    {"kind": "python", "code": "print(1)", "stdin": "", "timeout": 1},
    {"kind": "python", "code": "import time; time.sleep(5)", "stdin": "", "timeout": 0.3},
    {"kind": "python", "code": "while True: pass", "stdin": "", "timeout": 0.3},
]  # fmt: skip
small_bytes = st.binary(max_size=12).map(bytes.hex)
frames = st.sampled_from(FRAMES) | st.text(alphabet='[]{}",:01eadnskr', max_size=20)
simple_steps = st.one_of(
    st.tuples(st.just("bytes"), small_bytes),
    st.tuples(st.just("header"), st.sampled_from([0, 1, 5, 1 << 16, 1 << 20, (1 << 20) + 1, 2**32 - 1]), small_bytes),
    st.tuples(st.just("frame"), frames),
    st.tuples(st.just("ask"), st.sampled_from(BODIES), st.sampled_from([1, 1, 1, 1, 1, 0, 2, -1])),
    st.tuples(st.just("ask"), st.sampled_from(BODIES), st.just(1)),
    st.tuples(st.just("read_reply")),
    st.tuples(st.just("read_reply")),
    st.tuples(st.just("read"), st.sampled_from([1, 4, 1000])),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.01, 0.1, 0.3, 5.0])),
    st.tuples(st.just("spin"), st.sampled_from([0.001, 0.05, 0.3])),
    st.tuples(st.just("slowly"), st.sampled_from(FRAMES[:12]), st.sampled_from([0.0, 0.001, 0.02])),
    st.tuples(st.just("flood"), frames, st.sampled_from([2, 100, 5000])),
    st.tuples(st.just("close"), st.sampled_from([0, 1, 3, 4])),
    st.tuples(st.just("exit"), st.sampled_from([0, 1, 77, 255])),
    st.tuples(st.just("print"), st.sampled_from([1, 20_000, 100_000])),
)
steps = simple_steps | st.tuples(
    st.sampled_from(["thread", "together"]), st.lists(simple_steps, min_size=1, max_size=4)
)


@dataclass(frozen=True)
class Program:
    """One run: what it does, and whether it is run or serves requests."""

    steps: list[tuple[object, ...]]
    serves: bool


programs = st.builds(Program, st.lists(steps, min_size=1, max_size=8), st.booleans())


async def answer(body: JSON) -> JSON:
    if isinstance(body, dict) and "big" in body:
        return "z" * 300_000
    if isinstance(body, dict) and "late" in body:
        await asyncio.sleep(0.2)
    return body


async def play(sandbox: Sandbox, program: Program) -> tuple[Result, float]:
    """How the run ended, and after how long."""
    inputs: dict[str, JSON] = {"steps": program.steps}  # type: ignore[dict-item]
    started = time.monotonic()
    if not program.serves:
        result = await sandbox.run(ACTOR, inputs=inputs, limits=LIMITS, on_ask=answer)
        return result, time.monotonic() - started
    async with sandbox.serve(ACTOR, inputs=inputs, limits=LIMITS) as session:
        for request in range(1000):
            try:
                await session.request({"call": request})
            except SessionEnded as ended:
                return ended.result, time.monotonic() - started
    raise AssertionError("it served more requests than it may ask")


def check(program: Program, result: Result, seconds: float) -> None:
    assert seconds < LIMITS.bound_seconds, program
    assert result.verdict is not Verdict.INFRA, (program, result)
    cores = os.cpu_count() or 1
    assert 0 <= result.cpu_seconds <= seconds * cores + 0.1, (program, result)
    assert 0 <= result.idle_seconds <= result.turn_seconds + TICK_SECONDS, (program, result)
    assert 0 <= result.turn_seconds <= seconds + 0.1, (program, result)
    assert 0 <= result.memory_bytes <= LIMITS.memory_bytes and result.asks <= LIMITS.asks
    assert len(result.stdout) <= LIMITS.output_bytes
    # What it did itself is bounded far below its total: only a busy machine and late replies add to that.
    own = seconds - result.starved_seconds
    assert own < 12, (program, result, seconds)


async def play_all(sandbox: Sandbox, several: list[Program]) -> None:
    lost: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: lost.append(str(context)))
    turns, descriptors = sandbox._shared.turns._value, len(os.listdir("/proc/self/fd"))
    for program, (result, seconds) in zip(
        several, await asyncio.gather(*(play(sandbox, program) for program in several)), strict=True
    ):
        check(program, result, seconds)
    honest = await sandbox.run("import door; door.answer(door.ask(20) + 1)", on_ask=answer)
    assert (honest.verdict, honest.answer) == (Verdict.OK, 21)
    for _ in range(200):
        left = sum(server.load for server in sandbox._servers) - len(sandbox._pool)
        if left == 0 and len(os.listdir("/proc/self/fd")) <= descriptors:
            break
        await asyncio.sleep(0.02)
    assert (left, sandbox._shared.turns._value, sandbox._running, lost) == (0, turns, {}, [])
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    loop.set_exception_handler(None)


def fuzz(runner: asyncio.Runner, examples: int, derandomize: bool) -> None:
    async def attempt(several: list[Program]) -> None:
        await play_all(sandbox, several)

    @settings(
        max_examples=examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(programs, min_size=8, max_size=8))
    def run_examples(several: list[Program]) -> None:
        runner.run(attempt(several))

    # Its own, without warm children: what is left can be counted.
    sandbox = runner.run(Sandbox(max_runs=64, warm=0).__aenter__())
    try:
        run_examples()
    finally:
        runner.run(sandbox.__aexit__(None, None, None))


def test_whatever_a_run_says_it_ends_with_a_verdict_of_its_own(runner: asyncio.Runner) -> None:
    fuzz(runner, examples=100, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # ten minutes on an idle machine
def test_whatever_a_run_says_for_ten_minutes(runner: asyncio.Runner) -> None:
    fuzz(runner, examples=1000, derandomize=False)
