"""Files and directories that appear whole or not at all, whatever moment the process is killed at.

Each is written beside its place under a name that begins with a dot, sent to the disk, and renamed. What a killed
process left under such a name is cleared by the next one that holds the lock.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MetaAgentXError, path_problem

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IN_THE_WAY = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
_CURABLE = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, *_IN_THE_WAY)


@contextmanager
def explained(what: str, cure: str) -> Iterator[None]:
    """A disk that is full, refuses to be written or is not as it was becomes one line. Other errors pass."""
    try:
        yield
    except Exception as error:
        reason = _refusal(error)
        if reason is None:
            raise
        raise MetaAgentXError(f"{what} could not be written ({reason}): {cure}") from error


@contextmanager
def explained_reading() -> Iterator[None]:
    """A file that may not be read, or is not what it should be, becomes one line that names it."""
    try:
        yield
    except OSError as error:
        problem = path_problem(error, "read")
        if problem is None:
            raise
        raise MetaAgentXError(problem) from error


def exists(path: Path) -> bool:
    """Whether it is there. That it may not be looked at is an error, not a no."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def refuse_dangling(path: Path) -> None:
    """A symbolic link that leads nowhere is no place to write to."""
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        raise MetaAgentXError(f"{path} is a symbolic link that leads nowhere (to {target}): remove it or name another")


def _refusal(error: Exception) -> str | None:
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _CURABLE else None
    # What writes the weights may not be written in Python and then raises errors of its own with the system's words.
    return next((os.strerror(code) for code in _FULL if os.strerror(code) in str(error)), None)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file; one that was there is replaced."""
    unfinished = _beside(path, "unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    unfinished.replace(path)
    flush(path.parent)


def append(path: Path, data: bytes) -> None:
    """Add to a file, which stays as it was if there is no room for all of it."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(before)
            raise


@contextmanager
def directory_appears(path: Path) -> Iterator[Path]:
    """A directory to fill; one that was there is replaced when it is full."""
    unfinished, replaced = _beside(path, "unfinished"), _beside(path, "replaced")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        made = unfinished.stat()
        yield unfinished
        if not os.path.samestat(made, unfinished.stat()):  # moved away, and made again by whoever wrote into it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
        flush_all(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    unfinished.rename(path)
    flush(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Take it out of sight first: half a directory must not look like one."""
    removed = _beside(path, "removed")
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def clear_remains(directory: Path) -> None:
    """Remove what a killed process left unfinished here, and put back what it was about to replace."""
    for replaced in directory.glob(".*.replaced"):
        path = directory / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not path.exists():
            replaced.rename(path)
    for pattern in (".*.unfinished", ".*.replaced", ".*.removed"):
        for remains in directory.glob(pattern):
            if remains.is_dir():
                shutil.rmtree(remains)
            else:
                remains.unlink()


def copy_directory(source: Path, target: Path, copied: dict[tuple[int, int], Path] | None = None) -> None:
    """Plain copies of plain files. One that has several names in the source is copied once and has them here, too."""
    copied = {} if copied is None else copied
    target.mkdir()
    for path in source.iterdir():
        place = target / path.name
        if path.is_dir():
            copy_directory(path, place, copied)
            continue
        found = path.stat()
        first = copied.setdefault((found.st_dev, found.st_ino), place)
        if first is place or not _linked(first, place):
            shutil.copyfile(path, place)


def _linked(path: Path, other_name: Path) -> bool:
    try:
        os.link(path, other_name)
    except OSError:  # the file system does not know hard links
        return False
    return True


def follow_umask(directory: Path) -> None:
    """Give every file in it the mode of a plain new file: what writes weights makes them its owner's alone."""
    probe = directory / ".mode"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in directory.rglob("*"):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)


def flush_all(directory: Path) -> None:
    """Send everything in a directory to the disk."""
    for path in [*directory.rglob("*"), directory]:
        flush(path)


def flush(path: Path) -> None:
    """Send to the disk: a rename may reach it before what was written into the files, unless these go first."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, until it is closed or the process ends; None if another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
        os.close(descriptor)  # its directory was renamed or removed just before we had the lock
        return None
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode())
    except OSError:
        pass  # the name is a courtesy: a full disk must not keep anyone from going back, which may make room
    return descriptor


def lock_holder(path: Path) -> str:
    """Who holds the lock, as far as the file tells."""
    process, _, machine = path.read_text().strip().partition(" ")
    return f"process {process} on {machine}" if process else "another process"


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """A directory that no other process writes to, as long as this lasts."""
    refuse_dangling(directory)
    with explained(str(directory), "choose another directory"):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise MetaAgentXError(f"{directory} is a file, or below one: choose another directory") from None
        try:
            lock = take_lock(directory / "lock")
        except IsADirectoryError:
            raise MetaAgentXError(f"{directory / 'lock'} should be a file: choose another directory") from None
    if lock is None:
        raise MetaAgentXError(f"{directory} is in use by {lock_holder(directory / 'lock')}: wait for it or stop it")
    try:
        yield
    finally:
        os.close(lock)


def _beside(path: Path, why: str) -> Path:
    return path.with_name(f".{path.name}.{why}")
