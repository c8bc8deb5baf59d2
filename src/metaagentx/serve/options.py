"""The settings of a server."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where a server listens, whom it answers, and how much it takes on."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    """The key that clients send; None: none is needed."""
    allowed_hosts: tuple[str, ...] = ()
    """Names besides localhost and `host` that a Host header may have; `*` allows every name."""
    concurrency: int = 8
    """The most questions that are answered at the same time."""
    queue: int = 64
    """The most requests that wait for their turn; more are refused with 429."""
    request_seconds: float = 600.0
    """The deadline of a request, from its arrival, with the time it waits."""
    body_bytes: int = 4 << 20
    designs: int = 1
    attempts: int = 3
    save: Path | None = None
    """The directory for the trees of answered questions."""
    save_trees: int = 1000
    save_bytes: int = 1 << 30
    ping_seconds: float = 10.0
    """A stream that is silent for this long sends a comment, so that proxies keep it open."""
