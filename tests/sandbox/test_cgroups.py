"""How much memory is left, and the control groups of fork servers: on made-up trees, and for real where one can."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaagentx.sandbox import Limits, Result, Sandbox, Tier, Verdict, memory
from metaagentx.sandbox.cgroups import CONTROLLERS, ServerGroups, membership, server_groups
from metaagentx.sandbox.memory import OOMKillCounter, available_bytes, total_bytes
from tests.unprivileged import as_nobody, public_directory

GIB = 1 << 30
UNLIMITED_V1 = "9223372036854771712\n"
MOUNT_V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
MOUNT_V2 = "35 31 0:32 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def write(root: Path, files: dict[str, str | int]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if isinstance(text, int) else text)
    return root


def machine(root: Path, groups: str, mounts: str, files: dict[str, str | int]) -> Path:
    """A tree of 16 GiB of memory of which 10 are free."""
    meminfo = f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {10 << 20} kB\nSwapTotal: 0 kB\n"
    proc: dict[str, str | int] = {"proc/meminfo": meminfo, "proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    return write(root, proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    root = machine(tmp_path, "", "", {})
    assert (available_bytes(root), total_bytes(root)) == (10 * GIB, 16 * GIB)
    (root / "proc/self/cgroup").unlink()
    (root / "proc/self/mountinfo").unlink()
    assert available_bytes(root) == 10 * GIB


def test_version_2_at_every_level(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "memory.stat": "",  # the uppermost group has no limit and no such files
        "a/memory.max": 8 * GIB,
        "a/memory.current": 7 * GIB,
        "a/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 5\n",
        "a/b/memory.max": "max\n",
        "a/b/memory.current": 5 * GIB,
        "a/b/c/memory.max": 6 * GIB,
        "a/b/c/memory.current": 2 * GIB,
    }
    root = machine(tmp_path, "0::/a/b/c\n", MOUNT_V2, files)
    assert total_bytes(root) == 6 * GIB
    assert available_bytes(root) == 3 * GIB  # two levels up: 8 less 7, of which 2 are files
    write(root, {"sys/fs/cgroup/a/b/memory.high": 5 * GIB + 4096})
    assert available_bytes(root) == 4096
    write(root, {"sys/fs/cgroup/a/b/c/memory.current": 7 * GIB})
    assert available_bytes(root) == 0


def test_version_1_at_every_level_and_above_what_a_container_sees(tmp_path: Path) -> None:
    files: dict[str, str | int] = {
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/memory.usage_in_bytes": 5 * GIB,
        "memory/job/memory.limit_in_bytes": 4 * GIB,
        "memory/job/memory.usage_in_bytes": 3 * GIB,
        "memory/job/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\nhierarchical_memory_limit {4 * GIB}\n",
        "memory/job/step/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/job/step/memory.usage_in_bytes": GIB,
    }
    root = machine(tmp_path, "9:name=systemd:/\n4:memory:/job/step\n0::/\n", MOUNT_V1, files)
    assert (available_bytes(root), total_bytes(root)) == (2 * GIB, 4 * GIB)
    write(root, {"sys/fs/cgroup/memory/job/step/memory.stat": f"hierarchical_memory_limit {2 * GIB}\n"})
    assert (available_bytes(root), total_bytes(root)) == (GIB, 2 * GIB)


def test_a_container_reads_its_path_of_outside(tmp_path: Path) -> None:
    """Version 1 without a namespace: /proc/self/cgroup names /docker/x, which is what is mounted."""
    mount = "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
    files: dict[str, str | int] = {"memory/memory.limit_in_bytes": GIB, "memory/memory.usage_in_bytes": 1}
    root = machine(tmp_path, "4:cpu,memory:/docker/x\n", mount, files)
    assert available_bytes(root) == GIB - 1
    (root / "proc/self/cgroup").write_text("4:memory:/../../elsewhere\n")  # a group outside of our namespace
    assert available_bytes(root) == GIB - 1


def test_a_group_that_may_not_be_looked_at_limits_nothing() -> None:
    with public_directory() as directory:
        files: dict[str, str | int] = {"job/step/memory.max": GIB, "job/step/memory.current": 0}
        machine(directory, "0::/job/step\n", MOUNT_V2, files)
        assert available_bytes(directory) == GIB
        (directory / "sys/fs/cgroup").chmod(0o700)
        groups = ServerGroups(directory)
        said = as_nobody(lambda: (available_bytes(directory) // GIB, groups.add(1), groups.oom_kills()))
    assert said == "(10, None, 0)"


def test_hybrid_mounts_and_names_with_blanks(tmp_path: Path) -> None:
    mounts = f"{MOUNT_V1}\n41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\nnonsense\n"
    files: dict[str, str | int] = {
        "memory/memory.limit_in_bytes": GIB,
        "memory/memory.usage_in_bytes": "not a number\n",
        "uni fied/memory.max": 5,
    }
    root = machine(tmp_path, "4:memory:/\n0::/\n", mounts, files)
    assert available_bytes(root) == GIB  # the controller is version 1's
    pids, by_v1 = membership("pids", root), membership("memory", root)
    assert pids is not None and (pids.version, pids.own.name) == (2, "uni fied")
    assert by_v1 is not None and by_v1.version == 1


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("proc/vmstat", "pgfault 1\noom_kill 3\nx 1\n", "pgfault 1\noom_kill 5\nx 1\n"),
        ("sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 0\n", "under_oom 0\noom_kill 2\n"),
    ],
)
def test_each_kill_explain_kill_end(tmp_path: Path, file: str, before: str, after: str) -> None:
    root = write(machine(tmp_path, "4:memory:/\n", MOUNT_V1, {}), {file: before})
    (root / "sys/fs/cgroup/memory").mkdir(parents=True, exist_ok=True)
    counter = OOMKillCounter(root)
    assert not counter.explain_kill()
    write(root, {file: after})
    assert [counter.explain_kill() for _ in range(3)] == [True, True, False]


def test_a_kill_that_two_files_count_explain_kill_end(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/a\n", MOUNT_V2, {"a/memory.events": "oom 1\noom_kill 0\n"})
    counter = OOMKillCounter(write(root, {"proc/vmstat": "x 1\noom_kill 7\n"}))
    write(root, {"proc/vmstat": "x 1\noom_kill 8\n", "sys/fs/cgroup/a/memory.events": "oom 2\noom_kill 1\n"})
    assert [counter.explain_kill() for _ in range(2)] == [True, False]


# --- groups for the servers


def test_a_delegated_group_of_version_2(tmp_path: Path) -> None:
    pid = os.getpid()
    stat = f"{pid} (a) b) S " + " ".join(str(n) for n in range(4, 30))
    leftover, live = "sys/fs/cgroup/user/metaagentx-999-1", f"sys/fs/cgroup/user/metaagentx-{pid}-22"
    files: dict[str, str | int] = {
        "user/cgroup.controllers": "cpu memory pids\n",
        "user/cgroup.subtree_control": "",
        "user/memory.current": 1,
    }
    root = machine(tmp_path, "0::/user\n", MOUNT_V2, files)
    write(root, {f"proc/{pid}/stat": stat, "proc/sys/kernel/pid_max": 4096})
    (root / leftover / "server-3").mkdir(parents=True)
    (root / "sys/fs/cgroup/user/metaagentx-of-somebody").mkdir()
    groups = ServerGroups(root)
    assert groups.describe().startswith("none")
    assert groups.add(1234) == 1 and groups.add(1235) == 2
    assert groups.describe() == "memory (v2), pids (v2)"
    host = root / live
    assert (root / "sys/fs/cgroup/user/cgroup.subtree_control").read_text() == "+memory +pids"
    assert (host / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (host / "pids.max").read_text() == "2048"
    assert [(host / f"server-{n}/cgroup.procs").read_text() for n in (1, 2)] == ["1234", "1235"]
    write(root, {f"{live}/memory.current": 5 * GIB})
    groups.limit_memory(GIB)
    assert (host / "memory.max").read_text() == str(6 * GIB)
    write(root, {f"{live}/server-2/memory.events": "oom_kill 2\n"})
    assert groups.oom_kills() == 2
    groups.remove(2, 0)
    assert groups.oom_kills() == 2  # what a group counted stays counted when it is gone
    assert not (root / leftover).exists() and (root / "sys/fs/cgroup/user/metaagentx-of-somebody").exists()


def test_a_machine_that_offers_no_group(tmp_path: Path) -> None:
    assert ServerGroups(machine(tmp_path / "bare", "", "", {})).add(1) is None
    files: dict[str, str | int] = {"cgroup.controllers": "cpu io\n", "cgroup.procs": "1\n"}
    without = ServerGroups(machine(tmp_path / "without", "0::/\n", MOUNT_V2, files))
    assert without.add(1) is None and without.describe() == "none: no memory or pids controller here"
    with public_directory() as directory:
        files = {"cgroup.controllers": "memory\n", "cgroup.subtree_control": "memory\n"}
        machine(directory, "0::/\n", MOUNT_V2, files)
        groups = ServerGroups(directory)
        said = as_nobody(lambda: (groups.add(1), groups.describe()))
    assert said == "(None, 'none: no group was delegated to this user')"


def in_groups(runner: asyncio.Runner) -> bool:
    async def start() -> str:
        async with Sandbox(servers=1, warm=0, max_runs=8):
            return server_groups().describe()

    return not runner.run(start()).startswith("none")


def our_groups(pid: int) -> list[Path]:
    places = [membership(name) for name in CONTROLLERS]
    return [path for place in places if place for path in place.own.rglob(f"metaagentx-{pid}-*")]


@pytest.mark.parametrize("tier", [Tier.T1, Tier.T2, Tier.T3])
def test_memory_of_all_runs_is_limited_and_the_server_survives(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    if not in_groups(runner):
        pytest.skip("this machine offers no control group")
    monkeypatch.setattr(memory, "run_headroom_bytes", lambda available, reserve: 24 << 20)

    async def overflow() -> tuple[Result, Result, bool]:
        async with Sandbox(tier=tier, servers=1, warm=0, max_runs=8) as sandbox:
            (server,) = sandbox._servers
            await sandbox.run("pass")
            code = "kept = [bytearray(b'x') * (1 << 20) for _ in range(300)]"
            killed = await sandbox.run(code, limits=Limits(memory_bytes=1 << 30))
            return killed, await sandbox.run("import door; door.answer(1)"), server.alive

    killed, after, alive = runner.run(overflow())
    assert (killed.verdict, after.answer, alive) == (Verdict.INFRA, 1, True), killed


_HOST = """
import asyncio, sys
from metaagentx.sandbox import Sandbox
async def main():
    async with Sandbox(servers=2, warm=1, max_runs=8) as sandbox:
        await sandbox.run("pass")
        print("ready", flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


@contextlib.contextmanager
def host_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _HOST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        yield host


def test_groups_go_with_their_host_or_with_the_next(runner: asyncio.Runner) -> None:
    if not in_groups(runner):
        pytest.skip("this machine offers no control group")
    with host_process() as killed:
        assert our_groups(killed.pid)
        killed.kill()
    assert our_groups(killed.pid)
    time.sleep(0.5)  # its servers are gone by then
    with host_process() as closed:
        assert our_groups(closed.pid) and not our_groups(killed.pid)
    assert not our_groups(closed.pid)  # whose input ended
