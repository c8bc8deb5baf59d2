"""The catalogue of attacks that the sandbox is proven against.

Each is a script that finds in `target` what to attack and says `door.answer(True)` only when it truly got through: it has
the secret, the connection, the descriptor. Where the attacker cannot know, `seen` names what the host looks at afterwards.
An attack of kind "hole" must work where nothing protects (see arena.py), so that a broken one cannot count as stopped.
One of kind "limit" is a bomb, a lie or a self-mutilation: the host judges it by its verdict, which must be one of
`verdicts`, and never runs it unprotected.
"""

# ruff: noqa: E501 - an attack on one line reads best

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Literal

from metaagentx.sandbox import Limits
from metaagentx.sandbox import Verdict as V

METADATA = "stat metadata"
QUICK = Limits(cpu_seconds=1, wall_seconds=10, memory_bytes=256 << 20, output_bytes=1 << 16, asks=16)
SLEEP = replace(QUICK, wall_seconds=1)
LOOP = replace(QUICK, wall_seconds=30)
ANY = frozenset(V) - {V.INFRA}

# x86_64, aarch64; -1 where the machine has no such call.
NUMBERS = {
    "add_key": (248, 217), "bpf": (321, 280), "capset": (126, 91), "chroot": (161, 51), "clone": (56, 220),
    "clone3": (435, 435), "copy_file_range": (326, 285), "creat": (85, -1), "epoll_create1": (291, 20),
    "eventfd2": (290, 19), "execveat": (322, 281), "fanotify_init": (300, 262), "fork": (57, -1), "fsopen": (430, 430),
    "futex": (202, 98), "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "inotify_init1": (294, 26), "io_setup": (206, 0), "io_uring_setup": (425, 425), "ioprio_set": (251, 30),
    "kcmp": (312, 272), "keyctl": (250, 219), "landlock": (444, 444), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "mount": (165, 40), "move_pages": (279, 239), "mq_open": (240, 180),
    "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_tree": (428, 428), "openat": (257, 56),
    "openat2": (437, 437), "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prctl": (157, 167),
    "prlimit64": (302, 261), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "reboot": (169, 142), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "sched_setscheduler": (144, 119), "seccomp": (317, 277), "semget": (64, 190),
    "sethostname": (170, 161), "setns": (308, 268), "setrlimit": (160, 164), "setxattr": (188, 5),
    "shmget": (29, 194), "signalfd4": (289, 74), "statfs": (137, 43), "tgkill": (234, 131), "timer_create": (222, 107),
    "timerfd_create": (283, 85), "tkill": (200, 130), "truncate": (76, 45), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "vfork": (58, -1), "vmsplice": (278, 75), "x32_getpid": (0x40000027, -1),
}  # fmt: skip

_PRELUDE = f"""
import ctypes, errno, fcntl, os, select, signal, socket, stat, struct, sys, threading, time, door
NUMBERS = {NUMBERS!r}
libc = ctypes.CDLL(None, use_errno=True)

def syscall(name, *args):
    number = NUMBERS[name][os.uname().machine == "aarch64"]
    if number < 0:
        return -errno.ENOSYS
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return result if result >= 0 else -ctypes.get_errno()

def reached(result):
    if result == -errno.ENOSYS:
        print("ABSENT")
    door.answer(result not in (-errno.EPERM, -errno.EACCES, -errno.ENOSYS))

def victim_dies(seconds=1.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)

def send_raw(data):
    while data:
        data = data[os.write(4, data):]

def frame(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(data)) + data
"""


@dataclass(frozen=True)
class Attack:
    """One attack: what it is called, what it belongs to, its script."""

    name: str
    group: str
    code: str
    kind: Literal["hole", "limit"] = "hole"
    seen: Literal["", "victim is gone", "file is there", "file has changed", "datagram came"] = ""
    limits: Limits = QUICK
    verdicts: frozenset[V] = ANY

    @property
    def script(self) -> str:
        """The whole script. A refusal by an exception is a wall that holds."""
        body = "\n".join("    " + line for line in self.code.strip("\n").splitlines())
        return f"{_PRELUDE}\ntry:\n{body}\nexcept Exception as error:\n    print(repr(error))\n"


def _holes(group: str, attacks: dict[str, str], seen: dict[str, str] | None = None) -> list[Attack]:
    return [Attack(n, group, code, seen=(seen or {}).get(n, "")) for n, code in attacks.items()]  # type: ignore[arg-type]


FILES = _holes(
    "files",
    {
        "read a file": "door.answer(target['secret'] in open(target['file']).read())",
        "read a file by its path from an open directory": """
root = os.open('/', os.O_RDONLY | os.O_DIRECTORY)
fd = os.open(target['file'].lstrip('/'), os.O_RDONLY, dir_fd=root)
door.answer(target['secret'].encode() in os.read(fd, 999))""",
        "read a file by O_PATH and /proc/self/fd": """
fd = os.open(target['file'], os.O_PATH)
door.answer(target['secret'] in open(f'/proc/self/fd/{fd}').read())""",
        "read a file by openat2": """
how = ctypes.create_string_buffer(24)
fd = syscall('openat2', -100, target['file'].encode(), how, 24)
door.answer(fd >= 0 and target['secret'].encode() in os.read(fd, 999))""",
        "read a file after chdir": """
os.chdir(target['directory'])
door.answer(target['secret'] in open('secret').read())""",
        "read a file through a symbolic link that is there": "door.answer(target['secret'] in open(target['link']).read())",
        "read a file through a symbolic link of one's own": """
os.symlink(target['file'], target['directory'] + '/mine')
door.answer(target['secret'] in open(target['directory'] + '/mine').read())""",
        "read a file through a hard link": """
os.link(target['file'], target['directory'] + '/hard')
door.answer(target['secret'] in open(target['directory'] + '/hard').read())""",
        "read a key in a home": "door.answer(target['secret'] in open(target['home'] + '/.ssh/id_rsa').read())",
        "list a home": "door.answer('.ssh' in os.listdir(target['home']))",
        "list the root": "door.answer(len(os.listdir('/')) > 0)",
        "read the users": "door.answer('root' in open('/etc/passwd').read())",
        "find the files of another run in /tmp": """
for folder, _, names in os.walk('/tmp'):
    for name in names:
        if name == 'other-run' and target['secret'] in open(f'{folder}/{name}').read():
            door.answer(True)""",
        "inherit a secret by the environment": "door.answer(target['environment'] in repr(os.environ))",
        "read one's environment in /proc": "door.answer(target['environment'] in open('/proc/self/environ').read())",
        "read one's environment in memory": """
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
values, i = [], 0
while environ[i]:
    values.append(environ[i]); i += 1
door.answer(any(target['environment'].encode() in value for value in values))""",
        "read the environment of another process": (
            "door.answer(target['secret'] in open(f\"/proc/{target['victim']}/environ\").read())"
        ),
        "read the command line of another process": (
            "door.answer('sleep' in open(f\"/proc/{target['victim']}/cmdline\").read())"
        ),
        "read the memory map of another process": "door.answer('stack' in open(f\"/proc/{target['victim']}/maps\").read())",
        "read one's memory as a file": "door.answer(os.open('/proc/self/mem', os.O_RDONLY) >= 0)",
        "write one's memory as a file": "door.answer(os.open('/proc/self/mem', os.O_RDWR) >= 0)",
        "read the state of the machine": "door.answer('MemTotal' in open('/proc/meminfo').read())",
        "read an inherited descriptor": """
for fd in range(5, 1024):
    try:
        if target['secret'].encode() in os.pread(fd, 999, 0): door.answer(True)
    except OSError:
        pass""",
        "write a file": "open(target['directory'] + '/new', 'w').write('x')",
        "write a file with flags in the high half": (
            "syscall('openat', -100, (target['directory'] + '/new').encode(), 1 << 40 | os.O_CREAT | os.O_WRONLY, 0o600)"
        ),
        "create a file that is opened for reading": "os.open(target['directory'] + '/new', os.O_RDONLY | os.O_CREAT)",
        "create a file by creat or openat2": """
path = (target['directory'] + '/new').encode()
syscall('creat', path, 0o600)
syscall('openat2', -100, path, ctypes.create_string_buffer(struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o600, 0)), 24)""",
        "append to a file": "open(target['file'], 'a').write('x')",
        "empty a file by opening it": "os.open(target['file'], os.O_RDONLY | os.O_TRUNC)",
        "truncate a file": "syscall('truncate', target['file'].encode(), 0)",
        "write a file without a name": "door.answer(os.open(target['directory'], os.O_TMPFILE | os.O_RDWR) >= 0)",
        "write anywhere at all": """
for folder in ('/', '.', '/tmp', '/var/tmp', '/dev/shm', '/run', target['home'], os.path.dirname(os.__file__), '/app'):
    try:
        open(f'{folder}/left-behind', 'w').write('x')
        os.unlink(f'{folder}/left-behind')
        door.answer(True)
    except OSError:
        pass""",
        "write many files": "for i in range(500): open(target['directory'] + f'/new{i or str()}', 'w').write('x')",
        "write a huge file": "open(target['directory'] + '/new', 'wb').truncate(1 << 40)",
        "make a directory": "os.mkdir(target['directory'] + '/new')",
        "make a pipe with a name": "os.mkfifo(target['directory'] + '/new')",
        "rename a file": "os.rename(target['file'], target['directory'] + '/new')",
        "delete a file": "os.unlink(target['file'])",
        "change a file's mode": "os.chmod(target['file'], 0o400)",
        "change a file's mode by a descriptor": "os.fchmod(os.open(target['file'], os.O_RDONLY), 0o400)",
        "change a file's owner": "os.chown(target['file'], os.getuid(), os.getgid()); door.answer(True)",
        "change a file's times": "os.utime(target['file'], (1, 1))",
        "set an attribute of a file": (
            "reached(syscall('setxattr', target['file'].encode(), b'user.x', b'x', 1, 0))"
        ),
        "lock a file": "fcntl.flock(os.open(target['file'], os.O_RDONLY), fcntl.LOCK_EX); door.answer(True)",
        "leave a file in /tmp for the next run": "open(target['shared'], 'w').write('x')",
        "share memory by name": "open('/dev/shm/' + target['name'], 'w').write('x'); door.answer(True)",
    },
    {
        **dict.fromkeys(
            (
                "write a file", "write a file with flags in the high half", "create a file that is opened for reading",
                "create a file by creat or openat2", "write many files", "write a huge file", "make a directory",
                "make a pipe with a name", "rename a file", "leave a file in /tmp for the next run",
            ),
            "file is there",
        ),
        **dict.fromkeys(
            (
                "append to a file", "empty a file by opening it", "truncate a file", "delete a file",
                "change a file's mode", "change a file's mode by a descriptor", "change a file's times",
            ),
            "file has changed",
        ),
    },
)  # fmt: skip

STAT = _holes(
    METADATA,
    {
        "the size of a file": "door.answer(os.stat(target['file']).st_size == len(target['secret']))",
        "where a link leads": "door.answer(os.readlink(target['link']) == target['file'])",
        "whether a file is there": "door.answer(os.access(target['file'], os.F_OK))",
        "a file's times by O_PATH": "door.answer(os.fstat(os.open(target['file'], os.O_PATH)).st_mtime > 0)",
        "which processes there are": "door.answer(os.path.exists(f\"/proc/{target['victim']}\"))",
    },
)

_COMMAND_LINE = """
argc, argv = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(argc), ctypes.byref(argv))
words = [*sys.orig_argv, *sys.argv, *(argv[i] for i in range(argc.value))]
"""
IDENTITY = _holes(
    "identity",
    {
        "the name of the machine": "import platform; door.answer(target['nodename'] in (os.uname().nodename, socket.gethostname(), platform.node()))",
        "the name of the machine, by the call": """
buffer = ctypes.create_string_buffer(6 * 65)
libc.uname(buffer)
door.answer(target['nodename'].encode() in buffer.raw.split(b'\\0'))""",
        "the name of the machine, by libc": """
buffer = ctypes.create_string_buffer(99)
libc.gethostname(buffer, 99)
door.answer(target['nodename'].encode() == buffer.value)""",
        "the name of the machine, by a file": "door.answer(target['nodename'] in open('/proc/sys/kernel/hostname').read())",
        "the build of the kernel": "import platform; door.answer(target['version'] in (os.uname().version, platform.version()))",
        "where the project lies, by the command line": _COMMAND_LINE + "door.answer(any(target['project'] in word or target['directory'] in word for word in words))",
        "what the server was told, by the command line": _COMMAND_LINE + "door.answer(any(target['directory'] in word or 'preload' in word for word in words))",
        "where the project lies, by /proc": "words = open('/proc/self/cmdline').read()\ndoor.answer(target['project'] in words or target['directory'] in words)",
    },
)  # fmt: skip

CLOCKS = _holes(
    "processes",
    {"the CPU time of another process": "time.clock_gettime(~target['victim'] << 3 | 2); door.answer(True)"},
)

NETWORK = _holes(
    "network",
    {
        "connect by TCP": "socket.create_connection(('127.0.0.1', target['tcp']), 1); door.answer(True)",
        "connect by TCP over IPv6": """
s = socket.socket(socket.AF_INET6)
s.settimeout(1)
reached(-s.connect_ex(('::1', target['tcp'])))""",
        "send by UDP": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', target['udp']))"),
        "listen on a port": "socket.create_server(('127.0.0.1', 0)); door.answer(True)",
        "list the interfaces by netlink": """
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.send(struct.pack('=IHHIIB3x', 20, 18, 0x301, 1, 0, 0))
door.answer(len(s.recv(4096)) > 16)""",
        "list the interfaces by name": "door.answer(any(name == 'lo' for _, name in socket.if_nameindex()))",
        "connect to an abstract socket": (
            "socket.socket(socket.AF_UNIX).connect('\\0' + target['name']); door.answer(True)"
        ),
        "connect to a socket with a path": "socket.socket(socket.AF_UNIX).connect(target['socket']); door.answer(True)",
        "bind an abstract socket": (
            "socket.socket(socket.AF_UNIX).bind('\\0' + target['name'] + '-mine'); door.answer(True)"
        ),
        "open a raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); door.answer(True)",
        "open a socket to the hypervisor": """
try:
    socket.socket(40, socket.SOCK_STREAM)
    door.answer(True)
except OSError as error:
    reached(-errno.ENOSYS if error.errno == errno.EAFNOSUPPORT else -error.errno)""",
        "make a pair of sockets": "socket.socketpair(); door.answer(True)",
        "hold an inherited socket": """
for fd in range(1024):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): door.answer(True)
    except OSError:
        pass""",
        "get hold of the host by SO_PEERPIDFD": """
for fd in range(1024):
    value, size = ctypes.c_int(-1), ctypes.c_int(4)
    if libc.getsockopt(fd, 1, 77, ctypes.byref(value), ctypes.byref(size)) == 0 and value.value >= 0: door.answer(True)""",
        "pass descriptors over an inherited socket": """
for fd in range(1024):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            door.answer(socket.send_fds(socket.socket(fileno=os.dup(fd)), [b'x'], [fd]) == 1)
    except OSError:
        pass""",
    },
    {"send by UDP": "datagram came"},
)

_SIGNAL_OWNER = """
try:
    readable, writable = os.pipe()
except OSError:
    readable, writable = 3, 4
"""
PROCESSES = _holes(
    "processes",
    {
        "kill the parent": """
parent = os.getppid()
os.kill(parent, signal.SIGKILL)
victim_dies(0.3)
door.answer(parent > 0 and os.getppid() != parent)""",
        "kill a process": "os.kill(target['victim'], signal.SIGKILL)",
        "kill everybody": "os.kill(-1, target['signal']); door.answer(True)",
        "kill by a scan": """
for pid in range(2, 400):
    try:
        os.kill(pid, target['signal'])
        door.answer(True)
    except OSError:
        pass""",
        "kill one's group": "os.killpg(0, 0); door.answer(True)",
        "kill a thread": "syscall('tkill', target['victim'], 9)",
        "kill a thread of a group": "syscall('tgkill', target['victim'], target['victim'], 9)",
        "kill with a value": (
            "reached(syscall('rt_sigqueueinfo', target['victim'], 15, ctypes.create_string_buffer(struct.pack('iii', 15, 0, -1), 128)))"
        ),
        "kill by a descriptor": """
fd = syscall('pidfd_open', target['victim'], 0)
syscall('pidfd_send_signal', fd, 9, None, 0)""",
        "kill by the owner of a pipe": _SIGNAL_OWNER
        + """
fcntl.fcntl(readable, fcntl.F_SETOWN, target['victim'])
fcntl.fcntl(readable, 10, signal.SIGKILL)
fcntl.fcntl(readable, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
os.write(writable, b'x')""",
        "kill by the extended owner of a pipe": _SIGNAL_OWNER
        + """
fcntl.fcntl(readable, 15, struct.pack('ii', 1, target['victim']))
fcntl.fcntl(readable, 10, signal.SIGKILL)
fcntl.fcntl(readable, fcntl.F_SETFL, os.O_ASYNC)
os.write(writable, b'x')""",
        "kill by the owner of a socket": """
try:
    pair = socket.socketpair()
    left, right = pair[0].fileno(), pair[1].fileno()
except OSError:
    left, right = 3, 4
fcntl.ioctl(left, 0x8901, struct.pack('i', target['victim']))
fcntl.fcntl(left, 10, signal.SIGKILL)
fcntl.ioctl(left, 0x5452, struct.pack('i', 1))
os.write(right, b'x')""",
        "take a descriptor out of a process": (
            "reached(syscall('pidfd_getfd', syscall('pidfd_open', target['victim'], 0), 1, 0))"
        ),
        "read another run's output through the fork server": """
for fd in range(300):
    try:
        fd = os.open(f'/proc/{os.getppid()}/fd/{fd}', os.O_RDONLY | os.O_NONBLOCK)
        if target['neighbour'].encode() in os.pread(fd, 999, 0): door.answer(True)
        os.close(fd)
    except OSError:
        pass""",
        "read one's own messages to the host": """
try:
    readable, writable = os.pipe()
except OSError:
    writable = 4
os.write(writable, b'xx') if writable != 4 else None
fd = os.open(f'/proc/self/fd/{writable}', os.O_RDONLY | os.O_NONBLOCK)
door.answer(fd >= 0)""",
        "trace a process": "reached(syscall('ptrace', 0x4206, target['victim'], 0, 0))",
        "be traced": "reached(syscall('ptrace', 0, 0, 0, 0))",
        "read a process's memory": """
here = ctypes.create_string_buffer(200)
local = ctypes.create_string_buffer(struct.pack('PN', ctypes.addressof(here), 200))
remote = ctypes.create_string_buffer(struct.pack('PN', target['address'], 200))
syscall('process_vm_readv', target['victim'], local, 1, remote, 1, 0)
door.answer(target['secret'].encode() in here.raw)""",
        "write a process's memory": """
here = ctypes.create_string_buffer(b'x')
local = ctypes.create_string_buffer(struct.pack('PN', ctypes.addressof(here), 1))
remote = ctypes.create_string_buffer(struct.pack('PN', target['address'], 1))
door.answer(syscall('process_vm_writev', target['victim'], local, 1, remote, 1, 0) == 1)""",
        "read a process's memory as a file": """
memory = open(f"/proc/{target['victim']}/mem", 'rb', 0)
memory.seek(target['address'])
door.answer(target['secret'].encode() in memory.read(200))""",
        "lower a process's limits": """
import resource
resource.prlimit(target['victim'], resource.RLIMIT_NOFILE, (3, 3))
door.answer(True)""",
        "read a process's limits": "import resource; resource.prlimit(target['victim'], 7); door.answer(True)",
        "pin a process to a core": "os.sched_setaffinity(target['victim'], os.sched_getaffinity(target['victim'])); door.answer(True)",
        "change a process's scheduling": (
            "reached(syscall('sched_setscheduler', target['victim'], 5, ctypes.create_string_buffer(4)))"
        ),
        "change a process's priority": "os.setpriority(os.PRIO_PROCESS, target['victim'], 19); door.answer(True)",
        "change a process's disk priority": "reached(syscall('ioprio_set', 1, target['victim'], 3 << 13))",
        "move a process's pages": "reached(syscall('move_pages', target['victim'], 0, 0, 0, 0, 0))",
        "advise on a process's memory": "reached(syscall('process_madvise', -1, 0, 0, 4, 0))",
        "compare two processes": "reached(syscall('kcmp', os.getpid(), target['victim'], 1, 0, 0))",
        "fork": "if os.fork() == 0: os._exit(0)\ndoor.answer(True)",
        "fork by vfork, clone and clone3": """
for name, args in (('fork', ()), ('clone', (17, 0, 0, 0, 0)), ('clone3', (ctypes.create_string_buffer(struct.pack('QQQQQ', 0, 0, 0, 0, 17), 64), 64))):
    pid = syscall(name, *args)
    if pid == 0: os._exit(0)
    if pid > 0: door.answer(True)""",
        "leave a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(0.2)
    open(target['directory'] + '/new', 'w').write('x')
    os._exit(0)""",
        "start a shell": "os.execv('/bin/sh', ['sh', '-c', 'echo > ' + target['directory'] + '/new'])",
        "start a shell by system": "os.system('echo > ' + target['directory'] + '/new')",
        "start a shell by posix_spawn": """
os.posix_spawn('/bin/sh', ['sh', '-c', 'echo > ' + target['directory'] + '/new'], {})""",
        "start a program from memory": """
fd = os.memfd_create('program')
os.write(fd, open('/bin/sh', 'rb').read())
argv = (ctypes.c_char_p * 4)(b'sh', b'-c', b'echo > ' + target['directory'].encode() + b'/new', None)
syscall('execveat', fd, b'', argv, None, 0x1000)""",
        "start a program by the real subprocess": """
import _posixsubprocess
os.posix_spawn(sys.executable or '/bin/sh', [sys.executable or 'python', '-c', 'open(' + repr(target['directory'] + '/new') + ', "w")'], {})""",
        "become root": "os.setuid(0); door.answer(True)",
        "become another user": "os.setresuid(*os.getresuid()); door.answer(True)",
        "change one's groups": "os.setgid(os.getgid()); door.answer(True)",
        "take capabilities": """
header = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))
reached(syscall('capset', header, ctypes.create_string_buffer(24)))""",
        "become dumpable": "reached(syscall('prctl', 4, 1, 0, 0, 0))",
        "survive one's parent": "reached(syscall('prctl', 1, 0, 0, 0, 0))",
        "lead a session": "os.setsid(); door.answer(True)",
        "set a limit by setrlimit": """
limit = ctypes.create_string_buffer(struct.pack('QQ', 30, 30))
reached(syscall('setrlimit', 7, limit))""",
        "lower one's CPU time": "reached(syscall('prlimit64', 0, 0, ctypes.create_string_buffer(struct.pack('QQ', 60, 60)), 0))",
        "arm a timer": "signal.setitimer(signal.ITIMER_REAL, 100); door.answer(True)",
    },
    {
        **dict.fromkeys(
            (
                "kill a process", "kill a thread", "kill a thread of a group", "kill by a descriptor",
                "kill by the owner of a pipe", "kill by the extended owner of a pipe", "kill by the owner of a socket",
            ),
            "victim is gone",
        ),
        **dict.fromkeys(
            (
                "leave a daemon", "start a shell", "start a shell by system", "start a shell by posix_spawn",
                "start a program from memory", "start a program by the real subprocess",
            ),
            "file is there",
        ),
    },
)  # fmt: skip

_PAGE = """
import mmap
memory = mmap.mmap(-1, 1 << 16)
page = ctypes.addressof(ctypes.c_char.from_buffer(memory))
"""
KERNEL = _holes(
    "kernel surface",
    {
        "a thread that can be waited for by a descriptor": "reached(syscall('clone', 0x00010F00 | 0x1000 | 0x100000, 0, 0, 0, 0))",
        "a thread that is a process in part": "reached(syscall('clone', 0x00010F00 | 0x00400000 | 0x1000, 0, 0, 0, 0))",
        **{
            f"advise on memory: {name}": f"{_PAGE}reached(syscall('madvise', page, 4096, {advice}))"
            for name, advice in {
                "merge it": 12,
                "wipe it on fork": 18,
                "cold": 20,
                "push it out": 21,
                "huge": 14,
            }.items()
        },
        "pages of the machine's pool": "reached(0 if syscall('mmap', 0, 1 << 21, 3, 0x40022, -1, 0) > 0 else -ctypes.get_errno())",
        "a stack that grows": "reached(0 if syscall('mmap', 0, 1 << 16, 3, 0x122, -1, 0) > 0 else -ctypes.get_errno())",
        "protection that grows": f"{_PAGE}reached(syscall('mprotect', page, 4096, 3 | 0x01000000))",
        "move memory and keep it": f"{_PAGE}reached(0 if syscall('mremap', page, 1 << 16, 1 << 16, 5, 0) > 0 else -ctypes.get_errno())",
        "a lock that inherits priority": "word = ctypes.c_uint(0); reached(syscall('futex', ctypes.byref(word), 0x86, 0, 0, 0, 0))",
        "mount": "reached(syscall('mount', b'x', b'/tmp', 1, 0, 0))",
        "mount in a namespace of one's own": """
syscall('unshare', 0x10020000)
door.answer(syscall('mount', b'x', b'/tmp', b'tmpfs', 0, 0) == 0)""",
        "mount by the new calls": "reached(syscall('fsopen', b'tmpfs', 0))",
        "copy a mount": "reached(syscall('open_tree', -100, b'/', 1))",
        "unmount": "reached(syscall('umount2', b'/nowhere', 2))",
        "turn the root": "reached(syscall('pivot_root', b'/nowhere', b'/nowhere'))",
        "change the root": "reached(syscall('chroot', b'/nowhere'))",
        "unshare a user namespace": "reached(syscall('unshare', 0x10000000))",
        "unshare the file table": "reached(syscall('unshare', 0x400))",
        "clone into a user namespace": """
pid = syscall('clone', 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0: os._exit(0)
reached(pid)""",
        "clone3 into a user namespace": """
pid = syscall('clone3', ctypes.create_string_buffer(struct.pack('QQQQQ', 0x10000000, 0, 0, 0, 17), 64), 64)
if pid == 0: os._exit(0)
reached(pid)""",
        "clone a thread into a namespace": "reached(syscall('clone', 0x00010F00 | 0x20000000, 0, 0, 0, 0))",
        "enter a namespace": "reached(syscall('setns', -1, 0))",
        "io_uring": "reached(syscall('io_uring_setup', 1, ctypes.create_string_buffer(120)))",
        "asynchronous input and output": "reached(syscall('io_setup', 1, ctypes.create_string_buffer(8)))",
        "bpf": "reached(syscall('bpf', 0, 0, 1 << 30))",
        "userfaultfd": "reached(syscall('userfaultfd', 1))",
        "perf": "reached(syscall('perf_event_open', 0, 0, -1, -1, 1 << 30))",
        "a key": "reached(syscall('add_key', b'user', b'x', b'x', 1, -2))",
        "a keyring": "reached(syscall('keyctl', 0, -2, 1))",
        "a secret memory": "reached(syscall('memfd_secret', 1 << 30))",
        "another filter": "reached(syscall('seccomp', 2, 0, ctypes.create_string_buffer(4)))",
        "another Landlock": "reached(syscall('landlock', 0, 0, 1))",
        "a file handle": "reached(syscall('name_to_handle_at', -100, b'/', 0, 0, 0))",
        "watch files by inotify": "reached(syscall('inotify_init1', 0))",
        "watch files by fanotify": "reached(syscall('fanotify_init', 0x200, 0))",
        "a message queue": "reached(syscall('mq_open', b'x', os.O_CREAT | os.O_RDWR, 0o600, 0))",
        "System V memory": "reached(syscall('shmget', 0, 4096, 0o1600))",
        "System V messages": "reached(syscall('msgget', 0, 0o1600))",
        "System V semaphores": "reached(syscall('semget', 0, 1, 0o1600))",
        "a timer of the kernel": "reached(syscall('timer_create', 1, 0, ctypes.create_string_buffer(8)))",
        "a timer with a descriptor": "reached(syscall('timerfd_create', 1, 0))",
        "an event with a descriptor": "reached(syscall('eventfd2', 0, 0))",
        "a signal with a descriptor": "reached(syscall('signalfd4', -1, ctypes.create_string_buffer(8), 8, 0))",
        "epoll": "reached(syscall('epoll_create1', 0))",
        "vmsplice": "reached(syscall('vmsplice', 4, 0, 0, 0))",
        "copy_file_range": "reached(syscall('copy_file_range', 0, 0, 1, 0, 0, 0))",
        "another personality": "reached(syscall('personality', 0xFFFFFFFF))",
        "rename the machine": "reached(syscall('sethostname', b'x', 1))",
        "restart the machine": "reached(syscall('reboot', 1, 2, 3, 0))",
        "the size of a file system": "reached(syscall('statfs', b'/', ctypes.create_string_buffer(200)))",
        "a call of a 32-bit program": """
import mmap
if os.uname().machine != 'x86_64':
    print('ABSENT'); raise OSError
code = mmap.mmap(-1, 4096, prot=7)
code.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
door.answer(getpid() == os.getpid())""",
        "a call of an x32 program": "reached(syscall('x32_getpid'))",
        "type into a terminal": """
try:
    fcntl.ioctl(0, 0x5412, b'x')
    door.answer(True)
except OSError as error:
    reached(-error.errno)""",
        "paste into a console": """
try:
    fcntl.ioctl(0, 0x541C, b'x')
    door.answer(True)
except OSError as error:
    reached(-error.errno)""",
    },
)


def _limit(name: str, code: str, verdicts: Set[V], group: str = "resources", limits: Limits = QUICK) -> Attack:
    return Attack(name, group, code, "limit", limits=limits, verdicts=frozenset(verdicts))


RESOURCES = [
    *_holes(
        "resources",
        {
            "memory outside the limit, by memfd": "os.ftruncate(os.memfd_create('x'), 1 << 20); door.answer(True)",
            "memory outside the limit, by growing the output": "os.ftruncate(os.memfd_create('x') if target['plain'] else 1, 1 << 34); door.answer(True)",
            "memory outside the limit, by pipes": "os.pipe(); door.answer(True)",
            "locked memory": "import mmap; m = mmap.mmap(-1, 4096); door.answer(libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(m))), 4096) == 0)",
            "more than a hundred descriptors": "[os.dup(1) for _ in range(100)]; door.answer(True)",
        },
    ),
    _limit("a fork bomb", "while True: os.fork()", {V.OK}),
    _limit(
        "a thread bomb",
        "threading.stack_size(65536)\nn = 0\ntry:\n    while True:\n        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\n"
        "except RuntimeError:\n    door.answer(n)\n    os._exit(0)",
        {V.OK, V.MEMORY, V.WALL},  # a thread that dies for want of memory leaves the one that started it waiting
    ),
    _limit("a memory bomb", "kept = []\nwhile True: kept.append(bytearray(1 << 20))", {V.MEMORY, V.OK}),
    _limit("a memory bomb at once", "bytearray(1 << 40)", {V.MEMORY, V.OK}),
    _limit("a memory bomb by mmap", "import mmap\nkept = []\nwhile True: kept.append(mmap.mmap(-1, 1 << 24))", {V.OK}),
    _limit("a memory bomb by a number", "x = 7\nwhile True: x = x * x", {V.MEMORY, V.CPU, V.OK}, limits=LOOP),
    _limit("a memfd bomb", "kept = []\nwhile True: kept.append(os.memfd_create('x'))", {V.OK}),
    _limit("a pipe bomb", "kept = []\nwhile True: kept.append(os.pipe())", {V.OK}),
    _limit("a socketpair bomb", "kept = []\nwhile True: kept.append(socket.socketpair())", {V.OK}),
    _limit("a descriptor bomb", "while True: os.dup(1)", {V.OK}),
    _limit("an output bomb", "while True: print('x' * 1000)", {V.OUTPUT}),
    _limit("an error bomb", "while True: os.write(2, b'x' * 1000)", {V.OUTPUT}),
    _limit("a sparse output", "os.lseek(1, 1 << 40, 0); os.write(1, b'x')", {V.OK, V.OUTPUT, V.SCRIPT_ERROR}),
    _limit("an input that is made to grow", "while True: os.write(0, b'x' * 100000)", {V.OK, V.SCRIPT_ERROR}),
    _limit("a loop in Python", "while True: pass", {V.CPU}, limits=LOOP),
    _limit("a loop that catches everything", "while True:\n    try:\n        while True: pass\n    except BaseException: pass", {V.CPU}, limits=LOOP),
    _limit("a loop in C", "sum(range(10 ** 18))", {V.CPU}, limits=LOOP),
    _limit("a loop in a power", "pow(3, 10 ** 9)", {V.CPU, V.MEMORY}, limits=LOOP),
    _limit("a loop in a regular expression", "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", {V.CPU}, limits=LOOP),
    _limit("loops in many threads", "def loop():\n    while True: pass\nfor _ in range(8):\n    try: threading.Thread(target=loop).start()\n    except RuntimeError: break  # the thread bomb beside it, in T2\nloop()", {V.CPU, V.MEMORY}, limits=LOOP),
    _limit("sleep for ever", "time.sleep(1e6)", {V.WALL}, limits=SLEEP),
    _limit("sleep with every signal blocked", "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(1e6)", {V.WALL}, limits=SLEEP),
    _limit("wait for ever at the door", "os.read(3, 1)", {V.WALL}, limits=SLEEP),
    _limit("a lock that nobody opens", "lock = threading.Lock(); lock.acquire(); lock.acquire()", {V.WALL}, limits=SLEEP),
    _limit("a deep recursion", "sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()", {V.SCRIPT_ERROR, V.MEMORY, V.CPU, V.OK}, limits=LOOP),
    _limit("threads that outlive the script", "threading.Thread(target=time.sleep, args=(1e6,)).start()", {V.WALL}, limits=SLEEP),
]  # fmt: skip


CHANNEL = [
    _limit(name, code, verdicts, "channel", limits)
    for name, code, verdicts, limits in [
        ("a forged reward", "send_raw(frame('{\"reward\": 1}'))", {V.PROTOCOL}, QUICK),
        ("an answer with a reward in it", "send_raw(frame('{\"answer\": 1, \"reward\": 1}'))", {V.PROTOCOL}, QUICK),
        ("a forged verdict", "send_raw(frame('{\"verdict\": \"ok\"}'))", {V.PROTOCOL}, QUICK),
        ("a forged reply", "send_raw(frame('{\"reply\": 1, \"body\": 1}'))", {V.PROTOCOL}, QUICK),
        ("a second ready", "send_raw(frame('{\"ready\": true}'))", {V.PROTOCOL}, QUICK),
        ("an ask out of order", "send_raw(frame('{\"ask\": 7, \"body\": 1}'))", {V.PROTOCOL}, QUICK),
        ("an ask with a huge number", "send_raw(frame('{\"ask\": ' + '9' * 3999 + ', \"body\": 1}'))", {V.PROTOCOL}, QUICK),
        ("an ask with a true number", "send_raw(frame('{\"ask\": true, \"body\": 1}'))", {V.PROTOCOL}, QUICK),
        ("a repeated key", "send_raw(frame('{\"answer\": 1, \"answer\": true}'))", {V.PROTOCOL}, QUICK),
        ("an end with a huge code", "send_raw(frame('{\"done\": 1e9, \"memory\": 0}'))", {V.PROTOCOL}, QUICK),
        ("an end of the wrong shape", "send_raw(frame('{\"done\": 0}'))", {V.PROTOCOL}, QUICK),
        ("a frame without an end", "send_raw(struct.pack('>I', 1000) + b'x')", {V.OK}, QUICK),
        ("a frame of no bytes", "send_raw(bytes(4))", {V.PROTOCOL}, QUICK),
        ("an oversize frame", "send_raw(struct.pack('>I', 1 << 31)); time.sleep(9)", {V.PROTOCOL}, QUICK),
        ("an oversize answer", "door.answer('x' * (2 << 20)); time.sleep(9)", {V.PROTOCOL}, QUICK),
        ("deep JSON", "send_raw(frame('{\"answer\": ' + '[' * 100000 + ']' * 100000 + '}'))", {V.PROTOCOL}, QUICK),
        ("deep JSON that never closes", "send_raw(frame('[' * 1000000))", {V.PROTOCOL}, QUICK),
        ("a huge integer", "send_raw(frame('{\"answer\": ' + '9' * 1000000 + '}'))", {V.PROTOCOL}, QUICK),
        ("many integers that are just not huge", "send_raw(frame('{\"answer\": [' + ','.join(['9' * 4000] * 250) + ']}'))", {V.OK, V.PROTOCOL}, QUICK),
        ("a huge exponent", "send_raw(frame('{\"answer\": 1e999999}'))", {V.PROTOCOL}, QUICK),
        ("a lone surrogate", "send_raw(frame('{\"answer\": \"\\\\ud800\"}'))", {V.PROTOCOL}, QUICK),
        ("a lone surrogate as a key", "send_raw(frame('{\"answer\": {\"\\\\udfff\": 1}}'))", {V.PROTOCOL}, QUICK),
        ("a surrogate in bytes", "send_raw(frame(b'{\"answer\": \"\\xed\\xa0\\x80\"}'))", {V.PROTOCOL}, QUICK),
        ("a surrogate through answer", "door.answer(chr(0xD800))", {V.PROTOCOL}, QUICK),
        ("not a number", "send_raw(frame('{\"answer\": NaN}'))", {V.PROTOCOL}, QUICK),
        ("minus infinity", "send_raw(frame('{\"answer\": -Infinity}'))", {V.PROTOCOL}, QUICK),
        ("not a number, in an ask", "send_raw(frame('{\"ask\": 1, \"body\": [NaN]}'))", {V.PROTOCOL}, QUICK),
        ("bytes that are not text", "send_raw(frame(bytes(range(256))))", {V.PROTOCOL}, QUICK),
        ("a pickle", "send_raw(frame(b'cos\\nsystem\\n(S\\'touch ' + target['directory'].encode() + b'/new\\'\\ntR.'))", {V.PROTOCOL}, QUICK),
        ("random bytes", "send_raw(os.urandom(1 << 16))", {V.PROTOCOL, V.OK}, QUICK),
        ("a flood of answers", "while True: door.answer(1)", {V.BUDGET}, QUICK),
        ("a flood of asks", "while True: door.transport.send(1)", {V.BUDGET}, QUICK),
        ("a flood of asks that are never read", "for i in range(16): door.transport.send('x' * 60000)\ntime.sleep(9)", {V.WALL, V.BUDGET}, SLEEP),
        ("a flood of bytes", "while True: door.transport.send('x' * 900000)", {V.BUDGET}, replace(LOOP, cpu_seconds=5, asks=99, door_bytes=4 << 20)),
        ("a flood after the end", "send_raw(frame('{\"done\": 0, \"memory\": 0}') + b'x' * 1000000)", ANY, QUICK),
        ("a slow loris", "for b in frame('{\"ask\": 1, \"body\": 1}' + ' ' * 999):\n    os.write(4, bytes([b])); time.sleep(0.1)", {V.WALL}, SLEEP),
        ("exit before answering", "os._exit(0)", {V.OK}, QUICK),
        ("exit in the middle of a frame", "os.write(4, b'\\0\\0'); os._exit(0)", {V.OK}, QUICK),
        ("a program with an endless time-out", "door.ask({'kind': 'python', 'code': 'pass', 'timeout': 10 ** 400})", {V.OK}, QUICK),
        ("a program that is none", "for body in ({'kind': 'python'}, {'kind': 'python', 'code': 7}, {'kind': 'python', 'code': chr(0)}, {'kind': 'python', 'code': '', 'timeout': None}, {'kind': ['python']}):\n    door.ask(body)", {V.OK}, QUICK),
    ]
]  # fmt: skip

_FORGED = """
def lie(**more):
    import json
    send_raw(frame(json.dumps({'done': 0, 'memory': 0, 'cpu': 0.0, 'stdout': '', 'stderr': '', **more})))
"""
# A fault of the machinery is left out of the loss: code that could bring one about would escape its reward.
INFRA = [
    _limit(name, code, ANY, "infra", SLEEP)
    for name, code in {
        **{f"exit with {code}": f"os._exit({code})" for code in (0, 1, 2, 77, 127, 137, 255, -9)},
        "raise SystemExit with anything": "raise SystemExit({1: chr(0xD800)})",
        "raise what cannot be printed": "class E(Exception):\n    def __str__(self): os._exit(137)\nraise KeyboardInterrupt from E()",
        "kill oneself": "os.kill(os.getpid(), signal.SIGKILL)",
        "kill oneself as a thread": "syscall('tgkill', os.getpid(), threading.get_native_id(), 9)",
        "raise a signal": "signal.raise_signal(signal.SIGKILL)",
        "stop oneself": "os.kill(os.getpid(), signal.SIGSTOP)\nsignal.raise_signal(signal.SIGSTOP)",
        "abort": "os.abort()",
        "a fault of memory": "ctypes.string_at(1)",
        "a fault with the signal blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); ctypes.string_at(1)",
        "an illegal instruction": "import mmap\nm = mmap.mmap(-1, 4096, prot=7); m.write(b'\\x0f\\x0b' * 8)\nctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        "a stack that is gone": "libc.munmap(ctypes.c_void_p(ctypes.addressof(ctypes.c_int()) & ~0xFFFFF), ctypes.c_size_t(1 << 28))",
        "a forbidden call": "syscall('ptrace', 0, 0, 0, 0)",
        "a call that does not exist": "libc.syscall(ctypes.c_long(-1)); libc.syscall(ctypes.c_long(0x7FFFFFFF))",
        "close everything": "os.closerange(0, 64)",
        "close the door": "os.close(3); os.close(4)",
        "close the door to the host": "os.close(4)",
        "close the door from the host": "os.close(3); door.ask(1)",
        "close the door and sleep": "os.close(3); os.close(4); time.sleep(9)",
        "swap the door's ends": "os.dup2(3, 9); os.dup2(4, 3); os.dup2(9, 4)",
        "put the door on the output": "os.dup2(4, 1); os.dup2(4, 2); print('x' * 100000, flush=True)",
        "put the output on the door": "os.dup2(1, 4)",
        "put the input on the output": "os.dup2(0, 1); os.dup2(0, 2); print('x' * 100000, flush=True)",
        "read one's own door": "os.dup2(3, 4); door.ask(1)",
        "lower every limit": "import resource\nfor which in range(16):\n    try: resource.setrlimit(which, (0, 0))\n    except Exception: pass\nprint('x', flush=True)\nx = bytearray(1 << 24)",
        "no more file size": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); print('x', flush=True)",
        "no more memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (0, 0)); x = bytearray(1 << 24)",
        "no more memory, then threads": "import resource; resource.setrlimit(resource.RLIMIT_AS, (0, 0))\nfor _ in range(9): threading.Thread(target=print).start()",
        "no memory left at the end": "import atexit\nkept = []\ndef fill():\n    while True: kept.append(bytearray(1 << 12))\natexit.register(fill)",
        "end the first thread only": "threading.Thread(target=time.sleep, args=(0.3,)).start(); libc.syscall(ctypes.c_long(60 if os.uname().machine == 'x86_64' else 93), 0)",
        "end the first thread for ever": "threading.Thread(target=time.sleep, args=(9,)).start(); libc.syscall(ctypes.c_long(60 if os.uname().machine == 'x86_64' else 93), 0)",
        "a forged end": _FORGED + "lie()",
        "a forged end and a kill": _FORGED + "lie(); ctypes.string_at(1)",
        "two forged ends": _FORGED + "lie(); lie(done=137)",
        "a forged end with a signal": _FORGED + "lie(done=9, memory=-1)",
        "a forged end that used much": _FORGED + "lie(cpu=1e308, memory=10 ** 3000)",
        "a forged end, then asks": _FORGED + "lie()\nfor _ in range(9): door.transport.send(1)",
        "a forged end and a long sleep": _FORGED + "lie(); time.sleep(9)",
        "steal one's own first word": "fd = os.open('/proc/self/fd/4', os.O_RDONLY | os.O_NONBLOCK)\nos.read(fd, 99)\nos._exit(0)",
        "garbage and a quick exit": "send_raw(frame(bytes(range(256)))); os._exit(0)",
        "an oversize frame and a quick exit": "send_raw(b'\\xff' * 9); os._exit(0)",
        "a forged failure": "send_raw(frame('{\"failed\": 1, \"why\": \"x\"}'))",
        "a forged exit": "send_raw(frame('{\"exit\": 1, \"status\": 9, \"cpu\": 0, \"memory\": 0}'))",
        "asks left behind": "door.transport.send(1); os._exit(0)",
        "a program that kills itself": "door.ask({'kind': 'python', 'code': 'import ctypes; ctypes.string_at(1)'})",
        "a program that forges": "door.ask({'kind': 'python', 'code': 'import os; os.write(4, bytes(99)); os.close(3); os.close(4)'})",
        "a program that asks": "door.ask({'kind': 'python', 'code': 'import door; door.ask(1)'})",
        "replace what ends the run": "import json, atexit\nsys.stdout = sys.stderr = None\nos._exit = json.dumps = atexit._run_exitfuncs = None",
        "replace the door": "door.write_frame = door.encode = None",
        "delete every module": "sys.modules.clear(); globals().clear()",
        "fill the memory with threads": "threading.stack_size(1 << 24)\nfor _ in range(64): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "blocked signals and a loop": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    }.items()
]  # fmt: skip

ATTACKS = [*FILES, *IDENTITY, *STAT, *CLOCKS, *NETWORK, *RESOURCES, *PROCESSES, *KERNEL, *CHANNEL, *INFRA]
HOLES = [attack for attack in ATTACKS if attack.kind == "hole"]
LIMITS = [attack for attack in ATTACKS if attack.kind == "limit"]
CORE = [attack for attack in HOLES if attack.group in ("files", "identity", "network", "processes", METADATA)]
"""What an ordinary user's sandbox is attacked with as well."""
