"""Killable worker processes: each request is answered within its limits or its worker is killed, and no other suffers.

A group keeps `size` workers of one kind, forked by a nursery (see `worker_main`). A request that computes for longer
than `PATIENCE_SECONDS` gives up its place and some of its share of the processor, so that up to `SLOW_PER_WORKER` slow
ones beside each worker cannot hold up the quick ones behind them.

What becomes of a request whose worker does not answer:
- over its processor time, or over the wall clock: killed; the answer's doing;
- dead by a signal or an exit of its own: tried again on a fresh worker; the same once more is the answer's doing;
- killed by SIGKILL that we did not send (the machine is out of memory, an operator), or no worker could be made: ours;
  tried again, then GraderUnavailable.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass

from ..sandbox.frames import BadFrame, decode, encode
from ..sandbox.inside import kernel
from ..types import JSON
from .errors import GraderUnavailable
from .worker_main import BROKEN, PACKET

PATIENCE_SECONDS = 0.3
SLOW_PER_WORKER = 4
_SLOW_NICENESS = 5
_COMPUTING_SHARE = 0.02
_ATTEMPTS = 3
# One thread each: grading is many small jobs, and a pool of idle threads must not be forked.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may use."""

    cpu_seconds: float = 1.2
    wall_seconds: float = 4.0
    """Longer than the processor time, and doubled for an answer that computes: a busy machine is not its fault."""
    memory_bytes: int = 512 << 20
    """On top of what the imported libraries use."""
    start_seconds: float = 120.0
    """For importing those libraries."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker that died instead of answering."""

    status: int = 0
    failure: str = ""
    """Set when no worker could be made or the nursery is gone."""

    @property
    def ours(self) -> bool:
        """Whether the answer cannot have been the cause."""
        if os.WIFSIGNALED(self.status):
            return os.WTERMSIG(self.status) == signal.SIGKILL
        return bool(self.failure) or os.WEXITSTATUS(self.status) in (0, BROKEN)

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        if os.WIFSIGNALED(self.status):
            return f"killed by {signal.Signals(os.WTERMSIG(self.status)).name}"
        return f"ended with exit code {os.WEXITSTATUS(self.status)}"


@dataclass(slots=True, eq=False)
class Worker:
    """One process that grades, and our end of its socket."""

    number: int
    nursery: "Nursery"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: "asyncio.Future[int]"
    ended: "asyncio.Future[Ended]"
    slow: bool = False

    async def ask(self, payload: bytes) -> dict[str, JSON] | Ended:
        """Send a request and wait for the reply, or for the death of the worker."""
        try:
            self.writer.write(payload)
            header = await self.reader.readexactly(4)
            reply = decode(await self.reader.readexactly(struct.unpack(">I", header)[0]))
        except (asyncio.IncompleteReadError, OSError, BadFrame):
            self.kill()
            return await self.ended
        assert isinstance(reply, dict)
        return reply

    def cpu_seconds(self) -> float:
        """The processor time it has used in its life; nothing when it is not there yet or no longer."""
        if not self.pid.done() or self.pid.cancelled() or self.ended.done():
            return 0.0
        try:
            return kernel.cpu_seconds(self.pid.result())
        except OSError:
            return 0.0

    def step_back(self) -> None:
        """Let others compute first. There is no way back: such a worker is not used again."""
        self.slow = True
        if self.pid.done() and not self.ended.done():
            try:
                os.setpriority(os.PRIO_PROCESS, self.pid.result(), _SLOW_NICENESS)
            except OSError:
                pass

    def kill(self) -> None:
        """End it, whatever it is doing. Harmless on a dead one."""
        self.writer.close()
        if not self.ended.done():
            self.nursery.order({"kill": self.number})


class Nursery:
    """The process that forks the workers of a group. Single use."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
        self.process = process
        self.workers: dict[int, Worker] = {}
        self.failure = ""
        self._control = control
        self._numbers = itertools.count()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(control.fileno(), self._hear)

    @classmethod
    async def start(cls, setup: dict[str, JSON], seconds: float) -> "Nursery":
        """Start one and wait until it has imported what it needs, at most so long."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-B", "-W", "ignore", "-m", "metaagentx.rewards.worker_main"]
        try:
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | _ENVIRONMENT,
            )
        except OSError as error:
            ours.close()
            raise GraderUnavailable(f"no grading process could be started: {error}") from error
        finally:
            theirs.close()
        nursery = cls(process, ours)
        nursery.order(setup | {"host": os.getpid()})
        try:
            async with asyncio.timeout(seconds):
                await nursery._ready
        except TimeoutError:
            nursery._lose(f"it was not ready after {seconds:g} s")
        except asyncio.CancelledError:
            await nursery.close()
            raise
        if nursery.failure:
            await nursery.close()
            raise GraderUnavailable(f"the grading process did not start: {nursery.failure}")
        return nursery

    def order(self, order: dict[str, JSON], fds: tuple[int, ...] = ()) -> None:
        """Tell the nursery to do something; a dead one hears nothing."""
        if not self.failure:
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], list(fds))
            except OSError as error:
                self._lose(f"the nursery of the graders is gone ({error.strerror})")

    async def fork(self) -> Worker:
        """A fresh worker; that none could be made shows when it is asked."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = Worker(next(self._numbers), self, reader, writer, loop.create_future(), loop.create_future())
        self.workers[worker.number] = worker
        if self.failure:
            self._end(worker.number, Ended(failure=self.failure))
        self.order({"fork": worker.number}, (theirs.fileno(),))
        theirs.close()
        return worker

    def _hear(self) -> None:
        try:
            packet = self._control.recv(PACKET)
        except OSError:
            packet = b""
        if not packet:
            return self._lose("the nursery of the graders died")
        message = json.loads(packet)
        if "ready" in message:
            self._ready.set_result(None)
        elif "failed" in message:
            self._lose(message["failed"])
        elif "forked" in message:
            self.workers[message["forked"]].pid.set_result(message["pid"])
        else:
            self._end(message["ended"], Ended(message.get("status", 0), message.get("failure", "")))
        return None

    def _end(self, number: int, ended: Ended) -> None:
        worker = self.workers.pop(number)
        worker.writer.close()
        worker.ended.set_result(ended)
        worker.pid.cancel()

    def _lose(self, failure: str) -> None:
        if self.failure:
            return
        self.failure = failure
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        for number in list(self.workers):
            self._end(number, Ended(failure=failure))
        if not self._ready.done():
            self._ready.set_result(None)

    async def close(self) -> None:
        """End the nursery, and with it its workers."""
        writers = [worker.writer for worker in self.workers.values()]
        self._lose("the pool is closed")
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        for writer in writers:
            try:
                await writer.wait_closed()
            except OSError:
                pass


class WorkerGroup:
    """Workers of one kind. Single use: after `close` it answers nothing."""

    def __init__(self, setup: dict[str, JSON], size: int, limits: Limits) -> None:
        self._setup = setup | {"memory_bytes": limits.memory_bytes}
        self._size = size
        self._limits = limits
        self._slots = asyncio.Semaphore(size)
        self._slow = 0
        self._idle: list[Worker] = []
        self._starting = asyncio.Lock()
        self._nursery: Nursery | None = None
        self._replacing = asyncio.Lock()
        self._replacements: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Have the workers ready; otherwise the first request waits for it."""
        nursery = await self._living()
        forked = [worker.pid for worker in nursery.workers.values()]
        if forked:
            await asyncio.wait(forked)

    @property
    def worker_pids(self) -> list[int]:
        """The processes of the workers that are alive, at work or idle."""
        workers = self._nursery.workers.values() if self._nursery else ()
        return [worker.pid.result() for worker in workers if worker.pid.done()]

    async def ask(self, request: dict[str, JSON]) -> dict[str, JSON]:
        """The worker's reply; a reply that says why not when the request ran over its limits or crashed a worker."""
        payload = encode(request)
        crashed = False
        for _ in range(_ATTEMPTS):
            outcome = await self._once(payload)
            if isinstance(outcome, dict):
                return outcome
            if not outcome.ours:
                if crashed:
                    reason = f"it crashed the grader twice ({outcome})"
                    return {"score": 0.0, "solved": False, "reason": reason, "crashed": True}
                crashed = True
        raise GraderUnavailable(f"no grader could answer; the last one: {outcome}")

    async def _once(self, payload: bytes) -> dict[str, JSON] | Ended:
        await self._slots.acquire()
        slot = _Slot(self._slots)
        try:
            worker = await self._take()
            asking = asyncio.create_task(worker.ask(payload))
            try:
                in_time = await self._wait(worker, asking, slot)
                reply = asking.result() if in_time else self._late()
                if in_time and isinstance(reply, dict) and not (worker.slow or reply.get("last")):
                    self._idle.append(worker)
                return reply
            finally:
                if worker not in self._idle:  # killed, dead, or abandoned by a caller that was cancelled
                    asking.cancel()
                    worker.kill()
                    self._replace(worker)
        finally:
            slot.leave()

    async def _wait(self, worker: Worker, asking: "asyncio.Task[dict[str, JSON] | Ended]", slot: "_Slot") -> bool:
        """Whether the request was answered within its limits."""
        now = asyncio.get_running_loop().time
        begun, used_before = now(), worker.cpu_seconds()
        done, _ = await asyncio.wait({asking}, timeout=min(PATIENCE_SECONDS, self._limits.cpu_seconds))
        if done:
            return True
        makes_way = self._slow < self._size * SLOW_PER_WORKER
        if makes_way:
            self._slow += 1
            slot.leave()
            worker.step_back()
        window, used_then = begun, used_before
        try:
            while not done:
                used = worker.cpu_seconds()
                left_cpu = self._limits.cpu_seconds - (used - used_before)
                if now() - window > self._limits.wall_seconds and used - used_then > _COMPUTING_SHARE * (
                    now() - window
                ):
                    window, used_then = now(), used  # it computes, though others hold the processor
                left = min(self._limits.wall_seconds - (now() - window), left_cpu)
                if left <= 0:
                    return False
                done, _ = await asyncio.wait({asking}, timeout=max(left, 0.02))
        finally:
            self._slow -= makes_way
        return True

    def _late(self) -> dict[str, JSON]:
        limits = self._limits
        reason = f"grading it took longer than {limits.cpu_seconds:g} s ({limits.wall_seconds:g} s by the clock)"
        return {"score": 0.0, "solved": False, "reason": reason, "over_limit": True}

    async def _living(self) -> Nursery:
        async with self._starting:
            if self._nursery is None or self._nursery.failure:
                if self._nursery:
                    await self._nursery.close()
                self._idle.clear()
                self._nursery = await Nursery.start(self._setup, self._limits.start_seconds)
                self._idle = [await self._nursery.fork() for _ in range(self._size)]
            return self._nursery

    async def _take(self) -> Worker:
        nursery = await self._living()
        while self._idle:
            worker = self._idle.pop()
            if not worker.ended.done() and not worker.reader.at_eof():
                return worker
        return await nursery.fork()

    def _replace(self, dead: Worker) -> None:
        """In the background: when the worker is gone, as many again as there should be."""

        async def replace() -> None:
            await dead.ended
            async with self._replacing:  # one at a time, or each would count without the others
                nursery = self._nursery
                while nursery and not nursery.failure and len(nursery.workers) < self._size:
                    self._idle.append(await nursery.fork())

        task = asyncio.create_task(replace())
        self._replacements.add(task)
        task.add_done_callback(self._replacements.discard)

    async def close(self) -> None:
        """Kill whatever runs and wait until it is gone."""
        if self._nursery:
            await self._nursery.close()
        await asyncio.gather(*self._replacements)


class _Slot:
    """A place among the quick ones, given back once."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots: asyncio.Semaphore | None = slots

    def leave(self) -> None:
        if self._slots:
            self._slots.release()
            self._slots = None
