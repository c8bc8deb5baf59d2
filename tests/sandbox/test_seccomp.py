"""The system-call filter, run in an interpreter of its own: what the kernel will decide, for both machines."""

import errno
import struct

import pytest

from metaagentx.sandbox.inside import seccomp
from metaagentx.sandbox.inside.seccomp import ALLOW, DENY, KILL, assemble

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
NO_SYSCALL = 0x00050000 | errno.ENOSYS
READ_ONLY_CLOEXEC = 0o2000000
_CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep")


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Run classic BPF as the kernel does."""
    words = [value & 0xFFFFFFFFFFFFFFFF for value in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *words)
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, k = struct.unpack_from("=HBBI", program, 8 * position)
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code == 0x54:
            accumulator &= k
        elif code == 0x15:
            position += if_true if accumulator == k else if_false
        elif code == 0x35:
            position += if_true if accumulator >= k else if_false
        else:
            assert code == 0x06
            return int(k)


def expected(machine: str, files: bool) -> dict[int, int]:
    """What the tables say of calls without conditions."""
    column = COLUMN[machine]
    allowed = seccomp.ALWAYS | (seccomp.LOOKING if files else {})
    table = {numbers[column]: ALLOW for numbers in allowed.values()}
    table |= {numbers[column]: KILL for numbers in seccomp.NEVER_INNOCENT.values()}
    return table | {435: NO_SYSCALL}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("files", [True, False])
def test_every_number_gets_what_the_table_says(machine: str, files: bool) -> None:
    program, table, column = assemble(machine, files), expected(machine, files), COLUMN[machine]
    conditional = {numbers[column] for numbers, _ in (seccomp.CONDITIONAL | seccomp.OPENING).values()}
    for number in range(2000):
        if number not in conditional:
            assert decide(program, MACHINES[machine], number) == table.get(number, DENY), number


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_other_machines_kill(machine: str) -> None:
    program = assemble(machine, files=True)
    for foreign in (0x40000003, 0x40000028, 0, next(arch for name, arch in MACHINES.items() if name != machine)):
        assert decide(program, foreign, 1) == KILL
    for number in (0x40000000, 0x40000001, 0x40000000 + 520, 0xFFFFFFFF):
        assert decide(program, MACHINES[machine], number) == KILL


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("clone", (0x3D0F00,), True),  # a thread, as glibc makes it
        ("clone", (0x7D0F00,), True),  # as musl does
        ("clone", (17,), False),  # fork
        ("clone", (0x3D0F00 | 0x10000000,), False),  # a thread with a new user namespace
        ("clone", (0x3D0F00 | 0x00020000,), False),
        ("clone", (0x3D0F00 | 0x1000,), False),  # a thread with a pidfd
        ("clone", (0x3D0F00 | 0x80000000,), False),  # CLONE_IO
        ("clone", (0x3D0F00 & ~0x10000,), False),  # shares all, and is a process
        ("clone", (0x10F00,), False),  # a thread that no library makes
        ("clone", (1 << 32 | 0x3D0F00,), False),
        *(("madvise", (0, 4096, advice), advice in (0, 4, 8, 102, 103)) for advice in range(110)),
        ("madvise", (0, 4096, -1), False),
        ("mmap", (0, 1, 3, 0x22), True),  # an arena
        ("mmap", (0, 1, 0, 0x20022), True),  # a thread's stack
        ("mmap", (0, 1, 0, 0x4022), True),  # a heap
        ("mmap", (0, 1, 5, 0x812), True),  # a shared library
        ("mmap", (0, 1, 3, 0x28), True),  # the state of getrandom
        ("mmap", (0, 1, 3, 0x40022), False),  # MAP_HUGETLB
        ("mmap", (0, 1, 3, 0x2022), False),  # MAP_LOCKED
        ("mmap", (0, 1, 3, 0x122), False),  # MAP_GROWSDOWN
        ("mmap", (0, 1, 3, 0x80003), False),  # MAP_SYNC
        ("mmap", (0, 1, 3 | 0x01000000, 0x22), False),  # PROT_GROWSDOWN
        ("mprotect", (0, 1, 3), True),
        ("mprotect", (0, 1, 3 | 0x01000000), False),
        ("mremap", (0, 1, 2, 1), True),
        ("mremap", (0, 1, 2, 3), False),  # MREMAP_FIXED
        ("mremap", (0, 1, 2, 5), False),  # MREMAP_DONTUNMAP
        *(("futex", (0, op | flags), op in (0, 1, 3, 9, 10)) for op in range(14) for flags in (0, 128, 256, 384)),
        *((name, (clock,), 0 <= clock < 16) for name in _CLOCKS for clock in (0, 1, 3, 11, 15, 16, 1 << 30, -6, -1)),
        ("fcntl", (0, 1), True),
        ("fcntl", (0, 1030), True),
        ("fcntl", (0, 4), False),  # F_SETFL, with which O_ASYNC is set
        ("fcntl", (0, 8), False),  # F_SETOWN
        ("fcntl", (0, 10), False),  # F_SETSIG
        ("fcntl", (0, 15), False),  # F_SETOWN_EX
        ("fcntl", (0, 1031), False),  # F_SETPIPE_SZ
        ("fcntl", (0, (1 << 32) | 8), False),
        ("ioctl", (0, 0x5401), True),
        ("ioctl", (0, 0x5412), False),  # TIOCSTI
        ("ioctl", (0, (1 << 32) | 0x5412), False),
        ("ioctl", (0, 0x8901), False),  # FIOSETOWN
        ("ioctl", (0, 0x5452), False),  # FIOASYNC
        ("prlimit64", (0, 7, 0), True),
        ("prlimit64", (0, 9, 4096), True),
        ("prlimit64", (0, 0, 4096), False),  # one's own CPU time: it would look like the machine's doing
        ("prlimit64", (1, 7, 0), False),
        ("prlimit64", (0, 0, 1 << 32), False),
        ("prctl", (15,), True),
        ("prctl", (1,), False),
        ("prctl", (22,), False),
        ("sched_getaffinity", (0,), True),
        ("sched_getaffinity", (1,), False),
        ("openat", (-100, 0, READ_ONLY_CLOEXEC), True),
        ("openat", (-100, 0, 0o1), False),
        ("openat", (-100, 0, 0o2), False),
        ("openat", (-100, 0, 0o100), False),
        ("openat", (-100, 0, 0o1000), False),
        ("openat", (-100, 0, 0o20200002), False),  # O_TMPFILE
    ],
)
def test_conditions(machine: str, name: str, arguments: tuple[int, ...], allowed: bool) -> None:
    numbers, _ = (seccomp.CONDITIONAL | seccomp.OPENING)[name]
    verdict = decide(assemble(machine, files=True), MACHINES[machine], numbers[COLUMN[machine]], *arguments)
    assert verdict == (ALLOW if allowed else DENY)


def test_the_name_of_the_machine_is_refused() -> None:
    for (machine, arch), number in zip(MACHINES.items(), (63, 160), strict=True):
        assert decide(assemble(machine, files=True), arch, number) == DENY


def test_without_files_nothing_is_opened() -> None:
    for machine, arch in MACHINES.items():
        numbers, _ = seccomp.OPENING["openat"]
        assert decide(assemble(machine, files=False), arch, numbers[COLUMN[machine]], -100, 0, 0) == DENY


def test_numbers_are_those_of_libseccomp() -> None:
    try:
        import pyseccomp
    except RuntimeError:
        pytest.skip("pyseccomp finds no libseccomp on this machine (apt install libseccomp2)")
    plain = seccomp.ALWAYS | seccomp.LOOKING | seccomp.NEVER_INNOCENT
    conditional = {name: numbers for name, (numbers, _) in (seccomp.CONDITIONAL | seccomp.OPENING).items()}
    for name, numbers in (plain | conditional).items():
        for machine, number in zip((pyseccomp.Arch.X86_64, pyseccomp.Arch.AARCH64), numbers, strict=True):
            theirs = pyseccomp.resolve_syscall(machine, name)
            assert number == (theirs if theirs >= 0 else -1), name
