"""The server process: listens, drains on the first signal, and stops at once on the second.

While it drains, requests under way finish, and new ones get 503 on a socket that is still open: a client learns that it
should go elsewhere, instead of seeing a refused connection.
"""

import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from ..errors import MetaAgentXError
from ..system import System
from .app import Service, build_app
from .connection import PatientProtocol
from .gate import Gate
from .log import LOGGER, set_up_logging
from .options import ServeOptions
from .saving import open_store

_GOODBYE_SECONDS = 5
"""How long the end waits for connections whose clients do not read what was sent."""


class DrainingServer(uvicorn.Server):
    """A server that a signal drains."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; on a second signal cancel what is under way."""
        if self._gate.draining:
            self._gate.cancel_all()
        self._gate.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called ten times a second."""
        if self._gate.draining and not self._gate.in_flight:
            self.should_exit = True
        return await super().on_tick(counter)


async def serve(system: System, options: ServeOptions, on_start: Callable[[str], None] = lambda url: None) -> None:
    """Serve a system until a signal. `on_start` is called with the URL when requests are accepted."""
    set_up_logging()
    with open_store(options.save, options.save_trees, options.save_bytes) as store, _listen(options) as listener:
        service = Service(system, options, store)
        config = uvicorn.Config(
            build_app(service),
            http=PatientProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
        )
        port = listener.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        on_start(f"http://{host}:{port}/v1")
        await DrainingServer(config, service.gate).serve([listener])
        LOGGER.info({"message": "stopped: every request under way was finished"})


def _listen(options: ServeOptions) -> socket.socket:
    """Return a listening socket: from here on clients can connect, and an address in use is an error in one line."""
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise MetaAgentXError(
            f"cannot listen on {options.host}:{options.port} ({reason}): choose another --host or --port"
        ) from error
