"""The host's handle of one fork server: start it, have it create and kill children, receive how they ended.

The protocol is documented in `inside.server`. It begins with a handshake: the server sends one packet, to which the
kernel adds the server's process id as seen by the host. The host replies with the configuration and, if it can open it,
the file with the server's OOM score. The command line carries only the number of the socket, because a run could read
it in its own memory.
"""

import asyncio
import json
import os
import resource
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .cgroups import server_groups
from .clock import ProcessHandle, Scheduling, children_of, read_scheduling
from .inside.kernel import RUN_OOM_SCORE
from .jail import Launch
from .types import SandboxUnavailable

_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_CREDENTIALS = struct.Struct("=3i")
_UNKNOWN_MAPPED_BYTES = 1 << 30  # where the kernel hides other users' processes


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a child ended: its wait status, usage and output; or why it failed to start."""

    status: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    failure: str = ""
    """Set when the infrastructure failed: no child could be created, or its server died."""


@dataclass(slots=True, eq=False)
class Child:
    """A locked-down process that waits for its first message."""

    number: int
    server: "ForkServer"
    read_fd: int
    write_fd: int
    ended: "asyncio.Future[ExitInfo]"
    keep_bytes: int = 0
    """How much of its output to keep; set when it receives its code."""
    on_reading: Callable[[float], None] | None = None
    """Called with the CPU time that it has used, after `watch`."""
    process: ProcessHandle | None = None
    """Known from the first `watch` on, where the kernel offers pidfds."""
    closed: bool = False

    def limit_cpu(self, seconds: int) -> None:
        """Have the kernel kill it at this much CPU time."""
        if not self.ended.done():
            self.server.request({"do": "limit", "id": self.number, "cpu": seconds})

    def watch(self, on_reading: Callable[[float], None]) -> None:
        """Request a reading of the CPU time that it has used."""
        self.on_reading = on_reading
        self.server.request({"do": "watch", "id": self.number})

    def scheduling(self) -> Scheduling | None:
        """Return its current scheduling state; None where that is unknown."""
        return self.process.scheduling() if self.process else None

    def lower_priority(self) -> None:
        """Lower its priority permanently."""
        if self.process is not None:
            self.process.lower_priority()

    def finish(self) -> None:
        """Request its output now, because it reported its end, without waiting for its teardown."""
        self.server.request({"do": "finish", "id": self.number})

    def kill(self) -> None:
        """Have it killed; `ended` is set when it is gone."""
        self.server.request({"do": "kill", "id": self.number})

    def close(self) -> None:
        """Close the pipes."""
        for fd in (self.read_fd, self.write_fd):
            os.close(fd)
        if self.process is not None:
            self.process.close()
        self.closed = True


class ForkServer:
    """One fork server process. Belongs to one event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._children: dict[int, Child] = {}
        self._outbox: deque[tuple[bytes, Sequence[int]]] = deque()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[bool] = self._loop.create_future()
        self._pid: int | None = None
        self._times_seen_stopped = 0
        self._has_writer = False
        self._group: int | None = None
        self.alive = False
        self.heard = 0.0
        """When its last message came, by the clock of the event loop."""

    @property
    def load(self) -> int:
        """Return how many children it has."""
        return len(self._children)

    @property
    def process_ids(self) -> list[int]:
        """Return the ids of the server and of its children; nothing where the kernel hides them."""
        return [] if self._pid is None else [self._pid, *children_of(self._pid)]

    @property
    def mapped_bytes(self) -> int:
        """Return the size of its address space, which is also that of each new child."""
        try:
            return int(Path(f"/proc/{self._pid}/statm").read_text().split()[0]) * resource.getpagesize()
        except OSError:
            return _UNKNOWN_MAPPED_BYTES

    async def start(self) -> None:
        """Start the process and wait until it serves; raise SandboxUnavailable with its error message otherwise."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # to receive the server's process id as seen here
        self._control = ours
        # An empty environment: bubblewrap would expose ours to the jail through /proc/1/environ.
        with theirs:
            self._process = subprocess.Popen(
                self._launch.command(theirs.fileno()),
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        handshake = asyncio.ensure_future(self._shake_hands(ours))
        seconds = self._launch.start_seconds
        deadline = time.monotonic() + seconds
        try:
            while not handshake.done():
                await asyncio.wait([handshake], timeout=_LOOK_SECONDS)
                if not handshake.done() and _any_stopped(self._process.pid):
                    raise SandboxUnavailable("the fork server was stopped from outside while it started")
                if not handshake.done() and time.monotonic() > deadline:
                    raise SandboxUnavailable(f"the fork server did not start within {seconds:.0f} s")
            if not handshake.result():
                raise SandboxUnavailable(f"the fork server did not start: {self._exit_error()}")
        except BaseException:
            handshake.cancel()
            await asyncio.shield(self.close())
            raise

    async def _shake_hands(self, control: socket.socket) -> bool:
        """Send the configuration and wait until the server serves; return False when it died instead."""
        readable = asyncio.Event()
        self._loop.add_reader(control, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(control)
        with suppress(OSError):  # it died meanwhile, as the next read shows
            self._pid = _send_config(control, self._launch)
        self._loop.add_reader(control, self._read)
        if self._pid is not None:  # while it warms up: it creates no child before it is asked for one
            self._group = await asyncio.to_thread(server_groups().add, self._pid)
        await asyncio.wait([self._hello])
        return self._hello.result()

    def kill_if_stopped(self) -> None:
        """Kill a server that was stopped from outside: its children could be neither watched nor ended.

        Called about twice a second. It must be seen stopped twice in a row, because a debugger stops it briefly.
        """
        scheduling = read_scheduling(self._pid) if self.alive and self._pid is not None else None
        self._times_seen_stopped = self._times_seen_stopped + 1 if scheduling and scheduling.stopped else 0
        if self._times_seen_stopped >= 2 and self._process is not None:
            self._process.kill()  # the jail and everything in it ends with it
            self._mark_dead()

    def spawn(self, number: int) -> Child:
        """Have a child created; messages can be written to it at once."""
        host_read, child_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        child_read, host_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for fd in (host_read, host_write):
            os.fchmod(fd, 0)  # or a run that sees /proc (T2) could open the host's end there and take back what it sent
        os.set_blocking(child_write, True)
        os.set_blocking(child_read, True)
        child = Child(number, self, host_read, host_write, self._loop.create_future())
        if self.alive:
            self._children[number] = child
        else:
            child.ended.set_result(ExitInfo(failure="the fork server died"))
        self.request({"spawn": number}, [child_read, child_write])
        return child

    def request(self, message: dict[str, int | str], fds: Sequence[int] = ()) -> None:
        """Send a request; the descriptors are closed here once they are sent. A dead server ignores requests."""
        if self.alive:
            self._outbox.append((json.dumps(message).encode(), fds))
            self._flush()
        else:
            _close_all(fds)

    def _flush(self) -> None:
        assert self._control is not None
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                _send(self._control, data, fds)
            except BlockingIOError:
                self._has_writer = True
                self._loop.add_writer(self._control, self._flush)
                return
            except OSError:
                self._mark_dead()
                return
            self._outbox.popleft()
            _close_all(fds)
        if self._has_writer:  # asyncio takes long to find out that there is nothing to remove
            self._has_writer = False
            self._loop.remove_writer(self._control)

    def _read(self) -> None:
        assert self._control is not None
        for _ in range(64):  # then yield to the event loop
            try:
                data, fds, _, _ = socket.recv_fds(self._control, 4096, 2)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._mark_dead()
                return
            self.heard = self._loop.time()
            self._handle(json.loads(data), fds)

    def _handle(self, message: dict[str, int | float | str], fds: list[int]) -> None:
        if "hello" in message:
            self.alive = True
            self._hello.set_result(True)
            return
        if "used" in message:
            self._handle_reading(self._children.get(int(message["used"])), float(message["cpu"]), fds)
            return
        failed = "failed" in message
        child = self._children.pop(int(message["failed" if failed else "exit"]))
        if failed:
            info = ExitInfo(failure=f"no child could be created: {message['why']}")
        elif len(fds) != 2:  # the kernel drops them when the host has no free descriptor
            _close_all(fds)
            info = ExitInfo(failure="its output was lost: the host is out of file descriptors")
        else:
            stdout, stderr = (os.pread(fd, child.keep_bytes, 0) for fd in fds)
            _close_all(fds)
            info = ExitInfo(int(message["status"]), float(message["cpu"]), int(message["memory"]), stdout, stderr)
        if not child.ended.done():
            child.ended.set_result(info)

    def _handle_reading(self, child: Child | None, cpu_seconds: float, fds: list[int]) -> None:
        for fd in fds:
            if child is not None and child.process is None and not child.closed:
                child.process = ProcessHandle(fd)
            else:
                os.close(fd)
        if child is not None and child.on_reading is not None:
            child.on_reading(cpu_seconds)

    def _mark_dead(self) -> None:
        """Report all children as ended, through no fault of their code: the server is gone, and they with it."""
        self.alive = False
        if self._control is not None and self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
        for _, fds in self._outbox:
            _close_all(fds)
        self._outbox.clear()
        if not self._hello.done():
            self._hello.set_result(False)
        for child in self._children.values():
            if not child.ended.done():
                child.ended.set_result(ExitInfo(failure="the fork server died"))
        self._children.clear()

    def _exit_error(self) -> str:
        """Return the last line of its standard error as far as it can be read without blocking, or its exit code."""
        assert self._process is not None and self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        text = (self._process.stderr.read(4096) or b"").decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else f"exit code {self._process.poll()}"

    async def close(self) -> None:
        """End the server and all of its children, and wait until they are gone."""
        served = self.alive
        self._mark_dead()
        if self._control is not None:
            self._control.close()
        process = self._process
        if process is None:
            return
        # The closed socket tells it to exit, so that the jail can clean up; it is killed where that does not work.
        now = time.monotonic()
        look, force, give_up = now + _LOOK_SECONDS, now + (_STOP_SECONDS if served else 0.0), now + 2 * _STOP_SECONDS
        while process.poll() is None and (now := time.monotonic()) < give_up:
            if now > force or (now > look and _any_stopped(process.pid)):
                process.kill()
            await asyncio.sleep(0.002 if now < look else 0.02)
        if process.stderr is not None:
            process.stderr.close()
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(server_groups().remove, group)


def _send_config(control: socket.socket, launch: Launch) -> int | None:
    """Receive the server's first packet, send its configuration, and return its process id; None when it died before.

    `control` does not block and has had SO_PASSCRED set since before the server was started. One packet is large enough
    for the configuration, which is about 20 kB where the most files are readable.
    """
    packet, ancillary, _, _ = control.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    pids: list[int] = [
        _CREDENTIALS.unpack(data)[0]
        for level, kind, data in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
    ]
    if not packet or not pids:
        return None
    fds, score = _open_oom_score(pids[0])
    try:
        _send(control, json.dumps(launch.config | {"oom_score": score}).encode(), fds)
    finally:
        _close_all(fds)
    return pids[0]


def _open_oom_score(pid: int) -> tuple[list[int], int]:
    """Return the server's oom_score_adj, opened for writing, and its value, which the server restores after each fork.

    No descriptor where the file is hidden from us, is not ours because bubblewrap is setuid, or is at its maximum.
    """
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return [], 0
    score = int(os.read(fd, 16))
    if score < RUN_OOM_SCORE:
        return [fd], score
    os.close(fd)
    return [], 0


def _send(control: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    if fds:
        socket.send_fds(control, [data], fds)
    else:
        control.send(data)


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _any_stopped(pid: int) -> bool:
    """Return whether this process or one of its descendants was stopped by a signal."""
    scheduling = read_scheduling(pid)
    return (scheduling is not None and scheduling.stopped) or any(map(_any_stopped, children_of(pid)))
