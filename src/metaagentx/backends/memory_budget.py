"""How much memory there is, and the limits by which the local backend uses it. Without torch, for the memory plan."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KV_SHARE = 0.5
"""The share of the free memory that the KV cache may take. The rest is for the next update and for other processes."""
PREFIX_SHARE = 0.25
"""The share of the KV cache that cached prefixes may take. They stay there during an update."""
DETERMINISTIC_ROWS = 32
"""Rows of every decode step in deterministic mode, used or not."""
MAX_PREFILL_TOKENS = 4096
"""The most tokens in one prefill pass."""
MAX_COPIED_WEIGHTS = 300_000_000
"""On a CPU, models with at most this many weights are decoded from copies of their matrices."""
MIN_PACKED_WEIGHTS = 20_000_000
"""On a CPU, models with at least this many weights are decoded from packed copies of their matrices."""
MAX_LOGITS = 1 << 24
"""The most logits that an update computes at once."""
LORA_PASS_HEAD_ROWS = 128
"""Nodes whose logits the training pass of a LoRA computes at once."""
LORA_PASS_SPAN = 96
"""The most queries that it attends for at once."""
_CGROUPS = Path("/sys/fs/cgroup")


def available_host_bytes() -> int:
    """Return how much more memory this process can take: what the machine has available, and its cgroups allow."""
    return min([_available_on_machine(), *_available_in_cgroups()])


def kv_bytes_per_token(config: Mapping[str, Any], bytes_per_value: int) -> int:
    """Return the size of the keys and values of one token, from the `config.json` of a model."""
    heads = config["num_attention_heads"]
    key_heads = config.get("num_key_value_heads") or heads
    head_width = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * config["num_hidden_layers"] * key_heads * head_width * bytes_per_value)


def default_kv_budget(free_bytes: int, bytes_per_token: int, full_context: int) -> int:
    """Return the default of `model.kv_budget_tokens`: a share of what is free, but one full context where that fits."""
    fits = free_bytes // bytes_per_token
    return max(int(KV_SHARE * fits), min(full_context, fits))


def _available_on_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: half of the memory is a guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024


def _available_in_cgroups() -> Iterator[int]:
    """Yield what each limit of this process's cgroups leaves, of both versions. Cached files count as free."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit_file, usage_file, cache_key = _CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit_file, usage_file = _CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache_key = "total_inactive_file"
        else:
            continue
        directory = root / path.lstrip("/")
        for group in (directory, *directory.parents):
            if group == root.parent:
                break
            try:
                limit = (group / limit_file).read_text().strip()
                usage = int((group / usage_file).read_text())
                stat = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):  # a container need not see its own path, and the root of version 2 has none
                continue
            if limit != "max":
                yield max(0, int(limit) - usage + int(stat.get(cache_key, 0)))
