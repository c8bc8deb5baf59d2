"""The errors that a person can do something about, the end that a person asked for, and words for unusable files."""

import errno
import os
import stat
from pathlib import Path


class MetaAgentXError(Exception):
    """One clear line that names the thing and the fix. The command line prints it and exits with 2."""


class Interrupted(SystemExit):
    """A signal ended the command. The command line prints the message and exits with 130.

    An exit and no exception of ours: nothing that handles errors holds it up.
    """

    def __init__(self, message: str = "stopped; the same command goes on from here") -> None:
        super().__init__(130)
        self.message = message


def access_problem(path: Path, verb: str = "read") -> str:
    """Why a file or directory may not be read (or written), with the mode and owner of what stands in the way."""
    blocking = path if verb == "written" else _blocking(path)
    if blocking is None:
        return f"{path} cannot be {verb} (Permission denied): ask its owner for the permission"
    about = blocking.stat()
    kind = "directory" if stat.S_ISDIR(about.st_mode) else "file"
    mode, owner = stat.filemode(about.st_mode), _owner(about.st_uid)
    what = "" if blocking == path else f"{kind} {blocking}, "
    wanted = "w" if verb == "written" else "rx" if kind == "directory" else "r"
    return (
        f"{path} cannot be {verb} (Permission denied; {what}mode {mode}, owner {owner}): "
        f"the owner can allow it with chmod a+{wanted} {blocking}"
    )


def path_problem(error: OSError, verb: str = "used") -> str | None:
    """One line for an error about a file that a person can mend; None if it is about something else."""
    if error.filename is None:
        return None
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, PermissionError):
        return access_problem(path, verb)
    words = {
        errno.ENOENT: _missing(path),
        errno.ENOTDIR: f"{path} cannot be used (Not a directory): a file stands where a directory should be",
        errno.EISDIR: f"{path} is a directory, where a file should be: remove it, or name another place",
        errno.EEXIST: f"{path} is there already, or a file or link stands in its place: name another place",
        errno.ELOOP: f"{path} is a symbolic link that leads to itself: remove it, or name another place",
        errno.ENAMETOOLONG: f"{path} is longer than a path may be: choose a shorter name",
    }
    return words.get(error.errno or 0)


def _missing(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a symbolic link that leads nowhere: remove it, or name another place"
    return f"{path} does not exist, or was moved or removed meanwhile"


def _blocking(path: Path) -> Path | None:
    """The first part of a path that does not let this user through: a directory on the way, or what it leads to."""
    try:
        for parent in reversed(path.absolute().parents):
            if not os.access(parent, os.X_OK):
                return parent
        wanted = os.R_OK | (os.X_OK if path.is_dir() else 0)
        return path if path.exists() and not os.access(path, wanted) else None
    except OSError:
        return None


def _owner(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
