"""What a run is told about the machine it runs on. Imported before all else, so that nothing keeps the real name.

The filter refuses uname(2), which would tell it in every tier. Python's own ways to ask are given the same answer on
every machine instead, so that honest code (`platform.platform()`, `os.uname()`) goes on working.
"""

import _socket
import os
import posix
import socket


def assume(uname: list[str]) -> None:
    """Have Python give this answer to every question about the machine's name and kind."""
    result = os.uname_result(uname)
    for module in (os, posix):
        module.uname = lambda: result  # type: ignore[attr-defined]
    for module in (socket, _socket):
        module.gethostname = lambda: result.nodename  # type: ignore[attr-defined]
