"""The first words between the host and a fork server that has just started: who it is, and what it is to do.

The server's command line tells nothing but the number of its socket: whatever is on it, a run could read in its own
memory. The server sends one packet, to which the kernel adds its process id as the host counts it, and the host answers
with the configuration and, where there is one, the file that sets how readily the kernel kills the server for memory.
"""

import array
import asyncio
import json
import os
import socket
import struct

from .jail import Launch

_CREDENTIALS = struct.Struct("=3i")
_RUN_SCORE = 1000


async def introduce(control: socket.socket, launch: Launch) -> int | None:
    """Wait for the server's first packet and answer it. Its process id; None when it died before.

    `control` does not block and has SO_PASSCRED set since before the server was started.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(control, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(control)
    try:
        packet, ancillary, _, _ = control.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        pids: list[int] = [
            _CREDENTIALS.unpack(data)[0]
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        if not packet or not pids:
            return None
        _answer(control, launch, pids[0])
    except OSError:
        return None  # it died meanwhile, and whoever reads next hears of it
    return pids[0]


def _answer(control: socket.socket, launch: Launch, pid: int) -> None:
    """Send the configuration. One packet holds it: it is some 20 kB where the most files are readable."""
    fd, score = _open_oom_score(pid)
    data = json.dumps(launch.config | {"oom_score": score}).encode()
    if fd is None:
        control.send(data)
        return
    try:
        control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    finally:
        os.close(fd)


def _open_oom_score(pid: int) -> tuple[int | None, int]:
    """The server's oom_score_adj, opened, and its value. A run is born with 1000, and the server goes back to this."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None, 0  # hidden from us, or not ours because bubblewrap is setuid: it stays as it is for all of them
    score = int(os.read(fd, 16))
    if score < _RUN_SCORE:
        return fd, score
    os.close(fd)
    return None, 0
