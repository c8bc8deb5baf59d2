"""What a run does with its turns: computes, waits for a processor, is held up by the machine, or sleeps.

Only sleeping is the code's own choice, so only that counts against its wall-clock limits. The rest is told apart by
evidence of the host's own: the processor time and the run-queue wait that the kernel counts, a process that something
outside has stopped (a run cannot signal anybody, itself included), and gaps in the host's own ticks.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 0.25
_LOW_PRIORITY = 5
# A tick may be this late on a busy machine before the lateness counts as a stall.
_LATE_SECONDS = 0.25
# Where the kernel does not tell the run-queue wait: code that computes gets at least this share of a processor.
_STARVED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the kernel says of a process at one moment."""

    queued_seconds: float | None
    """How long its threads have waited for a processor in all; None where the kernel does not count it."""
    stopped: bool
    """Whether a signal has stopped it."""


class ProcessHandle:
    """A process known by a pidfd, so that another one with the same number is never taken for it."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def scheduling(self) -> Scheduling | None:
        """What the kernel says of it now; None when it is gone."""
        pid = self._pid()
        return read_scheduling(pid) if pid > 0 else None

    def lower_priority(self) -> None:
        """Let others compute first. There is no way back without privileges."""
        pid = self._pid()
        if pid > 0:
            with contextlib.suppress(OSError):  # it is gone, or not ours to slow down
                os.setpriority(os.PRIO_PROCESS, pid, _LOW_PRIORITY)

    def _pid(self) -> int:
        """Its number here; 0 or less when it is gone."""
        try:
            info = Path(f"/proc/self/fdinfo/{self._pidfd}").read_text()
            return int(info.partition("\nPid:")[2].partition("\n")[0])
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        """Let the handle go."""
        os.close(self._pidfd)


def read_scheduling(pid: int) -> Scheduling | None:
    """The scheduling of a process of this pid namespace; None when it is gone or cannot be seen."""
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    try:
        threads = [thread / "schedstat" for thread in (process / "task").iterdir()]
        queued = sum(int(path.read_text().split()[1]) for path in threads) / 1e9
    except (OSError, IndexError, ValueError):
        return Scheduling(None, state in "Tt")
    return Scheduling(queued, state in "Tt")


class TurnClock:
    """Adds up the time of a run's turns. A turn lasts from code or a reply going in until an ask or the end comes out.

    `tick` is called with fresh readings a few times a second while a turn lasts.
    """

    def __init__(self) -> None:
        self.turn_seconds = 0.0
        """Wall-clock time of all finished turns."""
        self.idle_seconds = 0.0
        """Of all turns: asleep."""
        self.starved_seconds = 0.0
        """Of all turns, and of waiting for one: kept from computing by the machine."""
        self.turn_idle_seconds = 0.0
        """Of the present turn: asleep."""
        self.turn_cpu_seconds = 0.0
        """Of the present turn: computing, as of the last tick."""
        self.turn_starved_seconds = 0.0
        """Of the present turn: kept from computing by the machine."""
        self.stopped_seconds = 0.0
        """How long it has been stopped from outside, without a break."""
        self.started: float | None = None
        """When the present turn began; None between turns."""
        self._last_tick = 0.0
        self._cpu = 0.0
        self._queued = 0.0

    def begin(self, now: float) -> None:
        """A turn begins."""
        self.started = self._last_tick = now
        self.turn_idle_seconds = self.turn_cpu_seconds = self.turn_starved_seconds = self.stopped_seconds = 0.0

    def end(self, now: float) -> None:
        """The turn ends. What no tick has looked at, a fraction of a second, counts as sleep."""
        if self.started is not None:
            self.turn_seconds += now - self.started
            self._sleep(max(0.0, min(now - self._last_tick, TICK_SECONDS)))
            self.started = None

    def observe(self, cpu_seconds: float) -> None:
        """Note what it has used so far while it waits for a reply."""
        self._cpu = cpu_seconds

    def tick(self, now: float, cpu_seconds: float, scheduling: Scheduling | None) -> None:
        """Account for the time since the last look at this turn."""
        assert self.started is not None
        interval = now - self._last_tick
        cpu = max(0.0, cpu_seconds - self._cpu)
        if self._last_tick == self.started:
            # The first look at this turn: what it used in earlier ones, unseen, is not this one's.
            cpu = min(cpu, interval)
        queued = cpu / _STARVED_SHARE
        if scheduling is not None and scheduling.queued_seconds is not None:
            queued = max(0.0, scheduling.queued_seconds - self._queued)
            self._queued = scheduling.queued_seconds
        stalled = interval if scheduling and scheduling.stopped else 0.0
        self.stopped_seconds = self.stopped_seconds + interval if stalled else 0.0
        if interval > TICK_SECONDS + _LATE_SECONDS:
            stalled = max(stalled, interval - TICK_SECONDS)
        starved = min(queued + stalled, max(0.0, interval - cpu))
        self.starved_seconds += starved
        self.turn_starved_seconds += starved
        self.turn_cpu_seconds += cpu
        self._sleep(max(0.0, interval - cpu - starved))
        self._last_tick, self._cpu = now, cpu_seconds

    def _sleep(self, seconds: float) -> None:
        self.idle_seconds += seconds
        self.turn_idle_seconds += seconds
