"""Process that runs a user's grading function: python -m metaagentx.rewards.custom_child, started by `custom`.

A grader `module:function` is called as `function(answer, data)` and returns a bool or a number from 0 to 1. What it
raises is its own fault and reaches the host as GraderUnavailable, never as a reward; a function that expects garbage
returns 0 for it.

The function is trusted and may need files and a network, so it runs outside the jail. Standard input is a socket of
frames (`sandbox.frames`): the setup comes in and {"ready": true} or {"failed": ...} goes out, then requests and
replies, strictly in turn. What the function prints is discarded. The process dies with its host.
"""

import difflib
import importlib
import importlib.util
import math
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from ..sandbox.frames import decode, encode
from ..sandbox.inside import kernel
from ..types import JSON
from .reply import BrokenGrader, Grader, run_grader


def main() -> None:
    """Load the grader, then reply to requests until the host hangs up."""
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    setup = read_frame(channel)
    assert isinstance(setup, dict)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setup["host"]:
        sys.exit(1)
    path, memory_bytes = setup["path"], setup["memory_bytes"]
    assert isinstance(path, list) and isinstance(memory_bytes, int)
    sys.path[:] = [str(entry) for entry in path]
    importlib.invalidate_caches()
    try:
        grader = load_grader(str(setup["function"]))
    except BaseException as error:  # noqa: BLE001 - the boundary: whatever a user's module raises is told to the host
        reason = str(error) if isinstance(error, BrokenGrader) else f"{type(error).__name__}: {error}"
        channel.sendall(encode({"failed": reason[:2000].encode("utf-8", "replace").decode()}))
        sys.exit(1)
    limit = memory_bytes + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel.sendall(encode({"ready": True}))
    while (request := read_frame(channel)) is not None:
        assert isinstance(request, dict)
        reply = run_grader(grader, request)
        channel.sendall(encode(reply.to_json()))
        if reply.last:
            break


def read_frame(channel: socket.socket) -> JSON:
    """Return the next frame, or None when the host has hung up."""
    header = _read(channel, 4)
    return decode(_read(channel, struct.unpack(">I", header)[0])) if len(header) == 4 else None


def _read(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size and (part := channel.recv(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def load_grader(name: str) -> Grader:
    """Import the function `module:function`. Raises BrokenGrader with what is wrong with it."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise BrokenGrader(f"a grader is named module:function, not {name!r}")
    members = vars(_import(module))
    function = members.get(attribute)
    if not callable(function):
        close = difflib.get_close_matches(attribute, [key for key in members if callable(members[key])], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BrokenGrader(f"{module} has no function {attribute} ({module} is {members.get('__file__')}){hint}")

    def grade(request: Mapping[str, JSON]) -> tuple[float, bool, str]:
        try:
            score = function(request["answer"], request["data"])
        except MemoryError:
            raise
        except BaseException as error:
            raise BrokenGrader(f"{name} raised {_one_line(error)}") from error
        if not isinstance(score, bool | int | float) or not math.isfinite(score) or not 0 <= score <= 1:
            raise BrokenGrader(f"{name} returned {score!r}; a grader returns a bool or a number from 0 to 1")
        solved = score >= 1 - 1e-9
        return float(score), solved, "" if solved else f"{name} gave {float(score):g}"

    return grade


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            folders = ", ".join(dict.fromkeys(sys.path[:2]))
            raise BrokenGrader(
                f"no module {error.name}, neither in {folders} nor where Python looks "
                f"(ModuleNotFoundError): put {error.name.replace('.', '/')}.py beside the tasks, or install it"
            ) from error
        raise BrokenGrader(f"importing {_file_of(name)} raised {_one_line(error)}") from error


def _file_of(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # noqa: BLE001 - a package that cannot be imported: its name will do
        spec = None
    return spec.origin if spec and spec.origin else module


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")[:500]


if __name__ == "__main__":
    main()
