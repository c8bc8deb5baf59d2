"""The sandbox: a few fork servers, a pool of warm children, and admission control."""

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

from . import memory, self_attack
from .cgroups import server_groups
from .fork_server import Child, ForkServer
from .frame_io import FrameQueue
from .frames import JSON
from .jail import NOBODY, launch
from .profile import Profile
from .programs import Job, ProgramHook, ProgramRunner, ProgramUsage, refuse_ask
from .session import SandboxSession
from .supervisor import RunSupervisor, SharedByRuns
from .tiers import TierChoice, choose_tier
from .types import AskHandler, Limits, Result, SandboxUnavailable, Tier, Verdict

_BYTES_PER_RUN = 4 << 20  # of a waiting run, measured as 2 to 3 MiB
_SPARE_FDS = 256
_FDS_PER_RUN = 3  # the host's ends of both pipes, and the pidfd of a process that takes long
_MEMORY_WAIT_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_MAX_ATTEMPTS = 3
_MAX_SERVER_DEATHS = 20
_MAX_PROGRAMS = 64
_SHARED_THREADS = 1024


class Sandbox:
    """Runs untrusted Python. Use as `async with Sandbox() as sandbox`, then `await sandbox.run(code)`, many at a time.

    `min_tier` rejects weaker isolation; `tier` requests one tier exactly. `unisolated=True` opts in to run without any
    isolation where the machine offers none; every result then says so. `warm` children wait ready for each of `servers`
    fork servers. `libraries` are directories of packages that runs may import besides `workflow`. `profile` gives the
    servers installed packages and a warm-up before the first fork. At most `turns` runs compute at the same time, a few
    per core by default.
    """

    def __init__(  # noqa: PLR0913 - all are keywords, and most callers pass none
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
        self._requested_tier = (min_tier, tier, unisolated)
        self._max_runs = max_runs
        self._server_count = servers or min(os.cpu_count() or 1, 8)
        self._warm = warm
        self._libraries = libraries
        self._profile = profile
        self._turns = turns or max(8, 4 * (os.cpu_count() or 1))
        self._servers: list[ForkServer] = []
        self._pool: deque[Child] = deque()
        self._numbers = itertools.count(1)
        self._running: dict[int, RunSupervisor] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._low_memory = False

    async def __aenter__(self) -> "Sandbox":
        check_capacity(self._max_runs)
        self._admitted = asyncio.Semaphore(self._max_runs)
        # Programs that runs start must not queue behind the runs that wait for them.
        self._programs = asyncio.Semaphore(_MAX_PROGRAMS)
        self._shared = SharedByRuns(asyncio.Semaphore(self._turns), FrameQueue())
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self.choice: TierChoice = await choose_tier(*self._requested_tier)
        self._launch = await asyncio.to_thread(
            launch, self.choice.tier, self.choice.bubblewrap, self._libraries, self._profile
        )
        # In a user namespace of its own a run's threads count alone; elsewhere together with all of its user's.
        self._other_tasks = 0 if self.tier is Tier.T1 else _tasks_of_user() + self._max_runs + _SHARED_THREADS
        try:
            await self._ensure_servers()
            if self._profile is not None and self.tier is not Tier.NONE:
                await self._attack_profile()
        except BaseException:
            await self._close()
            raise
        self._watcher = asyncio.create_task(self._watch())
        self._refill()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    @property
    def tier(self) -> Tier:
        """Return how strongly runs are isolated."""
        return self.choice.tier

    async def run(  # noqa: PLR0913 - all but one are keywords, and most callers pass two
        self,
        code: str,
        *,
        inputs: Mapping[str, JSON] | None = None,
        stdin: str = "",
        limits: Limits | None = None,
        on_ask: AskHandler = refuse_ask,
        on_program: ProgramHook | None = None,
        excuse_slow_replies: bool = True,
    ) -> Result:
        """Run a piece of untrusted code until it ends, at most `Limits.bound_seconds` after its admission.

        `inputs` are its global variables, `stdin` its standard input (a regular file). It may call `door.ask(value)`,
        which `on_ask` answers, and `door.answer(value)`. Asks of the form {"kind": "python", ...}, which
        `subprocess.run` also sends, are served by a sandboxed run of their own, and `on_program` is called for each.
        A run that is late because `on_ask` was slow gets the verdict `infra`, unless `excuse_slow_replies` is False:
        for handlers that themselves wait for untrusted code.
        """
        limits = limits or Limits()
        async with self._admitted:
            if self._low_memory and not await self._wait_for_memory():
                return self._infra_result(f"waited {_MEMORY_WAIT_SECONDS:.0f} s for free memory")
            usage = ProgramUsage()
            programs = ProgramRunner(limits, self._run_program, on_ask, usage, on_program)
            job = Job(code, dict(inputs or {}), stdin, limits)
            return await self._run_job(job, programs.reply_to, usage, excuse_slow_replies)

    @asynccontextmanager
    async def serve(
        self, code: str, *, inputs: Mapping[str, JSON] | None = None, limits: Limits | None = None
    ) -> AsyncIterator[SandboxSession]:
        """Run code that answers requests one after the other; end it at the end of the block. See `session`."""
        session = SandboxSession()
        limits = replace(limits or Limits(), open_asks=1)
        session.start(asyncio.create_task(self.run(code, inputs=inputs, limits=limits, on_ask=session.next_request)))
        try:
            yield session
        finally:
            await session.close()

    @property
    def process_ids(self) -> list[int]:
        """Return the fork servers, each followed by its children: those at work and those that wait ready."""
        return [pid for server in self._servers for pid in server.process_ids]

    async def _attack_profile(self) -> None:
        """Attack a server with a profile, because the tier was chosen by attacks on a bare server, which has less."""
        holes = await self_attack.find_holes(
            lambda code, inputs: self.run(code, inputs=inputs, limits=self_attack.LIMITS)
        )
        if holes:
            raise SandboxUnavailable(f"{self.tier} does not hold for this profile: {', '.join(holes)}")

    async def _run_program(self, job: Job) -> Result:
        async with self._programs:
            return await self._run_job(job, refuse_ask, ProgramUsage())

    async def _run_job(
        self, job: Job, on_ask: AskHandler, usage: ProgramUsage, excuse_slow_replies: bool = True
    ) -> Result:
        """Run a job, again after a failure of the infrastructure as long as it had no side effects."""
        result: Result | None = None
        deadline = time.monotonic() + job.limits.total_seconds
        attempts = server_deaths = 0
        while attempts < _MAX_ATTEMPTS and server_deaths < _MAX_SERVER_DEATHS:
            if (left := deadline - time.monotonic()) <= 0:
                break
            try:
                child = self._take_child()
                if child is None:
                    # Not wait_for: a task of its own could finish with a child while its caller is canceled.
                    async with asyncio.timeout(left):
                        child = await self._wait_for_child()
            except TimeoutError:
                return self._infra_result(f"no fork server within {left:g} s")
            run = RunSupervisor(child, job.limits, self._shared, on_ask, usage, excuse_slow_replies)
            self._running[child.number] = run
            try:
                mapped_bytes = child.server.mapped_bytes if self._profile else 0
                frame = job.frame(self._other_tasks, mapped_bytes)
                result = await run.run(frame, self.tier, max(0.0, deadline - time.monotonic()))
            finally:
                del self._running[child.number]
                asyncio.get_running_loop().call_soon(self._refill)  # after the caller has its result
            if result.verdict is not Verdict.INFRA or run.has_side_effects:
                break
            # The children of a dead server fail one after the other before the next server is up: that is one failure.
            attempts += child.server.alive
            server_deaths += not child.server.alive
        return result or self._infra_result("no fork server")

    def _infra_result(self, detail: str) -> Result:
        return Result(Verdict.INFRA, detail, None, "", "", 0.0, 0.0, 0.0, 0, None, 0, self.tier)

    # --- children and servers

    def _take_child(self) -> Child | None:
        """Return a warm child or else a new one; None when no server is alive."""
        while self._pool:
            child = self._pool.popleft()
            if not child.ended.done():
                return child
            child.close()
        return self._spawn()

    async def _wait_for_child(self) -> Child:
        while (child := self._take_child()) is None:
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            await self._ensure_servers()  # these may be gone again before it is this run's turn
        return child

    def _spawn(self) -> Child | None:
        alive = [server for server in self._servers if server.alive]
        return min(alive, key=lambda server: server.load).spawn(next(self._numbers)) if alive else None

    def _refill(self) -> None:
        while len(self._pool) < self._warm * sum(server.alive for server in self._servers):
            child = self._spawn()
            assert child is not None
            self._pool.append(child)

    async def _ensure_servers(self) -> None:
        """Start the servers that are missing or have died. All who need one wait for the same start."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_servers())
            self._starting.add_done_callback(self._on_started)
        await asyncio.shield(self._starting)  # a canceled waiter must not stop it for the others

    def _on_started(self, starting: "asyncio.Task[None]") -> None:
        self._starting = None
        if not starting.cancelled():
            starting.exception()  # marks it as retrieved, in case that nobody waits for it

    async def _start_servers(self) -> None:
        dead = [server for server in self._servers if not server.alive]
        missing = [ForkServer(self._launch) for _ in range(self._server_count - len(self._servers) + len(dead))]
        self._servers += missing  # so that `_close` closes all of them even if this is canceled
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

    # --- memory

    async def _wait_for_memory(self) -> bool:
        deadline = time.monotonic() + _MEMORY_WAIT_SECONDS
        while self._low_memory:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_WATCH_SECONDS)
        return True

    async def _watch(self) -> None:
        """Check twice a second whether memory is short and whether a server has stopped or died."""
        reserve = memory.reserve_bytes()
        while True:
            free = memory.available_bytes()
            self._low_memory = free < reserve
            server_groups().limit_memory(memory.run_headroom_bytes(free, reserve))
            if free < reserve // 2 and self._running:
                self._running[max(self._running)].evict()
            for server in self._servers:
                server.kill_if_stopped()
            if len(self._servers) < self._server_count or not all(server.alive for server in self._servers):
                with suppress(SandboxUnavailable):  # retried at the next check, and by every run that needs a server
                    await self._ensure_servers()
            await asyncio.sleep(_WATCH_SECONDS)


def check_capacity(max_runs: int) -> None:
    """Raise the limit of open files as needed; raise SandboxUnavailable if descriptors or memory do not suffice."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FDS_PER_RUN * (max_runs + _MAX_PROGRAMS) + _SPARE_FDS
    ceiling = needed if hard == resource.RLIM_INFINITY else hard
    if needed > ceiling:
        raise SandboxUnavailable(
            f"max_runs={max_runs} needs {needed} file descriptors and the limit is {hard}: "
            f"lower max_runs to {(hard - _SPARE_FDS) // _FDS_PER_RUN - _MAX_PROGRAMS} or raise the limit (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    room = (memory.available_bytes() - memory.reserve_bytes()) // _BYTES_PER_RUN
    if max_runs > room:
        raise SandboxUnavailable(
            f"max_runs={max_runs} needs about {max_runs * _BYTES_PER_RUN >> 20} MiB of free memory: "
            f"lower max_runs to {max(room, 1)} or free some memory"
        )


def _tasks_of_user() -> int:
    """Return how many processes and threads the user of the children already has (T2 and T3 share one user)."""
    user = NOBODY if os.getuid() == 0 else os.getuid()
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if process.stat().st_uid == user:
                count += len(list((process / "task").iterdir()))
    return count
