"""One run seen from the host: code goes in, asks come out and are answered, a verdict is reached.

Whatever the code sends, a run is over after `Limits.total_seconds`. Time counts as the code's own only while the host
owes it no reply, and only as far as it sleeps (see `clock`); its processor time counts always, and so does the time
that the host spends on reading its messages.
"""

import asyncio
import os
import time
from dataclasses import replace

from .clock import TICK_SECONDS, TurnClock, stall_of
from .frames import JSON, BadFrame, encode
from .reading import FrameReader, FrameWriter
from .server import Child, Ended
from .shared import ProgramUsage, Shared, is_program
from .types import KILL_SECONDS, Ask, BudgetExceeded, Infra, Limits, ProtocolViolation, Result, Tier, Verdict
from .verdicts import judge, kernel_limit, last_line, last_words

_LIMIT_AFTER_SECONDS = 0.2
_STOPPED_SECONDS = 2.0
# What a turn used before the first look at it is known to within this.
SHORT_TICK_SECONDS = 0.02
# A run that reaches its total was held up by the host or the machine if one of them took at least this share of it.
_EVIDENCE_SHARE = 0.25
_MAX_ANSWERS = 64
_CORES = os.cpu_count() or 1
QUICK_SECONDS = 0.1


class Conversation:
    """Single use: `run` it once."""

    def __init__(
        self,
        child: Child,
        limits: Limits,
        on_ask: Ask,
        shared: Shared,
        programs: ProgramUsage | None = None,
        *,
        excuse_slow_replies: bool = True,
    ) -> None:
        self._child = child
        self._limits = limits
        self._on_ask = on_ask
        self._shared = shared
        self._programs = programs or ProgramUsage()
        self._excuse_slow_replies = excuse_slow_replies
        self._loop = asyncio.get_running_loop()
        self._writer = FrameWriter(child.write_fd)
        self._reader = FrameReader(child.read_fd, limits, shared.frames, self)
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
        self._owed: set[int] = set()  # numbers of the asks without a reply
        self._waits: dict[int, float] = {}  # number of an ask that only the host can be late with: when it came
        self._longest_wait = 0.0
        self._reading_price = 0.0
        self._clock = TurnClock()
        self._cpu_seconds = 0.0
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False
        self._holds_permit = False

    async def run(self, job: JSON, tier: Tier, total_seconds: float) -> Result:
        """Send the code in, answer its asks, and return when the child is gone, after this time at the latest."""
        child = self._child
        child.keep_bytes = self._limits.output_bytes
        self._reader.start()
        # The host sees to the limit; the kernel's is for a host that has stopped. A short run never needs one.
        limit = self._loop.call_later(_LIMIT_AFTER_SECONDS, child.limit_cpu, kernel_limit(self._limits))
        self._deadline = self._loop.call_later(total_seconds, self._reach_total, total_seconds)
        try:
            if self._shared.turns.locked():
                self._keep(self._loop.create_task(self._begin_turn(encode(job))))
            else:
                await self._begin_turn(encode(job))  # at once
            ended = await asyncio.shield(child.ended)  # a cancelled run must still see whether its child is gone
            self._reader.drain()
        finally:
            self._over = True
            limit.cancel()
            self._deadline.cancel()
            self._end_turn()
            if self._timer is not None:
                self._timer.cancel()
            for handler in self._handlers:
                handler.cancel()
            self._reader.close()
            self._writer.close()
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
            self._schedule_look()
        self._writer.write(data)

    def _end_turn(self) -> None:
        if self._clock.started is None:
            return
        self._clock.end(time.perf_counter())
        self._give_back_permit()
        self._schedule_look()

    def _give_back_permit(self) -> None:
        if self._holds_permit:
            self._holds_permit = False
            self._shared.turns.release()

    def _schedule_look(self) -> None:
        """Look at the run soon: often while it is its turn, and now and then while it waits for a reply.

        A look that is due earlier stays: turns that follow each other quickly must not put it off for ever.
        """
        if self._over or self._watching:
            return
        due = self._loop.time() + self._look_after()
        if self._timer is None or self._timer.when() > due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        """Have what the run does told; it is killed if nobody tells."""
        self._watching = True
        self._timer = self._loop.call_later(KILL_SECONDS, self._stop, Verdict.INFRA, "the fork server does not answer")
        self._child.watch(self._judge)

    def _judge(self, cpu_seconds: float) -> None:
        """Stop the run if what it has used, as of now, is too much."""
        if self._over:
            return
        now, limits, clock, turn = time.perf_counter(), self._limits, self._clock, self._clock.started
        # One that waits and computes nothing meanwhile waits for no processor either.
        observed = turn is not None or cpu_seconds > self._cpu_seconds
        self._cpu_seconds = cpu_seconds
        clock.look(now, cpu_seconds, self._child.scheduling() if observed else None)
        self._programs.script_idle_seconds = clock.idle_seconds
        if turn is not None and (clock.stopped_seconds or clock.turn_idle_seconds > 0.9 * (now - turn)):
            self._give_back_permit()  # it sleeps or is stopped: others need not wait for it
        if self._charged_seconds >= limits.cpu_seconds:
            self._stop(Verdict.CPU, self._over_cpu())
        elif clock.idle_seconds + self._programs.idle_seconds > limits.idle_seconds:
            self._stop(Verdict.WALL, f"it slept for more than {limits.idle_seconds:g} s in all")
        elif turn is not None:
            self._judge_turn(now - turn)
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._watching = None, False
        self._schedule_look()

    def _judge_turn(self, seconds: float) -> None:
        limits, clock = self._limits, self._clock
        if limits.turn_cpu_seconds is not None and clock.turn_cpu_seconds > limits.turn_cpu_seconds:
            self._stop(Verdict.CPU, f"more than {limits.turn_cpu_seconds:g} s of processor time at a stretch")
        elif clock.turn_idle_seconds > limits.wall_seconds:
            self._stop(Verdict.WALL, f"no sign of life for {limits.wall_seconds:g} s")
        elif clock.stopped_seconds > _STOPPED_SECONDS:
            self._stop(Verdict.INFRA, "its process was stopped from outside")
        elif seconds > limits.turn_seconds:
            starved = clock.turn_starved_seconds >= _EVIDENCE_SHARE * limits.turn_seconds
            why = ": the machine was too busy to run it" if starved else ""
            verdict = Verdict.INFRA if starved else Verdict.WALL
            self._stop(verdict, f"one turn took more than {limits.turn_seconds:g} s{why}")
        elif limits.yield_after_seconds is not None and seconds > limits.yield_after_seconds:
            self._child.lower_priority()

    def _look_after(self) -> float:
        """When to look: soon where a turn has a limit of its own, at its begin and when it comes close to the limit."""
        if self._clock.started is None:
            return 4 * TICK_SECONDS
        limit, used = self._limits.turn_cpu_seconds, self._clock.turn_cpu_seconds
        if limit is None:
            return TICK_SECONDS
        return min(TICK_SECONDS, max(SHORT_TICK_SECONDS, limit - used)) if used else SHORT_TICK_SECONDS

    @property
    def _charged_seconds(self) -> float:
        """Its processor time as last read, and the price of reading its messages."""
        return self._cpu_seconds + self._reading_price

    def _over_cpu(self) -> str:
        text = f"{self._cpu_seconds:.2f} s of processor time; {self._limits.cpu_seconds:g} s are allowed"
        price = self._reading_price
        return f"{text}, and reading its messages counts as {price:.2f} s" if price > 0.1 else text

    def _reach_total(self, total: float) -> None:
        """Its time is up. The machinery's fault it is only if the host or the machine took a good part of it."""
        now = time.perf_counter()
        waits = [now - since for since in self._waits.values()]
        late = stall_of(TICK_SECONDS + self._loop.time() - self._deadline.when())  # the host itself has stood still
        starved = self._clock.starved_seconds + self._programs.starved_seconds + late
        if max([self._longest_wait, *waits]) >= _EVIDENCE_SHARE * total:
            self._stop(Verdict.INFRA, f"not done after {total:g} s: the host took too long to answer it")
        elif self._started == 0.0 or starved >= _EVIDENCE_SHARE * total:
            self._stop(Verdict.INFRA, f"not done after {total:g} s: the machine was too busy to run it")
        else:
            self._stop(Verdict.WALL, f"not done after {total:g} s")

    def _stop(self, verdict: Verdict, detail: str) -> None:
        """Kill the child for this reason; the first reason counts."""
        if self._verdict is None and not self._child.ended.done():
            self._verdict = (verdict, detail)
            self._child.kill()
            self._loop.call_later(KILL_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self._child.ended.done():
            self._child.ended.set_result(Ended(failure=f"a killed child was not gone after {KILL_SECONDS:.0f} s"))

    # --- the door

    @property
    def listens(self) -> bool:
        """Whether what the run says still matters."""
        return self._verdict is None and self._done is None

    def pay_reading(self, seconds: float, price: float) -> None:
        """Charge the run for the time that the host has spent on its messages."""
        self._reading_price += price * seconds
        if self._charged_seconds >= self._limits.cpu_seconds:
            self._stop(Verdict.CPU, self._over_cpu())

    def refuse_frame(self, verdict: Verdict, detail: str) -> None:
        """End the run for what it sent."""
        self._stop(verdict, detail)
        self._verdict = self._verdict or (verdict, detail)  # also when the news of its end was faster

    def handle(self, frame: JSON) -> None:
        """Take one message of the run."""
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
        # A reply that it has not read yet counts as open: who never reads cannot fill the host's memory. What went out
        # first was the code.
        if self._asks - (self._writer.sent - 1) >= self._limits.open_asks:
            raise BadFrame(f"more than {self._limits.open_asks} asks at a time")
        if self._clock.started is not None and self._turn_is_over_limit():
            return
        self._asks += 1
        self._owed.add(number)
        if self._excuse_slow_replies and not is_program(frame["body"]):
            self._waits[number] = time.perf_counter()
        self._end_turn()
        self._keep(self._loop.create_task(self._reply(number, frame["body"])))

    def _keep(self, handler: "asyncio.Task[None]") -> None:
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
        most_cpu_seconds = (time.perf_counter() - self._started) * _CORES
        words = last_words(frame)
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
        if number in self._waits:
            self._longest_wait = max(self._longest_wait, time.perf_counter() - self._waits.pop(number))
        self._owed.discard(number)
        if self._owed:
            self._writer.write(reply)
        else:
            await self._begin_turn(reply)

    # --- the verdict

    def _result(self, ended: Ended, tier: Tier) -> Result:
        if self._done is not None and ended.status == 0:
            ended = replace(ended, status=self._done.status, memory_bytes=self._done.memory_bytes)
        if self._verdict is not None:
            verdict, detail = self._verdict
        elif self._locked_down or ended.failure:
            verdict, detail = judge(ended, self._limits, time.perf_counter() - self._started)
        else:
            verdict, detail = Verdict.INFRA, f"the child could not lock itself down: {last_line(ended.stderr)}"
        self._clock.finish(ended.cpu_seconds)
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
            starved_seconds=self._clock.starved_seconds,
        )
