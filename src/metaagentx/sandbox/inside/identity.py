"""Hides the name of the machine from runs. Imported before everything else, so that no module keeps the real name.

The seccomp filter denies uname(2) in every tier. Python's own functions return the same values on every machine
instead, so that honest code (`platform.platform()`, `os.uname()`) keeps working.
"""

import _socket
import os
import posix
import socket


def assume(uname: list[str]) -> None:
    """Make Python report these values wherever it reports the name and kind of the machine."""
    result = os.uname_result(uname)
    for module in (os, posix):
        module.uname = lambda: result  # type: ignore[attr-defined]
    for module in (socket, _socket):
        module.gethostname = lambda: result.nodename  # type: ignore[attr-defined]
