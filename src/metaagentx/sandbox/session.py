"""A run that serves requests: the host sends one, the code replies once, strictly in turn.

Inside, the code calls `door.ask(reply)`, which hands over a reply and returns the next request; the first ask is
`READY`. A second ask before the next request is a `protocol` fault and ends the run. The clock of the run's limits
is running whenever the host waits for it, so `request` always comes back: with a reply, or with how the run ended.
"""

import asyncio
from typing import Self

from .frames import JSON
from .types import ProtocolViolation, Result

READY: JSON = {"ready": True}
"""What the code asks first."""


class SessionEnded(Exception):
    """The run behind a session has ended; `result` says how."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.verdict}: {result.detail}")
        self.result = result


class Session:
    """Requests to one run, one at a time. Made by `Sandbox.serve`."""

    def __init__(self) -> None:
        self.result: Result | None = None
        """How the run ended; None while it can take requests."""
        self._error: BaseException | None = None
        self._ready = False
        self._owes_reply = False
        self._requests: asyncio.Queue[JSON] = asyncio.Queue()
        self._reply: asyncio.Future[JSON] | None = None
        self._run: asyncio.Task[Result] | None = None

    def start(self, run: "asyncio.Task[Result]") -> Self:
        """Follow the run that serves this session."""
        self._run = run
        run.add_done_callback(self._on_end)
        return self

    @property
    def available(self) -> bool:
        """Whether it can take a request: it has not ended, and owes no reply to one whose caller has left."""
        return self.result is None and self._error is None and not self._owes_reply

    async def request(self, body: JSON) -> JSON:
        """Send a request and return the reply; raise SessionEnded when the run is over, or an error of our own side."""
        if self._owes_reply:  # also to a request whose caller was cancelled: the next reply is that one's
            raise RuntimeError("a session takes one request at a time")
        if self._error is not None:
            raise self._error
        if self.result is not None:
            raise SessionEnded(self.result)
        self._owes_reply = True
        self._reply = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(body)
        return await self._reply

    async def next_request(self, reply: JSON) -> JSON:
        """Answers the run's asks: take the reply it hands over, and wait for the next request."""
        if not self._ready:
            if reply != READY:
                raise ProtocolViolation("it replied before it was asked")
            self._ready = True
        else:
            self._owes_reply = False
            if self._reply is not None and not self._reply.done():
                self._reply.set_result(reply)
        return await self._requests.get()

    async def close(self) -> None:
        """End the run and wait until it is gone."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])

    def _on_end(self, run: "asyncio.Task[Result]") -> None:
        if run.cancelled():
            self._error = RuntimeError("the session is closed")
        elif (error := run.exception()) is not None:
            self._error = error
        else:
            self.result = run.result()
        self._owes_reply = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self._error or SessionEnded(run.result()))
