"""Stands in for `subprocess`: a Python program is run by the host in a sandboxed run of its own, nothing else is.

`subprocess.run([python, "-c", code], ...)` and check_output work as far as the paper's scripts use them. Shells, other
programs and Popen are refused with the errors a script would see on a machine that does not have them.
"""

import errno
import os
from collections.abc import Mapping, Sequence

from . import door

PIPE, STDOUT, DEVNULL = -1, -2, -3
_DEFAULT_TIMEOUT_SECONDS = 10.0


class SubprocessError(Exception):
    """Base of what this module raises."""


class CalledProcessError(SubprocessError):
    """A program that was run with check=True returned a non-zero code."""

    def __init__(self, returncode: int, cmd: object, output: object = None, stderr: object = None) -> None:
        super().__init__(f"Command {cmd!r} returned non-zero exit status {returncode}.")
        self.returncode, self.cmd, self.output, self.stdout, self.stderr = returncode, cmd, output, output, stderr


class TimeoutExpired(SubprocessError):
    """A program did not end within its time-out."""

    def __init__(self, cmd: object, timeout: float, output: object = None, stderr: object = None) -> None:
        super().__init__(f"Command {cmd!r} timed out after {timeout} seconds")
        self.cmd, self.timeout, self.output, self.stdout, self.stderr = cmd, timeout, output, output, stderr


class CompletedProcess:
    """What is left of a program that has ended."""

    def __init__(self, args: object, returncode: int, stdout: object = None, stderr: object = None) -> None:
        self.args, self.returncode, self.stdout, self.stderr = args, returncode, stdout, stderr

    def check_returncode(self) -> None:
        """Raise CalledProcessError when the code is not zero."""
        if self.returncode:
            raise CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


def _program(args: object, stdin: str | None) -> tuple[str, str]:
    """The Python source that this command would run, and its standard input."""
    words = [args] if isinstance(args, str) else list(args) if isinstance(args, Sequence) else [str(args)]
    name = os.path.basename(str(words[0])) if words else ""
    if not name.startswith("python"):
        raise FileNotFoundError(errno.ENOENT, "No such program in the sandbox (only python is)", name)
    rest = [str(word) for word in words[1:] if word not in ("-u", "-I", "-S", "-B", "-E", "-s", "-O")]
    if len(rest) >= 2 and rest[0] == "-c":
        return rest[1], stdin or ""
    if not rest or rest == ["-"]:
        return stdin or "", ""
    raise PermissionError(errno.EPERM, 'only [python, "-c", code] can be run in the sandbox', name)


def run(  # noqa: PLR0913 - the arguments are the standard library's
    args: object,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    text: bool | None = None,
    stdin: object = None,
    stdout: int | None = None,
    stderr: int | None = None,
    shell: bool = False,
    encoding: str | None = None,
    errors: str | None = None,
    universal_newlines: bool | None = None,
    env: Mapping[str, str] | None = None,
    cwd: object = None,
) -> CompletedProcess:
    """Run a Python program in a sandboxed run of its own and wait for it."""
    if shell:
        raise PermissionError(errno.EPERM, "there is no shell in the sandbox")
    given = input.decode("utf-8", "replace") if isinstance(input, bytes) else input
    code, given = _program(args, given)
    seconds = _DEFAULT_TIMEOUT_SECONDS if timeout is None else float(timeout)
    outcome = door.ask({"kind": "python", "code": code, "stdin": given, "timeout": seconds})
    if not isinstance(outcome, dict) or "error" in outcome:
        raise OSError(errno.EAGAIN, str(outcome["error"]) if isinstance(outcome, dict) else "no such reply")
    as_text = bool(text or encoding or errors or universal_newlines)

    def stream(name: str, wanted: int | None) -> str | bytes | None:
        if not capture_output and wanted != PIPE:
            return None
        value = str(outcome[name])
        return value if as_text else value.encode()

    out, err = stream("stdout", stdout), stream("stderr", stderr)
    if stderr == STDOUT and isinstance(out, str | bytes):
        tail = str(outcome["stderr"])
        out = out + tail if isinstance(out, str) else out + tail.encode()
    if outcome["timed_out"]:
        raise TimeoutExpired(args, seconds, out, err)
    code_returned = outcome["returncode"]
    done = CompletedProcess(args, code_returned if isinstance(code_returned, int) else 1, out, err)
    if check:
        done.check_returncode()
    return done


def check_output(args: object, *, timeout: float | None = None, text: bool | None = None) -> object:
    """Run a Python program and return what it printed."""
    return run(args, stdout=PIPE, timeout=timeout, text=text, check=True).stdout


def check_call(args: object, *, timeout: float | None = None) -> int:
    """Run a Python program; raise when it fails."""
    return run(args, timeout=timeout, check=True).returncode


call = check_call


class Popen:
    """Not available in the sandbox."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EPERM, "subprocess.Popen is not available in the sandbox; use subprocess.run")
