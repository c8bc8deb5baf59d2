"""Runs small scripts in the fork server before its first fork, so that its children find warm what they will use.

A child shares the server's memory until it writes, and every page that it writes first is copied at the price of a page
fault, which is most of what a run costs. Python writes nearly everywhere: reference counts, and the caches that code
and types fill at their first uses. A rehearsal fills the caches once for all children. `fill_gaps` then takes what is
free in half-used pages, so that the new objects of a child lie side by side in few pages.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

from . import child, door

REPEATS = 16
"""CPython 3.11 adapts code to its types after eight uses, and looks again some uses later."""
Scene = tuple[str, "dict[str, Any]", "list[door.JSON]"]
"""A script, its inputs, and the replies to its asks in order."""
_LARGEST_SMALL_OBJECT, _STEP = 512, 16
_POOL_BYTES, _POOL_HEADER = 1 << 14, 48
_BYTES_PER_SIZE = 1 << 18
_filler: list[bytes] = []


def rehearse(scenes: Iterable[Scene], use: Any) -> None:
    """Run each scene a few times. `use` installs a transport and is a context manager, as in a library with asks."""
    real = door.READ_FD, door.WRITE_FD
    host = door.READ_FD, door.WRITE_FD = os.memfd_create("replies"), os.memfd_create("asks")
    try:
        for script, inputs, replies in scenes:
            frames = b"".join(door.frame({"reply": number, "body": body}) for number, body in enumerate(replies, 1))
            for _ in range(REPEATS):
                os.pwrite(host[0], frames, 0)
                os.lseek(host[0], 0, os.SEEK_SET)
                with use(door.Door()):
                    child.execute(script, inputs)
        sys.stdout.flush()  # or every child would have it in its output
    finally:
        door.READ_FD, door.WRITE_FD = real
        for fd in host:
            os.close(fd)


def fill_gaps() -> None:
    """Allocate small objects of each size until one begins a new pool, which has only objects of one size."""
    overhead = sys.getsizeof(b"")
    for size in range(3 * _STEP, _LARGEST_SMALL_OBJECT + 1, _STEP):
        pools = set[int]()
        for _ in range(_BYTES_PER_SIZE // size):
            block = bytes(size - overhead)
            pool, offset = divmod(id(block), _POOL_BYTES)
            if offset == _POOL_HEADER and pool not in pools:
                break
            pools.add(pool)
            _filler.append(block)
