"""A process that runs a user's own grader: python -m metaagentx.rewards.custom_worker, started by `custom_workers`.

The function is trusted and may need files and a network, so it runs outside the jail. Standard input is a socket of
frames (`sandbox.frames`): the setup comes in and {"ready": true} or {"failed": ...} goes out, then requests and
replies, strictly in turn. What the function prints leads nowhere. The process dies with its host.
"""

import importlib
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from ..sandbox.frames import decode, encode
from ..sandbox.inside import kernel
from ..types import JSON
from . import custom
from .outcome import BrokenGrader, Grader, grade_outcome


def main() -> None:
    """Load the grader, then answer until the host hangs up."""
    channel = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    setup = read_frame(channel)
    assert isinstance(setup, dict)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setup["host"]:
        sys.exit(1)
    try:
        grader = load(setup)
    except BaseException as error:  # noqa: BLE001 - the boundary: whatever a user's module raises is told to the host
        reason = str(error) if isinstance(error, BrokenGrader) else f"{type(error).__name__}: {error}"
        channel.sendall(encode({"failed": reason[:2000].encode("utf-8", "replace").decode()}))
        sys.exit(1)
    memory_bytes = setup["memory_bytes"]
    assert isinstance(memory_bytes, int)
    limit = memory_bytes + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel.sendall(encode({"ready": True}))
    while (request := read_frame(channel)) is not None:
        assert isinstance(request, dict)
        outcome = grade_outcome(grader, request)
        channel.sendall(encode(outcome.reply | {"last": not outcome.reusable}))
        if not outcome.reusable:
            break


def load(setup: Mapping[str, JSON]) -> Grader:
    """The grader, found where the host would find it."""
    path = setup["path"]
    assert isinstance(path, list)
    sys.path[:] = [str(entry) for entry in path]
    importlib.invalidate_caches()
    return custom.load(str(setup["function"]))


def read_frame(channel: socket.socket) -> JSON:
    """The next frame, None when the host has hung up."""
    header = _read(channel, 4)
    return decode(_read(channel, struct.unpack(">I", header)[0])) if len(header) == 4 else None


def _read(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size and (part := channel.recv(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
