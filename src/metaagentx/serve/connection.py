"""An HTTP connection that ends when no request is under way on it: clients that are silent, or that send the head of a
request a byte at a time, hold none for ever."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """Closes a connection on which no request was under way at two looks in a row."""

    LOOK_SECONDS = 20.0
    _look: asyncio.TimerHandle | None = None
    _idle_after: object = ""
    """The request that was the last one at the look before this; none is None."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look."""
        super().connection_made(transport)
        self._look = self.loop.call_later(self.LOOK_SECONDS, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the looks."""
        super().connection_lost(exc)
        if self._look is not None:
            self._look.cancel()

    def _close_if_idle(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._idle_after is self.cycle:
            self.transport.abort()  # `close` would wait for a client that does not read what it was sent
            return
        self._idle_after = self.cycle if idle else ""
        self._look = self.loop.call_later(self.LOOK_SECONDS, self._close_if_idle)
