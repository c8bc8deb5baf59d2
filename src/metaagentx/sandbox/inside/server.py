"""The fork server: a small warm Python that creates one locked-down child per run and reports how each ended.

It talks with the host over a seqpacket socket: JSON in each packet, descriptors as ancillary data. From the host:
{"spawn": id} with the child's ends of its two pipes; {"do": action, "id": id}, where the action is "limit" (with "cpu":
seconds), "watch", "finish" for a run that reported its end, or "kill". To the host: {"hello": ...} once; {"exit": id,
"status": ..., "cpu": seconds, "memory": bytes} with the files of the run's output and errors; {"used": id, "cpu":
seconds} after a "watch", the first time with a pidfd of the run; {"failed": id, "why": ...}.
It never sees code. When the host closes the socket, the server exits, and all of its children with it.
"""

import builtins
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from . import child, door, kernel, processes, rehearsal, seccomp

MAX_PACKET = 4096


def main(control: socket.socket, config: "dict[str, Any]", oom_fd: int | None) -> NoReturn:
    """Enter the jail as the tier requires, warm up, then serve until the host closes the socket."""
    sys.argv, sys.orig_argv = [""], [""]
    gc.disable()  # objects made by imports stay: collections would take a tenth of the time
    warm_up(config["profile"])
    preload(config["preload"], config["libraries"])
    confine(config)
    tier = config["tier"]
    program = None if tier == "none" else seccomp.assemble(kernel.MACHINE, files=tier != "T3")
    server = ChildFactory(control, config["namespaces"], program, oom_fd, config["oom_score"])
    child.open_streams()
    child.execute("pass", {})
    for name in config["libraries"]:
        library = sys.modules[name].__dict__
        if "REHEARSAL" in library:  # a library that sends asks
            rehearsal.rehearse(library["REHEARSAL"], library["use"])
    gc.collect()
    rehearsal.fill_gaps()
    gc.freeze()
    control.send(json.dumps({"hello": os.getpid(), "landlock": kernel.landlock_version()}).encode())
    server.serve()
    os._exit(0)


def warm_up(profile: "dict[str, Any] | None") -> None:
    """Run the warm-up of a profile; before anything else, because packages may need the real `subprocess`."""
    if profile is None:
        return
    os.environ.update(profile["environment"])
    sys.path += profile["path"]
    module, _, function = profile["warm_up"].partition(":")
    getattr(importlib.import_module(module), function)()


def preload(modules: list[str], libraries: dict[str, str]) -> None:
    """Import what scripts need, so that each run finds it in memory."""
    sys.modules["door"] = door
    for name in modules:
        importlib.import_module(name)
    builtins.__dict__.update(exit=sys.exit, quit=sys.exit)  # `site`, which is not imported, defines these
    # The stand-in comes last: the modules above may hold the real one, which without fork and exec is harmless.
    sys.modules["subprocess"] = processes
    for name, directory in libraries.items():
        spec = importlib.util.spec_from_file_location(
            name, f"{directory}/__init__.py", submodule_search_locations=[directory]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        use = module.__dict__.get("use")
        if callable(use):  # a library that sends asks
            use(door.transport)


def confine(config: "dict[str, Any]") -> None:
    """Drop privileges and restrict the file system, as far as this tier does so for the server itself."""
    readable, listable = ([os.open(path, os.O_PATH) for path in config[key]] for key in ("readable", "listable"))
    uid = config["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if config["parent_dies"]:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if config["landlock"]:
        kernel.landlock_read_only(readable, listable)
    for fd in (*readable, *listable):
        os.close(fd)
    if config["tier"] != "none":
        # Its descriptors lead to the output of every run: they must not be opened through /proc, where there is one.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


class ChildFactory:
    """Creates, kills and reaps children for one host. Single-threaded, so that no fork copies a locked lock."""

    def __init__(
        self, control: socket.socket, namespaces: int, program: bytes | None, oom_fd: int | None, oom_score: int
    ) -> None:
        self._control = control
        self._namespaces = namespaces
        self._program = program
        self._pid = os.getpid()
        self._oom_fd = oom_fd
        self._oom_score = oom_score
        self._runs: dict[int, tuple[int, int, int]] = {}  # pid: (id, output, errors)
        self._pids: dict[int, int] = {}
        self._pidfd_sent: set[int] = set()

    def serve(self) -> None:
        """Spawn, kill and reap until the host closes the socket."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                elif not self._handle():
                    return

    def _handle(self) -> bool:
        """Handle one request; return False when the host has closed the socket."""
        packet, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET, 2)
        if not packet:
            return False
        message = json.loads(packet)
        if "spawn" in message:
            self._spawn(message["spawn"], fds[0], fds[1])
        elif (pid := self._pids.get(message["id"])) is not None:
            self._act(message["do"], message, pid)
        return True

    def _act(self, action: str, message: dict[str, int], pid: int) -> None:
        if action == "limit":
            kernel.limit_cpu(pid, message["cpu"])
        elif action == "watch":
            # The first time with a pidfd, by which the host can see whether the run computes, waits or is stopped.
            pidfd = -1 if pid in self._pidfd_sent else kernel.pidfd_open(pid)
            self._pidfd_sent.add(pid)
            self._send({"used": message["id"], "cpu": kernel.cpu_seconds(pid)}, *([pidfd] if pidfd >= 0 else []))
        else:
            if action == "finish":
                self._report(pid, 0, kernel.cpu_seconds(pid), 0)
            os.kill(pid, signal.SIGKILL)

    def _spawn(self, number: int, door_in: int, door_out: int) -> None:
        out, err = os.memfd_create("stdout"), os.memfd_create("stderr")
        try:
            self._set_oom_score(kernel.RUN_OOM_SCORE)
            pid = kernel.clone(self._namespaces)
        except OSError as error:
            self._set_oom_score(self._oom_score)
            self._send({"failed": number, "why": str(error)})
            for fd in (out, err, door_in, door_out):
                os.close(fd)
            return
        if pid == 0:
            child.become_run(door_in, door_out, out, err, self._program, self._pid)
        self._set_oom_score(self._oom_score)
        os.close(door_in)
        os.close(door_out)
        self._runs[pid] = (number, out, err)
        self._pids[number] = pid

    def _set_oom_score(self, score: int) -> None:
        """Set the server's OOM score, which a child inherits: the server has the score of a run while it creates one.

        The child cannot set its own: there is no /proc in the jail, and Landlock forbids it elsewhere.
        """
        if self._oom_fd is not None:
            try:
                os.write(self._oom_fd, str(score).encode())
            except OSError:
                self._oom_fd = None  # it cannot be lowered again, so server and children keep this score

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._report(pid, status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)

    def _report(self, pid: int, status: int, cpu_seconds: float, memory_bytes: int) -> None:
        """Report once to the host how a run ended, with the files of its output."""
        if pid in self._runs:
            number, out, err = self._runs.pop(pid)
            del self._pids[number]
            self._pidfd_sent.discard(pid)
            self._send({"exit": number, "status": status, "cpu": cpu_seconds, "memory": memory_bytes}, out, err)

    def _send(self, message: dict[str, float | str], *fds: int) -> None:
        """Send a message with descriptors, which are closed afterwards."""
        data = json.dumps(message).encode()
        if fds:
            socket.send_fds(self._control, [data], fds)
        else:
            self._control.send(data)
        for fd in fds:
            os.close(fd)
