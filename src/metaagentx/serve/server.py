"""The server process: listens, drains on the first signal, and stops at once on the second.

While it drains, requests under way finish, and new ones get 503 on a socket that is still open: a client learns that it
should go elsewhere, instead of seeing a refused connection.
"""

from collections.abc import Callable
from types import FrameType

import uvicorn

from ..system import System
from ..web import base_url, listen
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
    with (
        open_store(options.save, options.save_trees, options.save_bytes) as store,
        listen(options.host, options.port) as listener,
    ):
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
        on_start(f"{base_url(options.host, listener)}/v1")
        await DrainingServer(config, service.gate).serve([listener])
        LOGGER.info({"message": "stopped: every request under way was finished"})
