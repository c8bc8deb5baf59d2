"""Control groups (cgroups), versions 1 and 2: where this process is in them, and groups for its fork servers.

Where the machine permits it (root, or a group that was delegated to this user), the fork servers of this process run in
a group that limits the memory and the number of tasks of all their runs together: `metaagentx-<pid>-<start>` below the
group of this process, so that the limits of this process still apply, and `server-<n>` below that for each server.
Elsewhere nothing happens and `describe` says why. The groups of hosts that were killed are empty; the next host removes
them.

Every function takes the root of the file system, so that a test can pass a fake one.
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
_HOST_GROUP = re.compile(r"metaagentx-(\d+)-(\d+)")
_HOST_LEAF = "metaagentx-host"
_MAX_TASKS = 32768
_REMOVE_SECONDS = 0.5
_MEMORY_FILES = {1: ("memory.usage_in_bytes", "memory.limit_in_bytes"), 2: ("memory.current", "memory.max")}
_REASONS = {
    errno.EROFS: "control groups are read-only here",
    errno.ENOENT: "control groups cannot be seen here",
    errno.EACCES: "no group was delegated to this user",
    errno.EPERM: "no group was delegated to this user",
    errno.EBUSY: "this process shares its group with others",
}


@dataclass(frozen=True)
class Membership:
    """The group of this process in the hierarchy of one controller."""

    version: int
    own: Path
    mount: Path
    """The topmost group that is visible."""

    def levels(self) -> list[Path]:
        """Return the group of this process and all groups above it."""
        return [self.own, *(path for path in self.own.parents if path.is_relative_to(self.mount))]


def read_number(path: Path) -> int | None:
    """Return the number in a file; None without such a file or a limit ("max")."""
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None


def read_field(path: Path, name: str) -> int | None:
    """Return the number behind a name in a file of lines with a name and a number."""
    for line in read_text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def read_text(path: Path) -> str:
    """Return the content of a file, empty where it cannot be read."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


def membership(controller: str, root: Path = _ROOT) -> Membership | None:
    """Return our group for a controller, in version 1 if that has it; None where neither version is mounted."""
    groups = [line.split(":", 2) for line in read_text(root / "proc/self/cgroup").splitlines() if line.count(":") > 1]
    mounts = _mounts(root)
    for version, kind, name in ((1, "cgroup", controller), (2, "cgroup2", "")):
        for _, controllers, path in groups:
            for mount_kind, options, top, point in mounts:
                if name in controllers.split(",") and mount_kind == kind and (not name or name in options):
                    return _locate(version, path, top, root / point)
    return None


def _locate(version: int, path: str, top: str, mount: Path) -> Membership:
    """Find our group below a mount: a container sees its group at the mount but may read the path it has outside."""
    if top != "/" and (path == top or path.startswith(top + "/")):
        path = path[len(top) :]
    own = mount / path.lstrip("/")
    return Membership(version, own if ".." not in own.parts and os.access(own, os.F_OK) else mount, mount)


def _mounts(root: Path) -> list[tuple[str, list[str], str, str]]:
    """Return every mount as kind, options, mounted directory and mount point. See proc_pid_mountinfo(5)."""
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
    """Return how many processes the kernel has killed in this group because it was out of memory."""
    count = read_field(group / "memory.events", "oom_kill")  # version 2
    return read_field(group / "memory.oom_control", "oom_kill") if count is None else count


class ServerGroups:
    """The groups of all fork servers of this process. Used from several threads."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._hosts: dict[Path, tuple[int, list[str]]] | None = None  # directory: (version, its controllers)
        self._servers: dict[int, list[Path]] = {}
        self._earlier_kills = 0
        self._unavailable_reason = ""

    def add(self, pid: int) -> int | None:
        """Put a server without children into a group of its own and return its number; None where that fails."""
        with self._lock:
            if self._hosts is None:
                self._hosts = self._create_hosts()
            if not self._hosts:
                return None
            number = next(self._numbers)
            directories = [directory / f"server-{number}" for directory in self._hosts]
            for directory in directories:
                with contextlib.suppress(OSError):  # the write below fails, too
                    directory.mkdir()
            self._servers[number] = directories
        try:
            for directory in directories:
                # Takes the kernel about 15 ms, during which nobody should wait for the lock.
                (directory / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self._unavailable_reason = _explain(error)
            self.remove(number, 0)
            return None
        return number

    def remove(self, number: int, seconds: float = _REMOVE_SECONDS) -> None:
        """Remove the group of a server that has ended; with the last one, that of the host."""
        directories = self._servers[number]
        kills = sum(oom_kills(directory) or 0 for directory in directories)
        # Exiting processes keep their group for a moment. If that takes too long, the next host removes the group.
        left, deadline = directories, time.monotonic() + seconds
        while (left := [directory for directory in left if not _rmdir(directory)]) and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            self._earlier_kills += kills
            del self._servers[number]
            if not self._servers and self._hosts:
                for directory in self._hosts:
                    _rmdir(directory)
                self._hosts = None

    def limit_memory(self, headroom: int) -> None:
        """Limit all servers together to what they use now plus this much."""
        with self._lock:
            hosts = dict(self._hosts or {})
        for directory, (version, controllers) in hosts.items():
            if "memory" in controllers:
                usage, limit = _MEMORY_FILES[version]
                with contextlib.suppress(OSError):  # the group was removed with its last server
                    (directory / limit).write_text(str((read_number(directory / usage) or 0) + headroom))

    def oom_kills(self) -> int:
        """Return how many processes the kernel has killed in these groups because they were out of memory."""
        with self._lock:
            directories = [directory for group in self._servers.values() for directory in group]
            return self._earlier_kills + sum(oom_kills(directory) or 0 for directory in directories)

    def describe(self) -> str:
        """Return what is limited, or why nothing is."""
        controllers = [f"{name} (v{version})" for version, names in (self._hosts or {}).values() for name in names]
        return ", ".join(controllers) or f"none: {self._unavailable_reason or 'no fork server has been started'}"

    def _create_hosts(self) -> dict[Path, tuple[int, list[str]]]:
        bases: dict[Path, tuple[int, list[str]]] = {}
        for controller in CONTROLLERS:
            member = membership(controller, self._root)
            if member is not None:
                bases.setdefault(member.own, (member.version, []))[1].append(controller)
        hosts = {}
        self._unavailable_reason = "no memory or pids controller here"
        for base, (version, controllers) in bases.items():
            try:
                if version == 2:
                    base, controllers = _delegate(base, controllers, self._root)
                if controllers:
                    hosts[self._create_host(base, version, controllers)] = version, controllers
            except OSError as error:
                self._unavailable_reason = _explain(error)
        return hosts

    def _create_host(self, base: Path, version: int, controllers: list[str]) -> Path:
        _remove_leftovers(base, self._root)
        host = base / f"metaagentx-{os.getpid()}-{_start_time(os.getpid(), self._root)}"
        host.mkdir(exist_ok=True)
        try:
            if version == 2:
                (host / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
            elif "memory" in controllers:
                # May be inherited from a group whose processes are to be paused instead of killed: runs would hang.
                (host / "memory.oom_control").write_text("0")
            if "pids" in controllers:
                tasks = read_number(self._root / "proc/sys/kernel/pid_max") or _MAX_TASKS
                (host / "pids.max").write_text(str(min(tasks // 2, _MAX_TASKS)))
        except OSError:
            _rmdir(host)
            raise
        return host


def _delegate(own: Path, controllers: list[str], root: Path) -> tuple[Path, list[str]]:
    """Enable controllers for the groups below ours (version 2); return the group that does so and its controllers.

    A group with processes in it may not do this, except for the topmost. If all of them are this process and its
    descendants, they are moved into a group below, as systemd requires of those to whom it delegates.
    """
    base = own.parent if own.name == _HOST_LEAF else own
    available = read_text(base / "cgroup.controllers").split()
    controllers = [name for name in controllers if name in available]
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
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        (group / "cgroup.procs").write_text(str(pid))


def _is_ours(pid: int, root: Path) -> bool:
    """Return whether a process is this one or descends from it; a process that has ended counts as ours."""
    while pid > 1 and pid != os.getpid():
        fields = _stat_fields(pid, root)
        pid = int(fields[1]) if len(fields) > 1 else os.getpid()
    return pid == os.getpid()


def _start_time(pid: int, root: Path) -> str:
    """Return when a process started, in ticks since boot: unique together with its id. Empty where there is none."""
    fields = _stat_fields(pid, root)
    return fields[19] if len(fields) > 19 else ""


def _stat_fields(pid: int, root: Path) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on."""
    return read_text(root / f"proc/{pid}/stat").rpartition(") ")[2].split()


def _remove_leftovers(base: Path, root: Path) -> None:
    """Remove the groups of hosts that are gone. The kernel refuses this for a group with a process in it."""
    for directory in base.glob("metaagentx-*"):
        match = _HOST_GROUP.fullmatch(directory.name)
        if match is not None and _start_time(int(match[1]), root) != match[2]:
            for server in directory.glob("server-*"):
                _rmdir(server)
            _rmdir(directory)


def _rmdir(directory: Path) -> bool:
    """Remove a group if possible; return whether it is gone."""
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not os.access(directory, os.F_OK)


def _explain(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, str(error))


_of_process: dict[int, ServerGroups] = {}


def server_groups() -> ServerGroups:
    """Return the groups of this process; a fork of it has its own."""
    return _of_process.setdefault(os.getpid(), ServerGroups())
