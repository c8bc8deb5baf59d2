"""Grading in the sandbox: math and generated tasks, each in a fork server that has its libraries in memory.

A worker is a locked-down child of that server (docs/sandbox.md) which answers requests through a `Session`. Its limits
are the sandbox's: processor time for each request, memory on top of the libraries. What a child reads from its answer
is parsed by large libraries, so its replies are checked like any other untrusted message.

A grading child has nothing to wait for. When its turn passes without processor time, the machine is at fault.
"""

import asyncio
import math
from contextlib import AsyncExitStack
from pathlib import Path

from ..sandbox import JSON, Limits, Result, Sandbox, SandboxUnavailable, Session, SessionEnded, Verdict
from ..sandbox.conversation import SHORT_TICK_SECONDS
from ..sandbox.profile import Profile
from .errors import GraderUnavailable
from .worker_group import (
    PATIENCE_SECONDS,
    SLOW_PER_WORKER,
    GraderLimits,
    OverLimit,
    WorkerCrashed,
    WorkerGroup,
    WorkerLost,
)

# One thread each: grading is many small jobs, and a pool of idle threads must not be forked.
_ENVIRONMENT = (("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"))
_PACKAGE = Path(__file__).parents[1]
PROFILES = {
    "math": Profile(
        ("math-verify",), "metaagentx.rewards.grading_child:warm_up_math", (_PACKAGE,), environment=_ENVIRONMENT
    ),
    "gym": Profile(
        ("reasoning-gym",),
        "metaagentx.rewards.grading_child:warm_up_gym",
        (_PACKAGE,),
        environment=_ENVIRONMENT,
    ),
}
CODE = "import metaagentx.rewards.grading_child\nmetaagentx.rewards.grading_child.serve(kind)"
_SPARE_RUNS = 16
_FOR_EVER = 1e8
_MANY = 1_000_000_000


class JailedGraders:
    """Workers of one kind and the sandbox they live in, which is started with the first request.

    `code` is what a worker runs, with `kind` as a global variable.
    """

    def __init__(self, kind: str, size: int, limits: GraderLimits, code: str = CODE) -> None:
        self._kind = kind
        self._code = code
        self._limits = limits
        self._most = size * (1 + SLOW_PER_WORKER)
        # A worker that has stepped back stays behind for good.
        self._group = WorkerGroup(self._start_worker, size, limits, reuse_slow=False)
        self._sandbox: Sandbox | None = None
        self._starting = asyncio.Lock()
        self.ask = self._group.ask

    async def start(self) -> None:
        """Have the workers ready; otherwise the first request waits for it."""
        await self._group.start()

    @property
    def process_ids(self) -> list[int]:
        """The fork server and its children, those among them that wait ready."""
        return self._sandbox.process_ids if self._sandbox else []

    async def close(self) -> None:
        """End everything and wait until it is gone."""
        await self._group.close()
        async with self._starting:
            if self._sandbox is not None:
                await self._sandbox.__aexit__(None, None, None)

    async def _start_worker(self) -> "JailedWorker":
        async with self._starting:
            if self._sandbox is None:
                sandbox = Sandbox(
                    profile=PROFILES[self._kind],
                    servers=1,
                    warm=1,
                    # More than ever run: those that are being ended count, too.
                    max_runs=2 * self._most + _SPARE_RUNS,
                    turns=self._most + _SPARE_RUNS,
                )
                try:
                    self._sandbox = await sandbox.__aenter__()
                except SandboxUnavailable as error:
                    raise GraderUnavailable(f"the grading process did not start: {error}") from error
        worker = JailedWorker(self._limits)
        await worker.start(self._sandbox, self._code, self._kind)
        return worker


class JailedWorker:
    """One child of the grading fork server."""

    def __init__(self, limits: GraderLimits) -> None:
        self._limits = limits
        self._stack = AsyncExitStack()
        self._session: Session | None = None

    async def start(self, sandbox: Sandbox, code: str, kind: str) -> None:
        """Have a child serve; that none could be made shows when it is asked."""
        session = sandbox.serve(code, inputs={"kind": kind}, limits=session_limits(self._limits))
        self._session = await self._stack.enter_async_context(session)

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._session is not None and self._session.result is None

    async def ask(self, request: dict[str, JSON]) -> dict[str, JSON]:
        """The reply to one request; raises as a `Worker` does."""
        assert self._session is not None
        try:
            reply = await self._session.request(request)
        except SessionEnded as ended:
            raise _failure(ended.result, self._limits) from None
        except (SandboxUnavailable, RuntimeError) as error:  # no server, or the session was closed under us
            raise WorkerLost(str(error)) from error
        checked = check_reply(reply)
        cpu_seconds = checked["cpu"]
        assert isinstance(cpu_seconds, float)
        if cpu_seconds > self._limits.cpu_seconds:  # between two looks of the host; whether it looked must not matter
            raise _over_time(self._limits)
        return checked

    async def close(self) -> None:
        """End the child."""
        await self._stack.aclose()


def session_limits(limits: GraderLimits) -> Limits:
    """What a child may use. Only a turn is limited: the sum of thousands says nothing about any of them."""
    return Limits(
        cpu_seconds=_FOR_EVER,
        # The child's own count decides; this ends one that does not come back, and must not be stricter.
        turn_cpu_seconds=limits.cpu_seconds + SHORT_TICK_SECONDS,
        wall_seconds=limits.wall_seconds,
        idle_seconds=_FOR_EVER,
        turn_seconds=limits.request_seconds,
        total_seconds=_FOR_EVER,
        yield_after_seconds=PATIENCE_SECONDS - SHORT_TICK_SECONDS,
        memory_bytes=limits.memory_bytes,
        asks=_MANY,
        door_bytes=_MANY,
    )


def _over_time(limits: GraderLimits) -> OverLimit:
    return OverLimit(f"it took longer than {limits.cpu_seconds:g} s of processor time")


def _failure(result: Result, limits: GraderLimits) -> Exception:
    """Whose doing it was that a child ended."""
    if result.verdict is Verdict.CPU:
        return _over_time(limits)
    if result.verdict is Verdict.MEMORY:
        return OverLimit("it took more memory than allowed")
    if result.verdict in (Verdict.INFRA, Verdict.WALL):
        return WorkerLost(result.detail)
    return WorkerCrashed(result.detail or str(result.verdict))


def check_reply(reply: JSON) -> dict[str, JSON]:
    """A reply of the form that grading children send; anything else is a crash."""
    if isinstance(reply, dict) and isinstance(reply.get("cpu"), float) and isinstance(reply.get("last"), bool):
        if isinstance(reply.get("broken"), str):
            return reply
        score = reply.get("score")
        if (
            isinstance(score, int | float)
            and math.isfinite(score)
            and 0 <= score <= 1
            and isinstance(reply.get("solved"), bool)
            and isinstance(reply.get("reason"), str)
        ):
            return reply
    raise WorkerCrashed("a reply that is none of ours")
