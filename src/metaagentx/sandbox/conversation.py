"""One run seen from the host: code goes in, asks come out and are answered, a verdict is reached.

The clock runs only while it is the code's turn, that is while the host owes it no reply. Everything that arrives is
counted against the run's limits before it is looked at.
"""

import asyncio
import os
import signal
import time
from collections import deque
from dataclasses import replace
from functools import partial

from . import memory
from .frames import JSON, BadFrame, Decoder, encode
from .inside.child import EXIT_MEMORY
from .server import Child, Ended
from .types import Ask, BudgetExceeded, Infra, Limits, ProtocolViolation, Result, Tier, Verdict

_KILL_SECONDS = 10.0
_READ_BYTES = 1 << 16
_LIMIT_AFTER_SECONDS = 0.2
_TICK_SECONDS = 0.25
# Of its wall-clock time, code that computes on a crowded machine gets at least this share of a processor.
_STARVED_SHARE = 0.05
_MAX_ANSWERS = 64
_CORES = os.cpu_count() or 1
QUICK_SECONDS = 0.1


class Conversation:
    """Single use: `hold` it once."""

    def __init__(self, child: Child, limits: Limits, on_ask: Ask, turns: asyncio.Semaphore) -> None:
        self._child = child
        self._limits = limits
        self._on_ask = on_ask
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(limits.frame_bytes)
        self._outbox: deque[memoryview] = deque()
        self._handlers: set[asyncio.Task[None]] = set()
        self._verdict: tuple[Verdict, str] | None = None
        self._error: BaseException | None = None
        self._locked_down = False
        self._over = False
        self._answer: JSON = None
        self._answers = 0
        self._done: Ended | None = None
        self._quick = False
        self._last_ask = 0
        self._asks = 0
        self._owed = 0
        self._door_bytes = 0
        self._turn_started: float | None = None
        self._turn_seconds = 0.0
        self._started = 0.0
        self._window_started = 0.0
        self._window_cpu = 0.0
        self._turn_cpu_base: float | None = None
        self._holds_permit = False

    async def hold(self, job: JSON, tier: Tier) -> Result:
        """Send the code in, answer its asks, and return when the child is gone."""
        child = self._child
        child.keep_bytes = self._limits.output_bytes
        self._loop.add_reader(child.read_fd, self._read)
        # Limits are whole seconds: a run that is over by then never needs one.
        limit = self._loop.call_later(_LIMIT_AFTER_SECONDS, child.limit_cpu, self._limits.cpu_seconds)
        try:
            await self._begin_turn(encode(job))
            ended = await child.ended
            self._drain()
        finally:
            self._over = True
            limit.cancel()
            self._end_turn()
            for handler in self._handlers:
                handler.cancel()
            self._loop.remove_reader(child.read_fd)
            self._loop.remove_writer(child.write_fd)
            child.close()
            if not child.ended.done() or self._quick:
                self._loop.call_soon(child.kill)  # after the caller has its result
        if self._error is not None:
            raise self._error
        return self._result(ended, tier)

    @property
    def began(self) -> bool:
        """Whether the code may have been read."""
        return self._locked_down

    def give_way(self) -> None:
        """End this run because the machine needs its memory."""
        self._stop(Verdict.INFRA, "ended because the machine was short of memory")

    # --- whose turn it is

    async def _begin_turn(self, data: bytes) -> None:
        # More runs computing than the machine can serve would all be late through no fault of theirs.
        await self._turns.acquire()
        # Asks sent ahead may have been answered while this one waited: one turn at a time.
        if self._owed or self._turn_started is not None or self._over or self._child.ended.done():
            self._turns.release()
        else:
            self._turn_started = self._window_started = time.perf_counter()
            self._holds_permit = True
            self._turn_cpu_base = None
            self._started = self._started or self._turn_started
            self._tick_after(_TICK_SECONDS)
        self._write(data)

    def _end_turn(self) -> None:
        if self._turn_started is None:
            return
        self._turn_seconds += time.perf_counter() - self._turn_started
        self._turn_started = None
        self._give_back_permit()
        self._timer.cancel()

    def _give_back_permit(self) -> None:
        if self._holds_permit:
            self._holds_permit = False
            self._turns.release()

    def _tick_after(self, seconds: float) -> None:
        wall_left = self._window_started + self._limits.wall_seconds - time.perf_counter()
        self._timer = self._loop.call_later(max(0.0, min(seconds, wall_left)), self._tick)

    def _tick(self) -> None:
        """A turn takes its time: look what the code does with it."""
        self._timer = self._loop.call_later(_KILL_SECONDS, self._stop, Verdict.INFRA, "the fork server does not answer")
        self._child.watch(partial(self._judge_turn, self._turn_started))

    def _judge_turn(self, turn: float | None, cpu_seconds: float) -> None:
        if turn is None or turn != self._turn_started:
            return  # it ended meanwhile
        self._timer.cancel()
        now, limits = time.perf_counter(), self._limits
        if self._turn_cpu_base is None:
            self._turn_cpu_base = self._window_cpu = max(0.0, cpu_seconds - (now - turn))
            if cpu_seconds < _STARVED_SHARE * (now - turn):
                self._give_back_permit()  # it sleeps: others need not wait for it
        if cpu_seconds >= limits.cpu_seconds:  # the kernel counts ticks, and code can sleep through every one of them
            self._stop(Verdict.CPU, f"{cpu_seconds:.2f} s of processor time; {limits.cpu_seconds:g} s are allowed")
        elif limits.turn_cpu_seconds is not None and cpu_seconds - self._turn_cpu_base > limits.turn_cpu_seconds:
            self._stop(Verdict.CPU, f"more than {limits.turn_cpu_seconds:g} s of processor time at a stretch")
        elif self._idle(cpu_seconds, now - turn) > limits.idle_seconds:
            self._stop(Verdict.WALL, f"it slept for more than {limits.idle_seconds:g} s in all")
        elif now < self._window_started + limits.wall_seconds:
            self._tick_after(_TICK_SECONDS)
        elif cpu_seconds - self._window_cpu >= _STARVED_SHARE * limits.wall_seconds:
            # It computes, on a crowded machine: late, but not through a fault of its own.
            self._window_started, self._window_cpu = now, cpu_seconds
            self._tick_after(_TICK_SECONDS)
        else:
            self._stop(Verdict.WALL, f"no sign of life for {limits.wall_seconds:g} s")

    def _idle(self, cpu_seconds: float, this_turn: float = 0.0) -> float:
        return max(0.0, self._turn_seconds + this_turn - cpu_seconds / _STARVED_SHARE)

    def _stop(self, verdict: Verdict, detail: str) -> None:
        """Kill the child for this reason; the first reason counts."""
        if self._verdict is None and not self._child.ended.done():
            self._verdict = (verdict, detail)
            self._child.kill()
            self._loop.call_later(_KILL_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self._child.ended.done():
            self._child.ended.set_result(Ended(failure=f"a killed child was not gone after {_KILL_SECONDS:.0f} s"))

    # --- the door

    def _write(self, data: bytes) -> None:
        if self._over:  # a handler that would not be cancelled; the descriptor may be another run's by now
            return
        self._outbox.append(memoryview(data))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                sent = os.write(self._child.write_fd, self._outbox[0])
            except BlockingIOError:
                self._loop.add_writer(self._child.write_fd, self._flush)
                return
            except BrokenPipeError:
                self._outbox.clear()  # it ended without reading; its exit says how
                break
            if sent == len(self._outbox[0]):
                self._outbox.popleft()
            else:
                self._outbox[0] = self._outbox[0][sent:]
        self._loop.remove_writer(self._child.write_fd)

    def _read(self) -> bool:
        """Read what is there; False at the end."""
        try:
            data = os.read(self._child.read_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._child.read_fd)
            return False
        self._door_bytes += len(data)
        if self._verdict is not None:
            return True
        if self._door_bytes > self._limits.door_bytes:
            self._stop(Verdict.BUDGET, f"more than {self._limits.door_bytes} bytes through the door")
            return True
        try:
            for frame in self._decoder.frames(data):
                self._handle(frame)
        except BadFrame as error:
            self._stop(Verdict.PROTOCOL, str(error))
            self._verdict = self._verdict or (Verdict.PROTOCOL, str(error))  # also when the news of its end was faster
        return True

    def _drain(self) -> None:
        """What the child wrote just before its end may arrive after the news of it."""
        while self._read():
            pass

    def _handle(self, frame: JSON) -> None:
        if self._verdict is not None or self._done is not None:
            return
        if not self._locked_down:  # the child's own first word, said before it reads any code
            self._locked_down = frame == {"ready": True}
            return
        if isinstance(frame, dict) and frame.keys() == {"answer"}:
            self._take_answer(frame["answer"])
            return
        if isinstance(frame, dict) and "done" in frame:
            self._take_end(frame)
            return
        if not isinstance(frame, dict) or frame.keys() != {"ask", "body"}:
            raise BadFrame("neither an ask nor an answer")
        number = frame["ask"]
        if type(number) is not int or number != self._last_ask + 1:
            raise BadFrame(f"ask {str(number)[:40]} where {self._last_ask + 1} was due")
        self._last_ask = number
        if self._child.ended.done():
            return  # nobody is left to hear the reply
        if self._asks >= self._limits.asks:
            self._stop(Verdict.BUDGET, f"more than {self._limits.asks} asks")
            return
        self._asks += 1
        self._owed += 1
        self._end_turn()
        handler = self._loop.create_task(self._reply(number, frame["body"]))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    def _take_answer(self, value: JSON) -> None:
        self._answer = value
        self._answers += 1
        if self._answers > _MAX_ANSWERS:
            self._stop(Verdict.BUDGET, f"more than {_MAX_ANSWERS} answers")

    def _take_end(self, frame: dict[str, JSON]) -> None:
        """The code says that it is done. Its word is good for its exit code and its output, which are its own anyway.

        Its processor time decides the verdict, so it is believed only when the run was too short for it by our clock,
        its waits included, for it can compute while it waits; otherwise the fork server is asked.
        """
        most_cpu_seconds = (time.perf_counter() - self._started) * _CORES
        words = _last_words(frame)
        self._done = replace(
            words,
            cpu_seconds=min(words.cpu_seconds, most_cpu_seconds),
            memory_bytes=min(words.memory_bytes, self._limits.memory_bytes),
        )
        if self._child.ended.done():
            return  # the news of its end was faster
        if "stdout" in frame and most_cpu_seconds < min(QUICK_SECONDS, self._limits.cpu_seconds):
            self._quick = True
            self._child.ended.set_result(self._done)
        else:
            self._child.finish()

    async def _reply(self, number: int, body: JSON) -> None:
        try:
            reply = encode({"reply": number, "body": await self._on_ask(body)})
        except BudgetExceeded as error:
            self._stop(Verdict.BUDGET, str(error))
            return
        except ProtocolViolation as error:
            self._stop(Verdict.PROTOCOL, str(error))
            return
        except Infra as error:
            self._stop(Verdict.INFRA, str(error))
            return
        except asyncio.CancelledError:
            self._stop(Verdict.INFRA, "the handler of asks was cancelled")  # or the run waits for its reply for ever
            raise
        except Exception as error:  # noqa: BLE001 - ours: end the run, then raise it where the run was started
            self._error = self._error or error
            self._stop(Verdict.INFRA, "the handler of asks failed")
            return
        self._owed -= 1
        if self._owed:
            self._write(reply)
        else:
            await self._begin_turn(reply)

    # --- the verdict

    def _result(self, ended: Ended, tier: Tier) -> Result:
        if self._done is not None and ended.status == 0:
            ended = replace(ended, status=self._done.status, memory_bytes=self._done.memory_bytes)
        if self._verdict is not None:
            verdict, detail = self._verdict
        elif self._locked_down or ended.failure:
            verdict, detail = judge(ended, self._limits)
        else:
            verdict, detail = Verdict.INFRA, f"the child could not lock itself down: {last_line(ended.stderr)}"
        return Result(
            verdict=verdict,
            detail=detail,
            answer=self._answer,
            stdout=ended.stdout.decode("utf-8", "replace"),
            stderr=ended.stderr.decode("utf-8", "replace"),
            cpu_seconds=ended.cpu_seconds,
            turn_seconds=self._turn_seconds,
            idle_seconds=self._idle(ended.cpu_seconds),
            memory_bytes=ended.memory_bytes,
            exit_code=None if os.WIFSIGNALED(ended.status) or ended.failure else os.WEXITSTATUS(ended.status),
            asks=self._asks,
            tier=tier,
        )


def _last_words(frame: dict[str, JSON]) -> Ended:
    code, memory_bytes, cpu_seconds = frame["done"], frame.get("memory"), frame.get("cpu")
    stdout, stderr = frame.get("stdout", ""), frame.get("stderr", "")
    if (
        type(code) is int
        and 0 <= code <= 255
        and type(memory_bytes) is int
        and type(cpu_seconds) is float
        and isinstance(stdout, str)
        and isinstance(stderr, str)
    ):
        return Ended(code << 8, abs(cpu_seconds), abs(memory_bytes), stdout.encode(), stderr.encode())
    raise BadFrame("an end that is none of ours")


def judge(ended: Ended, limits: Limits) -> tuple[Verdict, str]:
    """The verdict on a child that the host did not stop. No code can bring about `infra`: it would escape reward."""
    if ended.failure:
        return Verdict.INFRA, ended.failure
    if ended.cpu_seconds >= limits.cpu_seconds:
        return Verdict.CPU, f"{ended.cpu_seconds:.2f} s of processor time; {limits.cpu_seconds:g} s are allowed"
    if max(len(ended.stdout), len(ended.stderr)) >= limits.output_bytes:
        return Verdict.OUTPUT, f"{limits.output_bytes} bytes of output or more"
    if os.WIFSIGNALED(ended.status):
        return _judge_signal(os.WTERMSIG(ended.status), ended, limits)
    code = os.WEXITSTATUS(ended.status)
    if code == EXIT_MEMORY:
        return Verdict.MEMORY, f"more than {limits.memory_bytes >> 20} MiB of memory"
    return (Verdict.OK, "") if code == 0 else (Verdict.SCRIPT_ERROR, last_line(ended.stderr) or f"exit code {code}")


def _judge_signal(number: int, ended: Ended, limits: Limits) -> tuple[Verdict, str]:
    if number == signal.SIGSYS:
        return Verdict.VIOLATION, "a system call that no honest program makes"
    if number != signal.SIGKILL:
        return Verdict.SCRIPT_ERROR, f"ended by {signal.Signals(number).name}"
    # The kernel kills at the limit by its own coarse count of ticks, which may be ahead of the exact one.
    if ended.cpu_seconds >= 0.8 * limits.cpu_seconds:
        return Verdict.CPU, f"killed at its limit of {limits.cpu_seconds:g} s of processor time"
    # Code in here cannot kill, itself included. But it can be on the processor at every tick and sleep in between, and
    # be killed at its limit by that count. The machine's fault it is only when the kernel says that it was short.
    if not memory.was_short():
        return Verdict.CPU, f"killed at its limit of {limits.cpu_seconds:g} s of processor time, counted in ticks"
    return Verdict.INFRA, "killed from outside, probably because the machine was out of memory"


def last_line(stderr: bytes) -> str:
    """The line that says most about a failure: where a traceback ends."""
    return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:500]
