"""Errors that a user can fix, the exit on a signal, and messages for files that cannot be used."""

import errno
import os
import stat
from pathlib import Path


class MetaAgentXError(Exception):
    """An error whose message is one line with the cause and the fix. The command line prints it and exits with 2."""


class Interrupted(SystemExit):
    """A signal ended the command. The command line prints the message and exits with 130.

    It is a SystemExit, so that no handler of errors catches it.
    """

    def __init__(self, message: str = "stopped; run the same command again to continue") -> None:
        super().__init__(130)
        self.message = message


def access_problem(path: Path, verb: str = "read") -> str:
    """Return why a file or directory may not be read (or written), with mode and owner of the path that blocks it."""
    blocking = path if verb == "written" else _blocking(path)
    if blocking is None:
        return f"{path} cannot be {verb} (Permission denied): ask its owner for the permission"
    status = blocking.stat()
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
    mode, owner = stat.filemode(status.st_mode), _owner(status.st_uid)
    which = "" if blocking == path else f"{kind} {blocking}, "
    needed = "w" if verb == "written" else "rx" if kind == "directory" else "r"
    return (
        f"{path} cannot be {verb} (Permission denied; {which}mode {mode}, owner {owner}): "
        f"the owner can allow it with chmod a+{needed} {blocking}"
    )


def path_problem(error: OSError, verb: str = "used") -> str | None:
    """Return one line for an error about a file that a user can fix; None if it is about something else."""
    if error.filename is None:
        return None
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, PermissionError):
        return access_problem(path, verb)
    messages = {
        errno.ENOENT: _missing(path),
        errno.ENOTDIR: f"{path} cannot be used (Not a directory): a file is where a directory should be",
        errno.EISDIR: f"{path} is a directory, where a file should be: remove it, or choose another path",
        errno.EEXIST: f"{path} already exists, or a file or link is in its way: choose another path",
        errno.ELOOP: f"{path} is a symbolic link that leads to itself: remove it, or choose another path",
        errno.ENAMETOOLONG: f"{path} is too long for a path: choose a shorter name",
    }
    return messages.get(error.errno or 0)


def _missing(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a symbolic link that leads nowhere: remove it, or choose another path"
    return f"{path} does not exist, or was moved or removed"


def _blocking(path: Path) -> Path | None:
    """Return the first part of a path that this user may not use: a parent directory, or the path itself."""
    try:
        for parent in reversed(path.absolute().parents):
            if not os.access(parent, os.X_OK):
                return parent
        needed = os.R_OK | (os.X_OK if path.is_dir() else 0)
        return path if path.exists() and not os.access(path, needed) else None
    except OSError:
        return None


def _owner(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
