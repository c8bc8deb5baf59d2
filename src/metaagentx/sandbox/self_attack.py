"""A dozen quick attacks that the sandbox runs against itself before it trusts a tier.

Each snippet finds its targets in `target` and calls `door.answer(True)` only if it succeeds. A test proves that each
of them succeeds where nothing protects, so that a broken snippet cannot be mistaken for protection.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from .frames import JSON
from .types import Limits, Result, Verdict

LIMITS = Limits(cpu_seconds=2, wall_seconds=10, asks=0)

_SYSCALL = "import ctypes, os\ncall = ctypes.CDLL(None, use_errno=True).syscall\n"

ATTACKS = {
    "read a file": "door.answer(target['secret'] in open(target['file']).read())",
    "write a file": "open(target['directory'] + '/written', 'w').write('x'); door.answer(True)",
    "change a file's mode": "import os; os.chmod(target['file'], 0o600); door.answer(True)",
    "read an environment": "door.answer(len(open('/proc/self/environ').read()) > 0)",
    "connect by TCP": "import socket; socket.create_connection(('127.0.0.1', target['port']), 2); door.answer(True)",
    "connect to an abstract socket": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + target['name']); door.answer(True)"
    ),
    "signal the host": "import os; os.kill(target['pid'], 0); door.answer(True)",
    "fork": "import os\nif os.fork() == 0: os._exit(0)\ndoor.answer(True)",
    "start a program": (
        "import os\nr, w = os.pipe()\npid = os.fork()\n"
        "if pid == 0: os.dup2(w, 1); os.execv('/bin/sh', ['sh', '-c', 'echo yes'])\n"
        "door.answer(os.read(r, 3) == b'yes')"
    ),
    "own a signal": (
        "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETOWN, target['pid'])\n"
        "door.answer(fcntl.fcntl(0, fcntl.F_GETOWN) == target['pid'])"
    ),
    "trace": _SYSCALL + "door.answer(call({'x86_64': 101, 'aarch64': 117}[os.uname().machine], 0, 0, 0, 0) == 0)",
    "make a namespace": _SYSCALL
    + "door.answer(call({'x86_64': 272, 'aarch64': 97}[os.uname().machine], 0x10000000) == 0)",
    "open a process by id": _SYSCALL + "door.answer(call(434, target['pid'], 0) >= 0)",
}
CONTROL = "door.answer(sum(range(10)) == 45)"
"""Not an attack: it must succeed, or the sandbox is broken and the failure of the attacks proves nothing."""


@contextlib.contextmanager
def targets() -> Iterator[dict[str, JSON]]:
    """Create targets that an ordinary process of this user could reach."""
    name, secret = f"metaagentx-{secrets.token_hex(8)}", secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="metaagentx-") as directory,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        Path(directory).chmod(0o777)
        file = Path(directory) / "secret"
        file.write_text(secret)
        file.chmod(0o666)
        unix.bind("\0" + name)
        unix.listen()
        yield {
            "directory": directory,
            "file": str(file),
            "secret": secret,
            "port": tcp.getsockname()[1],
            "name": name,
            "pid": os.getpid(),
        }


def script_of(attack: str) -> str:
    """Return the complete script of an attack; an exception means that the attack was stopped."""
    body = "\n".join("    " + line for line in attack.splitlines())
    return f"import door\ntry:\n{body}\nexcept Exception as error:\n    print(repr(error))\n"


async def find_holes(run: Callable[[str, dict[str, JSON]], Awaitable[Result]]) -> list[str]:
    """Return which attacks succeed, or that honest code does not run; empty when the sandbox holds.

    `run` runs code with inputs, within LIMITS.
    """
    snippets = {"control": CONTROL} | ATTACKS
    with targets() as target:
        runs = [run(script_of(code), {"target": target}) for code in snippets.values()]
        results = dict(zip(snippets, await asyncio.gather(*runs), strict=True))
    control = results.pop("control")
    if control.verdict is not Verdict.OK or control.answer is not True:
        return [f"honest code does not run ({control.detail or control.verdict})"]
    return [name for name, result in results.items() if result.answer is True]
