"""One run: lock the process down, then read the code, run it, and end.

The order is the contract. Before the child says it is ready it has its namespaces (made by the clone), its system-call
filter, no capabilities and no descriptors but five, and is not dumpable. Only then is the code read. Descriptors: 0
input (a file in memory), 1 output and 2 errors (files in memory that the fork server keeps), 3 and 4 the door.
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
from typing import NoReturn

from . import door, kernel

EXIT_SCRIPT_ERROR, EXIT_MEMORY = 1, 77
FILE_NAME = "script.py"
# The processor-time limit is not here: the server sets it, and code must not be able to lower it, because a run that is
# killed below its limit counts as killed by the machine.
LIMITS = {
    "address_space_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "threads": resource.RLIMIT_NPROC,
}
_DESCRIPTORS = 64
_SHORT_OUTPUT_BYTES = 16 << 10


def become_run(door_in: int, door_out: int, out: int, err: int, program: bytes | None, server: int) -> NoReturn:
    """Called in the fresh child of `server`; never returns. `program` is the filter, None where nothing protects."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() not in (0, server):  # 0 from within a pid namespace; another: the server died before this line
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
        rehearse()
        job = door.read_frame()
        assert isinstance(job, dict)
        fill_standard_input(str(job["stdin"]))
        set_limits(job["limits"])
    except door.DoorClosed:
        os._exit(0)  # the host let a waiting child go
    except BaseException:  # noqa: BLE001 - whatever went wrong, no code may run in a half-locked process
        os.write(2, traceback.format_exc().encode())
        os._exit(EXIT_SCRIPT_ERROR)
    run_code(job)


def rehearse() -> None:
    """While no code is there yet, touch what running it will touch: the page faults are then behind us."""
    if not select.select([door.READ_FD], [], [], 0)[0]:
        fill_standard_input("")
        random.seed(0)
        execute("pass", {})
        sys.stdout.flush()
        door.decode(door.encode(last_words(0)))


def arrange_descriptors(door_in: int, door_out: int, out: int, err: int) -> None:
    """Put every descriptor in its place and close all others, whichever numbers they arrived with."""
    empty_input = os.memfd_create("stdin", 0)
    # First out of the way, then down in order: no move can overwrite one still to come.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in (empty_input, out, err, door_in, door_out)]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    kernel.close_from(5)


def open_streams() -> None:
    """Called once in the server: its children inherit the objects and only change the descriptors below them."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def fill_standard_input(text: str) -> None:
    """Make standard input a regular file with this text, read from its beginning."""
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    while data:
        data = data[os.write(0, data) :]
    os.lseek(0, 0, os.SEEK_SET)


def set_limits(limits: "door.JSON") -> None:
    """Soft = hard: process 1 of a namespace ignores the warnings that soft limits send."""
    assert isinstance(limits, dict)
    for name, value in limits.items():
        assert isinstance(value, int)
        which = LIMITS[name]
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def run_code(job: "dict[str, door.JSON]") -> NoReturn:
    """Execute the script as __main__ and end the process with the code Python would end with."""
    inputs = job["inputs"]
    assert isinstance(inputs, dict)
    random.seed(0)
    sys.argv = [FILE_NAME]
    gc.enable()
    code = 0
    try:
        execute(str(job["code"]), inputs)
    except SystemExit as stop:
        code = _exit_code(stop)
    except MemoryError:
        code = EXIT_MEMORY
    except BaseException as error:  # noqa: BLE001 - the boundary: whatever a script raises is its own failure
        code = EXIT_SCRIPT_ERROR
        _print_error(error)
    end(code)


def execute(source: str, inputs: "dict[str, door.JSON]") -> None:
    """Run a script in a fresh __main__."""
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
    """The script's own part of the traceback, as Python would print it."""
    try:
        trace = error.__traceback__
        for _ in range(2):  # our own frames
            trace = trace.tb_next if trace else None
        traceback.print_exception(type(error), error, trace)
    except BaseException:  # noqa: BLE001 - an exception whose own text raises
        os.write(2, b"an exception that cannot be printed\n")


def end(code: int) -> NoReturn:
    """What the interpreter does at its end: wait for threads, exit functions, flush. Then tell the host and go."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - the script may have replaced any of these
        code = code or EXIT_SCRIPT_ERROR
    try:
        door.write_frame(last_words(code))
    finally:
        os._exit(code)


def last_words(code: int) -> "dict[str, door.JSON]":
    """Saves the host the wait for the process to be torn down. It is believed no more than an exit code is."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    words: dict[str, door.JSON] = {
        "done": code,
        "memory": usage.ru_maxrss * 1024,
        "cpu": usage.ru_utime + usage.ru_stime,
    }
    stdout, stderr = (os.pread(fd, _SHORT_OUTPUT_BYTES, 0) for fd in (1, 2))
    if max(len(stdout), len(stderr)) < _SHORT_OUTPUT_BYTES:
        words["stdout"], words["stderr"] = stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
    return words
