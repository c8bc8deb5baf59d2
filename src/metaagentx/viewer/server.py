"""The server process of the viewer: it listens, prints its link, and stops at the first signal."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from ..errors import MetaAgentXError
from ..web import base_url, listen
from .app import Service, build_app
from .index import cache_directory
from .library import Library
from .pages import Pages

DEFAULT_PORT = 7860
_GOODBYE_SECONDS = 1
_OTHER_PORTS = 20


class ViewServer(uvicorn.Server):
    """A server that ends its streams before it stops."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal stops at once. The signal is dealt with here: stopping is how a viewer ends."""
        self.force_exit = self.should_exit
        self.stop()

    def stop(self) -> None:
        """Stop, after the answers that are under way."""
        self.should_exit = True
        self._service.stopping = True


async def view(
    root: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    allowed_hosts: tuple[str, ...] = (),
    on_start: Callable[[str, ViewServer], None] = lambda url, server: None,
) -> None:
    """Serve the viewer of all runs below a directory until a signal. `on_start` gets the link, which has the token.

    Without a port, the first free one from `DEFAULT_PORT` on is taken.
    """
    if not root.is_dir():
        raise MetaAgentXError(f"{root} {'is not a directory' if root.exists() else 'does not exist'}")
    library = Library(root, cache_directory())
    token = secrets.token_urlsafe(24)
    service = Service(Pages(library))
    try:
        with _listener(host, port) as listener:
            config = uvicorn.Config(
                build_app(service, token, host, allowed_hosts),
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_GOODBYE_SECONDS,
            )
            server = ViewServer(config, service)
            on_start(f"{base_url(host, listener)}/?token={token}", server)
            await server.serve([listener])
    finally:
        await asyncio.to_thread(library.close)


def _listener(host: str, port: int | None) -> socket.socket:
    if port is not None:
        return listen(host, port)
    for candidate in range(DEFAULT_PORT, DEFAULT_PORT + _OTHER_PORTS):
        try:
            return listen(host, candidate)
        except MetaAgentXError:
            continue
    return listen(host, 0)
