"""How a run spends its turns: it computes, waits for a CPU, is stalled by the machine, or sleeps.

Only sleep is the choice of the code, so only sleep counts against its wall-clock limits. The host tells the cases apart
by evidence that the run cannot forge: the CPU time and the run-queue wait that the kernel counts, a process that was
stopped from outside (a run cannot send signals, not even to itself), and gaps in the host's own ticks.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 0.25
_LOW_PRIORITY = 5
# A tick that is at most this late, as on a busy machine, is not a stall.
LATE_SECONDS = 0.25
# Where the kernel does not report the run-queue wait: code that computes is assumed to get at least this CPU share.
_STARVED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The scheduling state of a process at one moment."""

    queued_seconds: Mapping[int, float] | None
    """How long each thread has waited for a CPU in total; None where the kernel does not count it."""
    stopped: bool
    """Whether it was stopped by a signal."""


class ProcessHandle:
    """A process identified by a pidfd, so that another one with the same number is never mistaken for it."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def scheduling(self) -> Scheduling | None:
        """Return its current scheduling state; None when it is gone."""
        pid = self._pid()
        return read_scheduling(pid) if pid > 0 else None

    def lower_priority(self) -> None:
        """Lower its priority. Undoing this needs privileges."""
        pid = self._pid()
        if pid > 0:
            with contextlib.suppress(OSError):  # it is gone, or belongs to another user
                os.setpriority(os.PRIO_PROCESS, pid, _LOW_PRIORITY)

    def _pid(self) -> int:
        """Return its number in this pid namespace; 0 or less when it is gone."""
        try:
            info = Path(f"/proc/self/fdinfo/{self._pidfd}").read_text()
            return int(info.partition("\nPid:")[2].partition("\n")[0])
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._pidfd)


def read_scheduling(pid: int) -> Scheduling | None:
    """Return the scheduling state of a process of this pid namespace; None when it is gone or hidden."""
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    try:
        threads = list((process / "task").iterdir())
        queued = {int(thread.name): int((thread / "schedstat").read_text().split()[1]) / 1e9 for thread in threads}
    except (OSError, IndexError, ValueError):
        return Scheduling(None, state in "Tt")
    return Scheduling(queued, state in "Tt")


def children_of(pid: int) -> list[int]:
    """Return the living child processes of a process of this pid namespace."""
    try:
        texts = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def stall_of(interval: float) -> float:
    """Return how long the host itself was stalled if this is the time between two looks at a run."""
    return interval - TICK_SECONDS if interval > TICK_SECONDS + LATE_SECONDS else 0.0


class TurnClock:
    """Adds up the time of a run's turns. A turn is defined in `types.Limits`.

    `look` is called with new readings a few times a second. Turns may be shorter than that: the next look classifies
    their time as computing, waiting or sleep, so that frequent asks hide nothing.
    """

    def __init__(self) -> None:
        self.turn_seconds = 0.0
        """Wall-clock time of all finished turns."""
        self.idle_seconds = 0.0
        """Sleep in all turns, as of the last look."""
        self.starved_seconds = 0.0
        """How long the machine demonstrably kept the run from computing, in all turns and while it waited for one."""
        self.turn_idle_seconds = 0.0
        """Sleep in the current turn."""
        self.turn_cpu_seconds = 0.0
        """CPU time of the current turn, as of the last look."""
        self.turn_starved_seconds = 0.0
        """How long the machine kept the run from computing in the current turn."""
        self.stopped_seconds = 0.0
        """How long it has been stopped from outside, without interruption."""
        self.started: float | None = None
        """When the current turn began; None between turns."""
        self._seen = 0.0  # up to when the current turn has been accounted for
        self._unseen = 0.0  # time of finished turns that no look has accounted for
        self._unseen_stall = 0.0  # the part of that in which the host itself was stalled
        self._cpu = 0.0
        self._queued: Mapping[int, float] = {}

    def begin(self, now: float) -> None:
        """Begin a turn."""
        self.started = self._seen = now
        self.turn_idle_seconds = self.turn_cpu_seconds = self.turn_starved_seconds = self.stopped_seconds = 0.0

    def end(self, now: float) -> None:
        """End the turn; the next look classifies its time."""
        if self.started is not None:
            self.turn_seconds += now - self.started
            interval = max(0.0, now - self._seen)
            self._unseen += interval
            self._unseen_stall += stall_of(interval)
            self.started = None

    def look(self, now: float, cpu_seconds: float, scheduling: Scheduling | None) -> None:
        """Account for the turns, and the part of one, since the last look."""
        cpu = max(0.0, cpu_seconds - self._cpu)
        self._cpu = max(self._cpu, cpu_seconds)
        queued = self._queued_since(scheduling)
        current = 0.0 if self.started is None else max(0.0, now - self._seen)
        stopped = self.started is not None and scheduling is not None and scheduling.stopped
        self.stopped_seconds = self.stopped_seconds + current if stopped else 0.0
        stall = self._unseen_stall + (current if stopped else stall_of(current))
        not_computing = max(0.0, self._unseen + current - cpu)
        starved = min(not_computing, stall + (queued or 0.0))
        # Not evidence, only the benefit of the doubt where the kernel does not report the wait.
        excused = cpu / _STARVED_SHARE if queued is None else 0.0
        idle = max(0.0, not_computing - starved - excused)
        self.starved_seconds += starved
        self.idle_seconds += idle
        self._unseen = self._unseen_stall = 0.0
        if self.started is not None:
            # CPU time of earlier turns that no look has seen does not belong to this one.
            self.turn_cpu_seconds += min(cpu, current) if self._seen == self.started else cpu
            self.turn_starved_seconds += min(starved, current)
            self.turn_idle_seconds += min(idle, current)
            self._seen = now

    def finish(self, cpu_seconds: float) -> None:
        """Account for the rest of a run that has used this CPU time in total: what it did not compute, it slept."""
        not_computing = self._unseen - max(0.0, cpu_seconds - self._cpu)
        self.idle_seconds += max(0.0, not_computing - self._unseen_stall)
        self._unseen = self._unseen_stall = 0.0

    def _queued_since(self, scheduling: Scheduling | None) -> float | None:
        """Return how long the thread that waited longest has waited for a CPU since the last look.

        Not the sum: a run can have its threads wait for one another, eight times as long as they compute.
        """
        if scheduling is None or scheduling.queued_seconds is None:
            return None
        before, self._queued = self._queued, scheduling.queued_seconds
        return max((seconds - before.get(thread, 0.0) for thread, seconds in self._queued.items()), default=0.0)
