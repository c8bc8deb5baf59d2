"""The system calls that Python does not offer, by number, for x86_64 and aarch64."""

import ctypes
import os
import platform
import resource
import signal
import struct
import time

MACHINE = platform.machine()
SUPPORTED = MACHINE in ("x86_64", "aarch64")
_ARM = MACHINE == "aarch64"

SYS_CLONE = 220 if _ARM else 56
SYS_CAPSET = 91 if _ARM else 126
SYS_PIDFD_OPEN = 434
SYS_CLOSE_RANGE = 436
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID = 0x20000000
# Not the network: runs share the empty one of the jail. They cannot create sockets, and each of its own would cost more
# than all of the others together, most of it when the kernel takes it down.
RUN_NAMESPACES = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID
RUN_OOM_SCORE = 1000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2

# PyDLL holds the GIL during a call, so that no clone happens while it changes hands.
_libc = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def clone(namespaces: int) -> int:
    """Fork into new namespaces; return 0 in the child, which is process 1 of its own namespace with CLONE_NEWPID.

    Deliberately without Python's fork hooks: the fork server has one thread and holds no lock, so the copy is
    consistent, and the hooks (which reseed `random` and rebuild `threading`) would touch 200 pages in every child.
    """
    pid: int = _libc.syscall(SYS_CLONE, ctypes.c_ulong(namespaces | signal.SIGCHLD), None, None, None, None)
    return _check(pid, "clone")


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def drop_capabilities() -> None:
    """Drop every capability, including those of a new user namespace."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    nothing = ctypes.create_string_buffer(24)
    _check(_libc.syscall(SYS_CAPSET, header, nothing), "capset")


def limit_cpu(pid: int, seconds: int) -> None:
    """Have the kernel kill a child process at this much CPU time."""
    resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process of this pid namespace has used so far."""
    return time.clock_gettime((~pid << 3) | 2)


def pidfd_open(pid: int) -> int:
    """Return a pidfd of a process, or -1 where the kernel offers none."""
    descriptor: int = _libc.syscall(SYS_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(0))
    return descriptor


def close_from(first: int) -> None:
    """Close every descriptor with this number or a higher one."""
    _check(_libc.syscall(SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0), "close_range")


def install_filter(program: bytes) -> None:
    """Install a seccomp filter (classic BPF); it can never be removed."""
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    holder = ctypes.create_string_buffer(fprog, len(fprog))
    result = _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), holder, 0, 0)
    _check(result, "seccomp")


# Landlock: the number of file rights by the version of the interface. See landlock(7).
READ_FILE, READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface, 0 where there is none."""
    version: int = _libc.syscall(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(version, 0)


def landlock_read_only(readable: list[int], listable: list[int]) -> None:
    """Permanently forbid all use of the file system and of TCP, except for reading below the given descriptors."""
    version = landlock_version()
    if not version:
        raise OSError("this kernel does not support Landlock")
    file_rights = (1 << _FILE_RIGHTS_BY_ABI[min(version, 5)]) - 1
    network_rights = 0b11 if version >= 4 else 0
    # From version 6 on: no connection to abstract unix sockets and no signal leaves the domain.
    attributes = struct.pack("=QQQ", file_rights, network_rights, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    buffer = ctypes.create_string_buffer(attributes[:size], size)
    rules = _check(_libc.syscall(SYS_LANDLOCK_CREATE, buffer, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    for fd in (*readable, *listable):
        is_directory = (os.fstat(fd).st_mode & 0o170000) == 0o040000
        rights = READ_DIR if fd in listable else READ_FILE | (READ_DIR if is_directory else 0)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        _check(_libc.syscall(SYS_LANDLOCK_ADD, rules, 1, rule, 0), "landlock_add_rule")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _check(_libc.syscall(SYS_LANDLOCK_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)
