"""What a fork server has besides the bare interpreter: installed packages, and a warm-up before the first fork.

A profile names distributions as pip does. Their requirements, found in their metadata, are included.
"""

import importlib.metadata
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Profile:
    """What runs find in memory and may import. `Limits.memory_bytes` does not include it."""

    distributions: tuple[str, ...]
    """Installed distributions; their requirements are included."""
    warm_up: str
    """`module:function`, called in the fork server before the first fork."""
    packages: tuple[Path, ...] = ()
    """Directories of further packages, imported by the name of the directory."""
    environment: tuple[tuple[str, str], ...] = ()
    start_seconds: float = 120.0
    """Time to start a server, including the warm-up."""


@dataclass(frozen=True, slots=True)
class ProfileFiles:
    """The files of a profile on this machine."""

    entries: tuple[Path, ...]
    """Packages, modules and metadata, each at the top level of a directory of Python's path."""
    compiled: tuple[Path, ...]
    """The compiled modules in them."""


@cache
def installed_files(profile: Profile) -> ProfileFiles:
    """Find the distributions of a profile and their requirements; a missing one fails when it is imported."""
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
    return ProfileFiles(present, tuple(compiled))


def _file_names(distribution: importlib.metadata.Distribution) -> list[str]:
    record = distribution.read_text("RECORD")
    if record is None:  # not installed by pip
        return [str(file) for file in distribution.files or []]
    # Not `distribution.files`, which creates thousands of objects. A quoted name contains a comma: none that we need.
    return [line.partition(",")[0] for line in record.splitlines() if line and not line.startswith('"')]


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
