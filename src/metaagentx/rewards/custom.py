"""Host side of grading with a user's function: a plain, killable process per worker. `custom_child` is the other side.

The function is trusted, the answer is not. An answer that takes too much CPU time is wrong. A function that
sleeps too long or crashes, or whose process is stopped or killed, has failed and the answer is not at fault.

The module is looked for beside the file of the task, then in the working directory, then where the host finds modules.
"""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from ..sandbox.clock import TICK_SECONDS, TurnClock, read_scheduling
from ..sandbox.frames import BadFrame, decode, encode
from ..sandbox.inside import kernel
from ..types import JSON, CustomGrader
from .errors import GraderUnavailable
from .reply import GraderReply
from .workers import GraderLimits, OverLimit, WorkerCrashed, WorkerGroup, WorkerLost, read_reply

# A user's grader may ask a slow judge.
CUSTOM_LIMITS = GraderLimits(cpu_seconds=10.0, wall_seconds=60.0, memory_bytes=2 << 30)
_STOPPED_SECONDS = 2.0
_EXIT_SECONDS = 5.0
_MAX_REPLY = 1 << 20
_COMMAND = ("-P", "-B", "-W", "ignore", "-m", "metaagentx.rewards.custom_child")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}


class CustomGraders(WorkerGroup):
    """Workers for one function."""

    def __init__(self, grader: CustomGrader, size: int, limits: GraderLimits) -> None:
        super().__init__(size, limits)
        self._grader = grader

    async def start_worker(self) -> "CustomWorker":
        """Start a process with the function."""
        return await CustomWorker.start(self._grader, self._limits)

    def crashed_twice(self, reason: str) -> GraderReply:
        """Attribute the crashes to the function."""
        raise GraderUnavailable(reason)


class CustomWorker:
    """One process with a user's function in it."""

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
        """Start a process and wait until it has imported the function; GraderUnavailable says why it could not."""
        beside = [str(Path(grader.file).parent)] if grader.file else []
        path = [*beside, os.getcwd(), *map(os.path.abspath, sys.path)]  # noqa: PTH109 - strings are needed
        setup: dict[str, JSON] = {
            "function": grader.function,
            "path": [*path],
            "host": os.getpid(),
            "memory_bytes": limits.memory_bytes,
        }
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
            failure = reply.get("failed") if isinstance(reply, dict) else "it sent a malformed reply"
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
        """Return whether it can take a request."""
        return self._process.poll() is None and not self._reader.at_eof()

    async def ask(self, request: dict[str, JSON]) -> GraderReply:
        """Return the reply to one request; raises as `workers` says."""
        now = time.perf_counter()
        self._clock.look(now, self._cpu_seconds(), None)  # what it used before is not this request's
        self._clock.begin(now)
        exchange = asyncio.ensure_future(self._exchange(request))
        try:
            while not (await asyncio.wait({exchange}, timeout=TICK_SECONDS))[0]:
                self._check_limits()
        finally:
            exchange.cancel()
        return read_reply(exchange.result())

    def _check_limits(self) -> None:
        clock, limits = self._clock, self._limits
        started = clock.started
        assert started is not None
        now = time.perf_counter()
        if self._process.poll() is not None:
            raise self._exit_error()
        clock.look(now, self._cpu_seconds(), read_scheduling(self._process.pid))
        too_long = f"it took longer than {limits.cpu_seconds:g} s ({limits.wall_seconds:g} s by the clock)"
        if clock.turn_cpu_seconds > limits.cpu_seconds:
            raise OverLimit(too_long)
        if clock.turn_idle_seconds > limits.wall_seconds:
            raise WorkerLost(too_long)
        if clock.stopped_seconds > _STOPPED_SECONDS:
            raise WorkerLost("its process was stopped from outside")
        if now - started > limits.request_seconds:
            raise WorkerLost(f"the machine was too busy to reply within {limits.request_seconds:g} s")

    def _cpu_seconds(self) -> float:
        try:
            return kernel.cpu_seconds(self._process.pid)
        except OSError:
            return 0.0  # it has just ended

    async def _exchange(self, request: dict[str, JSON]) -> JSON:
        try:
            self._writer.write(encode(request))
            size = struct.unpack(">I", await self._reader.readexactly(4))[0]
            if size > _MAX_REPLY:
                raise BadFrame(f"a reply of {size} bytes")
            return decode(await self._reader.readexactly(size))
        except BadFrame as error:
            raise WorkerCrashed(f"it sent a malformed reply: {error}") from error
        except (asyncio.IncompleteReadError, OSError):
            try:
                await asyncio.to_thread(self._process.wait, _EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                raise WorkerCrashed("it hung up and did not end") from None
            raise self._exit_error() from None

    def _exit_error(self) -> WorkerCrashed | WorkerLost:
        """Return the exception that says how the process ended."""
        code = self._process.returncode
        if code >= 0:
            return WorkerCrashed(f"ended with exit code {code}")
        message = f"killed by {signal.Signals(-code).name}"
        return WorkerLost(message) if -code == signal.SIGKILL else WorkerCrashed(message)

    async def close(self) -> None:
        """End the process, whatever it is doing, and wait until it is gone."""
        self._process.kill()
        self._writer.close()
        await asyncio.to_thread(self._process.wait)
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
