"""How much memory is left for untrusted code: the machine's, or the container's where that is less."""

from pathlib import Path

_RESERVE_SHARE = 0.03
_RESERVE_BYTES = 256 << 20


def available_bytes() -> int:
    """Memory that can be used without pushing something out."""
    fields = _meminfo()
    limit, used = _container("memory.max"), _container("memory.current")
    if limit is None or used is None:
        return fields["MemAvailable"]
    return min(fields["MemAvailable"], max(limit - used, 0))


def total_bytes() -> int:
    """All memory of the machine or container."""
    limit = _container("memory.max")
    return _meminfo()["MemTotal"] if limit is None else min(_meminfo()["MemTotal"], limit)


def reserve_bytes() -> int:
    """What must stay free: below it no further run is admitted, below half of it the youngest is ended."""
    return max(_RESERVE_BYTES, int(_RESERVE_SHARE * total_bytes()))


def _kills() -> int:
    """How many processes the kernel has killed so far because memory ran out, here or in some container."""
    path = Path("/proc/vmstat")
    text = path.read_text() if path.is_file() else ""
    return int(text.partition("\noom_kill ")[2].partition("\n")[0] or 0)


_kills_explained = _kills()


def was_short() -> bool:
    """Whether the kernel has killed for memory; each of its kills explains the end of one run."""
    global _kills_explained
    short = _kills() > _kills_explained
    _kills_explained += short
    return short


def _meminfo() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Mem")}


def _container(name: str) -> int | None:
    path = Path("/sys/fs/cgroup") / name
    if not path.is_file():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None
