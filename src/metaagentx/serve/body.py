"""Reading a request: its body within a limit, and whether its client is still there."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from .errors import APIError, ClientLeft

_BODY_SECONDS = 30.0
_DISCARDED = 8
"""How many times the limit is read and thrown away, so that a client that is still sending can see the refusal."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the body, also one without a stated length; raise 413 beyond the limit and 408 if it does not come."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form or plain text could be sent by any page in a browser, without its asking
        raise APIError(415, f'content type "{kind[:80]}" is not supported: send application/json')
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await _read(receive, limit)
    except TimeoutError:
        raise APIError(408, f"the body did not arrive within {_BODY_SECONDS:g} s", headers=_CLOSE) from None


_CLOSE = {"Connection": "close"}


async def _read(receive: Receive, limit: int) -> bytes:
    body, size = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            body += chunk
        more = message.get("more_body", False)
        if size > limit and (not more or size > limit * _DISCARDED):
            raise APIError(413, f"the body has more than {limit} bytes", code="body_too_large", headers=_CLOSE)
        if not more:
            return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do some work; cancel it, wait for its end and raise ClientLeft when the client leaves."""
    task, watcher = asyncio.create_task(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
