"""The host's handle of one fork server: start it, have children made and killed, hear how they ended."""

import array
import asyncio
import json
import os
import resource
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cgroups import server_groups
from .clock import ProcessHandle, Scheduling, children_of, read_scheduling
from .introduction import introduce
from .jail import Launch
from .types import SandboxUnavailable

_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_ANCILLARY_BYTES = socket.CMSG_SPACE(8)  # two descriptors
_UNKNOWN_MAPPED_BYTES = 1 << 30  # where the kernel hides other users' processes


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its wait status and what it used, with its output; or why it never began."""

    status: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    failure: str = ""
    """Set when the machinery failed: no child, or a server that died under it."""


@dataclass(slots=True, eq=False)
class Child:
    """A process of the server's, locked down and waiting for its first frame on the door."""

    number: int
    server: "ForkServer"
    read_fd: int
    write_fd: int
    ended: "asyncio.Future[Ended]"
    keep_bytes: int = 0
    """How much of its output to keep; set when it gets its code."""
    on_watched: Callable[[float], None] | None = None
    """Hears the processor time it has used, after `watch`."""
    process: ProcessHandle | None = None
    """Known from the first `watch` on, where the kernel offers pidfds."""
    closed: bool = False

    def limit_cpu(self, seconds: int) -> None:
        """Have the kernel kill it at this much processor time."""
        if not self.ended.done():
            self.server.request({"do": "limit", "id": self.number, "cpu": seconds})

    def watch(self, on_watched: Callable[[float], None]) -> None:
        """Have the processor time it has used told."""
        self.on_watched = on_watched
        self.server.request({"do": "watch", "id": self.number})

    def scheduling(self) -> Scheduling | None:
        """What the kernel says of it now, as far as that is known."""
        return self.process.scheduling() if self.process else None

    def lower_priority(self) -> None:
        """Let others compute first, from now on."""
        if self.process is not None:
            self.process.lower_priority()

    def finish(self) -> None:
        """It says it is done: have its output handed over without waiting until it is torn down."""
        self.server.request({"do": "finish", "id": self.number})

    def kill(self) -> None:
        """Have it killed; `ended` tells when it is gone, unless it is known already."""
        self.server.request({"do": "kill", "id": self.number})

    def close(self) -> None:
        """Close the door."""
        for fd in (self.read_fd, self.write_fd):
            os.close(fd)
        if self.process is not None:
            self.process.close()
        self.closed = True


class ForkServer:
    """One server process. Belongs to one event loop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._children: dict[int, Child] = {}
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[bool] = self._loop.create_future()
        self._pid: int | None = None
        self._looks_stopped = 0
        self._group: int | None = None
        self.alive = False

    @property
    def load(self) -> int:
        """How many children it has."""
        return len(self._children)

    async def start(self) -> None:
        """Start the process and wait until it serves, or raise SandboxUnavailable with what it said."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # tells the server's process id as seen from here
        self._control = ours
        # An empty environment: bubblewrap would show ours to the jail through /proc/1/environ.
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
        greeting = asyncio.ensure_future(self._greet(ours))
        seconds = self._launch.start_seconds
        deadline = time.monotonic() + seconds
        try:
            while not greeting.done():
                await asyncio.wait([greeting], timeout=_LOOK_SECONDS)
                if not greeting.done() and _any_stopped(self._process.pid):
                    raise SandboxUnavailable("the fork server was stopped from outside while it started")
                if not greeting.done() and time.monotonic() > deadline:
                    raise SandboxUnavailable(f"the fork server did not start within {seconds:.0f} s")
            if not greeting.result():
                raise SandboxUnavailable(f"the fork server did not start: {self._last_words()}")
        except BaseException:
            greeting.cancel()
            await asyncio.shield(self.close())
            raise

    async def _greet(self, control: socket.socket) -> bool:
        """Tell the server what to do and wait until it serves; False when it died instead."""
        self._pid = await introduce(control, self._launch)
        self._loop.add_reader(control, self._read)
        if self._pid is not None:  # while it warms up: it makes no child before we ask for one
            self._group = await asyncio.to_thread(server_groups().add, self._pid)
        await asyncio.wait([self._hello])
        return self._hello.result()

    @property
    def process_ids(self) -> list[int]:
        """The server and the children that it has now, as numbered here; nothing where the kernel does not tell."""
        return [] if self._pid is None else [self._pid, *children_of(self._pid)]

    @property
    def mapped_bytes(self) -> int:
        """The address space that it has, and each child at its beginning."""
        try:
            return int(Path(f"/proc/{self._pid}/statm").read_text().split()[0]) * resource.getpagesize()
        except OSError:
            return _UNKNOWN_MAPPED_BYTES

    def replace_if_stopped(self) -> None:
        """Kill a server that something outside has stopped: its children could not be watched or ended.

        Called about twice a second; two looks in a row must agree, because a debugger's stop is a moment.
        """
        scheduling = read_scheduling(self._pid) if self.alive and self._pid is not None else None
        self._looks_stopped = self._looks_stopped + 1 if scheduling and scheduling.stopped else 0
        if self._looks_stopped >= 2 and self._process is not None:
            self._process.kill()  # the jail and everything in it goes with it
            self._lost()

    def spawn(self, number: int) -> Child:
        """Have a child made; its door is open at once, whoever writes first."""
        host_read, child_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        child_read, host_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for fd in (host_read, host_write):
            os.fchmod(fd, 0)  # or a run that sees /proc (T2) opens the host's end there and takes back what it said
        os.set_blocking(child_write, True)
        os.set_blocking(child_read, True)
        child = Child(number, self, host_read, host_write, self._loop.create_future())
        if self.alive:
            self._children[number] = child
        else:
            child.ended.set_result(Ended(failure="the fork server died"))
        self.request({"spawn": number}, [child_read, child_write])
        return child

    def request(self, message: dict[str, int | str], fds: list[int] | None = None) -> None:
        """Send a request; descriptors are the server's from here on. A server that is gone needs none."""
        if not self.alive:
            for fd in fds or []:
                os.close(fd)
            return
        self._outbox.append((json.dumps(message).encode(), fds or []))
        self._flush()

    def _flush(self) -> None:
        assert self._control is not None
        while self._outbox:
            data, fds = self._outbox[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                self._control.sendmsg([data], rights)
            except BlockingIOError:
                self._loop.add_writer(self._control, self._flush)
                return
            except OSError:
                self._lost()
                return
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._control)

    def _read(self) -> None:
        assert self._control is not None
        for _ in range(64):  # then let others have the loop
            try:
                data, ancillary, _, _ = self._control.recvmsg(4096, _ANCILLARY_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                self._lost()
                return
            fds = array.array("i")
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(payload)
            self._handle(json.loads(data), list(fds))

    def _handle(self, message: dict[str, int | float | str], fds: list[int]) -> None:
        if "hello" in message:
            self.alive = True
            self._hello.set_result(True)
            return
        if "used" in message:
            self._take_reading(self._children.get(int(message["used"])), float(message["cpu"]), fds)
            return
        failed = "failed" in message
        number = int(message["failed" if failed else "exit"])
        child = self._children.pop(number)
        if failed:
            ended = Ended(failure=f"no child could be made: {message['why']}")
        elif len(fds) != 2:  # the kernel leaves them out when the host has no descriptor free
            for fd in fds:
                os.close(fd)
            ended = Ended(failure="its output was lost: the host is out of file descriptors")
        else:
            stdout, stderr = (_take(fd, child.keep_bytes) for fd in fds)
            ended = Ended(int(message["status"]), float(message["cpu"]), int(message["memory"]), stdout, stderr)
        if not child.ended.done():
            child.ended.set_result(ended)

    def _take_reading(self, child: Child | None, cpu_seconds: float, fds: list[int]) -> None:
        for fd in fds:
            if child is not None and child.process is None and not child.closed:
                child.process = ProcessHandle(fd)
            else:
                os.close(fd)
        if child is not None and child.on_watched is not None:
            child.on_watched(cpu_seconds)

    def _lost(self) -> None:
        """The server is gone: so are its children, and none of it is the code's doing."""
        self.alive = False
        if self._control is not None and self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        if not self._hello.done():
            self._hello.set_result(False)
        for child in self._children.values():
            if not child.ended.done():
                child.ended.set_result(Ended(failure="the fork server died"))
        self._children.clear()

    def _last_words(self) -> str:
        """What it said before it ended, as far as that is there: nothing may block the host."""
        assert self._process is not None and self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        words = (self._process.stderr.read(4096) or b"").decode("utf-8", "replace").strip()
        return words.splitlines()[-1] if words else f"exit code {self._process.poll()}"

    async def close(self) -> None:
        """End the server and all of its children, and wait until they are gone."""
        served = self.alive
        self._lost()
        if self._control is not None:
            self._control.close()
        process = self._process
        if process is None:
            return
        # The closed socket tells it to go, which lets the jail clean up behind it; force where it does not or cannot.
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


def _any_stopped(pid: int) -> bool:
    """Whether this process or one below it has been stopped by a signal."""
    scheduling = read_scheduling(pid)
    return (scheduling is not None and scheduling.stopped) or any(map(_any_stopped, children_of(pid)))


def _take(fd: int, keep: int) -> bytes:
    """The bytes of a finished run's output file."""
    try:
        return os.pread(fd, keep, 0)
    finally:
        os.close(fd)
