"""A command that is spoken to over its standard input and output, with one JSON-RPC message a line.

As the transport of the SDK, but a long line costs bounded memory and time: the arguments of a call may ask for a result
of any size, and reading it must not hold up everything else.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Incoming: TypeAlias = MemoryObjectReceiveStream[SessionMessage | Exception]
    Outgoing: TypeAlias = MemoryObjectSendStream[SessionMessage]

LINE_BYTES = 4 << 20
"""The longest message from a server. A longer result is an error that the agent reads."""
_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.01
_ID = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*[,}]')
_HEAD_BYTES = 200


@asynccontextmanager
async def server_streams(
    words: Sequence[str], environment: Mapping[str, str], stderr: TextIO
) -> "AsyncIterator[tuple[Incoming, Outgoing]]":
    """Start a command and yield the messages from it and those to it; end it when the block ends."""
    import anyio
    from mcp.shared.message import SessionMessage

    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env=dict(environment),
        start_new_session=True,  # Ctrl-C is for us; and its children end with it
        limit=LINE_BYTES,
    )
    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [asyncio.create_task(_read(process, arriving)), asyncio.create_task(_write(process, leaving, arriving))]
    try:
        yield incoming, outgoing
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (arriving, incoming, outgoing, leaving):
            stream.close()
        await asyncio.shield(_end(process))


async def _read(
    process: asyncio.subprocess.Process, arriving: "MemoryObjectSendStream[SessionMessage | Exception]"
) -> None:
    """Pass on each message; the stream is closed at the end, which the session sees."""
    import anyio

    assert process.stdout is not None
    try:
        while line := await _read_line(process.stdout):
            if line.strip():
                await arriving.send(_parse(line))
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        pass  # the session is gone
    finally:
        arriving.close()


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line; of one that is too long an error response with its id. Empty: there is no more."""
    head = b""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError as error:
            piece = await stream.readexactly(max(1, error.consumed))
            head = head or piece[:_HEAD_BYTES]
            continue
        if not head:
            return line
        number = _ID.search(head)
        return _too_long(int(number[1])) if number else b"\n"


def _too_long(number: int) -> bytes:
    error = f'"error":{{"code":-32603,"message":"the result has more than {LINE_BYTES >> 20} MiB"}}'
    return f'{{"jsonrpc":"2.0","id":{number},{error}}}'.encode()


def _parse(line: bytes) -> "SessionMessage | Exception":
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(
    process: asyncio.subprocess.Process,
    leaving: "MemoryObjectReceiveStream[SessionMessage]",
    arriving: "MemoryObjectSendStream[SessionMessage | Exception]",
) -> None:
    assert process.stdin is not None
    try:
        async for message in leaving:
            process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        arriving.close()  # the server has closed its input: the session sees that the connection has ended


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, then send SIGTERM and SIGKILL to it and its children if it does not end."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        for _ in range(int(_GRACE_SECONDS / _POLL_SECONDS)):
            if process.returncode is not None:  # not `wait`: that waits for children that hold the pipes, too
                break
            await asyncio.sleep(_POLL_SECONDS)
        else:
            if number is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            continue
        break
    cast(Any, process)._transport.close()  # the pipes, which a child of the server may hold open
