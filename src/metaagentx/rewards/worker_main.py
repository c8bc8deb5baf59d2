"""The far side of the pool: a nursery that has imported what grading needs, and the workers it forks.

The nursery grades nothing. It forks, kills and reports, so it always answers; a fresh worker costs milliseconds where
starting one would cost a second of imports. A worker grades one request after the other on a socket of its own
(`sandbox.frames`: JSON, never pickle). Standard output and error lead nowhere, so a library that prints disturbs
nobody. Both die with the host: the nursery at the end of its control socket, the workers with the nursery.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ..sandbox.frames import decode, encode
from ..sandbox.inside import kernel, seccomp
from ..types import JSON
from .outcome import BrokenGrader, Grader, grade_outcome

PACKET = 1 << 16
BROKEN = 70
"""Exit code of a worker that fell over its own feet, which is no answer's fault."""
_REQUESTS_PER_WORKER = 5000  # then a fresh one, so that caches cannot grow for ever


def main() -> NoReturn:
    """Entry point: the number of the control socket is the only argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = json.loads(control.recv(PACKET))
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setup["host"]:
        sys.exit(1)
    try:
        grader = load(setup)
    except BaseException as error:  # noqa: BLE001 - the boundary: whatever a user's module raises is told to the host
        reason = str(error) if isinstance(error, BrokenGrader) else f"{type(error).__name__}: {error}"
        control.send(json.dumps({"failed": reason[:2000]}).encode())
        sys.exit(1)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page it shares with the nursery
    control.send(json.dumps({"ready": True}).encode())
    _Nursery(control, grader, setup).run()


def load(setup: Mapping[str, JSON]) -> Grader:
    """Import what one kind of grading needs and do a little of it, so that workers start warm."""
    if setup["kind"] == "math":
        from . import mathematics

        mathematics.warm_up()
        return mathematics.grade_request
    if setup["kind"] == "gym":
        from . import gym

        gym.warm_up()
        return gym.grade_request
    from . import custom

    path = setup["path"]
    assert isinstance(path, list)
    sys.path[:] = [str(entry) for entry in path]  # the user's module is found where the host would find it
    importlib.invalidate_caches()
    return custom.load(str(setup["function"]))


@dataclass
class _Nursery:
    control: socket.socket
    grader: Grader
    setup: Mapping[str, JSON]
    children: dict[int, int] = field(default_factory=dict)
    """Process id to the host's number of the worker."""

    def run(self) -> NoReturn:
        read_wake, write_wake = os.pipe()
        os.set_blocking(write_wake, False)
        os.set_blocking(read_wake, False)
        signal.set_wakeup_fd(write_wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self.control.fileno(), read_wake], [], [])
            if read_wake in ready:
                os.read(read_wake, 4096)
                self._reap()
            if self.control.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self.control, PACKET, 1)
                if not message:
                    os._exit(0)  # the host is gone; the workers follow
                self._obey(json.loads(message), fds, (read_wake, write_wake))

    def _tell(self, **message: JSON) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)

    def _obey(self, order: dict[str, int], fds: list[int], wake: tuple[int, int]) -> None:
        if "kill" in order:
            for pid, number in self.children.items():
                if number == order["kill"]:
                    os.kill(pid, signal.SIGKILL)
            return
        number = order["fork"]
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(ended=number, failure=f"no process could be made: {error.strerror}")
        else:
            if pid == 0:
                _be_worker(fds[0], (self.control.fileno(), *wake), self.grader, self.setup)
            self.children[pid] = number
            self._tell(forked=number, pid=pid)
        os.close(fds[0])

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._tell(ended=self.children.pop(pid), status=status)


def _be_worker(fd: int, inherited: tuple[int, ...], grader: Grader, setup: Mapping[str, JSON]) -> NoReturn:
    nursery = os.getppid()
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != nursery:
            os._exit(1)
        for other in inherited:
            os.close(other)
        memory_bytes = setup["memory_bytes"]
        assert isinstance(memory_bytes, int)
        limit = memory_bytes + _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if setup["kind"] != "custom" and kernel.SUPPORTED:
            # Scorers of reasoning-gym evaluate answers as Python. They are checked before; should one slip through, it
            # can make no process, no connection and no file.
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            kernel.install_filter(seccomp.assemble(kernel.MACHINE, files=True))
        _serve(fd, grader)
        os._exit(0)
    finally:
        os._exit(BROKEN)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _serve(fd: int, grader: Grader) -> None:
    # Files, not sockets: the lock has no call that sends or receives.
    with os.fdopen(fd, "rb") as incoming, os.fdopen(os.dup(fd), "wb") as outgoing:
        for left in range(_REQUESTS_PER_WORKER - 1, -1, -1):
            header = incoming.read(4)
            if len(header) < 4:
                return
            reply, in_order = _answer(grader, incoming.read(struct.unpack(">I", header)[0]))
            last = not (left and in_order)
            outgoing.write(encode(reply | {"last": last}))
            outgoing.flush()
            if last:
                return


def _answer(grader: Grader, data: bytes) -> tuple[dict[str, JSON], bool]:
    """The reply, and whether the worker is still in good order after it."""
    request = decode(data)
    assert isinstance(request, dict)
    outcome = grade_outcome(grader, request)
    return outcome.reply, outcome.reusable


if __name__ == "__main__":
    # Imported under its real name, so that BrokenGrader is one class for those who raise it.
    from metaagentx.rewards.worker_main import main as run

    run()
