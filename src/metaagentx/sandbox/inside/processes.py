"""Replaces `subprocess` in runs: the host runs a Python program in a sandboxed run of its own, and nothing else.

`run`, `call`, `check_call` and `check_output` of [python, "-c", code] behave like Python's own: exit codes, exceptions,
text and bytes, input, redirected output. Shells, other programs and Popen fail with the errors that a script would see
on a machine without them. Differences: a program sees no environment and no directory, its standard input is empty by
default, its timeout is 10 seconds by default, output that is not UTF-8 is replaced, and stderr=STDOUT puts standard
error behind standard output.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, PIPE, STDOUT, CalledProcessError, CompletedProcess, TimeoutExpired
from subprocess import SubprocessError as SubprocessError  # noqa: PLC0414 - for scripts
from typing import Any

from . import door

_DEFAULT_TIMEOUT_SECONDS = 10.0
_READ_BYTES = 1 << 16
_POPEN_OPTIONS = {
    "bufsize", "executable", "stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env",
    "universal_newlines", "startupinfo", "creationflags", "restore_signals", "start_new_session", "pass_fds",
    "user", "group", "extra_groups", "encoding", "errors", "text", "umask", "pipesize", "process_group",
}  # fmt: skip
_FLAGS = ("-u", "-I", "-S", "-B", "-E", "-s", "-O")


def run(
    args: Any,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: object,
) -> "CompletedProcess[Any]":
    """Run a Python program and wait for it."""
    if input is not None and options.get("stdin") is not None:
        raise ValueError("stdin and input arguments may not both be used.")
    if capture_output:
        if options.get("stdout") is not None or options.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        options |= {"stdout": PIPE, "stderr": PIPE}
    completed = _run(args, input, timeout, options)
    if check:
        completed.check_returncode()
    return completed


def call(args: Any, *, timeout: float | None = None, **options: object) -> int:
    """Run a Python program and return its exit code."""
    return _run(args, None, timeout, options).returncode


def check_call(args: Any, *, timeout: float | None = None, **options: object) -> int:
    """Run a Python program; raise when it fails."""
    code = call(args, timeout=timeout, **options)
    if code:
        raise CalledProcessError(code, args)
    return 0


def check_output(args: Any, **options: Any) -> object:
    """Run a Python program and return its output; raise when it fails."""
    for name in ("stdout", "check"):
        if name in options:
            raise ValueError(f"{name} argument not allowed, it will be overridden.")
    return run(args, check=True, stdout=PIPE, **options).stdout


def getstatusoutput(cmd: object, **options: object) -> tuple[int, str]:
    """Not available in the sandbox."""
    raise PermissionError(errno.EPERM, "no shell in the sandbox")


def getoutput(cmd: object, **options: object) -> str:
    """Not available in the sandbox."""
    return getstatusoutput(cmd, **options)[1]


class Popen:
    """Not available in the sandbox."""

    def __init__(self, *args: Any, **options: object) -> None:
        raise PermissionError(errno.EPERM, "subprocess.Popen is not available in the sandbox; use subprocess.run")


def _run(
    args: Any, given: str | bytes | None, timeout: float | None, options: Mapping[str, object]
) -> "CompletedProcess[Any]":
    """Run a program until it ends and redirect its output as the options say."""
    for name in options:
        if name not in _POPEN_OPTIONS:
            raise TypeError(f"Popen.__init__() got an unexpected keyword argument {name!r}")
    if options.get("shell"):
        raise PermissionError(errno.EPERM, "no shell in the sandbox")
    code, stdin = _parse_command(args, _standard_input(given, options))
    seconds = _DEFAULT_TIMEOUT_SECONDS if timeout is None else float(timeout)
    reply = door.ask({"kind": "python", "code": code, "stdin": stdin, "timeout": seconds})
    if not isinstance(reply, dict) or "error" in reply:
        raise OSError(errno.EAGAIN, str(reply["error"]) if isinstance(reply, dict) else "malformed reply")
    output, errors = str(reply["stdout"]).encode(), str(reply["stderr"]).encode()
    if options.get("stderr") == STDOUT:
        output, errors = output + errors, b""
    out = _redirect(output, options.get("stdout"), 1)
    err = None if options.get("stderr") == STDOUT else _redirect(errors, options.get("stderr"), 2)
    if reply["timed_out"]:
        raise TimeoutExpired(args, seconds if timeout is None else timeout, out or None, err or None)
    status = reply["returncode"]
    return CompletedProcess(
        args, status if isinstance(status, int) else 1, _decode(out, options), _decode(err, options)
    )


def _parse_command(args: Any, stdin: str) -> tuple[str, str]:
    """Return the Python source that this command would run, and its standard input."""
    words = [args] if isinstance(args, str) else list(args) if isinstance(args, Sequence) else [str(args)]
    name = os.path.basename(str(words[0])) if words else ""
    if not name.startswith("python"):
        raise FileNotFoundError(errno.ENOENT, "No such program in the sandbox (only python)", name)
    rest = [str(word) for word in words[1:]]
    while rest and rest[0] in _FLAGS:
        del rest[0]
    if len(rest) >= 2 and rest[0] == "-c":
        _, code, *arguments = rest
        return (f"import sys; sys.argv = {['-c', *arguments]!r}\n{code}" if arguments else code), stdin
    if not rest or rest == ["-"]:
        return stdin, ""
    raise PermissionError(errno.EPERM, 'only [python, "-c", code] can be run in the sandbox', name)


def _standard_input(given: str | bytes | None, options: Mapping[str, object]) -> str:
    """Return what the program reads: `input`, which must be text or bytes like the other streams, or a file."""
    stdin = options.get("stdin")
    if given is not None:
        if isinstance(given, str) is not _as_text(options):
            needed = "a str" if _as_text(options) else "a bytes-like object"
            error = AttributeError if _as_text(options) else TypeError  # the types that Python itself raises
            raise error(f"input: {needed} is required, not {type(given).__name__!r}")
        return given if isinstance(given, str) else bytes(given).decode("utf-8", "replace")
    if stdin is None or stdin in (PIPE, DEVNULL):
        return ""
    data, descriptor = b"", _descriptor(stdin)
    while more := os.read(descriptor, _READ_BYTES):
        data += more
    return data.decode("utf-8", "replace")


def _redirect(data: bytes, target: object, default: int) -> bytes | None:
    """Return output to the caller (PIPE), drop it, or write it to a descriptor, by default that of the script."""
    if target == PIPE:
        return data
    if target != DEVNULL:
        descriptor = default if target is None else _descriptor(target)
        while data:
            data = data[os.write(descriptor, data) :]
    return None


def _descriptor(file: object) -> int:
    return file if isinstance(file, int) else int(file.fileno())  # type: ignore[attr-defined]


def _as_text(options: Mapping[str, object]) -> bool:
    return any(options.get(name) for name in ("text", "encoding", "errors", "universal_newlines"))


def _decode(data: bytes | None, options: Mapping[str, object]) -> str | bytes | None:
    if data is None or not _as_text(options):
        return data
    text = data.decode(str(options.get("encoding") or "utf-8"), str(options.get("errors") or "strict"))
    return text.replace("\r\n", "\n").replace("\r", "\n")
