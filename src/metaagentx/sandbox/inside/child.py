"""One run: lock the process down, then read the code, run it, and exit.

The order is a contract. Before the child reports that it is ready it has its namespaces (created by the clone), its
seccomp filter, no capabilities and only five descriptors, and is not dumpable. Only then does it read the code.
Descriptors: 0 stdin (a memfd), 1 stdout and 2 stderr (memfds that the fork server keeps), 3 and 4 the door.
"""

import atexit
import fcntl
import gc
import linecache
import os
import random
import resource
import select
import signal
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

from . import door, kernel

EXIT_SCRIPT_ERROR, EXIT_MEMORY = 1, 77
FILE_NAME = "script.py"
# The CPU limit is not here: the server sets it, and code must not be able to lower it, because a run that is killed
# below its limit counts as killed from outside.
LIMITS = {
    "address_space_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "threads": resource.RLIMIT_NPROC,
}
_DESCRIPTORS = 64
_SHORT_OUTPUT_BYTES = 16 << 10


def become_run(door_in: int, door_out: int, out: int, err: int, program: bytes | None, server: int) -> NoReturn:
    """Turn a new child of `server` into a run; never returns. `program` is the filter, None in tier `none`."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() not in (0, server):  # 0 in a pid namespace; another: the server has died
            os._exit(EXIT_SCRIPT_ERROR)
        arrange_descriptors(door_in, door_out, out, err)
        for which, value in (
            (resource.RLIMIT_NOFILE, _DESCRIPTORS),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            resource.setrlimit(which, (value, value))
        if program is not None:
            kernel.drop_capabilities()
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
            kernel.install_filter(program)
        door.write_frame({"ready": True})
        prefault()
        job = door.read_frame()
        fill_standard_input(job["stdin"])
        set_limits(job["limits"])
    except door.DoorClosed:
        os._exit(0)  # the host released a waiting child
    except BaseException:  # noqa: BLE001 - whatever failed, no code may run in a half-locked process
        os.write(2, traceback.format_exc().encode())
        os._exit(EXIT_SCRIPT_ERROR)
    run_code(job)


def prefault() -> None:
    """Touch the memory that running code will touch, before the code arrives, so that the page faults are over."""
    if not select.select([door.READ_FD], [], [], 0)[0]:
        fill_standard_input("")
        random.seed(0)
        execute("pass", {})
        sys.stdout.flush()
        door.decode(door.encode(exit_report(0)))


def arrange_descriptors(door_in: int, door_out: int, out: int, err: int) -> None:
    """Move every descriptor to its number and close all others, whichever numbers they arrived with."""
    empty_input = os.memfd_create("stdin", 0)
    # First to high numbers, then down in order, so that no move overwrites a descriptor that is still needed.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (empty_input, out, err, door_in, door_out)]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    kernel.close_from(5)


def open_streams() -> None:
    """Open the standard streams once in the server: its children inherit them and only change the descriptors."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def fill_standard_input(text: str) -> None:
    """Fill standard input, a regular file, with this text and rewind it."""
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    while data:
        data = data[os.write(0, data) :]
    os.lseek(0, 0, os.SEEK_SET)


def set_limits(limits: dict[str, int]) -> None:
    """Set soft and hard limits alike: process 1 of a pid namespace ignores the signals that soft limits send."""
    for name, value in limits.items():
        which = LIMITS[name]
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def run_code(job: dict[str, Any]) -> NoReturn:
    """Execute the script as __main__ and exit with the code that Python would exit with."""
    random.seed(0)
    sys.argv = [FILE_NAME]
    gc.enable()
    code = 0
    try:
        execute(job["code"], job["inputs"])
    except SystemExit as stop:
        code = _exit_code(stop)
    except MemoryError:
        code = EXIT_MEMORY
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is its own failure
        code = EXIT_SCRIPT_ERROR
        _print_error(error)
    exit_process(code)


def execute(source: str, inputs: dict[str, Any]) -> None:
    """Run a script in a new __main__."""
    main = types.ModuleType("__main__")
    main.__dict__.update(inputs)
    sys.modules["__main__"] = main
    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    exec(compile(source, FILE_NAME, "exec"), main.__dict__)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    sys.stderr.write(f"{stop.code}\n")
    return EXIT_SCRIPT_ERROR


def _print_error(error: BaseException) -> None:
    """Print the script's own part of the traceback, as Python would."""
    try:
        trace = error.__traceback__
        for _ in range(2):  # the frames of this module
            trace = trace.tb_next if trace else None
        traceback.print_exception(type(error), error, trace)
    except BaseException:  # noqa: BLE001 - an exception whose __str__ raises
        os.write(2, b"an exception that cannot be printed\n")


def exit_process(code: int) -> NoReturn:
    """Do what the interpreter does at its end (join threads, call exit functions, flush), then report and exit."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - the script may have replaced any of these
        code = code or EXIT_SCRIPT_ERROR
    try:
        door.write_frame(exit_report(code))
    finally:
        os._exit(code)


def exit_report(code: int) -> "dict[str, door.JSON]":
    """Return the report that saves the host the wait for the teardown. It is trusted no more than an exit code."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    report: dict[str, door.JSON] = {
        "done": code,
        "memory": usage.ru_maxrss * 1024,
        "cpu": usage.ru_utime + usage.ru_stime,
    }
    stdout, stderr = (os.pread(fd, _SHORT_OUTPUT_BYTES, 0) for fd in (1, 2))
    if max(len(stdout), len(stderr)) < _SHORT_OUTPUT_BYTES:
        report["stdout"], report["stderr"] = stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
    return report
