"""How much memory is left for untrusted code: of the machine, or of what a cgroup (version 1 or 2) still allows.

The limit of a container may be set on any group above ours; the level with the least memory left counts. File pages
that the kernel would drop first (inactive_file) count as free, as they do in MemAvailable.
"""

from pathlib import Path

from .cgroups import membership, oom_kills, read_field, read_number, server_groups

_ROOT = Path("/")
_RESERVE_SHARE = 0.03
_RESERVE_BYTES = 256 << 20


def available_bytes(root: Path = _ROOT) -> int:
    """Return how much memory can be used without evicting anything."""
    return min([_meminfo(root)["MemAvailable"], *(max(limit - used, 0) for limit, used in _levels(root))])


def total_bytes(root: Path = _ROOT) -> int:
    """Return the memory of the machine or container."""
    return min([_meminfo(root)["MemTotal"], *(limit for limit, _ in _levels(root))])


def reserve_bytes() -> int:
    """Return what must stay free: below it no run is admitted, below half of it the youngest run is evicted."""
    return max(_RESERVE_BYTES, int(_RESERVE_SHARE * total_bytes()))


def run_headroom_bytes(available: int, reserve: int) -> int:
    """Return by how much all runs together may grow until the next check, before the kernel kills one."""
    return max(available - reserve // 4, reserve // 8)


class OOMKillCounter:
    """Counts processes that the kernel has killed because memory ran out, since this object was created."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._first = self._counts()
        self._explained = 0

    def explain_kill(self) -> bool:
        """Return whether such a kill can explain the end of a run; each of them explains only one run."""
        # One kill shows in several of the counts, hence the largest and not the sum.
        kills = max(now - first for now, first in zip(self._counts(), self._first, strict=True))
        unexplained = kills > self._explained
        self._explained += unexplained
        return unexplained

    def _counts(self) -> tuple[int, int, int]:
        """Return the kills on the machine, in our group (in version 2 also below it), and in our servers' groups."""
        machine = read_field(self._root / "proc/vmstat", "oom_kill")
        group = membership("memory", self._root)
        ours = oom_kills(group.own) if group is not None else None
        return machine or 0, ours or 0, server_groups().oom_kills()


explain_kill = OOMKillCounter().explain_kill


def _meminfo(root: Path) -> dict[str, int]:
    lines = (root / "proc/meminfo").read_text().splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Mem")}


def _levels(root: Path) -> list[tuple[int, int]]:
    """Return limit and usage of each group that has a limit, from our own up."""
    group = membership("memory", root)
    if group is None:
        return []
    levels = []
    for path in group.levels():
        stat = path / "memory.stat"
        if group.version == 1:
            # The second also reflects the limits of groups that a container cannot see.
            limits = read_number(path / "memory.limit_in_bytes"), read_field(stat, "hierarchical_memory_limit")
            used, droppable = read_number(path / "memory.usage_in_bytes"), read_field(stat, "total_inactive_file")
        else:
            limits = read_number(path / "memory.max"), read_number(path / "memory.high")
            used, droppable = read_number(path / "memory.current"), read_field(stat, "inactive_file")
        known = [limit for limit in limits if limit is not None]
        if known:
            levels.append((min(known), max((used or 0) - (droppable or 0), 0)))
    return levels
