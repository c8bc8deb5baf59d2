"""How much memory is left for untrusted code: the machine's, or what a control group (version 1 or 2) still allows.

A container's limit may be set on any group above ours; the least of what all levels leave counts. File pages that the
kernel would drop first (inactive_file) count as free, as they do in the machine's own MemAvailable.
"""

from pathlib import Path

from .cgroups import membership, oom_kills, read_field, read_number, server_groups

_ROOT = Path("/")
_RESERVE_SHARE = 0.03
_RESERVE_BYTES = 256 << 20


def available_bytes(root: Path = _ROOT) -> int:
    """Memory that can be used without pushing something out."""
    return min([_meminfo(root)["MemAvailable"], *(max(limit - used, 0) for limit, used in _levels(root))])


def total_bytes(root: Path = _ROOT) -> int:
    """All memory of the machine or container."""
    return min([_meminfo(root)["MemTotal"], *(limit for limit, _ in _levels(root))])


def reserve_bytes() -> int:
    """What must stay free: below it no further run is admitted, below half of it the youngest is ended."""
    return max(_RESERVE_BYTES, int(_RESERVE_SHARE * total_bytes()))


def run_headroom_bytes(available: int, reserve: int) -> int:
    """By how much all runs may grow until the next look: the kernel steps in where the watchdog was too slow."""
    return max(available - reserve // 4, reserve // 8)


class KillCounter:
    """Tells whether the kernel has killed for want of memory since this object was made."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._first = self._counts()
        self._explained = 0

    def explains_one(self) -> bool:
        """Whether there was a kill that has not yet explained the end of a run; each explains one."""
        # One kill shows in several of the counts, hence the largest and not the sum.
        kills = max(now - first for now, first in zip(self._counts(), self._first, strict=True))
        short = kills > self._explained
        self._explained += short
        return short

    def _counts(self) -> tuple[int, int, int]:
        """In the whole machine; in our own group and, by version 2, those below; in those of our fork servers."""
        machine = read_field(self._root / "proc/vmstat", "oom_kill")
        group = membership("memory", self._root)
        ours = oom_kills(group.own) if group is not None else None
        return machine or 0, ours or 0, server_groups().oom_kills()


_kills = KillCounter()


def was_short() -> bool:
    """Whether the kernel has killed for memory; each of its kills explains the end of one run."""
    return _kills.explains_one()


def _meminfo(root: Path) -> dict[str, int]:
    lines = (root / "proc/meminfo").read_text().splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Mem")}


def _levels(root: Path) -> list[tuple[int, int]]:
    """The limit of each group that has one, from our own up, and what counts against it."""
    group = membership("memory", root)
    levels = []
    for path in group.levels() if group is not None else []:
        stat = path / "memory.stat"
        if group is not None and group.version == 1:
            # The second also knows the limits of groups that a container cannot see.
            limits = read_number(path / "memory.limit_in_bytes"), read_field(stat, "hierarchical_memory_limit")
            used, droppable = read_number(path / "memory.usage_in_bytes"), read_field(stat, "total_inactive_file")
        else:
            limits = read_number(path / "memory.max"), read_number(path / "memory.high")
            used, droppable = read_number(path / "memory.current"), read_field(stat, "inactive_file")
        known = [limit for limit in limits if limit is not None]
        if known:
            levels.append((min(known), max((used or 0) - (droppable or 0), 0)))
    return levels
