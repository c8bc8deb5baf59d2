"""One run seen from the host: code goes in, asks come out and are answered, a verdict is reached.

Whatever the code sends, a run is over after `Limits.total_seconds`. Time counts as the code's own only while the host
owes it no reply, and only as far as it sleeps (see `clock`); its processor time counts always, and so does the time
that the host spends on reading its messages.
"""

import asyncio
import os
import signal
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial

from . import memory
from .clock import TICK_SECONDS, TurnClock
from .frames import JSON, BadFrame, Decoder, decode, encode
from .inside.child import EXIT_MEMORY
from .reading import FrameQueue
from .server import Child, Ended
from .types import Ask, BudgetExceeded, Infra, Limits, ProtocolViolation, Result, Tier, Verdict

_KILL_SECONDS = 10.0
_READ_BYTES = 1 << 16
_LARGE_BYTES = 1 << 15
_LIMIT_AFTER_SECONDS = 0.2
_STOPPED_SECONDS = 2.0
# The host reads for all runs on one thread, so a second of its time costs the sender this many of its own.
_READING_PRICE = 10.0
# A run that reaches its total was held up by the host or the machine if one of them took at least this share of it.
_EVIDENCE_SHARE = 0.25
_MAX_ANSWERS = 64
# The kernel's count of ticks is coarse, and limits are whole seconds.
_TICKS_SHARE = 0.5
_CORES = os.cpu_count() or 1
QUICK_SECONDS = 0.1
# What a turn used before the first look at it is known to within this.
SHORT_TICK_SECONDS = 0.02


@dataclass(slots=True)
class ProgramUsage:
    """What the programs that a run asked for have used."""

    cpu_seconds: float = 0.0
    idle_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What all runs of a sandbox share."""

    turns: asyncio.Semaphore
    """How many may compute at a time."""
    frames: FrameQueue
    """Large messages, decoded one by one."""


class Conversation:
    """Single use: `run` it once."""

    def __init__(
        self, child: Child, limits: Limits, on_ask: Ask, shared: Shared, programs: ProgramUsage | None = None
    ) -> None:
        self._child = child
        self._limits = limits
        self._on_ask = on_ask
        self._shared = shared
        self._programs = programs or ProgramUsage()
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
        self._owed: dict[int, float] = {}  # number of the ask: when it came
        self._longest_reply = 0.0
        self._door_bytes = 0
        self._large: bytes | None = None
        self._reading_seconds = 0.0
        self._clock = TurnClock()
        self._cpu_seconds = 0.0
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._holds_permit = False

    async def run(self, job: JSON, tier: Tier) -> Result:
        """Send the code in, answer its asks, and return when the child is gone."""
        child = self._child
        child.keep_bytes = self._limits.output_bytes
        self._loop.add_reader(child.read_fd, self._read)
        # Limits are whole seconds: a run that is over by then never needs one.
        limit = self._loop.call_later(_LIMIT_AFTER_SECONDS, child.limit_cpu, self._limits.cpu_seconds)
        deadline = self._loop.call_later(self._limits.total_seconds, self._reach_total)
        try:
            first = asyncio.ensure_future(self._begin_turn(encode(job)))
            self._handlers.add(first)
            first.add_done_callback(self._handlers.discard)
            ended = await child.ended
            self._drain()
        finally:
            self._over = True
            limit.cancel()
            deadline.cancel()
            self._end_turn()
            for handler in self._handlers:
                handler.cancel()
            self._shared.frames.forget(self._handle_large)
            self._loop.remove_reader(child.read_fd)
            self._loop.remove_writer(child.write_fd)
            child.close()
            if not child.ended.done() or self._quick:
                self._loop.call_soon(child.kill)  # after the caller has its result
        if self._error is not None:
            raise self._error
        return self._result(ended, tier)

    @property
    def has_spoken(self) -> bool:
        """Whether the code has asked or answered: then only its caller can tell whether it may run again."""
        return bool(self._asks or self._answers)

    def evict(self) -> None:
        """End this run because the machine needs its memory."""
        self._stop(Verdict.INFRA, "ended because the machine was short of memory")

    # --- whose turn it is

    async def _begin_turn(self, data: bytes) -> None:
        # More runs computing than the machine can serve would all be late through no fault of theirs.
        asked = time.perf_counter()
        await self._shared.turns.acquire()
        # Asks sent ahead may have been answered while this one waited: one turn at a time.
        if self._owed or self._clock.started is not None or self._over or self._child.ended.done():
            self._shared.turns.release()
        else:
            now = time.perf_counter()
            self._clock.starved_seconds += now - asked
            self._clock.begin(now)
            self._holds_permit = True
            self._started = self._started or now
            self._tick_after(self._next_tick())
        self._write(data)

    def _end_turn(self) -> None:
        if self._clock.started is None:
            return
        self._clock.end(time.perf_counter())
        self._give_back_permit()
        self._tick_after(TICK_SECONDS)

    def _give_back_permit(self) -> None:
        if self._holds_permit:
            self._holds_permit = False
            self._shared.turns.release()

    def _tick_after(self, seconds: float) -> None:
        """Look at the run again then: often while it is its turn, and now and then while it waits for a reply."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._over:
            seconds = seconds if self._clock.started is not None else max(seconds, 4 * TICK_SECONDS)
            self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        """Time passes: look what the code does with it."""
        self._timer = self._loop.call_later(_KILL_SECONDS, self._stop, Verdict.INFRA, "the fork server does not answer")
        self._child.watch(partial(self._judge, self._clock.started))

    def _judge(self, turn: float | None, cpu_seconds: float) -> None:
        if turn != self._clock.started or self._over:
            return  # its turn began or ended meanwhile; the timer of that is set
        now, limits, clock = time.perf_counter(), self._limits, self._clock
        self._cpu_seconds = cpu_seconds
        if turn is None:
            clock.observe(cpu_seconds)
        else:
            clock.tick(now, cpu_seconds, self._child.scheduling())
            if clock.turn_idle_seconds > 0.9 * (now - turn):
                self._give_back_permit()  # it sleeps: others need not wait for it
        idle_seconds = clock.idle_seconds + self._programs.idle_seconds
        if (
            self._charged_seconds >= limits.cpu_seconds
        ):  # the kernel counts ticks, and code can sleep through all of them
            self._stop(Verdict.CPU, self._over_cpu())
        elif turn is None:
            pass  # it waits for a reply
        elif limits.turn_cpu_seconds is not None and clock.turn_cpu_seconds > limits.turn_cpu_seconds:
            self._stop(Verdict.CPU, f"more than {limits.turn_cpu_seconds:g} s of processor time at a stretch")
        elif clock.turn_idle_seconds > limits.wall_seconds:
            self._stop(Verdict.WALL, f"no sign of life for {limits.wall_seconds:g} s")
        elif idle_seconds > limits.idle_seconds:
            self._stop(Verdict.WALL, f"it slept for more than {limits.idle_seconds:g} s in all")
        elif clock.stopped_seconds > _STOPPED_SECONDS:
            self._stop(Verdict.INFRA, "its process was stopped from outside")
        elif now - turn > limits.turn_seconds:
            starved = clock.turn_starved_seconds >= _EVIDENCE_SHARE * limits.turn_seconds
            why = ": the machine was too busy to run it" if starved else ""
            verdict = Verdict.INFRA if starved else Verdict.WALL
            self._stop(verdict, f"one turn took more than {limits.turn_seconds:g} s{why}")
        elif limits.yield_after_seconds is not None and now - turn > limits.yield_after_seconds:
            self._child.lower_priority()
        self._tick_after(self._next_tick())

    def _next_tick(self) -> float:
        """Soon, where a turn has a limit of its own: at its begin, and again when it is close to the limit."""
        limit = self._limits.turn_cpu_seconds
        if limit is None or self._clock.started is None:
            return TICK_SECONDS
        used = self._clock.turn_cpu_seconds
        return min(TICK_SECONDS, max(SHORT_TICK_SECONDS, limit - used)) if used else SHORT_TICK_SECONDS

    @property
    def _charged_seconds(self) -> float:
        """Its processor time as last read, and the price of reading its messages."""
        return self._cpu_seconds + _READING_PRICE * self._reading_seconds

    def _over_cpu(self) -> str:
        text = f"{self._cpu_seconds:.2f} s of processor time; {self._limits.cpu_seconds:g} s are allowed"
        priced = _READING_PRICE * self._reading_seconds
        return f"{text}, and reading its messages counts as {priced:.2f} s" if priced > 0.1 else text

    def _reach_total(self) -> None:
        """Its time is up. The machinery's fault it is only if the host or the machine took a good part of it."""
        now, total = time.perf_counter(), self._limits.total_seconds
        waits = [now - since for since in self._owed.values()]
        if max([self._longest_reply, *waits]) >= _EVIDENCE_SHARE * total:
            self._stop(Verdict.INFRA, f"not done after {total:g} s: the host took too long to answer it")
        elif self._started == 0.0 or self._clock.starved_seconds >= _EVIDENCE_SHARE * total:
            self._stop(Verdict.INFRA, f"not done after {total:g} s: the machine was too busy to run it")
        else:
            self._stop(Verdict.WALL, f"not done after {total:g} s")

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
        self._decoder.add(data)
        self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        """Decode and handle what has come; a large message waits for its turn among those of other runs."""
        started = time.thread_time()
        try:
            while self._large is None and (frame := self._decoder.next_frame()) is not None:
                if len(frame) <= _LARGE_BYTES:
                    self._handle(decode(frame))
                else:
                    self._large = frame
                    self._loop.remove_reader(self._child.read_fd)  # what comes after it waits, too
                    self._shared.frames.add(self._handle_large)
        except BadFrame as error:
            self._refuse_frame(error)
        self._pay_reading(time.thread_time() - started)

    def _handle_large(self) -> None:
        """Decode the large message that has been waiting, and go on with what came after it."""
        frame, self._large = self._large, None
        if self._over or frame is None or self._verdict is not None:
            return
        started = time.thread_time()
        try:
            self._handle(decode(frame))
        except BadFrame as error:
            self._refuse_frame(error)
        self._pay_reading(time.thread_time() - started)
        self._loop.add_reader(self._child.read_fd, self._read)
        self._handle_frames()

    def _pay_reading(self, seconds: float) -> None:
        self._reading_seconds += seconds
        if self._charged_seconds >= self._limits.cpu_seconds:
            self._stop(Verdict.CPU, self._over_cpu())

    def _refuse_frame(self, error: BadFrame) -> None:
        self._stop(Verdict.PROTOCOL, str(error))
        self._verdict = self._verdict or (Verdict.PROTOCOL, str(error))  # also when the news of its end was faster

    def _drain(self) -> None:
        """What the child wrote just before its end may arrive after the news of it."""
        while self._read() or self._large is not None:
            if self._large is not None:
                self._shared.frames.forget(self._handle_large)
                self._handle_large()

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
        if len(self._owed) >= self._limits.open_asks:
            raise BadFrame(f"more than {self._limits.open_asks} asks at a time")
        if self._clock.started is not None and self._turn_is_over_limit():
            return
        self._asks += 1
        self._owed[number] = time.perf_counter()
        self._end_turn()
        handler = self._loop.create_task(self._reply(number, frame["body"]))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    def _turn_is_over_limit(self) -> bool:
        """Whether this ask comes after more processor time than a turn may use; only a long turn can."""
        limit, started = self._limits.turn_cpu_seconds, self._clock.started
        assert started is not None
        if limit is None or time.perf_counter() - started < limit or self._clock.turn_cpu_seconds <= limit:
            return False
        self._stop(Verdict.CPU, f"more than {limit:g} s of processor time at a stretch")
        return True

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
        most_cpu_seconds = self._most_cpu_seconds()
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

    def _most_cpu_seconds(self) -> float:
        """It cannot have used more processor time than there was since it began."""
        return (time.perf_counter() - self._started) * _CORES if self._started else 0.0

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
        self._longest_reply = max(self._longest_reply, time.perf_counter() - self._owed.pop(number))
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
            verdict, detail = judge(ended, self._limits, self._most_cpu_seconds())
        else:
            verdict, detail = Verdict.INFRA, f"the child could not lock itself down: {last_line(ended.stderr)}"
        return Result(
            verdict=verdict,
            detail=detail,
            answer=self._answer,
            stdout=ended.stdout.decode("utf-8", "replace"),
            stderr=ended.stderr.decode("utf-8", "replace"),
            cpu_seconds=ended.cpu_seconds,
            turn_seconds=self._clock.turn_seconds,
            idle_seconds=self._clock.idle_seconds,
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


def judge(ended: Ended, limits: Limits, most_cpu_seconds: float) -> tuple[Verdict, str]:
    """The verdict on a child that the host did not stop. No code can bring about `infra`: it would escape reward.

    `most_cpu_seconds` is what it can have used at the most, by the clock.
    """
    if ended.failure:
        return Verdict.INFRA, ended.failure
    if ended.cpu_seconds >= limits.cpu_seconds:
        return Verdict.CPU, f"{ended.cpu_seconds:.2f} s of processor time; {limits.cpu_seconds:g} s are allowed"
    if max(len(ended.stdout), len(ended.stderr)) >= limits.output_bytes:
        return Verdict.OUTPUT, f"{limits.output_bytes} bytes of output or more"
    if os.WIFSIGNALED(ended.status):
        return _judge_signal(os.WTERMSIG(ended.status), ended, limits, most_cpu_seconds)
    code = os.WEXITSTATUS(ended.status)
    if code == EXIT_MEMORY:
        return Verdict.MEMORY, f"more than {limits.memory_bytes >> 20} MiB of memory"
    return (Verdict.OK, "") if code == 0 else (Verdict.SCRIPT_ERROR, last_line(ended.stderr) or f"exit code {code}")


def _judge_signal(number: int, ended: Ended, limits: Limits, most_cpu_seconds: float) -> tuple[Verdict, str]:
    if number == signal.SIGSYS:
        return Verdict.VIOLATION, "a system call that no honest program makes"
    if number != signal.SIGKILL:
        return Verdict.SCRIPT_ERROR, f"ended by {signal.Signals(number).name}"
    # The kernel kills at the limit by its own coarse count of ticks, which may be ahead of the exact one.
    if ended.cpu_seconds >= 0.8 * limits.cpu_seconds:
        return Verdict.CPU, f"killed at its limit of {limits.cpu_seconds:g} s of processor time"
    # Code in here cannot kill, itself included. But it can be on the processor at every tick and sleep in between, and
    # be killed at its limit by that count, once there were as many ticks. Otherwise somebody else has killed it, the
    # kernel included when it says that memory was short.
    if most_cpu_seconds >= _TICKS_SHARE * limits.cpu_seconds and not memory.was_short():
        return Verdict.CPU, f"killed at its limit of {limits.cpu_seconds:g} s of processor time, counted in ticks"
    return Verdict.INFRA, "killed from outside, or because the machine was out of memory"


def last_line(stderr: bytes) -> str:
    """The line that says most about a failure: where a traceback ends."""
    return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:500]
