"""A dozen quick attacks that the sandbox makes on itself before it trusts a tier.

Each snippet finds in `target` what to attack and says `door.answer(True)` only when it got through. A test proves every
one of them to work where nothing protects, so that a snippet that is merely broken cannot pass for a wall that holds.
"""

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .frames import JSON

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
"""Not an attack: it must succeed, or the machinery is broken and the silence of the attacks means nothing."""


@contextlib.contextmanager
def targets() -> Iterator[dict[str, JSON]]:
    """Things worth attacking, which a plain process of this user could reach."""
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


def snippet(attack: str) -> str:
    """A whole script of an attack; a refusal by an exception is a wall that holds."""
    body = "\n".join("    " + line for line in attack.splitlines())
    return f"import door\ntry:\n{body}\nexcept Exception as error:\n    print(repr(error))\n"
