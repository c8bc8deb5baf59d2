"""Supervises one run from the host: sends the code, handles its asks, enforces its limits, determines the verdict.

Whatever the code sends, a run ends within `Limits.total_seconds`. Wall-clock time counts against the code only while
the host owes it no reply, and only as far as it sleeps (see `clock`). Its CPU time always counts, and so does the time
that the host spends on decoding its messages.

Terms: a turn is defined in `Limits`. `_look` reads the usage of the run a few times a second, `_judge` compares the
reading with the limits, `_stop` kills the run and sets its verdict.
"""

import asyncio
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace

from .clock import TICK_SECONDS, TurnClock, stall_of
from .fork_server import Child, ExitInfo
from .frame_io import FrameQueue, FrameReader, FrameWriter
from .frames import JSON, BadFrame, encode
from .programs import SHORT_RUN_SECONDS, ProgramUsage, is_program, refuse_ask
from .types import KILL_SECONDS, AskHandler, HandlerError, Limits, Result, Tier, Verdict
from .verdicts import CORES, judge, kernel_cpu_limit, last_line, parse_exit_report

_LIMIT_AFTER_SECONDS = 0.2
_STOPPED_SECONDS = 2.0
# The CPU time of a turn before the first look at it is known to within this.
SHORT_TICK_SECONDS = 0.02
# A run that reaches its total time is excused if the host or the machine delayed it for at least this share of it.
_EXCUSED_SHARE = 0.25
_MAX_ANSWERS = 64


@dataclass(frozen=True, slots=True)
class SharedByRuns:
    """What all runs of a sandbox share."""

    turns: asyncio.Semaphore
    """How many runs may compute at the same time."""
    frames: FrameQueue
    """Runs whose messages wait to be decoded."""


@dataclass(eq=False)
class RunSupervisor:
    """Supervises one run. Single use: call `run` once."""

    child: Child
    limits: Limits
    shared: SharedByRuns
    on_ask: AskHandler = refuse_ask
    programs: ProgramUsage = field(default_factory=ProgramUsage)
    excuse_slow_replies: bool = True

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = FrameWriter(self.child.write_fd)
        self._reader = FrameReader(self.child.read_fd, self.limits, self.shared.frames, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._verdict: tuple[Verdict, str] | None = None
        self._error: BaseException | None = None
        self._locked_down = False
        self._over = False
        self._answer: JSON = None
        self._answers = 0
        self._exit_report: ExitInfo | None = None
        self._short = False
        self._last_ask = 0
        self._asks = 0
        self._unanswered: set[int] = set()  # numbers of the asks without a reply
        self._excused_waits: dict[int, float] = {}  # asks whose delay is the host's fault: when each arrived
        self._longest_wait = 0.0
        self._decoding_charge = 0.0
        self._clock = TurnClock()
        self._cpu_seconds = 0.0
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look_pending = False
        self._holds_permit = False

    async def run(self, job: JSON, tier: Tier, total_seconds: float) -> Result:
        """Send the code, handle its asks, and return when the child has ended, after `total_seconds` at the latest."""
        child = self.child
        child.keep_bytes = self.limits.output_bytes
        self._reader.start()
        # The host enforces the limit; the kernel's is for a host that was stopped. A short run never needs it.
        limit = self._loop.call_later(_LIMIT_AFTER_SECONDS, child.limit_cpu, kernel_cpu_limit(self.limits))
        self._deadline = self._loop.call_later(total_seconds, self._reach_total, total_seconds)
        try:
            if self.shared.turns.locked():
                self._start_task(self._begin_turn(encode(job)))
            else:
                await self._begin_turn(encode(job))  # at once
            info = await child.ended
            self._reader.drain()
        except asyncio.CancelledError:
            if child.ended.cancelled():  # by the await above: it must still report when the child is gone
                child.ended = self._loop.create_future()
            raise
        finally:
            self._over = True
            limit.cancel()
            self._deadline.cancel()
            self._end_turn()
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            self._reader.close()
            self._writer.close()
            child.close()
            if not child.ended.done() or self._short:
                self._loop.call_soon(child.kill)  # after the caller has its result
        if self._error is not None:
            raise self._error
        return self._result(info, tier)

    @property
    def has_side_effects(self) -> bool:
        """Return whether the code has asked or answered: then only the caller can decide to run it again."""
        return bool(self._asks or self._answers)

    def evict(self) -> None:
        """End this run because the machine needs its memory."""
        self._stop(Verdict.INFRA, "ended because the machine was short of memory")

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- turns and limits

    async def _begin_turn(self, data: bytes) -> None:
        # If more runs computed than the machine can serve, all of them would be late through no fault of their own.
        requested = time.perf_counter()
        await self.shared.turns.acquire()
        # Asks that were sent ahead may have been answered while this one waited: there is one turn at a time.
        if self._unanswered or self._clock.started is not None or self._over or self.child.ended.done():
            self.shared.turns.release()
        else:
            now = time.perf_counter()
            self._clock.starved_seconds += now - requested
            self._clock.begin(now)
            self._holds_permit = True
            self._started = self._started or now
            self._schedule_look()
        self._writer.write(data)

    def _end_turn(self) -> None:
        if self._clock.started is not None:
            self._clock.end(time.perf_counter())
            self._release_permit()
            self._schedule_look()

    def _release_permit(self) -> None:
        if self._holds_permit:
            self._holds_permit = False
            self.shared.turns.release()

    def _schedule_look(self) -> None:
        """Schedule the next look: soon during a turn, less often while the run waits for a reply.

        A look that is due earlier stays, because turns in quick succession must not postpone it forever.
        """
        if self._over or self._look_pending:
            return
        due = self._loop.time() + self._look_interval()
        if self._timer is None or self._timer.when() > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._look)

    def _look_interval(self) -> float:
        if self._clock.started is None:
            return 4 * TICK_SECONDS
        limit, used = self.limits.turn_cpu_seconds, self._clock.turn_cpu_seconds
        if limit is None:
            return TICK_SECONDS
        # A turn with a CPU limit of its own is looked at soon after its start, and again close to its limit.
        return min(TICK_SECONDS, max(SHORT_TICK_SECONDS, limit - used)) if used else SHORT_TICK_SECONDS

    def _look(self) -> None:
        """Request a reading of what the run has used; kill the run if none arrives."""
        self._look_pending = True
        self._timer = self._loop.call_later(KILL_SECONDS, self._miss_reading)
        self.child.watch(self._judge)

    def _miss_reading(self) -> None:
        """Kill the run if its server is silent. One that answers others has thousands of runs to start or look at."""
        silent = self._loop.time() - self.child.server.heard
        if silent < KILL_SECONDS:
            self._timer = self._loop.call_later(KILL_SECONDS - silent, self._miss_reading)
        else:
            self._stop(Verdict.INFRA, "the fork server does not answer")

    def _judge(self, cpu_seconds: float) -> None:
        """Stop the run if it has exceeded a limit by now."""
        if self._over:
            return
        now, limits, clock, turn = time.perf_counter(), self.limits, self._clock, self._clock.started
        # A run that waits for a reply and computes nothing does not wait for a CPU either.
        observed = turn is not None or cpu_seconds > self._cpu_seconds
        self._cpu_seconds = cpu_seconds
        clock.look(now, cpu_seconds, self.child.scheduling() if observed else None)
        self.programs.script_idle_seconds = clock.idle_seconds
        if turn is not None and (clock.stopped_seconds or clock.turn_idle_seconds > 0.9 * (now - turn)):
            self._release_permit()  # it sleeps or is stopped: others need not wait for it
        if self._charged_seconds >= limits.cpu_seconds:
            self._stop_for_cpu()
        elif clock.idle_seconds + self.programs.idle_seconds > limits.idle_seconds:
            self._stop(Verdict.WALL, f"slept for more than {limits.idle_seconds:g} s in total")
        elif turn is not None:
            self._judge_turn(now - turn)
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._look_pending = None, False
        self._schedule_look()

    def _judge_turn(self, seconds: float) -> None:
        limits, clock = self.limits, self._clock
        if limits.turn_cpu_seconds is not None and clock.turn_cpu_seconds > limits.turn_cpu_seconds:
            self._stop(Verdict.CPU, f"more than {limits.turn_cpu_seconds:g} s of CPU time in one turn")
        elif clock.turn_idle_seconds > limits.wall_seconds:
            self._stop(Verdict.WALL, f"slept for more than {limits.wall_seconds:g} s in one turn")
        elif clock.stopped_seconds > _STOPPED_SECONDS:
            self._stop(Verdict.INFRA, "its process was stopped from outside")
        elif seconds > limits.turn_seconds:
            starved = clock.turn_starved_seconds >= _EXCUSED_SHARE * limits.turn_seconds
            reason = ": the machine was too busy to run it" if starved else ""
            verdict = Verdict.INFRA if starved else Verdict.WALL
            self._stop(verdict, f"one turn took more than {limits.turn_seconds:g} s{reason}")
        elif limits.yield_after_seconds is not None and seconds > limits.yield_after_seconds:
            self.child.lower_priority()

    @property
    def _charged_seconds(self) -> float:
        """Return its CPU time at the last reading plus the charge for decoding its messages."""
        return self._cpu_seconds + self._decoding_charge

    def _stop_for_cpu(self) -> None:
        text = f"used {self._cpu_seconds:.2f} s of CPU time; the limit is {self.limits.cpu_seconds:g} s"
        charge = self._decoding_charge
        self._stop(Verdict.CPU, f"{text}; decoding its messages counts as {charge:.2f} s" if charge > 0.1 else text)

    def _reach_total(self, total: float) -> None:
        """Stop the run at its total time: `infra` only if the host or the machine took a good part of that time."""
        now = time.perf_counter()
        waits = [now - since for since in self._excused_waits.values()]
        late = stall_of(TICK_SECONDS + self._loop.time() - self._deadline.when())  # the host itself was stalled
        starved = self._clock.starved_seconds + self.programs.starved_seconds + late
        if max([self._longest_wait, *waits]) >= _EXCUSED_SHARE * total:
            self._stop(Verdict.INFRA, f"not done after {total:g} s: the host took too long to answer it")
        elif self._started == 0.0 or starved >= _EXCUSED_SHARE * total:
            self._stop(Verdict.INFRA, f"not done after {total:g} s: the machine was too busy to run it")
        else:
            self._stop(Verdict.WALL, f"not done after {total:g} s")

    def _stop(self, verdict: Verdict, detail: str) -> None:
        """Kill the child for this reason; the first reason counts."""
        if self._verdict is None and not self.child.ended.done():
            self._verdict = (verdict, detail)
            self.child.kill()
            self._loop.call_later(KILL_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self.child.ended.done():
            failure = f"a killed child was not gone after {KILL_SECONDS:.0f} s"
            self.child.ended.set_result(ExitInfo(failure=failure))

    # --- messages; these are called by the FrameReader

    @property
    def listening(self) -> bool:
        """Return whether messages from the run still matter."""
        return self._verdict is None and self._exit_report is None

    def charge_decoding(self, seconds: float, price: float) -> None:
        """Charge the run for the time that the host has spent on its messages."""
        self._decoding_charge += price * seconds
        if self._charged_seconds >= self.limits.cpu_seconds:
            self._stop_for_cpu()

    def refuse_frame(self, verdict: Verdict, detail: str) -> None:
        """End the run because of a message."""
        self._stop(verdict, detail)
        self._verdict = self._verdict or (verdict, detail)  # even if the report of its end arrived first

    def handle(self, frame: JSON) -> None:
        """Handle one message from the run; raise BadFrame when it is malformed."""
        if not self.listening:
            return
        if not self._locked_down:  # the child's first message, sent before it reads any code
            self._locked_down = frame == {"ready": True}
        elif isinstance(frame, dict) and frame.keys() == {"answer"}:
            self._answer = frame["answer"]
            self._answers += 1
            if self._answers > _MAX_ANSWERS:
                self._stop(Verdict.BUDGET, f"more than {_MAX_ANSWERS} answers")
        elif isinstance(frame, dict) and "done" in frame:
            self._handle_exit_report(frame)
        elif isinstance(frame, dict) and frame.keys() == {"ask", "body"}:
            self._handle_ask(frame["ask"], frame["body"])
        else:
            raise BadFrame("neither an ask nor an answer")

    def _handle_exit_report(self, frame: dict[str, JSON]) -> None:
        """Take the run's own report of its end, which is trusted for its exit code and output: both are its own anyway.

        Its CPU time decides the verdict, so that is trusted only when by our clock the run was too short to have used
        more, waits included because it can compute while it waits. Otherwise the fork server is asked.
        """
        max_cpu_seconds = (time.perf_counter() - self._started) * CORES
        report = parse_exit_report(frame)
        self._exit_report = replace(
            report,
            cpu_seconds=min(report.cpu_seconds, max_cpu_seconds),
            memory_bytes=min(report.memory_bytes, self.limits.memory_bytes),
        )
        if self.child.ended.done():
            return  # the fork server was faster
        if "stdout" in frame and max_cpu_seconds < min(SHORT_RUN_SECONDS, self.limits.cpu_seconds):
            self._short = True
            self.child.ended.set_result(self._exit_report)
        else:
            self.child.finish()

    def _handle_ask(self, number: JSON, body: JSON) -> None:
        if type(number) is not int or number != self._last_ask + 1:
            raise BadFrame(f"ask number {str(number)[:40]}, expected {self._last_ask + 1}")
        self._last_ask = number
        if self.child.ended.done():
            return  # nobody is left to receive the reply
        if self._asks >= self.limits.asks:
            self._stop(Verdict.BUDGET, f"more than {self.limits.asks} asks")
            return
        # A reply that the run has not read yet counts as open, so that a run that never reads cannot fill the host's
        # memory. The first message that was sent is the code.
        if self._asks - (self._writer.sent - 1) >= self.limits.open_asks:
            raise BadFrame(f"more than {self.limits.open_asks} asks at a time")
        self._asks += 1
        self._unanswered.add(number)
        if self.excuse_slow_replies and not is_program(body):
            self._excused_waits[number] = time.perf_counter()
        self._end_turn()
        self._start_task(self._reply(number, body))

    async def _reply(self, number: int, body: JSON) -> None:
        try:
            reply = encode({"reply": number, "body": await self.on_ask(body)})
        except HandlerError as error:
            self._stop(error.verdict, str(error))
            return
        except asyncio.CancelledError:
            self._stop(Verdict.INFRA, "the handler of asks was canceled")  # or the run waits for its reply forever
            raise
        except Exception as error:  # noqa: BLE001 - a bug of the host: end the run, then raise it to the caller of `run`
            self._error = self._error or error
            self._stop(Verdict.INFRA, "the handler of asks failed")
            return
        if number in self._excused_waits:
            self._longest_wait = max(self._longest_wait, time.perf_counter() - self._excused_waits.pop(number))
        self._unanswered.discard(number)
        if self._unanswered:
            self._writer.write(reply)
        else:
            await self._begin_turn(reply)

    def _result(self, info: ExitInfo, tier: Tier) -> Result:
        report = self._exit_report
        if report is not None and info.status == 0:
            info = replace(info, status=report.status, memory_bytes=report.memory_bytes)
        if self._verdict is not None:
            verdict, detail = self._verdict
        elif self._locked_down or info.failure:
            verdict, detail = judge(info, self.limits, time.perf_counter() - self._started)
        else:
            verdict, detail = Verdict.INFRA, f"the child could not lock itself down: {last_line(info.stderr)}"
        self._clock.finish(info.cpu_seconds)
        return Result(
            verdict=verdict,
            detail=detail,
            answer=self._answer,
            stdout=info.stdout.decode("utf-8", "replace"),
            stderr=info.stderr.decode("utf-8", "replace"),
            cpu_seconds=info.cpu_seconds,
            turn_seconds=self._clock.turn_seconds,
            idle_seconds=self._clock.idle_seconds,
            memory_bytes=info.memory_bytes,
            exit_code=None if os.WIFSIGNALED(info.status) or info.failure else os.WEXITSTATUS(info.status),
            asks=self._asks,
            tier=tier,
            starved_seconds=self._clock.starved_seconds,
        )
