"""All tools of a recipe, opened once for a run: `async with ToolBox.open(config) as box`."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from ..config import ToolsConfig
from ..errors import MetaAgentXError
from ..workflow.tools import shorten
from .functions import FunctionTool
from .servers import McpServer, check_command
from .spec import BadArguments, OfferedTool, ToolResult, ToolServerGone, ToolSpec

__all__ = ["ToolBox", "ToolResult", "ToolServerGone", "ToolSpec", "check_tools"]

_NAME = re.compile(r"[\w./-]{1,128}")
_RESERVED = "python"


def check_tools(config: ToolsConfig) -> None:
    """Check what can be checked without starting a server: functions are imported, commands are looked for."""
    _by_name(map(FunctionTool, config.functions))
    for command in config.mcp:
        check_command(command)


class ToolBox:
    """The tools that are offered. `specs` describes them, in the order of the recipe."""

    def __init__(self, config: ToolsConfig, tools: Iterable[OfferedTool]) -> None:
        """Take opened tools; raise MetaAgentXError if two have the same name."""
        self.config = config
        self._tools = _by_name(tools)
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in self._tools.values())

    @classmethod
    @asynccontextmanager
    async def open(cls, config: ToolsConfig) -> AsyncIterator[Self]:
        """Import the functions and start the servers; end the servers when the block ends."""
        tools: list[OfferedTool] = [FunctionTool(address) for address in config.functions]
        async with AsyncExitStack() as stack:
            servers = [McpServer(command) for command in config.mcp]
            for server in servers:
                stack.push_async_callback(server.close)
            opened = await asyncio.gather(*(server.open() for server in servers), return_exceptions=True)
            for failure in opened:
                if failure is not None:
                    raise failure
            yield cls(config, [*tools, *(tool for server in servers for tool in server.tools)])

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Run a tool and return its text. `arguments` is a JSON object as text.

        A name that is not offered raises KeyError. ToolServerGone means that the tool could not be run; the next call
        starts its server again.
        """
        tool, config = self._tools[name], self.config
        if len(arguments) > config.argument_characters:
            size = f"{len(arguments)} characters, expected at most {config.argument_characters}"
            return ToolResult(f"Error: the arguments of {name} have {size}.", failed=True)
        try:
            result = await tool.call(arguments, config.seconds)
        except BadArguments as error:
            return ToolResult(f"Error: {name} was not run: {error}", failed=True)
        # Half of a character cannot be sent into the sandbox.
        text = result.text.encode("utf-8", "replace").decode()
        return ToolResult(shorten(text, config.result_characters), result.failed)


def _by_name(tools: Iterable[OfferedTool]) -> dict[str, OfferedTool]:
    by_name: dict[str, OfferedTool] = {}
    for tool in tools:
        name = tool.spec.name
        if not _NAME.fullmatch(name):
            raise MetaAgentXError(
                f"tools: invalid name {name!r:.80}, expected letters, digits and any of _ . / -: rename the tool"
            )
        if name == _RESERVED:
            raise MetaAgentXError(f"tools: the name {name!r} belongs to the workflow language: rename the tool")
        if name in by_name:
            raise MetaAgentXError(f"tools: two tools have the name {name!r}: rename one, or remove it from the recipe")
        by_name[name] = tool
    return by_name
