"""The fork server: a small warm Python that makes one locked-down child per run and tells the host how each ended.

It talks with the host over one seqpacket socket, JSON in each packet, descriptors beside it. From the host:
{"spawn": id} with the two ends of the door; {"do": ..., "id": id} where the deed is "limit" (with "cpu": seconds),
"watch", "finish" for a run that says it is done, or "kill". To the host: {"hello": ...} once, {"exit": id, "status":
..., "cpu": seconds, "memory": bytes} with the files that hold the run's output and errors, {"used": id, "cpu": seconds}
after a "watch", the first time with a pidfd of the run, {"failed": id, "why": ...}.
It never sees code. When the host goes, its socket ends, and the server and all of its children with it.
"""

import array
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
import types
from typing import Any, NoReturn

from . import child, door, kernel, processes, seccomp

MAX_PACKET = 4096
_RUN_OOM_SCORE = 1000


def main(control: socket.socket, config: "dict[str, Any]", oom_fd: int | None) -> NoReturn:
    """Enter the jail as far as the tier wants it, warm up, then serve until the host hangs up."""
    sys.argv, sys.orig_argv = [""], [""]
    gc.disable()  # imports make objects that stay: looking for others would take a tenth of the time
    warm_up(config["profile"])
    preload(config["preload"], config["libraries"])
    confine(config)
    server = Zygote(control, config["namespaces"], seccomp_program(config["tier"]))
    server.oom = oom_fd, config["oom_score"]
    child.open_streams()
    child.execute("pass", {})
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"hello": os.getpid(), "landlock": kernel.landlock_version()}).encode())
    server.serve()
    os._exit(0)


def warm_up(profile: "dict[str, door.JSON] | None") -> None:
    """Do what a profile wants done once; first of all, because packages may need the real `subprocess` to import."""
    if profile is None:
        return
    environment = profile["environment"]
    assert isinstance(environment, dict)
    os.environ.update({name: str(value) for name, value in environment.items()})
    sys.path += _strings(profile["path"])
    module, _, function = str(profile["warm_up"]).partition(":")
    getattr(importlib.import_module(module), function)()


def preload(modules: list[str], libraries: dict[str, str]) -> None:
    """Import what scripts need, so that each run finds it in memory."""
    sys.modules["door"] = door
    for name in modules:
        importlib.import_module(name)
    builtins.__dict__.update(exit=sys.exit, quit=sys.exit)  # as every interpreter has them that is not ours
    # Our stand-in comes last: modules above may hold the real one, which without fork and exec is harmless.
    sys.modules["subprocess"] = processes
    for name, directory in libraries.items():
        spec = importlib.util.spec_from_file_location(
            name, f"{directory}/__init__.py", submodule_search_locations=[directory]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _connect(module)


def _connect(module: types.ModuleType) -> None:
    """Give a library that asks (it has `use`) the door as its transport."""
    use = module.__dict__.get("use")
    if callable(use):
        use(door.transport)


def confine(config: "dict[str, door.JSON]") -> None:
    """Drop privileges and close the file system, as far as this tier does it for the server itself."""
    readable = [os.open(str(path), os.O_PATH) for path in _strings(config["readable"])]
    listable = [os.open(str(path), os.O_PATH) for path in _strings(config["listable"])]
    uid = config["uid"]
    if isinstance(uid, int):
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
        # Its descriptors lead to the output of every run: not to be opened by way of /proc, where there is one.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def _strings(value: "door.JSON") -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]


def seccomp_program(tier: str) -> bytes | None:
    """The filter of a tier, None where nothing protects."""
    if tier == "none":
        return None
    return seccomp.assemble(kernel.MACHINE, files=tier != "T3")


class Zygote:
    """Serves one host. Single-threaded, so that a fork copies no lock in an unknown state."""

    def __init__(self, control: socket.socket, namespaces: int, program: bytes | None) -> None:
        self._control = control
        self._namespaces = namespaces
        self._program = program
        self._pid = os.getpid()
        self.oom: tuple[int | None, int] = None, 0
        self._runs: dict[int, tuple[int, int, int]] = {}  # pid: (id, output, errors)
        self._pids: dict[int, int] = {}
        self._handed_over: set[int] = set()

    def serve(self) -> None:
        """Spawn, kill and reap until the host hangs up."""
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
        fds = array.array("i")
        packet, ancillary, _, _ = self._control.recvmsg(MAX_PACKET, socket.CMSG_SPACE(2 * fds.itemsize))
        if not packet:
            return False
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        message = json.loads(packet)
        if "spawn" in message:
            self._spawn(message["spawn"], fds[0], fds[1])
        elif (pid := self._pids.get(message["id"])) is not None:
            self._do(message["do"], message, pid)
        return True

    def _do(self, deed: str, message: dict[str, int], pid: int) -> None:
        if deed == "limit":
            kernel.limit_cpu(pid, message["cpu"])
        elif deed == "watch":
            report = json.dumps({"used": message["id"], "cpu": kernel.cpu_seconds(pid)}).encode()
            # The first time with a handle, by which the host can see whether the run computes, waits or is stopped.
            handle = -1 if pid in self._handed_over else kernel.pidfd_open(pid)
            self._handed_over.add(pid)
            if handle < 0:
                self._control.send(report)
            else:
                rights = array.array("i", [handle])
                self._control.sendmsg([report], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                os.close(handle)
        else:
            if deed == "finish":
                self._report(pid, 0, kernel.cpu_seconds(pid), 0)
            os.kill(pid, signal.SIGKILL)

    def _spawn(self, number: int, door_in: int, door_out: int) -> None:
        out, err = os.memfd_create("stdout"), os.memfd_create("stderr")
        try:
            self._set_oom_score(_RUN_OOM_SCORE)
            pid = kernel.clone(self._namespaces)
        except OSError as error:
            self._set_oom_score(self.oom[1])
            self._control.send(json.dumps({"failed": number, "why": str(error)}).encode())
            for fd in (out, err, door_in, door_out):
                os.close(fd)
            return
        if pid == 0:
            child.become_run(door_in, door_out, out, err, self._program, self._pid)
        self._set_oom_score(self.oom[1])
        os.close(door_in)
        os.close(door_out)
        self._runs[pid] = (number, out, err)
        self._pids[number] = pid

    def _set_oom_score(self, score: int) -> None:
        """A child is born with the server's score, and neither can open the file of its own: there is no /proc in the
        jail, and Landlock forbids it elsewhere. So the server has the score of a run while it makes one."""
        fd, _ = self.oom
        if fd is not None:
            try:
                os.write(fd, str(score).encode())
            except OSError:
                self.oom = None, 0  # it cannot go back, so all of them keep this score

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
        """Tell the host once how a run ended, and hand over its output."""
        if pid not in self._runs:
            return
        number, out, err = self._runs.pop(pid)
        del self._pids[number]
        self._handed_over.discard(pid)
        report = {"exit": number, "status": status, "cpu": cpu_seconds, "memory": memory_bytes}
        files = array.array("i", [out, err])
        self._control.sendmsg([json.dumps(report).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        os.close(out)
        os.close(err)
