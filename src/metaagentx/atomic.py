"""Atomic writes of files and directories, locks, and readable errors for disks that fail.

A file or directory is written beside its target under a name that begins with a dot, flushed to the disk, and renamed:
it is complete or absent whenever the process is killed. The next process that holds the lock removes what a killed one
left behind.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import MetaAgentXError, path_problem

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRONG_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
_FIXABLE = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, *_WRONG_PATH)


@contextmanager
def friendly_io_errors(what: str, cure: str) -> Iterator[None]:
    """Turn the error of a disk that is full, read-only or changed into one line with `cure`. Other errors pass."""
    try:
        yield
    except Exception as error:
        reason = _disk_error(error)
        if reason is None:
            raise
        raise MetaAgentXError(f"{what} could not be written ({reason}): {cure}") from error


@contextmanager
def friendly_read_errors() -> Iterator[None]:
    """Turn the error of a file that cannot be read into one line that names it."""
    try:
        yield
    except OSError as error:
        problem = path_problem(error, "read")
        if problem is None:
            raise
        raise MetaAgentXError(problem) from error


def exists(path: Path) -> bool:
    """Whether a path exists. A path that may not be looked at is an error, not False."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def refuse_dangling(path: Path) -> None:
    """Raise an error for a symbolic link whose target does not exist."""
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        raise MetaAgentXError(f"{path} is a symbolic link that leads nowhere (to {target}): remove it or name another")


def _disk_error(error: Exception) -> str | None:
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _FIXABLE else None
    # safetensors is not written in Python and raises errors of its own with the text of the system.
    return next((os.strerror(code) for code in _FULL if os.strerror(code) in str(error)), None)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file, replacing an existing one."""
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
    """Append to a file, which stays as it was if not all of the data can be written."""
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
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a directory to fill; when the block ends it replaces an existing one."""
    unfinished, replaced = _beside(path, "unfinished"), _beside(path, "replaced")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        created = unfinished.stat()
        yield unfinished
        if not os.path.samestat(created, unfinished.stat()):  # moved away, and created again by whoever wrote into it
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
    """Remove a directory. It is renamed first: half a directory must not look like a complete one."""
    removed = _beside(path, "removed")
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Remove what a killed process left unfinished, and restore what it was about to replace."""
    for replaced in directory.glob(".*.replaced"):
        path = directory / replaced.name.removeprefix(".").removesuffix(".replaced")
        if not path.exists():
            replaced.rename(path)
    for pattern in (".*.unfinished", ".*.replaced", ".*.removed"):
        for leftover in directory.glob(pattern):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def copy_directory(source: Path, target: Path, copies: dict[tuple[int, int], Path] | None = None) -> None:
    """Copy a directory as plain files. Hard links between its files are kept where the file system has them."""
    copies = {} if copies is None else copies
    target.mkdir()
    for path in source.iterdir():
        copy = target / path.name
        if path.is_dir():
            copy_directory(path, copy, copies)
            continue
        status = path.stat()
        first = copies.setdefault((status.st_dev, status.st_ino), copy)
        if first is not copy:
            with suppress(OSError):  # a file system without hard links
                os.link(first, copy)
                continue
        shutil.copyfile(path, copy)


def follow_umask(directory: Path) -> None:
    """Give every file in a directory the mode of a new file: safetensors makes weights readable by their owner only."""
    probe = directory / ".mode"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in directory.rglob("*"):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)


def flush_all(directory: Path) -> None:
    """Flush everything in a directory to the disk."""
    for path in [*directory.rglob("*"), directory]:
        flush(path)


def flush(path: Path) -> None:
    """Flush a file or directory to the disk: a rename may otherwise reach the disk before the content does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock until it is closed or the process ends; None if another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
        os.close(descriptor)  # the directory was renamed or removed just before the lock was ours
        return None
    with suppress(OSError):  # the name is only for messages, and entering a run may make room on a full disk
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode())
    return descriptor


def lock_holder(path: Path) -> str:
    """Return who holds the lock, as far as the file says."""
    process, _, machine = path.read_text().strip().partition(" ")
    return f"process {process} on {machine}" if process else "another process"


@contextmanager
def exclusive_lock(directory: Path) -> Iterator[None]:
    """Create a directory if needed and hold its lock inside the block."""
    refuse_dangling(directory)
    with friendly_io_errors(str(directory), "choose another directory"):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise MetaAgentXError(f"{directory} is a file, or below one: choose another directory") from None
        try:
            lock = acquire_lock(directory / "lock")
        except IsADirectoryError:
            raise MetaAgentXError(f"{directory / 'lock'} should be a file: choose another directory") from None
    if lock is None:
        raise MetaAgentXError(f"{directory} is in use by {lock_holder(directory / 'lock')}: wait for it or stop it")
    try:
        yield
    finally:
        os.close(lock)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{suffix}")
