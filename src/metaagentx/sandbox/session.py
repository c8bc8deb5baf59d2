"""A run that serves requests: the host sends a request, the code sends exactly one reply, and so on.

Inside, the code calls `door.ask(reply)`, which sends a reply and returns the next request; the first ask is `READY`. A
second ask before the next request is a `protocol` fault and ends the run. The limits of the run apply whenever the host
waits for it, so `request` always returns a reply or raises SessionEnded.
"""

import asyncio

from .frames import JSON
from .types import ProtocolViolation, Result

READY: JSON = {"ready": True}
"""The first ask of the code."""


class SessionEnded(Exception):
    """The run behind a session has ended; `result` says how."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.verdict}: {result.detail}")
        self.result = result


class SandboxSession:
    """Sends requests to one run, one at a time. Created by `Sandbox.serve`."""

    def __init__(self) -> None:
        self.result: Result | None = None
        """How the run ended; None while it serves requests."""
        self._error: BaseException | None = None
        self._ready = False
        self._reply_due = False
        self._requests: asyncio.Queue[JSON] = asyncio.Queue()
        self._reply: asyncio.Future[JSON] | None = None
        self._run: asyncio.Task[Result] | None = None

    def start(self, run: "asyncio.Task[Result]") -> None:
        """Attach the run that serves this session."""
        self._run = run
        run.add_done_callback(self._on_end)

    @property
    def available(self) -> bool:
        """Return whether it can take a request: it has not ended and owes no reply, not even to a canceled request."""
        return self.result is None and self._error is None and not self._reply_due

    async def request(self, body: JSON) -> JSON:
        """Send a request and return the reply; raise SessionEnded when the run has ended, or an error of the host."""
        if self._reply_due:  # also to a request that was canceled: the next reply belongs to that one
            raise RuntimeError("a session takes one request at a time")
        if self._error is not None:
            raise self._error
        if self.result is not None:
            raise SessionEnded(self.result)
        self._reply_due = True
        self._reply = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(body)
        return await self._reply

    async def next_request(self, reply: JSON) -> JSON:
        """Handle an ask of the run: take the reply in it, then wait for the next request and return it."""
        if not self._ready:
            if reply != READY:
                raise ProtocolViolation("sent a reply before the first request")
            self._ready = True
        else:
            self._reply_due = False
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
        self._reply_due = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self._error or SessionEnded(run.result()))
