"""What a run does with its turns: computes, waits for a processor, is held up by the machine, or sleeps.

Only sleeping is the code's own choice, so only that counts against its wall-clock limits. The rest is told apart by
evidence of the host's own: the processor time and the run-queue wait that the kernel counts, a process that something
outside has stopped (a run cannot signal anybody, itself included), and gaps in the host's own ticks.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 0.25
_LOW_PRIORITY = 5
# A tick may be this late on a busy machine before the lateness counts as a stall.
LATE_SECONDS = 0.25
# Where the kernel does not tell the run-queue wait: code that computes gets at least this share of a processor.
_STARVED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the kernel says of a process at one moment."""

    queued_seconds: Mapping[int, float] | None
    """How long each thread has waited for a processor in all; None where the kernel does not count it."""
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
        threads = list((process / "task").iterdir())
        queued = {int(one.name): int((one / "schedstat").read_text().split()[1]) / 1e9 for one in threads}
    except (OSError, IndexError, ValueError):
        return Scheduling(None, state in "Tt")
    return Scheduling(queued, state in "Tt")


def children_of(pid: int) -> list[int]:
    """The processes that a process of this pid namespace has started and that are still there."""
    try:
        texts = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def stall_of(interval: float) -> float:
    """How long the host itself stood still, if it looks at a run only after this time."""
    return interval - TICK_SECONDS if interval > TICK_SECONDS + LATE_SECONDS else 0.0


class TurnClock:
    """Adds up the time of a run's turns. A turn lasts from code or a reply going in until an ask or the end comes out.

    `look` is called with fresh readings a few times a second. Turns may be shorter than that: what they took is put
    down as computing, waiting or sleep at the next look, so that asking often hides nothing.
    """

    def __init__(self) -> None:
        self.turn_seconds = 0.0
        """Wall-clock time of all finished turns."""
        self.idle_seconds = 0.0
        """Of all turns, as of the last look: asleep."""
        self.starved_seconds = 0.0
        """Of all turns, and of waiting for one: kept from computing by the machine, on the host's own evidence."""
        self.turn_idle_seconds = 0.0
        """Of the present turn: asleep."""
        self.turn_cpu_seconds = 0.0
        """Of the present turn: computing, as of the last look."""
        self.turn_starved_seconds = 0.0
        """Of the present turn: kept from computing by the machine."""
        self.stopped_seconds = 0.0
        """How long it has been stopped from outside, without a break."""
        self.started: float | None = None
        """When the present turn began; None between turns."""
        self._seen = 0.0  # up to when the present turn has been looked at
        self._unseen = 0.0  # of finished turns: what no look has accounted for
        self._unseen_stall = 0.0  # of that: the host itself stood still
        self._cpu = 0.0
        self._queued: Mapping[int, float] = {}

    def begin(self, now: float) -> None:
        """A turn begins."""
        self.started = self._seen = now
        self.turn_idle_seconds = self.turn_cpu_seconds = self.turn_starved_seconds = self.stopped_seconds = 0.0

    def end(self, now: float) -> None:
        """The turn ends; the next look says what it was spent on."""
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
        present = 0.0 if self.started is None else max(0.0, now - self._seen)
        stopped = self.started is not None and scheduling is not None and scheduling.stopped
        self.stopped_seconds = self.stopped_seconds + present if stopped else 0.0
        stall = self._unseen_stall + (present if stopped else stall_of(present))
        not_computing = max(0.0, self._unseen + present - cpu)
        starved = min(not_computing, stall + (queued or 0.0))
        # Not evidence, only the benefit of the doubt, where the kernel does not tell.
        excused = cpu / _STARVED_SHARE if queued is None else 0.0
        idle = max(0.0, not_computing - starved - excused)
        self.starved_seconds += starved
        self.idle_seconds += idle
        self._unseen = self._unseen_stall = 0.0
        if self.started is not None:
            # What it used in earlier turns, unseen, is not this one's.
            self.turn_cpu_seconds += min(cpu, present) if self._seen == self.started else cpu
            self.turn_starved_seconds += min(starved, present)
            self.turn_idle_seconds += min(idle, present)
            self._seen = now

    def finish(self, cpu_seconds: float) -> None:
        """The run is over and has used so much: what is still unseen and was not spent on that was sleep."""
        not_computing = self._unseen - max(0.0, cpu_seconds - self._cpu)
        self.idle_seconds += max(0.0, not_computing - self._unseen_stall)
        self._unseen = self._unseen_stall = 0.0

    def _queued_since(self, scheduling: Scheduling | None) -> float | None:
        """How long the thread that waited most has waited for a processor since the last look.

        Not the sum: a run can have its threads wait for one another, eight times as long as they compute.
        """
        if scheduling is None or scheduling.queued_seconds is None:
            return None
        before, self._queued = self._queued, scheduling.queued_seconds
        return max((one - before.get(thread, 0.0) for thread, one in self._queued.items()), default=0.0)
