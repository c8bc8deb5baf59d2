"""Control groups, versions 1 and 2: where this process is in them, and groups of its own for the fork servers.

Where the machine lets us (root, or a group that was delegated to us), the servers of this process run in a group with a
limit on the memory and on the number of tasks of all their runs together: `metaagentx-<pid>-<start>` below our own
group, so that whatever limits us still limits them, and `server-<n>` below that for each server. Elsewhere nothing
happens and `describe` says why. Groups of hosts that were killed are empty; the next host removes them.

Every function takes the root of the file system, so that a test can give it a made-up one.
"""

import contextlib
import errno
import itertools
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids")
_ROOT = Path("/")
_OURS = re.compile(r"metaagentx-(\d+)-(\d+)")
_HOST_LEAF = "metaagentx-host"
_MAX_TASKS = 32768
_REMOVE_SECONDS = 0.5


@dataclass(frozen=True)
class Membership:
    """Our own group in the hierarchy of one controller."""

    version: int
    own: Path
    mount: Path
    """The uppermost group that can be seen."""

    def levels(self) -> list[Path]:
        """Our own group and all above it."""
        return [self.own, *(path for path in self.own.parents if path.is_relative_to(self.mount))]


def read_number(path: Path) -> int | None:
    """The number in a file; None where there is no such file or no limit ("max")."""
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None


def read_field(path: Path, name: str) -> int | None:
    """The number behind a name in a file with a name and a number in each line."""
    for line in read_text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def read_text(path: Path) -> str:
    """What is in a file, nothing where it cannot be read."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


def membership(controller: str, root: Path = _ROOT) -> Membership | None:
    """Our group for a controller, by version 1 where that has it; None where neither is mounted."""
    groups = [line.split(":", 2) for line in read_text(root / "proc/self/cgroup").splitlines() if line.count(":") > 1]
    mounts = _mounts(root)
    for _, controllers, path in groups:
        if controller in controllers.split(","):
            for kind, options, top, point in mounts:
                if kind == "cgroup" and controller in options:
                    return _locate(1, path, top, root / point)
    for _, controllers, path in groups:
        if not controllers:
            for kind, _, top, point in mounts:
                if kind == "cgroup2":
                    return _locate(2, path, top, root / point)
    return None


def _locate(version: int, path: str, top: str, mount: Path) -> Membership:
    """A container sees its own group at the mount, and may still read the path that it has outside."""
    if top != "/" and (path == top or path.startswith(top + "/")):
        path = path[len(top) :]
    own = mount / path.lstrip("/")
    return Membership(version, own if ".." not in own.parts and _is_directory(own) else mount, mount)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # not ours to look at


def _mounts(root: Path) -> list[tuple[str, list[str], str, str]]:
    """Every mount as kind, options, the directory that is mounted, and where. See proc_pid_mountinfo(5)."""
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(), after.split()
        if len(fields) >= 5 and len(more) >= 3:
            mounts.append((more[0], more[2].split(","), _unescape(fields[3]), _unescape(fields[4]).lstrip("/")))
    return mounts


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def oom_kills(group: Path) -> int | None:
    """How many processes the kernel has killed in this group for want of memory: version 2, then version 1."""
    count = read_field(group / "memory.events", "oom_kill")
    return read_field(group / "memory.oom_control", "oom_kill") if count is None else count


class ServerGroups:
    """The groups of all fork servers of this process. Used from several threads."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._hosts: dict[Path, tuple[int, list[str]]] | None = None  # directory: (version, its controllers)
        self._servers: dict[int, list[Path]] = {}
        self._kills_before = 0
        self._why_not = ""

    def add(self, pid: int) -> int | None:
        """Put a server that has no children yet into a group of its own; its number, None where there can be none."""
        with self._lock:
            if self._hosts is None:
                self._hosts = self._make_hosts()
            if not self._hosts:
                return None
            number = next(self._numbers)
            directories = [directory / f"server-{number}" for directory in self._hosts]
            for directory in directories:
                with contextlib.suppress(OSError):  # the next line but one meets it again
                    directory.mkdir()
            self._servers[number] = directories
        try:
            for directory in directories:
                # Takes the kernel some 15 ms, in which nobody must have to wait for the lock.
                (directory / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self._why_not = _explain(error)
            self.remove(number, 0)
            return None
        return number

    def remove(self, number: int, seconds: float = _REMOVE_SECONDS) -> None:
        """Remove the group of a server that has ended; with the last one, that of the host."""
        directories = self._servers[number]
        kills = sum(oom_kills(directory) or 0 for directory in directories)
        # Processes that are being torn down keep their group a moment longer. If too long, the next host removes it.
        left, deadline = directories, time.monotonic() + seconds
        while (left := [directory for directory in left if not _rmdir(directory)]) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            self._kills_before += kills
            del self._servers[number]
            if not self._servers and self._hosts:
                for directory in self._hosts:
                    _rmdir(directory)
                self._hosts = None

    def limit_memory(self, headroom: int) -> None:
        """Let all servers together use this much more than they use now."""
        with self._lock:
            hosts = dict(self._hosts or {})
        for directory, (version, controllers) in hosts.items():
            if "memory" in controllers:
                usage, limit = _MEMORY_FILES[version]
                with contextlib.suppress(OSError):  # the group is gone with its last server
                    (directory / limit).write_text(str((read_number(directory / usage) or 0) + headroom))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed in them so far for want of memory."""
        with self._lock:
            directories = [directory for group in self._servers.values() for directory in group]
            return self._kills_before + sum(oom_kills(directory) or 0 for directory in directories)

    def describe(self) -> str:
        """What is limited, or why nothing is."""
        controllers = [f"{name} (v{version})" for version, names in (self._hosts or {}).values() for name in names]
        return ", ".join(controllers) or f"none: {self._why_not or 'no fork server has been started'}"

    def _make_hosts(self) -> dict[Path, tuple[int, list[str]]]:
        bases: dict[Path, tuple[int, list[str]]] = {}
        for controller in CONTROLLERS:
            found = membership(controller, self._root)
            if found is not None:
                bases.setdefault(found.own, (found.version, []))[1].append(controller)
        hosts = {}
        self._why_not = "no memory or pids controller here"
        for base, (version, controllers) in bases.items():
            try:
                if version == 2:
                    base, controllers = _delegate(base, controllers, self._root)
                if controllers:
                    hosts[self._make_host(base, version, controllers)] = version, controllers
            except OSError as error:
                self._why_not = _explain(error)
        return hosts

    def _make_host(self, base: Path, version: int, controllers: list[str]) -> Path:
        _remove_leftovers(base, self._root)
        host = base / f"metaagentx-{os.getpid()}-{_start_time(os.getpid(), self._root)}"
        host.mkdir(exist_ok=True)
        try:
            if version == 2:
                (host / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
            elif "memory" in controllers:
                # Inherited from a group that wants its processes stopped instead of killed: runs would hang.
                (host / "memory.oom_control").write_text("0")
            if "pids" in controllers:
                tasks = read_number(self._root / "proc/sys/kernel/pid_max") or _MAX_TASKS
                (host / "pids.max").write_text(str(min(tasks // 2, _MAX_TASKS)))
        except OSError:
            _rmdir(host)
            raise
        return host


_MEMORY_FILES = {1: ("memory.usage_in_bytes", "memory.limit_in_bytes"), 2: ("memory.current", "memory.max")}


def _delegate(own: Path, controllers: list[str], root: Path) -> tuple[Path, list[str]]:
    """In version 2, have a group hand the controllers that it has to groups below it, and the group that does.

    A group with processes in it may not, except for the uppermost. Where all of them are we and what we have started,
    they go into a group below, as systemd wants it of those to whom it delegates.
    """
    base = own.parent if own.name == _HOST_LEAF else own
    has = read_text(base / "cgroup.controllers").split()
    controllers = [name for name in controllers if name in has]
    control = base / "cgroup.subtree_control"
    missing = [f"+{name}" for name in controllers if name not in read_text(control).split()]
    if not missing:
        return base, controllers
    try:
        control.write_text(" ".join(missing))
    except OSError as error:
        pids = _processes(base)
        if error.errno != errno.EBUSY or not all(_is_ours(pid, root) for pid in pids):
            raise
        leaf = base / _HOST_LEAF
        leaf.mkdir(exist_ok=True)
        try:
            for pid in pids:
                _move(pid, leaf)
            control.write_text(" ".join(missing))
        except OSError:
            for pid in _processes(leaf):
                _move(pid, base)
            _rmdir(leaf)
            raise
    return base, controllers


def _processes(group: Path) -> list[int]:
    return [int(pid) for pid in read_text(group / "cgroup.procs").split()]


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        (group / "cgroup.procs").write_text(str(pid))


def _is_ours(pid: int, root: Path) -> bool:
    """Whether a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        fields = read_text(root / f"proc/{pid}/stat").rpartition(") ")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else os.getpid()  # one that has ended is nobody else's
    return pid == os.getpid()


def _remove_leftovers(base: Path, root: Path) -> None:
    """Remove the groups of hosts that are gone. The kernel refuses where a process is left, so no live one can go."""
    for directory in base.glob("metaagentx-*"):
        named = _OURS.fullmatch(directory.name)
        if named is not None and _start_time(int(named[1]), root) != named[2]:
            for server in directory.glob("server-*"):
                _rmdir(server)
            _rmdir(directory)


def _rmdir(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _start_time(pid: int, root: Path) -> str:
    """When a process started, in ticks since boot: with its id it names it for good. Empty where there is none."""
    fields = read_text(root / f"proc/{pid}/stat").rpartition(") ")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _explain(error: OSError) -> str:
    reasons = {
        errno.EROFS: "control groups are read-only here",
        errno.ENOENT: "control groups cannot be seen here",
        errno.EACCES: "no group was delegated to this user",
        errno.EPERM: "no group was delegated to this user",
        errno.EBUSY: "this process shares its group with others",
    }
    return reasons.get(error.errno or 0, str(error))


_of_process: dict[int, ServerGroups] = {}


def server_groups() -> ServerGroups:
    """Those of this process; a fork of it has its own."""
    return _of_process.setdefault(os.getpid(), ServerGroups())
