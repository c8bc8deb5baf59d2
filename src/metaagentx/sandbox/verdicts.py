"""Turns the end of a child that the host did not stop into a verdict."""

import math
import os
import signal

from . import memory
from .fork_server import ExitInfo
from .frames import JSON, BadFrame
from .inside.child import EXIT_MEMORY
from .types import Limits, Verdict

# Code that runs at each timer tick of the kernel and sleeps in between uses at least this share of the CPU time that
# the kernel charges to it.
_TICK_SHARE = 0.002
CORES = os.cpu_count() or 1


def parse_exit_report(frame: dict[str, JSON]) -> ExitInfo:
    """Return what a run reports about its own end; raise BadFrame when a field is malformed."""
    code, memory_bytes, cpu_seconds = frame["done"], frame.get("memory"), frame.get("cpu")
    stdout, stderr = frame.get("stdout", ""), frame.get("stderr", "")
    if (
        type(code) is int
        and 0 <= code <= 255
        and type(memory_bytes) is int
        and type(cpu_seconds) is float
        and isinstance(stdout, str)
        and isinstance(stderr, str)
    ):
        return ExitInfo(code << 8, abs(cpu_seconds), abs(memory_bytes), stdout.encode(), stderr.encode())
    raise BadFrame("malformed exit report")


def kernel_cpu_limit(limits: Limits) -> int:
    """Return the CPU time at which the kernel kills a run: far above the limit, which the host enforces itself."""
    return 4 * math.ceil(limits.cpu_seconds) + 30


def judge(info: ExitInfo, limits: Limits, seconds: float) -> tuple[Verdict, str]:
    """Return verdict and detail for a child that the host did not stop, `seconds` after it received its code.

    Code must not be able to cause `infra`, because a run with that verdict gets no reward, not even a bad one.
    """
    if info.failure:
        return Verdict.INFRA, info.failure
    if info.cpu_seconds >= limits.cpu_seconds:
        return Verdict.CPU, f"used {info.cpu_seconds:.2f} s of CPU time; the limit is {limits.cpu_seconds:g} s"
    if max(len(info.stdout), len(info.stderr)) >= limits.output_bytes:
        return Verdict.OUTPUT, f"output reached the limit of {limits.output_bytes} bytes"
    if os.WIFSIGNALED(info.status):
        return _judge_signal(os.WTERMSIG(info.status), info, limits, seconds)
    code = os.WEXITSTATUS(info.status)
    if code == EXIT_MEMORY:
        return Verdict.MEMORY, f"more than {limits.memory_bytes >> 20} MiB of memory"
    return (Verdict.OK, "") if code == 0 else (Verdict.SCRIPT_ERROR, last_line(info.stderr) or f"exit code {code}")


def _judge_signal(number: int, info: ExitInfo, limits: Limits, seconds: float) -> tuple[Verdict, str]:
    if number == signal.SIGSYS:
        return Verdict.VIOLATION, "forbidden system call"
    if number != signal.SIGKILL:
        return Verdict.SCRIPT_ERROR, f"killed by {signal.Signals(number).name}"
    # Code in the sandbox cannot send signals, not even to itself. But it can run at every timer tick and sleep in
    # between until the kernel, which counts ticks, kills it. That takes time, and some CPU time.
    kernel_seconds = kernel_cpu_limit(limits)
    if seconds * CORES < kernel_seconds or info.cpu_seconds < _TICK_SHARE * kernel_seconds:
        return Verdict.INFRA, "killed from outside"
    if memory.explain_kill():
        return Verdict.INFRA, "killed from outside, probably because the machine was out of memory"
    return Verdict.CPU, f"killed by the kernel at its limit of CPU time ({limits.cpu_seconds:g} s), counted in ticks"


def last_line(stderr: bytes) -> str:
    """Return the last line of standard error: in a traceback, the one that names the exception."""
    return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:500]
