"""The sandbox as its users see it: what goes in, what comes out, what each verdict means, what is left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from metaagentx.sandbox import (
    JSON,
    BudgetExceeded,
    Infra,
    Limits,
    Result,
    Sandbox,
    SandboxUnavailable,
    SessionEnded,
    Tier,
    Verdict,
    memory,
)
from metaagentx.sandbox import sandbox as sandbox_module
from metaagentx.sandbox.fork_server import ExitInfo
from metaagentx.sandbox.jail import launch
from metaagentx.sandbox.tiers import attack
from metaagentx.sandbox.verdicts import judge, kernel_cpu_limit

QUICK = Limits(cpu_seconds=1, wall_seconds=3)


@pytest.fixture(params=[Tier.T1, Tier.T2, Tier.T3])
def run(
    request: pytest.FixtureRequest, runner: asyncio.Runner, sandboxes: Callable[[Tier], Sandbox]
) -> Callable[..., Result]:
    sandbox = sandboxes(request.param)

    def run(code: str, **options: object) -> Result:
        options.setdefault("limits", QUICK)
        return runner.run(sandbox.run(code, **options))  # type: ignore[arg-type]

    return run


async def echo(body: JSON) -> JSON:
    return {"echo": body}


def test_a_run_has_inputs_and_leaves_an_answer_and_a_log(run: Callable[..., Result]) -> None:
    result = run(
        "import door; print(question); door.answer({'doubled': 2 * number})", inputs={"question": "why?", "number": 21}
    )
    assert (result.verdict, result.answer, result.stdout) == (Verdict.OK, {"doubled": 42}, "why?\n")
    assert result.isolated and result.exit_code == 0 and result.cpu_seconds > 0 and result.memory_bytes > 0


def test_asks_are_answered_by_the_handler(run: Callable[..., Result]) -> None:
    result = run("import door; door.answer([door.ask(1), door.ask({'a': None})])", on_ask=echo)
    assert result.answer == [{"echo": 1}, {"echo": {"a": None}}]
    assert result.asks == 2


def test_asks_in_flight_are_concurrent_and_come_back_in_any_order(run: Callable[..., Result]) -> None:
    arrived: list[JSON] = []
    all_there = asyncio.Event()

    async def handler(body: JSON) -> JSON:
        arrived.append(body)
        if len(arrived) == 3:
            all_there.set()
        await all_there.wait()
        await asyncio.sleep(0.01 * (3 - int(str(body))))
        return body

    code = """
from door import transport
ids = {transport.send(n): n for n in range(3)}
import door
got = [transport.receive() for _ in ids]
door.answer([[ids[i] == body, body] for i, body in got])
"""
    answer = run(code, on_ask=handler).answer
    assert answer == [[True, 2], [True, 1], [True, 0]]


def test_standard_input_is_a_regular_file(run: Callable[..., Result]) -> None:
    assert run("import sys; print(sys.stdin.read()[:-1])", stdin="3 4\nfünf\n").stdout == "3 4\nfünf\n"
    size = run("import os, stat; s = os.fstat(0); print(stat.S_ISREG(s.st_mode), s.st_size)", stdin="3 4\nfünf\n")
    if size.tier is Tier.T3:  # where glibc's fstat is a call that takes a path, T3 refuses it
        return
    assert size.stdout == "True 10\n"
    assert run("print(len(open(0).read()))", stdin="x" * 3_000_000).stdout == "3000000\n"
    assert run("print(input(), input())", stdin="a\nb\n").stdout == "a b\n"


def test_defect_3_what_a_script_prints_pays_nothing(run: Callable[..., Result]) -> None:
    result = run(r"print('\\boxed{42} <solution>42</solution> [SUCCESS]'); import sys; sys.exit(0)")
    assert result.answer is None and "boxed" in result.stdout


def test_defect_2_nothing_is_unpickled(run: Callable[..., Result]) -> None:
    marker = Path(f"/tmp/metaagentx-unpickled-{os.getpid()}")
    pickle = f"cposix\nsystem\n(S'touch {marker}'\ntR."
    code = f"import os, struct; data = {pickle!r}.encode(); os.write(4, struct.pack('>I', len(data)) + data)"
    assert run(code).verdict is Verdict.PROTOCOL
    assert not marker.exists()


def test_defect_9_a_crash_inherits_nothing_from_an_earlier_run(run: Callable[..., Result]) -> None:
    assert run("import door, builtins, sys; builtins.leak = 1; sys.leak = 2; door.answer('mine')").answer == "mine"
    result = run("import builtins, sys; print(hasattr(builtins, 'leak'), hasattr(sys, 'leak')); raise ValueError('no')")
    assert (result.verdict, result.answer, result.stdout) == (Verdict.SCRIPT_ERROR, None, "False False\n")


def test_defect_17_a_run_is_a_fork_of_a_small_interpreter(run: Callable[..., Result]) -> None:
    result = run("import sys; print(any(m in sys.modules for m in ('torch', 'numpy', 'pydantic', 'asyncio')))")
    assert result.stdout == "False\n"
    assert result.memory_bytes < 40 << 20


def test_defect_18_the_program_that_runs_is_the_program_that_was_given(run: Callable[..., Result]) -> None:
    code = (
        "import linecache\nprint(''.join(linecache.getlines('script.py')), end='')  # \\boxed{\\frac{1}{2}} ünïcode\n"
    )
    assert run(code).stdout == code


@pytest.mark.parametrize(
    ("code", "verdict", "detail"),
    [
        ("pass", Verdict.OK, ""),
        ("raise KeyError('x')", Verdict.SCRIPT_ERROR, "KeyError: 'x'"),
        ("def f(:", Verdict.SCRIPT_ERROR, "SyntaxError"),
        ("import sys; sys.exit(3)", Verdict.SCRIPT_ERROR, "exit code 3"),
        ("import sys; sys.exit('bye')", Verdict.SCRIPT_ERROR, "bye"),
        ("import os; os._exit(7)", Verdict.SCRIPT_ERROR, "exit code 7"),
        ("while True: pass", Verdict.CPU, "CPU time"),
        ("sum(range(10 ** 12))", Verdict.CPU, "CPU time"),
        ("import re; re.match('(a+)+$', 'a' * 40 + 'b')", Verdict.CPU, "CPU time"),
        ("x = bytearray(10 ** 10)", Verdict.MEMORY, "MiB"),
        ("x = []\nwhile True: x.append(bytearray(10 ** 6))", Verdict.MEMORY, "MiB"),
        ("import time; time.sleep(60)", Verdict.WALL, "slept for more than 3 s in one turn"),
        ("while True: print('x' * 10 ** 5)", Verdict.OUTPUT, "output reached the limit"),
        ("import os\nwhile True: os.write(2, b'x' * 10 ** 5)", Verdict.OUTPUT, "output reached the limit"),
        ("import ctypes; ctypes.string_at(0)", Verdict.SCRIPT_ERROR, "SIGSEGV"),
        ("import door\nwhile True: door.ask(1)", Verdict.BUDGET, "more than 256 asks"),
        ("import door\nwhile True: door.transport.send(1)", Verdict.BUDGET, "asks"),
        ("import door\nwhile True: door.answer(1)", Verdict.BUDGET, "answers"),
        ("import door; door.answer('x' * (2 << 20))", Verdict.PROTOCOL, "at most"),
        ("import door; door.write_frame([])", Verdict.PROTOCOL, "neither"),
        ("import door; door.write_frame({'ask': 5, 'body': 0})", Verdict.PROTOCOL, "expected 1"),
        ("import door; door.write_frame({'ask': True, 'body': 0})", Verdict.PROTOCOL, "expected 1"),
        ("import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)", Verdict.VIOLATION, "forbidden system call"),
    ],
)
def test_verdicts(
    runner: asyncio.Runner, sandboxes: Callable[[Tier], Sandbox], code: str, verdict: Verdict, detail: str
) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=3, memory_bytes=256 << 20)

    async def both() -> list[Result]:
        runs = (sandboxes(tier).run(code, limits=limits, on_ask=echo) for tier in (Tier.T1, Tier.T2))
        return await asyncio.gather(*runs)

    for result in runner.run(both()):
        assert result.verdict is verdict, (result.tier, result)
        assert detail in result.detail, result


def test_an_error_is_told_with_its_line(run: Callable[..., Result]) -> None:
    stderr = run("def f():\n    return 1 / 0\nf()\n").stderr
    assert 'File "script.py", line 2, in f' in stderr and "return 1 / 0" in stderr
    assert "inside" not in stderr


def test_the_clock_stands_still_while_the_host_owes_a_reply(run: Callable[..., Result]) -> None:
    async def slow(body: JSON) -> JSON:
        await asyncio.sleep(1.0)
        return body

    limits = Limits(wall_seconds=0.6, cpu_seconds=1)
    result = run("import door; door.answer(door.ask(1) + door.ask(2))", on_ask=slow, limits=limits)
    assert (result.verdict, result.answer) == (Verdict.OK, 3)
    assert result.turn_seconds < 0.6
    result = run("import door, time; door.ask(1); time.sleep(5)", on_ask=echo, limits=limits)
    assert result.verdict is Verdict.WALL


def test_a_handler_keeps_budgets_and_its_own_failures_are_not_the_codes(run: Callable[..., Result]) -> None:
    async def out_of_tokens(body: JSON) -> JSON:
        raise BudgetExceeded("no tokens left")

    async def machine_gone(body: JSON) -> JSON:
        raise Infra("the model server is gone")

    async def broken(body: JSON) -> JSON:
        raise LookupError("a bug of ours")

    result = run("import door; door.ask(1)", on_ask=out_of_tokens)
    assert (result.verdict, result.detail) == (Verdict.BUDGET, "no tokens left")
    assert run("import door; door.ask(1)", on_ask=machine_gone).verdict is Verdict.INFRA
    with pytest.raises(LookupError, match="a bug of ours"):
        run("import door; door.ask(1)", on_ask=broken)


def test_a_run_that_nobody_listens_to_is_told_so(run: Callable[..., Result]) -> None:
    assert run("import door; door.answer(door.ask(1))").answer == {"error": "this run has no handler of asks"}


def test_subprocess_runs_python_in_a_run_of_its_own(run: Callable[..., Result]) -> None:
    code = """
import subprocess, sys, door
def go(*args, **more):
    done = subprocess.run(list(args), capture_output=True, text=True, timeout=5, **more)
    return [done.returncode, done.stdout, done.stderr[-40:]]
door.answer([
    go("python", "-c", "print(6 * 7)"),
    go("python3", "-c", "print(input()[::-1])", input="abc\\n"),
    go(sys.executable or "python", "-c", "raise ValueError('no')"),
    subprocess.check_output(["python", "-c", "print(1)"]).decode(),
])
"""
    assert run(code).answer == [
        [0, "42\n", ""],
        [0, "cba\n", ""],
        [1, "", "  raise ValueError('no')\nValueError: no\n"],
        "1\n",
    ]


def test_subprocess_times_out_refuses_and_spends_the_runs_own_budget(run: Callable[..., Result]) -> None:
    code = """
import subprocess, door
said = []
for args, more in [
    (["python", "-c", "while True: pass"], {"timeout": 1}),
    (["python", "-c", "import time; time.sleep(60)"], {"timeout": 0.3}),
    (["ls", "/"], {}),
    ("echo hi", {"shell": True}),
    (["python", "script.py"], {}),
    (["python", "-c", "import subprocess; subprocess.run(['python', '-c', '1'])"], {"check": True}),
]:
    try:
        subprocess.run(args, **more)
        said.append("ran")
    except Exception as error:
        said.append(type(error).__name__)
door.answer(said)
"""
    result = run(code, limits=Limits(cpu_seconds=4, wall_seconds=3))
    expected = ["TimeoutExpired", "TimeoutExpired", "FileNotFoundError", "PermissionError", "PermissionError"]
    assert result.answer == [*expected, "CalledProcessError"]
    loop = """
import subprocess
while True:
    try: subprocess.run(["python", "-c", "while 1: pass"], timeout=1)
    except subprocess.TimeoutExpired: pass
"""
    result = run(loop, limits=Limits(cpu_seconds=2, wall_seconds=3))
    assert (result.verdict, "programs used all" in result.detail) == (Verdict.BUDGET, True)


SIDE_BY_SIDE = r'''
import json, subprocess, sys
from subprocess import DEVNULL, PIPE, STDOUT, CalledProcessError, TimeoutExpired

def python(code, *arguments):
    return ["python", "-I", "-S", "-c", code, *arguments]

BOTH = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
ECHO = "import sys; print(sys.stdin.read()[::-1], end='')"

def plain(value):
    """What has no JSON, as text."""
    if isinstance(value, subprocess.CompletedProcess):
        return ["CompletedProcess", value.args, value.returncode, plain(value.stdout), plain(value.stderr)]
    return repr(value) if isinstance(value, bytes) else value

def tried(function, *args, **options):
    try:
        return plain(function(*args, **options))
    except (CalledProcessError, TimeoutExpired) as error:
        more = error.returncode if isinstance(error, CalledProcessError) else error.timeout
        about = [plain(error.output), plain(error.stdout), plain(error.stderr), error.cmd]
        return [type(error).__name__, str(error), more, *about, isinstance(error, subprocess.SubprocessError)]
    except Exception as error:
        return type(error).__name__

run, call, check_call, check_output = (
    getattr(subprocess, name) for name in ("run", "call", "check_call", "check_output")
)
print(json.dumps([
    tried(call, python(BOTH), stdout=DEVNULL, stderr=DEVNULL),
    tried(call, python("pass")),
    tried(call, python(BOTH), stdout=DEVNULL, stderr=STDOUT),
    tried(call, python(BOTH), check=True),
    tried(call, python("pass"), input=b""),
    tried(call, python("pass"), capture_output=True),
    tried(call, python("import time; time.sleep(60)"), timeout=0.2),
    tried(check_call, python(BOTH), stdout=DEVNULL, stderr=DEVNULL),
    tried(check_call, python("pass"), stdout=DEVNULL),
    tried(check_output, python("print('a')")),
    tried(check_output, python("print('a\\rb\\r\\nc')"), text=True),
    tried(check_output, python("print('a\\rb\\r\\nc')")),
    tried(check_output, python(BOTH), stderr=STDOUT, text=True),
    tried(check_output, python(BOTH), stderr=PIPE),
    tried(check_output, python(BOTH), stderr=DEVNULL),
    tried(check_output, python("print(1)"), stdout=PIPE),
    tried(check_output, python("print(1)"), check=False),
    tried(check_output, python(ECHO), input="abc", text=True),
    tried(check_output, python(ECHO), input=b"abc"),
    tried(check_output, python(ECHO), input=None, encoding="utf-8"),
    tried(run, python(BOTH), capture_output=True),
    tried(run, python(BOTH), capture_output=True, text=True),
    tried(run, python(BOTH), capture_output=True, universal_newlines=True, check=True),
    tried(run, python(BOTH), stdout=DEVNULL, stderr=DEVNULL),
    tried(run, python(BOTH), stdout=PIPE, stderr=STDOUT, errors="replace"),
    tried(run, python("print('\u00e9'.encode())"), stdout=PIPE, encoding="ascii"),
    tried(run, python(ECHO), input="abc", capture_output=True),
    tried(run, python(ECHO), input=b"abc", capture_output=True, text=True),
    tried(run, python(ECHO), input="", stdin=PIPE),
    tried(run, python(ECHO), stdin=DEVNULL, capture_output=True),
    tried(run, python("pass"), stdout=PIPE, capture_output=True),
    tried(run, python("pass"), no_such_option=1),
    tried(run, python("import sys; print(sys.argv[1:])", "a", "b"), capture_output=True, text=True),
    tried(run, python("print(1, flush=True); import time; time.sleep(60)"), timeout=0.8, stdout=PIPE, text=True),
    tried(run, python("raise SystemExit('why')"), capture_output=True, text=True),
    tried(run, ["no-such-program"]),
    tried(run, ["no-such-program"], check=True),
    tried(lambda: run(python("pass")).check_returncode()),
    tried(lambda: run(python(BOTH), capture_output=True).check_returncode()),
    str(CalledProcessError(-9, ["a"])), str(CalledProcessError(-99, "a")), str(TimeoutExpired("a", 2)),
    repr(subprocess.CompletedProcess(["a"], 1, "b")), repr(subprocess.CompletedProcess("a", 0)),
]))
'''


def test_subprocess_does_what_pythons_own_does(runner: asyncio.Runner, sandboxes: Callable[[Tier], Sandbox]) -> None:
    own = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE],
        env={"PATH": str(Path(sys.executable).parent)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    result = runner.run(sandboxes(Tier.T1).run(SIDE_BY_SIDE, limits=Limits(cpu_seconds=20, wall_seconds=10)))
    assert result.verdict is Verdict.OK, result.stderr
    expected, found = json.loads(own.stdout), json.loads(result.stdout)
    differing = [(mine, theirs) for mine, theirs in zip(found, expected, strict=True) if mine != theirs]
    assert differing == []


def test_a_programs_output_that_nobody_captures_is_the_scripts_own(run: Callable[..., Result]) -> None:
    code = """
import subprocess, sys
said = "import sys; print('out'); print('err', file=sys.stderr)"
subprocess.run(["python", "-c", said])
print(subprocess.call(["python", "-c", said], stdout=sys.stderr), flush=True)
subprocess.run(["python", "-c", said], stderr=subprocess.STDOUT, stdout=subprocess.DEVNULL)
for shell in (subprocess.getoutput, subprocess.getstatusoutput, subprocess.Popen):
    try:
        shell("python -c 1")
    except PermissionError as error:
        print(error.strerror)
"""
    result = run(code)
    assert result.verdict is Verdict.OK, result.stderr
    first, second, *refused = result.stdout.splitlines()
    assert (first, second, result.stderr) == ("out", "0", "err\nout\nerr\n")
    assert [line.partition(" ")[0] for line in refused] == ["no", "no", "subprocess.Popen"]


def test_many_runs_that_all_wait_for_programs_do_not_lock_each_other_out(
    runner: asyncio.Runner, sandboxes: Callable[[Tier], Sandbox]
) -> None:
    code = "import subprocess, door; door.answer(subprocess.check_output(['python', '-c', 'print(1)'], text=True))"

    async def everybody() -> list[Result]:
        return await asyncio.gather(*(sandboxes(Tier.T1).run(code) for _ in range(100)))

    assert {str(result.answer) for result in runner.run(everybody())} == {"1\n"}


def test_threads_and_deep_recursion_as_contest_solutions_use_them(run: Callable[..., Result]) -> None:
    code = """
import sys, threading
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
def main(): print(depth(50_000))
sys.setrecursionlimit(10 ** 6)
threading.stack_size(64 << 20)
threading.Thread(target=main).start()
"""
    assert run(code, limits=Limits(cpu_seconds=5, wall_seconds=10)).stdout == "50000\n"


def test_equal_programs_run_equally(run: Callable[..., Result]) -> None:
    code = "import random; print(hash('x'), list({'a', 'b', 'c', 'd'}), random.random())"
    assert len({run(code).stdout for _ in range(6)}) == 1


def test_a_cancelled_run_leaves_nothing(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    async def cancel_in_the_middle() -> None:
        started = asyncio.Event()

        async def handler(body: JSON) -> JSON:
            started.set()
            await asyncio.sleep(60)
            return body

        task = asyncio.create_task(sandbox.run("import door; door.ask(1)", on_ask=handler))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def settle() -> int:
        await asyncio.gather(*(sandbox.run("pass") for _ in range(8)))
        await asyncio.sleep(0.3)
        return len(os.listdir("/proc/self/fd"))

    before = runner.run(settle())
    for _ in range(5):
        runner.run(cancel_in_the_middle())
    assert runner.run(settle()) <= before


def test_a_thousand_wait_at_once(runner: asyncio.Runner) -> None:
    async def everybody() -> list[Result]:
        waiting = 0
        all_wait = asyncio.Event()

        async def handler(body: JSON) -> JSON:
            nonlocal waiting
            waiting += 1
            if waiting == 1000:
                all_wait.set()
            await all_wait.wait()
            return body

        async with Sandbox(max_runs=1000) as sandbox:
            limits = Limits(wall_seconds=60)
            code = "import door; door.answer(door.ask(number))"
            runs = (sandbox.run(code, inputs={"number": n}, on_ask=handler, limits=limits) for n in range(1000))
            return await asyncio.wait_for(asyncio.gather(*runs), 120)

    assert [result.answer for result in runner.run(everybody())] == list(range(1000))


def test_runs_beyond_the_limit_wait_for_their_turn(runner: asyncio.Runner) -> None:
    async def crowd() -> int:
        inside = most = 0

        async def handler(body: JSON) -> JSON:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1
            return body

        async with Sandbox(max_runs=4, warm=0) as sandbox:
            await asyncio.gather(*(sandbox.run("import door; door.ask(1)", on_ask=handler) for _ in range(20)))
        return most

    assert runner.run(crowd()) == 4


def test_a_concurrency_that_cannot_fit_is_refused(runner: asyncio.Runner) -> None:
    async def too_many() -> None:
        async with Sandbox(max_runs=10**9):
            pass

    with pytest.raises(SandboxUnavailable, match="lower max_runs to"):
        runner.run(too_many())


def test_a_server_that_dies_is_an_infra_fault_and_is_replaced(runner: asyncio.Runner) -> None:
    async def murder() -> tuple[Result, Result]:
        async with Sandbox(servers=1, warm=1, max_runs=8) as sandbox:
            (server,) = sandbox._servers

            async def handler(body: JSON) -> JSON:
                assert server._process is not None
                os.kill(server._process.pid, signal.SIGKILL)
                await asyncio.sleep(5)
                return body

            hit = await sandbox.run("import door; door.ask(1)", on_ask=handler)
            return hit, await sandbox.run("import door; door.answer(1)")

    hit, after = runner.run(murder())
    assert hit.verdict is Verdict.INFRA and "died" in hit.detail
    assert (after.verdict, after.answer) == (Verdict.OK, 1)


def test_a_run_that_is_killed_from_outside_is_an_infra_fault(runner: asyncio.Runner) -> None:
    async def murder() -> Result:
        async with Sandbox(servers=1, warm=0, max_runs=8) as sandbox:

            async def handler(body: JSON) -> JSON:
                _, child = sandbox.process_ids
                os.kill(child, signal.SIGKILL)
                await asyncio.sleep(5)
                return body

            return await sandbox.run("import door; door.ask(1)", on_ask=handler, limits=Limits(cpu_seconds=600))

    result = runner.run(murder())
    assert result.verdict is Verdict.INFRA and "killed from outside" in result.detail


def test_only_what_had_the_time_for_it_can_have_been_killed_at_its_limit_of_ticks() -> None:
    killed = ExitInfo(status=int(signal.SIGKILL), cpu_seconds=0.1)
    limits = Limits(cpu_seconds=2)
    while memory.explain_kill():  # kills that other tests have caused
        pass
    assert judge(killed, limits, seconds=2.0)[0] is Verdict.INFRA
    assert judge(killed, limits, seconds=kernel_cpu_limit(limits))[0] is Verdict.CPU
    assert judge(killed, replace(limits, cpu_seconds=0.1), seconds=2.0)[0] is Verdict.CPU


def test_a_turn_is_ended_close_to_its_limit(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = """
import door, time
seconds = door.ask({"ready": True})
while True:
    end = time.process_time() + seconds
    while time.process_time() < end: pass
    seconds = door.ask(seconds)
"""

    async def serve() -> list[JSON]:
        limits = Limits(cpu_seconds=600, turn_cpu_seconds=0.5)
        async with sandbox.serve(code, limits=limits) as session:
            replies = [await session.request(0.3) for _ in range(4)]  # more than the limit in all
            with pytest.raises(SessionEnded) as ended:
                await session.request(60)
            assert ended.value.result.verdict is Verdict.CPU
            assert ended.value.result.cpu_seconds < 4 * 0.3 + 0.5 + 0.35
            return replies

    assert runner.run(serve()) == [0.3] * 4


def test_when_memory_is_short_no_run_is_admitted_and_the_youngest_gives_way(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def squeeze() -> tuple[Result, Result]:
        async with Sandbox(servers=1, max_runs=8) as sandbox:
            first = asyncio.create_task(sandbox.run("import time; time.sleep(60)", limits=Limits(wall_seconds=60)))
            await asyncio.sleep(0.2)
            monkeypatch.setattr(memory, "available_bytes", lambda: 0)
            monkeypatch.setattr(sandbox_module, "_MEMORY_WAIT_SECONDS", 0.5)
            return await first, await sandbox.run("pass")

    ended, refused = runner.run(squeeze())
    assert ended.verdict is Verdict.INFRA and "short of memory" in ended.detail
    assert refused.verdict is Verdict.INFRA and "waited" in refused.detail


def test_fails_closed_where_nothing_protects(runner: asyncio.Runner) -> None:
    holes = runner.run(attack(launch(Tier.NONE)))
    assert {"read a file", "fork", "connect by TCP", "signal the host"} <= set(holes)

    async def unprotected() -> None:
        async with Sandbox(tier=Tier.NONE):
            pass

    with pytest.raises(SandboxUnavailable, match="does not isolate"):
        runner.run(unprotected())


def test_results_without_isolation_say_so(runner: asyncio.Runner, sandboxes: Callable[[Tier], Sandbox]) -> None:
    result = runner.run(sandboxes(Tier.NONE).run("print(1)"))
    assert (result.stdout, result.isolated) == ("1\n", False)


def test_the_cpu_time_of_a_finished_run_counts(run: Callable[..., Result]) -> None:
    code = "import time\nt = time.process_time()\nwhile time.process_time() < t + 0.4: pass"
    assert run(code, limits=Limits(cpu_seconds=0.3, wall_seconds=20)).verdict is Verdict.CPU
    assert run(code, limits=Limits(cpu_seconds=20, wall_seconds=20)).verdict is Verdict.OK


def test_a_run_that_ends_with_asks_open_is_not_waited_for(run: Callable[..., Result]) -> None:
    async def never(body: JSON) -> JSON:
        await asyncio.sleep(600)
        return body

    started = time.monotonic()
    assert run("import door; door.transport.send(1); door.answer('gone')", on_ask=never).answer == "gone"
    assert time.monotonic() - started < 60


def test_a_reply_larger_than_a_pipe_arrives_and_an_unread_one_does_not_block(run: Callable[..., Result]) -> None:
    async def big(body: JSON) -> JSON:
        return "x" * 3_000_000

    assert run("import door; door.answer(len(door.ask(1)))", on_ask=big).answer == 3_000_000
    result = run("import door, time; door.transport.send(1); time.sleep(60)", on_ask=big)
    assert result.verdict is Verdict.WALL


def test_code_that_is_kept_from_the_cpu_is_not_late(run: Callable[..., Result]) -> None:
    """A wall clock far too short for what the code computes: it continues as long as it uses the CPU."""
    code = (
        "import time\nt = time.process_time()\nwhile time.process_time() < t + 1.6: pass\nimport door; door.answer(1)"
    )
    result = run(code, limits=Limits(cpu_seconds=5, wall_seconds=0.4))
    assert (result.verdict, result.answer) == (Verdict.OK, 1), result
    assert run("while True: pass", limits=Limits(cpu_seconds=1, wall_seconds=0.2)).verdict is Verdict.CPU


def test_all_programs_of_a_run_share_its_cpu_time(run: Callable[..., Result]) -> None:
    code = """
from door import transport
loop = {"kind": "python", "code": "while True: pass", "stdin": "", "timeout": 5}
asked = [transport.send(loop) for _ in range(6)]
for _ in asked: transport.receive()
"""
    result = run(code, limits=Limits(cpu_seconds=1, wall_seconds=10))
    assert result.verdict is Verdict.BUDGET and "programs used all" in result.detail, result


def test_a_late_reply_is_never_taken_for_that_of_another_request(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = "import door, time\nreply = {'ready': True}\nwhile True:\n    reply = door.ask(reply)\n    time.sleep(0.3)"

    async def serve() -> JSON:
        async with sandbox.serve(code) as session:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.request("first"), 0.1)
            with pytest.raises(RuntimeError, match="one request at a time"):
                await session.request("second")
            await asyncio.sleep(1)
            return await session.request("third")

    assert runner.run(serve()) == "third"


def test_a_session_whose_request_was_given_up_takes_no_other(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = """
import door, time
request = door.ask({"ready": True})
while True:
    time.sleep(request)
    request = door.ask(request)
"""

    async def give_up() -> tuple[bool, bool]:
        async with sandbox.serve(code, limits=Limits(wall_seconds=30)) as session:
            assert await session.request(0) == 0
            before = session.available
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.request(20), 0.2)
            return before, session.available

    assert runner.run(give_up()) == (True, False)
