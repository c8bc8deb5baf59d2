"""What a fork server has besides the bare interpreter: installed packages, and work that is done before the first fork.

A profile names distributions as pip knows them. They come with all that they require, found in their metadata, and
with the system's shared libraries that their compiled modules map: each module is loaded (not imported) by a fresh
interpreter, whose maps are read, which takes a tenth of the time of an import.
"""

import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .types import SandboxUnavailable

_ASK_SECONDS = 60
_QUESTION = """
import ctypes, os, sys
for path in sys.stdin.read().splitlines():
    try: ctypes.CDLL(path)
    except OSError: pass  # a module that this machine cannot load fails when it is imported, if it ever is
print(open("/proc/self/maps").read(), flush=True)
os._exit(0)  # some modules that were not imported do not survive the end of the interpreter
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """What runs find in memory and may import. `memory_bytes` of a run's limits counts on top of it."""

    distributions: tuple[str, ...]
    """Installed distributions; what they require comes along."""
    warm_up: str
    """`module:function`, called in the fork server before the first fork."""
    packages: tuple[Path, ...] = ()
    """Directories of further packages, imported by the directory's name."""
    environment: tuple[tuple[str, str], ...] = ()
    start_seconds: float = 120.0
    """For starting a server, the warm-up included."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The files of a profile on this machine."""

    entries: tuple[Path, ...]
    """Packages, modules and metadata, each at the top of a directory of Python's path."""
    compiled: tuple[Path, ...]
    """Compiled modules among them."""


@cache
def installed_files(profile: Profile) -> Installed:
    """Find the distributions of a profile and what they require; one that is not there shows when it is imported."""
    entries: dict[Path, None] = {path.resolve(): None for path in profile.packages}
    compiled: list[Path] = []
    seen: set[str] = set()
    names = [_normalize(name) for name in profile.distributions]
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in distribution.requires or []:
            required = re.match(r"[A-Za-z0-9._-]+", requirement)
            if required and not re.search(r"extra\s*==", requirement):
                names.append(_normalize(required[0]))
        files = _file_names(distribution)
        for top in dict.fromkeys(file.partition("/")[0] for file in files):
            if top != "..":  # a command or a manual page
                entries[Path(str(distribution.locate_file(top))).resolve()] = None
        compiled += [Path(str(distribution.locate_file(file))).resolve() for file in files if file.endswith(".so")]
    present = tuple(path for path in entries if path.exists() and path.name != "__pycache__")
    return Installed(present, tuple(compiled))


def _file_names(distribution: importlib.metadata.Distribution) -> list[str]:
    record = distribution.read_text("RECORD")
    if record is None:  # not installed by pip
        return [str(file) for file in distribution.files or []]
    # Not by `files`, which makes an object of each of some thousands. A quoted name has a comma in it: none of ours.
    return [line.partition(",")[0] for line in record.splitlines() if line and not line.startswith('"')]


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def mapped_files(command: Sequence[str], environment: dict[str, str], modules: Sequence[Path]) -> list[Path]:
    """Every shared object that a fresh interpreter maps when it loads these compiled modules."""
    # In a session of its own: a person's Ctrl-C is for us, who then end it in order.
    asked = subprocess.run(
        [*command, "-c", _QUESTION],
        input="\n".join(map(str, modules)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=False,
        start_new_session=True,
    )
    if asked.returncode != 0:
        last_line = asked.stderr.strip().rpartition("\n")[2]
        raise SandboxUnavailable(f"the shared libraries of installed packages cannot be found: {last_line}")
    lines = asked.stdout.splitlines()
    return sorted({Path(line.split(None, 5)[5]) for line in lines if ".so" in line and "/" in line})
