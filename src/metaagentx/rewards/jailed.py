"""Host side of grading math and generated tasks: workers in the sandbox. `jailed_child` is the other side.

Each kind has a fork server in a jail with the libraries in memory. A worker is a locked-down child of that server
(docs/sandbox.md) which replies through a `SandboxSession`. The sandbox enforces its limits: CPU time per request,
memory in addition to the libraries. Large libraries parse untrusted answers in the child, so its replies are checked
like any other untrusted message.

A grading child has nothing to wait for: if its turn passes without using the CPU, the machine is at fault.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from ..sandbox import (
    JSON,
    Limits,
    Profile,
    Result,
    Sandbox,
    SandboxSession,
    SandboxUnavailable,
    SessionEnded,
    Verdict,
)
from ..sandbox.supervisor import SHORT_TICK_SECONDS
from .errors import GraderUnavailable
from .reply import GraderReply
from .workers import (
    PATIENCE_SECONDS,
    SLOW_PER_WORKER,
    GraderLimits,
    OverLimit,
    WorkerCrashed,
    WorkerGroup,
    WorkerLost,
    read_reply,
)

# One thread each: grading is many small jobs, and a pool of idle threads must not be forked.
_ENVIRONMENT = (("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"))
_PACKAGE = Path(__file__).parents[1]
PROFILES = {
    kind: Profile((library,), f"metaagentx.rewards.jailed_child:warm_up_{kind}", (_PACKAGE,), environment=_ENVIRONMENT)
    for kind, library in (("math", "math-verify"), ("gym", "reasoning-gym"))
}
CODE = "import metaagentx.rewards.jailed_child\nmetaagentx.rewards.jailed_child.serve(kind)"
_SPARE_RUNS = 16
_UNLIMITED_SECONDS = 1e8
_UNLIMITED = 1_000_000_000


class JailedGraders(WorkerGroup):
    """Workers of one kind and the sandbox they live in, which is started with the first request.

    `code` is what a worker runs, with `kind` as a global variable.
    """

    def __init__(self, kind: str, size: int, limits: GraderLimits, code: str = CODE) -> None:
        # A child that gave up its slot has a lower priority from then on, so it is not used again.
        super().__init__(size, limits, reuse_slow=False)
        self._kind = kind
        self._code = code
        self._sandbox: Sandbox | None = None
        self._starting = asyncio.Lock()

    @property
    def process_ids(self) -> list[int]:
        """Return the fork server, then its children, including those that wait ready."""
        return self._sandbox.process_ids if self._sandbox else []

    async def start_worker(self) -> "JailedWorker":
        """Let a child serve. If none can be made, the first request to the worker fails."""
        async with self._starting:
            if self._sandbox is None:
                self._sandbox = await self._start_sandbox()
        stack = AsyncExitStack()
        serving = self._sandbox.serve(self._code, inputs={"kind": self._kind}, limits=session_limits(self._limits))
        return JailedWorker(await stack.enter_async_context(serving), stack, self._limits)

    async def _start_sandbox(self) -> Sandbox:
        workers = self._size * (1 + SLOW_PER_WORKER)
        # Room for more runs than there are workers: those that are being ended count, too.
        sandbox = Sandbox(
            profile=PROFILES[self._kind],
            servers=1,
            warm=1,
            max_runs=2 * workers + _SPARE_RUNS,
            turns=workers + _SPARE_RUNS,
        )
        try:
            return await sandbox.__aenter__()
        except SandboxUnavailable as error:
            raise GraderUnavailable(f"the grading process did not start: {error}") from error

    def crashed_twice(self, reason: str) -> GraderReply:
        """Attribute the crashes to the answer: it is wrong."""
        return GraderReply(reason=reason, by_host=True)

    async def close(self) -> None:
        """End all workers and the sandbox, and wait until they are gone."""
        await super().close()
        async with self._starting:
            if self._sandbox is not None:
                await self._sandbox.__aexit__(None, None, None)


class JailedWorker:
    """One child of the grading fork server."""

    def __init__(self, session: SandboxSession, stack: AsyncExitStack, limits: GraderLimits) -> None:
        self._session = session
        self._stack = stack
        self._limits = limits

    @property
    def alive(self) -> bool:
        """Return whether it can take a request."""
        return self._session.result is None

    async def ask(self, request: dict[str, JSON]) -> GraderReply:
        """Return the reply to one request; raises as `workers` says."""
        try:
            reply = read_reply(await self._session.request(request))
        except SessionEnded as ended:
            raise _failure(ended.result, self._limits) from None
        except (SandboxUnavailable, RuntimeError) as error:  # no server, or the session was closed meanwhile
            raise WorkerLost(str(error)) from error
        if reply.cpu > self._limits.cpu_seconds:  # between two looks of the host; whether it looked must not matter
            raise _over_time(self._limits)
        return reply

    async def close(self) -> None:
        """End the child."""
        await self._stack.aclose()


def session_limits(limits: GraderLimits) -> Limits:
    """Return what a child may use. Only a turn is limited: the sum of thousands says nothing about any of them."""
    return Limits(
        cpu_seconds=_UNLIMITED_SECONDS,
        # The child's own count decides; this ends one that does not come back, and must not be stricter.
        turn_cpu_seconds=limits.cpu_seconds + SHORT_TICK_SECONDS,
        wall_seconds=limits.wall_seconds,
        idle_seconds=_UNLIMITED_SECONDS,
        turn_seconds=limits.request_seconds,
        total_seconds=_UNLIMITED_SECONDS,
        yield_after_seconds=PATIENCE_SECONDS - SHORT_TICK_SECONDS,
        memory_bytes=limits.memory_bytes,
        asks=_UNLIMITED,
        door_bytes=_UNLIMITED,
    )


def _over_time(limits: GraderLimits) -> OverLimit:
    return OverLimit(f"it took longer than {limits.cpu_seconds:g} s of CPU time")


def _failure(result: Result, limits: GraderLimits) -> Exception:
    """Return the exception that says what ended a child."""
    if result.verdict is Verdict.CPU:
        return _over_time(limits)
    if result.verdict is Verdict.MEMORY:
        return OverLimit("it took more memory than allowed")
    if result.verdict in (Verdict.INFRA, Verdict.WALL):
        return WorkerLost(result.detail)
    return WorkerCrashed(result.detail or str(result.verdict))
