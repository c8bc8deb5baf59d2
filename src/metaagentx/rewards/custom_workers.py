"""The host's side of `custom_worker`: a plain process for each worker of a user's grader, watched and killable.

Over its processor time the answer is at fault. A function that sleeps too long, or whose process is stopped or killed,
has failed through no fault of the answer.
"""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from ..sandbox.clock import TICK_SECONDS, TurnClock, read_scheduling
from ..sandbox.frames import BadFrame, decode, encode
from ..sandbox.inside import kernel
from ..types import JSON, CustomGrader
from .custom import setup_of
from .errors import GraderUnavailable
from .worker_group import GraderLimits, OverLimit, WorkerCrashed, WorkerLost

_STOPPED_SECONDS = 2.0
_EXIT_SECONDS = 5.0
_MAX_REPLY = 1 << 20
_COMMAND = ("-P", "-B", "-W", "ignore", "-m", "metaagentx.rewards.custom_worker")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}


class CustomWorker:
    """One process with a user's grader in it."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        limits: GraderLimits,
    ) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._limits = limits
        self._clock = TurnClock()

    @classmethod
    async def start(cls, grader: CustomGrader, limits: GraderLimits) -> "CustomWorker":
        """Start a process and wait until it has imported the grader; GraderUnavailable says why it could not."""
        setup = setup_of(grader) | {"host": os.getpid(), "memory_bytes": limits.memory_bytes}
        ours, theirs = socket.socketpair()
        with theirs:
            streams = await asyncio.open_connection(sock=ours)
            try:
                process = subprocess.Popen(
                    [sys.executable, *_COMMAND],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | _ENVIRONMENT,
                )
            except OSError as error:
                streams[1].close()
                raise GraderUnavailable(f"no grading process could be started: {error}") from error
        worker = cls(process, streams, limits)
        try:
            async with asyncio.timeout(limits.start_seconds):
                reply = await worker._exchange(setup)
            failure = reply.get("failed")
        except TimeoutError:
            failure = f"it was not ready after {limits.start_seconds:g} s"
        except (WorkerCrashed, WorkerLost) as error:
            failure = str(error)
        except BaseException:
            await worker.close()
            raise
        if failure is not None:
            await worker.close()
            raise GraderUnavailable(f"the grading process did not start: {failure}")
        return worker

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._process.poll() is None and not self._reader.at_eof()

    async def ask(self, request: dict[str, JSON]) -> dict[str, JSON]:
        """The reply to one request; raises as a `Worker` does."""
        now = time.perf_counter()
        self._clock.look(now, self._cpu_seconds(), None)  # what it used before is not this request's
        self._clock.begin(now)
        exchange = asyncio.ensure_future(self._exchange(request))
        try:
            while not (await asyncio.wait({exchange}, timeout=TICK_SECONDS))[0]:
                self._judge()
        finally:
            exchange.cancel()
        return exchange.result()

    def _judge(self) -> None:
        clock, limits = self._clock, self._limits
        started = clock.started
        assert started is not None
        now = time.perf_counter()
        if self._process.poll() is not None:
            raise self._end()
        clock.look(now, self._cpu_seconds(), read_scheduling(self._process.pid))
        too_long = f"it took longer than {limits.cpu_seconds:g} s ({limits.wall_seconds:g} s by the clock)"
        if clock.turn_cpu_seconds > limits.cpu_seconds:
            raise OverLimit(too_long)
        if clock.turn_idle_seconds > limits.wall_seconds:
            raise WorkerLost(too_long)
        if clock.stopped_seconds > _STOPPED_SECONDS:
            raise WorkerLost("its process was stopped from outside")
        if now - started > limits.request_seconds:
            raise WorkerLost(f"the machine was too busy to answer within {limits.request_seconds:g} s")

    def _cpu_seconds(self) -> float:
        try:
            return kernel.cpu_seconds(self._process.pid)
        except OSError:
            return 0.0  # it has just ended

    async def _exchange(self, request: dict[str, JSON]) -> dict[str, JSON]:
        try:
            self._writer.write(encode(request))
            size = struct.unpack(">I", await self._reader.readexactly(4))[0]
            if size > _MAX_REPLY:
                raise BadFrame(f"a reply of {size} bytes")
            reply = decode(await self._reader.readexactly(size))
        except BadFrame as error:
            raise WorkerCrashed(f"a reply that is none of ours: {error}") from error
        except (asyncio.IncompleteReadError, OSError):
            try:
                await asyncio.to_thread(self._process.wait, _EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                raise WorkerCrashed("it hung up and did not end") from None
            raise self._end() from None
        assert isinstance(reply, dict)
        return reply

    def _end(self) -> WorkerCrashed | WorkerLost:
        """How the process ended."""
        code = self._process.returncode
        if code >= 0:
            return WorkerCrashed(f"ended with exit code {code}")
        what = f"killed by {signal.Signals(-code).name}"
        return WorkerLost(what) if -code == signal.SIGKILL else WorkerCrashed(what)

    async def close(self) -> None:
        """End the process, whatever it is doing, and wait until it is gone."""
        self._process.kill()
        self._writer.close()
        await asyncio.to_thread(self._process.wait)
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
