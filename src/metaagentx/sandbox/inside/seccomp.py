"""Which system calls a run may make: tables by name, assembled into a seccomp filter.

Calls that are not listed fail with EPERM, so that an innocent program sees a PermissionError. Calls that no innocent
program makes kill it (verdict `violation`). This is the decisive layer of the sandbox: no sockets, no processes, no
signals, no files opened for writing, nothing that takes a process id, nothing that names the machine (uname), nothing
exotic. Where a call has many functions, its arguments are checked as well.
"""

import errno
import struct

ALLOW = 0x7FFF0000
KILL = 0x80000000
_ERRNO = 0x00050000
DENY = _ERRNO | errno.EPERM

# Numbers for x86_64 and aarch64; -1 where the machine has no such call. A test compares them with libseccomp's.
ALWAYS = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "lseek": (8, 62), "close": (3, 57), "fstat": (5, 80), "fsync": (74, 82), "dup": (32, 23),
    "dup2": (33, -1), "dup3": (292, 24), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "getpid": (39, 172),
    "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, -1), "getrandom": (318, 278), "exit": (60, 93), "exit_group": (231, 94),
    "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72), "sched_yield": (24, 124),
    "getrusage": (98, 165), "times": (100, 153), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "rseq": (334, 293), "restart_syscall": (219, 128), "getcpu": (309, 168), "getrlimit": (97, 163),
}  # fmt: skip

# Inspecting the file system: allowed where a jail or Landlock restricts what is visible.
LOOKING = {
    "newfstatat": (262, 79), "stat": (4, -1), "lstat": (6, -1), "statx": (332, 291), "access": (21, -1),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, -1), "readlinkat": (267, 78),
    "getdents64": (217, 61), "getcwd": (79, 17),
}  # fmt: skip

NEVER_INNOCENT = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "open_tree": (428, 428), "open_by_handle_at": (304, 265), "modify_ldt": (154, -1), "iopl": (172, -1),
    "reboot": (169, 142), "swapon": (167, 224),
}  # fmt: skip

# A condition on one half of an argument: (argument, high half?, mask, value).
Test = tuple[int, bool, int, int]
ALL_BITS = 0xFFFFFFFF
# What pthread_create passes: CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID. The
# same on both machines; musl adds CLONE_DETACHED, which the kernel ignores.
_GLIBC_THREAD, _MUSL_THREAD = 0x003D0F00, 0x007D0F00
# MAP_SHARED, PRIVATE, DROPPABLE (glibc's getrandom), FIXED, ANONYMOUS, DENYWRITE and EXECUTABLE (the loader),
# NORESERVE, POPULATE, STACK, FIXED_NOREPLACE. Never HUGETLB (a pool of the whole machine), LOCKED, GROWSDOWN or SYNC.
_MAPPING = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x800 | 0x1000 | 0x4000 | 0x8000 | 0x20000 | 0x100000
_PROTECTION = 0x1 | 0x2 | 0x4 | 0x10  # PROT_READ, WRITE, EXEC, and BTI, with which an aarch64 loader maps code
_FUTEX_FLAGS = 0x80 | 0x100  # FUTEX_PRIVATE, FUTEX_CLOCK_REALTIME
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND; O_TMPFILE needs one of the first two.
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000


def _argument_is(argument: int, *values: int, ignoring: int = 0) -> list[list[Test]]:
    return [[(argument, False, ALL_BITS & ~ignoring, value)] for value in values]


def _only_bits(argument: int, bits: int) -> Test:
    return argument, False, ALL_BITS & ~bits, 0


# The clocks of the machine and of the process itself: 0 to 15. Negative numbers are CPU clocks of other processes.
_CLOCKS = [[_only_bits(0, 0xF)]]

# name: (numbers, alternatives); a call is allowed when all tests of one alternative hold.
CONDITIONAL: dict[str, tuple[tuple[int, int], list[list[Test]]]] = {
    # The kernel uses the low half only; no code that creates a thread sets the other.
    "clone": (
        (56, 220),
        [[(0, False, ALL_BITS, flags), (0, True, ALL_BITS, 0)] for flags in (_GLIBC_THREAD, _MUSL_THREAD)],
    ),
    # MADV_NORMAL, DONTNEED and FREE (allocators), GUARD_INSTALL and GUARD_REMOVE (thread stacks since glibc 2.42). Not
    # the hints that an allocator can do without (HUGEPAGE, WILLNEED), and nothing that affects the machine:
    # HWPOISON, SOFT_OFFLINE, PAGEOUT, MERGEABLE.
    "madvise": ((28, 233), _argument_is(2, 0, 4, 8, 102, 103)),
    "mmap": ((9, 222), [[_only_bits(3, _MAPPING), _only_bits(2, _PROTECTION)]]),
    "mprotect": ((10, 226), [[_only_bits(2, _PROTECTION)]]),
    "mremap": ((25, 216), _argument_is(3, 0, 1)),  # in place or MREMAP_MAYMOVE: never FIXED or DONTUNMAP
    # WAIT, WAKE, REQUEUE (musl), WAIT_BITSET, WAKE_BITSET. Never those with priority inheritance.
    "futex": ((202, 98), _argument_is(1, 0, 1, 3, 9, 10, ignoring=_FUTEX_FLAGS)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC. Never F_SETOWN or F_SETSIG: with O_ASYNC they kill others.
    "fcntl": ((72, 25), _argument_is(1, 0, 1, 2, 3, 1030)),
    # TCGETS (isatty), FIOCLEX, FIONCLEX, FIONREAD. Never TIOCSTI, FIOSETOWN, FIOASYNC.
    "ioctl": ((16, 29), _argument_is(1, 0x5401, 0x5451, 0x5450, 0x541B)),
    "prctl": ((157, 167), _argument_is(0, 15)),  # PR_SET_NAME, which Python 3.14 calls for each thread
    # Limits of the process itself (pid 0): read them, and lower file size (1), threads (6) and memory (9).
    "prlimit64": (
        (302, 261),
        [
            [(0, False, ALL_BITS, 0), (2, False, ALL_BITS, 0), (2, True, ALL_BITS, 0)],
            *([(0, False, ALL_BITS, 0), (1, False, ALL_BITS, which)] for which in (1, 6, 9)),
        ],
    ),
    "sched_getaffinity": ((204, 123), _argument_is(0, 0)),
    "clock_gettime": ((228, 113), _CLOCKS),
    "clock_getres": ((229, 114), _CLOCKS),
    "clock_nanosleep": ((230, 115), _CLOCKS),
}
OPENING: dict[str, tuple[tuple[int, int], list[list[Test]]]] = {
    "open": ((2, -1), [[(1, False, _WRITING, 0)]]),
    "openat": ((257, 56), [[(2, False, _WRITING, 0)]]),
}
CLONE3 = 435  # the same on both; ENOSYS makes libc fall back to clone, whose flags a filter can read
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _alternative(tests: list[Test]) -> bytes:
    blocks = []
    for argument, high, mask, value in tests:
        block = _op(_LOAD, 16 + 8 * argument + 4 * high)
        if mask != ALL_BITS:
            block += _op(_AND, mask)
        blocks.append((block, value))
    program = _op(_RETURN, ALLOW)
    for block, value in reversed(blocks):
        program = block + _op(_JUMP_EQUAL, value, 0, len(program) // 8) + program
    return program


def actions(machine: str, files: bool) -> dict[int, bytes]:
    """Return the program for each call that does not simply fail. Each of them ends in a return."""
    column = {"x86_64": 0, "aarch64": 1}[machine]
    table = {numbers[column]: _op(_RETURN, ALLOW) for numbers in (ALWAYS | (LOOKING if files else {})).values()}
    table |= {numbers[column]: _op(_RETURN, KILL) for numbers in NEVER_INNOCENT.values()}
    for numbers, alternatives in (CONDITIONAL | (OPENING if files else {})).values():
        table[numbers[column]] = b"".join(_alternative(tests) for tests in alternatives) + _op(_RETURN, DENY)
    table[CLONE3] = _op(_RETURN, _ERRNO | errno.ENOSYS)
    table.pop(-1, None)
    return table


def _search(ranges: list[tuple[int, bytes]]) -> bytes:
    """Return a binary search for the last range that begins at or below the number.

    The kernel evaluates the filter for every number when it is installed: a list of 190 comparisons would cost half a
    millisecond in every child.
    """
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    return _op(_JUMP_GREATER_EQUAL, ranges[middle][0], len(lower) // 8, 0) + lower + upper


def assemble(machine: str, files: bool) -> bytes:
    """Return the filter for a machine. Without `files` no path can be opened or inspected (tier T3)."""
    program = _op(_LOAD, 4) + _op(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0) + _op(_RETURN, KILL) + _op(_LOAD, 0)
    table = actions(machine, files)
    table[_X32] = _op(_RETURN, KILL)  # and everything above: the calls of x32 programs
    deny = _op(_RETURN, DENY)
    ranges = [(0, table.get(0, deny))]
    for number in sorted(table.keys() | {number + 1 for number in table}):
        action = table[_X32] if number >= _X32 else table.get(number, deny)
        if ranges[-1][1] != action:
            ranges.append((number, action))
    return program + _search(ranges)
