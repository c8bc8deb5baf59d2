"""Stands in for `subprocess`: a Python program is run by the host in a sandboxed run of its own, nothing else is.

`run`, `call`, `check_call` and `check_output` of [python, "-c", code] do what Python's own do: exit codes, errors, text
and bytes, input, and where output goes. Shells, other programs and Popen are refused with the errors a script would see
on a machine that does not have them. What differs: a program sees no environment and no directory, its standard input
is empty unless it is given one, it has 10 seconds where no timeout is given, output that is not UTF-8 is replaced, and
stderr=STDOUT puts what went to stderr behind the rest.
"""

import errno
import os
import signal
from collections.abc import Mapping, Sequence

from . import door

PIPE, STDOUT, DEVNULL = -1, -2, -3
_DEFAULT_TIMEOUT_SECONDS = 10.0
_READ_BYTES = 1 << 16
_POPEN_OPTIONS = {
    "bufsize", "executable", "stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env",
    "universal_newlines", "startupinfo", "creationflags", "restore_signals", "start_new_session", "pass_fds",
    "user", "group", "extra_groups", "encoding", "errors", "text", "umask", "pipesize", "process_group",
}  # fmt: skip
_FLAGS = ("-u", "-I", "-S", "-B", "-E", "-s", "-O")


class SubprocessError(Exception):
    """Base of what this module raises."""


class CalledProcessError(SubprocessError):
    """A program whose exit code is checked returned a non-zero one."""

    def __init__(self, returncode: int, cmd: object, output: object = None, stderr: object = None) -> None:
        self.returncode, self.cmd, self.output, self.stdout, self.stderr = returncode, cmd, output, output, stderr

    def __str__(self) -> str:
        if self.returncode >= 0:
            return f"Command '{self.cmd}' returned non-zero exit status {self.returncode}."
        try:
            return f"Command '{self.cmd}' died with {signal.Signals(-self.returncode)!r}."
        except ValueError:
            return f"Command '{self.cmd}' died with unknown signal {-self.returncode}."


class TimeoutExpired(SubprocessError):
    """A program did not end within its timeout."""

    def __init__(self, cmd: object, timeout: float, output: object = None, stderr: object = None) -> None:
        self.cmd, self.timeout, self.output, self.stdout, self.stderr = cmd, timeout, output, output, stderr

    def __str__(self) -> str:
        return f"Command '{self.cmd}' timed out after {self.timeout} seconds"


class CompletedProcess:
    """What is left of a program that has ended."""

    def __init__(self, args: object, returncode: int, stdout: object = None, stderr: object = None) -> None:
        self.args, self.returncode, self.stdout, self.stderr = args, returncode, stdout, stderr

    def __repr__(self) -> str:
        parts = [f"args={self.args!r}", f"returncode={self.returncode!r}"]
        parts += [f"{name}={value!r}" for name, value in (("stdout", self.stdout), ("stderr", self.stderr)) if value]
        return f"CompletedProcess({', '.join(parts)})"

    def check_returncode(self) -> None:
        """Raise CalledProcessError when the code is not zero."""
        if self.returncode:
            raise CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


def run(
    args: object,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: object,
) -> CompletedProcess:
    """Run a Python program in a sandboxed run of its own and wait for it."""
    if input is not None and options.get("stdin") is not None:
        raise ValueError("stdin and input arguments may not both be used.")
    if capture_output:
        if options.get("stdout") is not None or options.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        options |= {"stdout": PIPE, "stderr": PIPE}
    done = _run(args, input, timeout, options)
    if check:
        done.check_returncode()
    return done


def call(args: object, *, timeout: float | None = None, **options: object) -> int:
    """Run a Python program and return its exit code, whatever it is."""
    return _run(args, None, timeout, options).returncode


def check_call(args: object, *, timeout: float | None = None, **options: object) -> int:
    """Run a Python program; raise when it fails."""
    code = call(args, timeout=timeout, **options)
    if code:
        raise CalledProcessError(code, args)
    return 0


def check_output(
    args: object, *, input: str | bytes | None = None, timeout: float | None = None, **options: object
) -> object:
    """Run a Python program and return what it printed; raise when it fails."""
    for name in ("stdout", "check"):
        if name in options:
            raise ValueError(f"{name} argument not allowed, it will be overridden.")
    if input is not None and options.get("stdin") is not None:
        raise ValueError("stdin and input arguments may not both be used.")
    done = _run(args, input, timeout, {**options, "stdout": PIPE})
    done.check_returncode()
    return done.stdout


def getstatusoutput(cmd: object, **options: object) -> tuple[int, str]:
    """Not available in the sandbox."""
    raise PermissionError(errno.EPERM, "there is no shell in the sandbox")


def getoutput(cmd: object, **options: object) -> str:
    """Not available in the sandbox."""
    return getstatusoutput(cmd, **options)[1]


class Popen:
    """Not available in the sandbox."""

    def __init__(self, *args: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "subprocess.Popen is not available in the sandbox; use subprocess.run")


def _run(
    args: object, given: str | bytes | None, timeout: float | None, options: Mapping[str, object]
) -> CompletedProcess:
    """One program to its end, its output where the options say."""
    for name in options:
        if name not in _POPEN_OPTIONS:
            raise TypeError(f"Popen.__init__() got an unexpected keyword argument {name!r}")
    if options.get("shell"):
        raise PermissionError(errno.EPERM, "there is no shell in the sandbox")
    code, stdin = _program(args, _standard_input(given, options))
    seconds = _DEFAULT_TIMEOUT_SECONDS if timeout is None else float(timeout)
    outcome = door.ask({"kind": "python", "code": code, "stdin": stdin, "timeout": seconds})
    if not isinstance(outcome, dict) or "error" in outcome:
        raise OSError(errno.EAGAIN, str(outcome["error"]) if isinstance(outcome, dict) else "no such reply")
    written, errors = str(outcome["stdout"]).encode(), str(outcome["stderr"]).encode()
    if options.get("stderr") == STDOUT:
        written, errors = written + errors, b""
    out = _deliver(written, options.get("stdout"), 1)
    err = None if options.get("stderr") == STDOUT else _deliver(errors, options.get("stderr"), 2)
    if outcome["timed_out"]:
        raise TimeoutExpired(args, seconds if timeout is None else timeout, out or None, err or None)
    returned = outcome["returncode"]
    return CompletedProcess(
        args, returned if isinstance(returned, int) else 1, _converted(out, options), _converted(err, options)
    )


def _program(args: object, stdin: str) -> tuple[str, str]:
    """The Python source that this command would run, and its standard input."""
    words = [args] if isinstance(args, str) else list(args) if isinstance(args, Sequence) else [str(args)]
    name = os.path.basename(str(words[0])) if words else ""
    if not name.startswith("python"):
        raise FileNotFoundError(errno.ENOENT, "No such program in the sandbox (only python is)", name)
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
    """What the program reads: `input`, which is text or bytes as the other streams are, or what a file holds."""
    stdin = options.get("stdin")
    if given is not None:
        if isinstance(given, str) is not _as_text(options):
            needed = "a str" if _as_text(options) else "a bytes-like object"
            error = AttributeError if _as_text(options) else TypeError  # Python's own, whose words differ
            raise error(f"input: {needed} is required, not {type(given).__name__!r}")
        return given if isinstance(given, str) else bytes(given).decode("utf-8", "replace")
    if stdin is None or stdin in (PIPE, DEVNULL):
        return ""
    data, descriptor = b"", _descriptor(stdin)
    while more := os.read(descriptor, _READ_BYTES):
        data += more
    return data.decode("utf-8", "replace")


def _deliver(data: bytes, target: object, own: int) -> bytes | None:
    """Output to where it goes: back to the caller, nowhere, or to a descriptor, the script's own by default."""
    if target == PIPE:
        return data
    if target != DEVNULL:
        descriptor = own if target is None else _descriptor(target)
        while data:
            data = data[os.write(descriptor, data) :]
    return None


def _descriptor(file: object) -> int:
    return file if isinstance(file, int) else int(file.fileno())  # type: ignore[attr-defined]


def _as_text(options: Mapping[str, object]) -> bool:
    return any(options.get(name) for name in ("text", "encoding", "errors", "universal_newlines"))


def _converted(data: bytes | None, options: Mapping[str, object]) -> str | bytes | None:
    if data is None or not _as_text(options):
        return data
    text = data.decode(str(options.get("encoding") or "utf-8"), str(options.get("errors") or "strict"))
    return text.replace("\r\n", "\n").replace("\r", "\n")
