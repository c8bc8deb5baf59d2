"""Tools of an MCP server that is started as a command and spoken to over its standard input and output.

One task of ours owns each server: the context managers of the SDK must be entered and left in the same task. A server
that ended is started again with the next call; callers at the same time share that start. What a server offers is read
once, when it is first started, so that prompts do not change within a run.

A server that ends during a call is started again, and the call is repeated while no other is under way. If the server
ends once more, its arguments may be the cause: the agent reads that the call failed. So no arguments can bring about
an infrastructure fault, and none of one agent can spoil the calls of others. A server that cannot be started is one.
"""

import asyncio
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from ..errors import MetaAgentXError
from ..types import JSON
from .spec import BadArguments, ToolResult, ToolServerGone, ToolSpec, parse_arguments
from .stdio import server_streams

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult, Tool

START_SECONDS = 30.0
"""How long a server may take until it has listed its tools."""
_STOP_SECONDS = 10.0
_PING_SECONDS = 5.0
"""A server that is silent for this long after a call that timed out hangs as a whole, and is started again."""
_MAX_PAGES = 100
_SHOWN_CHARACTERS = 300
_STDERR_BYTES = 1 << 20
NEEDS = "tools.mcp needs the package mcp: pip install 'metaagentx[tools]'"


def check_command(command: str) -> list[str]:
    """Return the words of a command; raise MetaAgentXError if it cannot be started or the SDK is missing."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MetaAgentXError(f"tools.mcp: {command!r} is not a command ({error}): correct the quotes") from None
    if not words or shutil.which(words[0]) is None:
        name = words[0] if words else ""
        raise MetaAgentXError(
            f"tools.mcp: {command!r} cannot be started: there is no program {name!r}: install it, or write its path"
        )
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MetaAgentXError(NEEDS) from None
    return words


class McpServer:
    """One server process and the tools that it listed."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.tools: list[McpTool] = []
        self._words = check_command(command)
        self._session: ClientSession | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._starting: asyncio.Task[list[Tool]] | None = None
        self._closed = False
        self.calls = SharedOrAlone()
        self._stderr = cast(TextIO, tempfile.TemporaryFile("a+", errors="replace"))  # noqa: SIM115

    async def open(self) -> None:
        """Start the server and read what it offers; raise MetaAgentXError if that fails."""
        try:
            self.tools = [McpTool(self, tool) for tool in await self._started()]
        except ToolServerGone as error:
            raise MetaAgentXError(
                f"tools.mcp: {error}: run the command by itself to see why, it should wait for input"
            ) from None

    async def session(self) -> "ClientSession":
        """Return the connection, after starting the server again if it has ended."""
        while self._session is None:
            if self._closed:
                raise ToolServerGone(f"the server {self.command!r} was closed")
            await self._started()
        return self._session

    def lose(self, session: "ClientSession") -> None:
        """Note that a connection is of no use any more. A newer one stays."""
        if self._session is session:
            self._session = None

    async def close(self) -> None:
        """End the server."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        await self._end_owner()
        self._stderr.close()

    async def _started(self) -> "list[Tool]":
        """Start the server; callers at the same time share the start, and its failure."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._end_start)
        return await asyncio.shield(self._starting)  # a caller that is canceled must not stop it for the others

    def _end_start(self, starting: "asyncio.Task[list[Tool]]") -> None:
        self._starting = None
        if not starting.cancelled():
            starting.exception()  # it has been seen, even if no caller waits any more

    async def _start(self) -> "list[Tool]":
        await self._end_owner()
        self._shorten_stderr(0)
        self._stop = asyncio.Event()
        ready: asyncio.Future[tuple[ClientSession, list[Tool]]] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready, self._stop), name=f"tool server {self.command}")
        started: set[asyncio.Future[Any]] = {ready, self._owner}
        done, _ = await asyncio.wait(started, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if ready in done:
            self._session, tools = ready.result()
            return tools
        reason = self._reason() if done else f"it has not listed its tools after {START_SECONDS:g} s"
        self._owner.cancel()  # it does not wait for the word to stop yet
        await self._end_owner()
        raise ToolServerGone(f"the server {self.command!r} did not start ({reason})")

    async def _own(self, ready: "asyncio.Future[tuple[ClientSession, list[Tool]]]", stop: asyncio.Event) -> None:
        """Hold the connection from start to end, in one task."""
        from mcp import ClientSession

        logging.getLogger("mcp").addHandler(logging.NullHandler())  # or its tracebacks go to the terminal
        # The server is the operator's: it gets the environment as a command of theirs would.
        streams = server_streams(self._words, os.environ, self._stderr)
        async with streams as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
            await session.initialize()
            tools = await _list_tools(session)
            if not ready.done():
                ready.set_result((session, tools))
            await stop.wait()

    async def _end_owner(self) -> None:
        self._session = None
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._stop.set()
        await asyncio.wait({owner}, timeout=_STOP_SECONDS)
        if not owner.done():
            owner.cancel()
            await asyncio.wait({owner}, timeout=_STOP_SECONDS)
        if owner.done() and not owner.cancelled():
            owner.exception()  # it has been seen: how a server ends does not matter

    def _reason(self) -> str:
        """Return why the server did not start: the last line of its standard error, or the exception."""
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        if lines:
            return lines[-1][:_SHOWN_CHARACTERS]
        error: BaseException | None = None
        if self._owner is not None and self._owner.done() and not self._owner.cancelled():
            error = self._owner.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return str(error or "it ended")[:_SHOWN_CHARACTERS] or type(error).__name__

    def shorten_stderr(self) -> None:
        """Keep what the server writes to standard error from filling the disk."""
        self._shorten_stderr(_STDERR_BYTES)

    def _shorten_stderr(self, limit: int) -> None:
        if os.fstat(self._stderr.fileno()).st_size > limit:
            os.ftruncate(self._stderr.fileno(), 0)  # the file is open for appending: the server continues at 0


async def _list_tools(session: "ClientSession") -> "list[Tool]":
    from mcp.types import PaginatedRequestParams

    page = await session.list_tools()
    tools = list(page.tools)
    for _ in range(_MAX_PAGES):
        if page.next_cursor is None:
            break
        page = await session.list_tools(params=PaginatedRequestParams(cursor=page.next_cursor))
        tools += page.tools
    return tools


class McpTool:
    """One tool of a server."""

    def __init__(self, server: McpServer, tool: "Tool") -> None:
        """Take the tool as the server listed it; raise MetaAgentXError if its schema is not one."""
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry

        self._server = server
        self.spec = ToolSpec(tool.name, tool.description or tool.title or "", tool.input_schema)
        schema = tool.input_schema
        kind = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise MetaAgentXError(
                f"tools.mcp: {server.command!r}: the schema of {tool.name} is invalid ({error.message[:200]}): correct "
                "it in the server"
            ) from None
        self._validator: Any = kind(schema, registry=Registry())  # an empty registry: no reference is downloaded

    def check(self, arguments: str) -> None:
        """Raise BadArguments if the arguments do not fit the schema."""
        self._parse(arguments)

    async def call(self, arguments: str, seconds: float) -> ToolResult:
        """Send the call to the server; raise ToolServerGone if it cannot be started."""
        values = dict(self._parse(arguments))
        async with self._server.calls.shared():
            result = await self._send(values, seconds)
        if result is None:
            await self._server.session()  # callers at the same time share the start, also one that fails
            async with self._server.calls.alone():
                result = await self._send(values, seconds)
        return result or ToolResult(f"Error: {self.spec.name} ended its server, twice.", failed=True)

    async def _send(self, values: dict[str, JSON], seconds: float) -> ToolResult | None:
        """Send the call once; return None if the server ended meanwhile."""
        session = await self._server.session()
        name = self.spec.name
        # The timeout of the SDK begins when the server has read the request, which it may never do.
        sending = asyncio.create_task(session.call_tool(name, values))
        try:
            await asyncio.wait({sending}, timeout=seconds)
            if not sending.done():
                sending.cancel()
                await self._check_alive(session)
                return ToolResult(f"Error: {name} was not done after {seconds:g} s.", failed=True)
            return await self._read(sending, session)
        finally:
            sending.cancel()
            self._server.shorten_stderr()

    async def _read(self, sending: "asyncio.Task[CallToolResult]", session: "ClientSession") -> ToolResult | None:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        try:
            result = sending.result()
        except MCPError as error:
            # Some servers use this code for errors of their own.
            if error.code == CONNECTION_CLOSED and not await self._check_alive(session):
                return None
            return ToolResult(f"Error: {error.message}", failed=True)
        except Exception as error:  # noqa: BLE001  a reply that is not what the protocol says is a failure of the tool
            return ToolResult(f"Error: {type(error).__name__}: {error}", failed=True)
        text = _content_text(result)
        return ToolResult(f"Error: {text}", failed=True) if result.is_error else ToolResult(text)

    async def _check_alive(self, session: "ClientSession") -> bool:
        """Return whether the server answers; let it be started again if not: the next call would not be done either."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        ping = asyncio.create_task(session.send_ping())
        try:
            await asyncio.wait({ping}, timeout=_PING_SECONDS)
            error = ping.exception() if ping.done() else TimeoutError()
        finally:
            ping.cancel()
        alive = error is None or (isinstance(error, MCPError) and error.code != CONNECTION_CLOSED)
        if not alive:
            self._server.lose(session)
        return alive

    def _parse(self, arguments: str) -> Mapping[str, JSON]:
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        values = parse_arguments(arguments)
        try:
            error = best_match(self._validator.iter_errors(values))
        except (Unresolvable, RecursionError) as failure:
            raise BadArguments(f"the schema cannot be checked: {type(failure).__name__}") from None
        if error is not None:
            path = ".".join(map(str, error.absolute_path))
            raise BadArguments(f"{path + ': ' if path else ''}{error.message}"[:_SHOWN_CHARACTERS])
        return values


class SharedOrAlone:
    """Lets calls run side by side, or one of them alone. A call that waits to be alone holds back those after it."""

    def __init__(self) -> None:
        self._running = 0
        self._door = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Wait until no call is alone, or waits to be."""
        async with self._door:
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no other call is under way; others wait for the end of this one."""
        async with self._door:
            await self._idle.wait()
            yield


def _content_text(result: "CallToolResult") -> str:
    """Return the text of a result; of other content its kind."""
    import json

    parts: list[str] = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", None) or getattr(resource, "text", None)
        parts.append(text if isinstance(text, str) else f"[{block.type}]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)
