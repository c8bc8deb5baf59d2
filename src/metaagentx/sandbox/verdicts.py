"""How a child ended, and what that means: the verdict on a run that the host did not stop."""

import math
import os
import signal

from . import memory
from .frames import JSON, BadFrame
from .inside.child import EXIT_MEMORY
from .server import Ended
from .types import Limits, Verdict

# Code that is on the processor at each of the kernel's ticks and asleep in between uses at least this share of the
# time that the kernel counts.
_TICK_SHARE = 0.002
_CORES = os.cpu_count() or 1


def last_words(frame: dict[str, JSON]) -> Ended:
    """What a run says about its own end, as far as it has the right form."""
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
        return Ended(code << 8, abs(cpu_seconds), abs(memory_bytes), stdout.encode(), stderr.encode())
    raise BadFrame("an end that is none of ours")


def kernel_limit(limits: Limits) -> int:
    """The processor time at which the kernel kills a run: well above the limit, which the host sees to."""
    return 4 * math.ceil(limits.cpu_seconds) + 30


def judge(ended: Ended, limits: Limits, seconds: float) -> tuple[Verdict, str]:
    """The verdict on a child that the host did not stop and that had its code for so many seconds.

    No code can bring about `infra`: it would escape reward.
    """
    if ended.failure:
        return Verdict.INFRA, ended.failure
    if ended.cpu_seconds >= limits.cpu_seconds:
        return Verdict.CPU, f"{ended.cpu_seconds:.2f} s of processor time; {limits.cpu_seconds:g} s are allowed"
    if max(len(ended.stdout), len(ended.stderr)) >= limits.output_bytes:
        return Verdict.OUTPUT, f"{limits.output_bytes} bytes of output or more"
    if os.WIFSIGNALED(ended.status):
        return _judge_signal(os.WTERMSIG(ended.status), ended, limits, seconds)
    code = os.WEXITSTATUS(ended.status)
    if code == EXIT_MEMORY:
        return Verdict.MEMORY, f"more than {limits.memory_bytes >> 20} MiB of memory"
    return (Verdict.OK, "") if code == 0 else (Verdict.SCRIPT_ERROR, last_line(ended.stderr) or f"exit code {code}")


def _judge_signal(number: int, ended: Ended, limits: Limits, seconds: float) -> tuple[Verdict, str]:
    if number == signal.SIGSYS:
        return Verdict.VIOLATION, "a system call that no honest program makes"
    if number != signal.SIGKILL:
        return Verdict.SCRIPT_ERROR, f"ended by {signal.Signals(number).name}"
    # Code in here cannot kill, itself included. But it can be on the processor at every tick and sleep in between, and
    # be killed by the kernel, which counts ticks. That takes its time, and some of the processor's.
    kernel_seconds = kernel_limit(limits)
    if seconds * _CORES < kernel_seconds or ended.cpu_seconds < _TICK_SHARE * kernel_seconds:
        return Verdict.INFRA, "killed from outside"
    if memory.was_short():
        return Verdict.INFRA, "killed from outside, probably because the machine was out of memory"
    return Verdict.CPU, f"killed at its limit of {limits.cpu_seconds:g} s of processor time, counted in ticks"


def last_line(stderr: bytes) -> str:
    """The line that says most about a failure: where a traceback ends."""
    return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:500]
