"""The sandbox: a few fork servers, a pool of warm children, and admission to them."""

import asyncio
import itertools
import os
import resource
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from . import memory, selfattack
from .cgroups import server_groups
from .conversation import Conversation
from .frames import JSON
from .jail import NOBODY, launch
from .job import Job, ProgramHook, Programs
from .profile import Profile
from .reading import FrameQueue
from .server import Child, ForkServer
from .session import Session
from .shared import ProgramUsage, Shared
from .tiers import Choice, choose
from .types import Ask, Limits, Result, SandboxUnavailable, Tier, Verdict

_BYTES_EACH = 4 << 20  # a waiting run, measured 2 to 3 MiB
_FDS_SPARE = 256
_FDS_EACH = 3  # both ends of the door, and the handle of a process that takes long
_MEMORY_WAIT_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_TRIES = 3
_MAX_SERVER_DEATHS = 20
_MAX_PROGRAMS = 64
_SHARED_THREADS = 1024
_ATTACK_LIMITS = Limits(cpu_seconds=2, wall_seconds=10, asks=0)


async def _no_asks(body: JSON) -> JSON:
    return {"error": "this run has nobody to ask"}


class Sandbox:
    """Runs untrusted Python. Use as `async with Sandbox() as sandbox`, then `await sandbox.run(code)`, many at a time.

    `min_tier` refuses weaker isolation than that; `tier` asks for that one exactly. `unisolated=True` is the explicit
    opt-in to run with none at all where the machine gives none; every result then says so. `warm` children wait ready
    in each of `servers` fork servers. `libraries` are directories of packages that runs may import besides `workflow`;
    `profile` gives the servers installed packages and something to do before the first fork. At most `turns` runs
    compute at a time, a few per core unless told otherwise.
    """

    def __init__(  # noqa: PLR0913 - all of them keywords, and most users name none
        self,
        *,
        min_tier: Tier = Tier.T2,
        tier: Tier | None = None,
        unisolated: bool = False,
        max_runs: int = 1024,
        servers: int | None = None,
        warm: int = 2,
        libraries: Mapping[str, Path] | None = None,
        profile: Profile | None = None,
        turns: int | None = None,
    ) -> None:
        self._wanted = (min_tier, tier, unisolated)
        self._max_runs = max_runs
        self._server_count = servers or min(os.cpu_count() or 1, 8)
        self._warm = warm
        self._libraries = libraries
        self._profile = profile
        self._turns = turns or max(8, 4 * (os.cpu_count() or 1))
        self._servers: list[ForkServer] = []
        self._pool: deque[Child] = deque()
        self._numbers = itertools.count(1)
        self._running: dict[int, Conversation] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._low_memory = False

    async def __aenter__(self) -> "Sandbox":
        refuse_what_does_not_fit(self._max_runs)
        self._admitted = asyncio.Semaphore(self._max_runs)
        # Programs that runs ask for must not queue behind runs that wait for them.
        self._subruns = asyncio.Semaphore(_MAX_PROGRAMS)
        self._shared = Shared(asyncio.Semaphore(self._turns), FrameQueue())
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self.choice: Choice = await choose(*self._wanted)
        self._launch = await asyncio.to_thread(
            launch, self.choice.tier, self.choice.bubblewrap, self._libraries, self._profile
        )
        # In a user namespace of its own a run's threads count alone; elsewhere together with all of its user's.
        self._other_tasks = 0 if self.tier is Tier.T1 else _tasks_of_user() + self._max_runs + _SHARED_THREADS
        try:
            await self._ensure_servers()
            if self._profile is not None and self.tier is not Tier.NONE:
                await self._refuse_holes()
        except BaseException:
            await self._close()
            raise
        self._watcher = asyncio.create_task(self._watch())
        self._refill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def tier(self) -> Tier:
        """How strongly runs are isolated."""
        return self.choice.tier

    async def run(  # noqa: PLR0913 - all of them keywords, and most users name two
        self,
        code: str,
        *,
        inputs: Mapping[str, JSON] | None = None,
        stdin: str = "",
        limits: Limits | None = None,
        on_ask: Ask = _no_asks,
        on_program: ProgramHook | None = None,
        excuse_slow_replies: bool = True,
    ) -> Result:
        """Run one piece of untrusted code to its end, `Limits.bound_seconds` after it was admitted at the latest.

        `inputs` are its global variables, `stdin` its standard input (a regular file). It may call `door.ask(value)`,
        which `on_ask` answers, and `door.answer(value)`. Asks of the form {"kind": "python", ...}, which also stand
        behind `subprocess.run`, are served by a sandboxed run of their own, and `on_program` hears of each. A run that
        is late because `on_ask` took long is an infrastructure fault, unless `excuse_slow_replies` is False: for
        handlers that themselves wait for untrusted code.
        """
        limits = limits or Limits()
        async with self._admitted:
            if not await self._memory_is_there():
                return self._refused(f"waited {_MEMORY_WAIT_SECONDS:.0f} s for free memory")
            usage = ProgramUsage()
            programs = Programs(limits, self._run_program, on_ask, usage, on_program)
            job = Job(code, dict(inputs or {}), stdin, limits)
            return await self._converse(job, programs.answer, usage, excuse_slow_replies)

    @asynccontextmanager
    async def serve(
        self, code: str, *, inputs: Mapping[str, JSON] | None = None, limits: Limits | None = None
    ) -> AsyncIterator[Session]:
        """Run code that answers requests one after the other; it is ended at the end of the block. See `session`."""
        session = Session()
        run = asyncio.create_task(
            self.run(
                code,
                inputs=inputs,
                limits=replace(limits or Limits(), open_asks=1),
                on_ask=session.next_request,
            )
        )
        session.start(run)
        try:
            yield session
        finally:
            await session.close()

    @property
    def process_ids(self) -> list[int]:
        """The fork servers, each followed by its children: those at work and those that wait ready."""
        return [pid for server in self._servers for pid in server.process_ids]

    async def _refuse_holes(self) -> None:
        """The tier was chosen by attacks on a bare server; one with a profile has more in it and is attacked again."""
        with selfattack.targets() as target:

            async def attempt(name: str) -> str | None:
                code = selfattack.snippet(selfattack.ATTACKS[name])
                result = await self.run(code, inputs={"target": target}, limits=_ATTACK_LIMITS)
                return name if result.answer is True else None

            holes = [name for name in await asyncio.gather(*map(attempt, selfattack.ATTACKS)) if name]
        control = await self.run(selfattack.snippet(selfattack.CONTROL), limits=_ATTACK_LIMITS)
        if control.answer is not True:
            holes.append(f"honest code does not run ({control.detail or control.verdict})")
        if holes:
            raise SandboxUnavailable(f"{self.tier} does not hold for this profile: {', '.join(holes)}")

    async def _run_program(self, job: Job) -> Result:
        async with self._subruns:
            return await self._converse(job, _no_asks)

    async def _converse(
        self, job: Job, on_ask: Ask, usage: ProgramUsage | None = None, excuse_slow_replies: bool = True
    ) -> Result:
        result = self._refused("no fork server")
        deadline = time.monotonic() + job.limits.total_seconds
        tries = server_deaths = 0
        while tries < _TRIES and server_deaths < _MAX_SERVER_DEATHS:
            if (left := deadline - time.monotonic()) <= 0:
                break
            try:
                child = self._warm_child()
                if child is None:
                    # Not wait_for: a task of its own could finish with a child while its caller is canceled.
                    async with asyncio.timeout(left):
                        child = await self._child()
            except TimeoutError:
                return self._refused(f"no fork server within {left:g} s")
            talk = Conversation(child, job.limits, on_ask, self._shared, usage, excuse_slow_replies=excuse_slow_replies)
            self._running[child.number] = talk
            try:
                mapped_bytes = child.server.mapped_bytes if self._profile else 0
                frame = job.frame(self._other_tasks, mapped_bytes)
                result = await talk.run(frame, self.tier, max(0.0, deadline - time.monotonic()))
            finally:
                del self._running[child.number]
                asyncio.get_running_loop().call_soon(self._refill)  # after the caller has its result
            if result.verdict is not Verdict.INFRA or talk.has_spoken:
                break  # what has spoken may have had an effect: only its caller can start it again
            # Children of one dead server fail one after the other before the next one stands: that is one failure.
            tries += child.server.alive
            server_deaths += not child.server.alive
        return result

    def _refused(self, why: str) -> Result:
        return Result(Verdict.INFRA, why, None, "", "", 0.0, 0.0, 0.0, 0, None, 0, self.tier)

    # --- children and servers

    def _warm_child(self) -> Child | None:
        while self._pool:
            child = self._pool.popleft()
            if not child.ended.done():
                return child
            child.close()
        return None

    async def _child(self) -> Child:
        while True:
            if alive := [server for server in self._servers if server.alive]:
                return self._spawn(alive)
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            await self._ensure_servers()  # those may be gone again before it is this run's turn

    def _spawn(self, alive: list[ForkServer]) -> Child:
        return min(alive, key=lambda server: server.load).spawn(next(self._numbers))

    def _refill(self) -> None:
        alive = [server for server in self._servers if server.alive]
        while alive and len(self._pool) < self._warm * len(alive):
            self._pool.append(self._spawn(alive))
            alive = [server for server in alive if server.alive]

    async def _ensure_servers(self) -> None:
        """Start the servers that are missing, those that died among them. All who need one wait for the same start."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_servers())
            self._starting.add_done_callback(self._started)
        await asyncio.shield(self._starting)  # who waits no longer must not stop it for the others

    def _started(self, starting: "asyncio.Task[None]") -> None:
        self._starting = None
        if not starting.cancelled():
            starting.exception()  # raised where somebody waits; nobody needs to

    async def _start_servers(self) -> None:
        dead = [server for server in self._servers if not server.alive]
        missing = [ForkServer(self._launch) for _ in range(self._server_count - len(self._servers) + len(dead))]
        self._servers += missing  # all are closed in the end, also when this is canceled
        await asyncio.gather(*(server.close() for server in dead))
        self._servers = [server for server in self._servers if server not in dead]
        started = await asyncio.gather(*(server.start() for server in missing), return_exceptions=True)
        failures = [error for error in started if error is not None]
        self._refill()
        if failures and not any(server.alive for server in self._servers):
            raise failures[0]

    async def _close(self) -> None:
        self._closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        while self._pool:
            self._pool.popleft().close()
        await asyncio.gather(*(server.close() for server in self._servers))
        self._servers.clear()

    # --- admission

    async def _memory_is_there(self) -> bool:
        deadline = asyncio.get_running_loop().time() + _MEMORY_WAIT_SECONDS
        while self._low_memory:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_WATCH_SECONDS)
        return True

    async def _watch(self) -> None:
        """Twice a second: is memory short, is a server stopped or dead?"""
        reserve = memory.reserve_bytes()
        while True:
            free = memory.available_bytes()
            self._low_memory = free < reserve
            server_groups().limit_memory(memory.run_headroom_bytes(free, reserve))
            if free < reserve // 2 and self._running:
                self._running[max(self._running)].evict()
            for server in self._servers:
                server.replace_if_stopped()
            if len(self._servers) < self._server_count or not all(server.alive for server in self._servers):
                with suppress(SandboxUnavailable):  # tried again at the next look, and by whoever needs one
                    await self._ensure_servers()
            await asyncio.sleep(_WATCH_SECONDS)


def refuse_what_does_not_fit(max_runs: int) -> None:
    """Raise descriptors to what is allowed, and refuse a concurrency that descriptors or memory cannot carry."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FDS_EACH * (max_runs + _MAX_PROGRAMS) + _FDS_SPARE
    ceiling = needed if hard == resource.RLIM_INFINITY else hard
    if needed > ceiling:
        raise SandboxUnavailable(
            f"max_runs={max_runs} needs {needed} file descriptors and the limit is {hard}: "
            f"lower max_runs to {(hard - _FDS_SPARE) // _FDS_EACH - _MAX_PROGRAMS} or raise the limit (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    room = (memory.available_bytes() - memory.reserve_bytes()) // _BYTES_EACH
    if max_runs > room:
        raise SandboxUnavailable(
            f"max_runs={max_runs} needs about {max_runs * _BYTES_EACH >> 20} MiB of free memory: "
            f"lower max_runs to {max(room, 1)} or free some"
        )


def _tasks_of_user() -> int:
    """Processes and threads that already count against the user whom children run as (T2 and T3 share one)."""
    user = NOBODY if os.getuid() == 0 else os.getuid()
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == user:
                count += len(list((process / "task").iterdir()))
        except OSError:
            continue  # it ended while we looked
    return count
