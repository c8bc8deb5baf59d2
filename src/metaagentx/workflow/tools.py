"""Tools an agent may use. Whatever goes wrong in a tool is returned to the model as text and does not end the run.

A script defines tools of its own with `ToolRegistry.register`. `use` takes those that the operator offers: they run on
the host, which checks their arguments.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .inputs import TOOLS_INPUT, host_input
from .messages import WorkflowError
from .protocol import JSON, ToolUse
from .runtime import PythonOutcome, call_tool, ignore_unknown, run_python

MAX_OUTPUT_CHARACTERS = 4000
MAX_USES_PER_REPLY = 8
MAX_ARGUMENT_CHARACTERS = 200_000
"""Longer arguments of an offered tool are refused before they are sent. The limit of the recipe is the host's."""
MAX_DESCRIPTION_CHARACTERS = 1000
"""How much of the description of an offered tool is told."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function an agent may call, and how it is described to the agent."""

    name: str
    func: Callable[..., object]
    description: str
    parameters: Mapping[str, object]
    offered: bool = False
    """It runs on the host, which bounds its output."""

    def argument_names(self) -> list[str]:
        properties = self.parameters.get("properties", self.parameters)
        return [str(name) for name in properties] if isinstance(properties, Mapping) else []


class ToolRegistry:
    """The tools of an agent. Pass it as `AgentNode(..., tool_registry=registry)`; an empty one means no tools.

    A ```python block an agent writes goes to the first tool that has an argument named `code`; without such a
    tool the block is plain text and is not run.
    """

    @ignore_unknown
    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @ignore_unknown
    def register(
        self,
        name: str,
        func: Callable[..., object],
        description: str = "",
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        """Add a tool. `func` gets the arguments by name and returns text, or anything `str` makes text of.

        `parameters` is a JSON schema, or {argument: description}; without it the function's own signature is used.
        """
        if not isinstance(name, str) or not name or not callable(func):
            raise WorkflowError("register needs the tool's name and a function")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise WorkflowError(
                f"{name}: parameters must be a dict, a JSON schema or one description for each argument"
            )
        described = _signature(func) if parameters is None else parameters
        self._tools[name] = Tool(name, func, description or inspect.cleandoc(func.__doc__ or ""), described)

    @ignore_unknown
    def register_python(self, timeout: float = 10.0) -> None:
        """Add the tool `python`, which runs code in a process of its own and returns what it printed."""

        async def python(code: str, stdin: str = "") -> str:
            return describe_outcome(await run_python(str(code), str(stdin), timeout))

        self.register("python", python, "Runs Python code and returns what it prints.", {"code": "the source"})

    def use(self, *names: str) -> None:
        """Add tools that the operator offers."""
        described = host_input(TOOLS_INPUT, list[JSON]())
        offered = {str(tool.get("name")): tool for tool in described if isinstance(tool, dict)}
        for name in names:
            tool = offered.get(name) if isinstance(name, str) else None
            if tool is None:
                known = f"offered are: {', '.join(offered)}" if offered else "no tools are offered"
                raise WorkflowError(f"there is no tool {name!r}; {known}")
            self._tools[name] = _offered_tool(tool)

    def list_tools(self) -> list[str]:
        return list(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def python_tool(self) -> Tool | None:
        """The tool that runs ```python blocks."""
        return next((tool for tool in self._tools.values() if "code" in tool.argument_names()), None)

    def describe(self) -> str:
        """Return what an agent is told about its tools."""
        lines = ["You have tools:"]
        for tool in self._tools.values():
            lines.append(describe_tool(tool))
        lines.append(
            'To use one, write <tool_call></tool_call> around a JSON object with its "name" and "arguments", then stop '
            "and wait for the output."
        )
        if self.python_tool:
            lines.append(
                f"A fenced python block is run by {self.python_tool.name} in the same way: print what you need."
            )
        return "\n".join(lines)

    async def answer(self, uses: Iterable[ToolUse]) -> str:
        """Run tool uses one after the other and return their outputs as one text for the model."""
        pending = list(uses)
        texts = [await self._run(use) for use in pending[:MAX_USES_PER_REPLY]]
        if len(pending) > MAX_USES_PER_REPLY:
            texts.append(f"Only the first {MAX_USES_PER_REPLY} tool uses of a reply are run.")
        return "\n\n".join(texts)

    async def _run(self, use: ToolUse) -> str:
        tool = self.python_tool if use.name is None else self._tools.get(use.name)
        if use.problem:
            return f"Error: {use.problem}"
        if tool is None:
            return f"Error: there is no tool {use.name!r}. Tools: {', '.join(self._tools)}."
        output = await _call(tool, use.arguments)
        return f"Output of {tool.name}:\n{output if tool.offered else shorten(output)}"


def use(*names: str) -> ToolRegistry:
    """Return a registry with tools that the operator offers, by their names."""
    registry = ToolRegistry()
    registry.use(*names)
    return registry


def _offered_tool(described: Mapping[str, JSON]) -> Tool:
    """Return a tool that is called on the host."""
    name, parameters = str(described.get("name")), described.get("parameters")

    async def call(**arguments: JSON) -> str:
        text = json.dumps(arguments)
        if len(text) > MAX_ARGUMENT_CHARACTERS:
            return f"Error: the arguments of {name} have {len(text)} characters, too many for a tool."
        return await call_tool(name, text)

    schema = parameters if isinstance(parameters, Mapping) else {}
    return Tool(name, call, str(described.get("description")), schema, offered=True)


def describe_tool(tool: Tool) -> str:
    """Return the line of a tool in what an agent is told."""
    description = tool.description
    arguments = ", ".join(tool.argument_names())
    if tool.offered:
        description = shorten(" ".join(description.split()), MAX_DESCRIPTION_CHARACTERS)
        arguments = ", ".join(_typed_arguments(tool.parameters))
    return f"- {tool.name}({arguments}): {description}".rstrip(": ")


def describe_offered(tools: Iterable[Mapping[str, JSON]]) -> list[str]:
    """Return a line for each offered tool, the same for Designers and agents."""
    return [describe_tool(_offered_tool(tool)) for tool in tools]


def _typed_arguments(parameters: Mapping[str, object]) -> list[str]:
    """Return the arguments of a JSON schema with their types; optional ones end on a question mark."""
    properties, required = parameters.get("properties"), parameters.get("required")
    shown = []
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        optional = "" if isinstance(required, list) and name in required else "?"
        shown.append(f"{name}{optional}: {kind}" if isinstance(kind, str) else f"{name}{optional}")
    return shown


async def _call(tool: Tool, arguments: Mapping[str, JSON]) -> str:
    try:
        result = tool.func(**arguments)
        text = str(await result if isinstance(result, Coroutine) else result)
    except WorkflowError:
        raise  # the run itself cannot continue: its budget is used up
    except Exception as error:  # noqa: BLE001  a script's tool may raise anything, and the model is to see it
        return f"Error: {type(error).__name__}: {error}"
    return text if text.strip() else "(no output)"


def describe_outcome(outcome: PythonOutcome) -> str:
    """Return a run of Python as a model reads it."""
    parts = [outcome.stdout.rstrip(), outcome.stderr.rstrip()]
    if outcome.timed_out:
        parts.append("The time limit was reached.")
    elif outcome.returncode:
        parts.append(f"Exit code {outcome.returncode}.")
    return "\n".join(part for part in parts if part)


def shorten(text: str, limit: int = MAX_OUTPUT_CHARACTERS) -> str:
    """Keep the beginning and the end of a long text, and say how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _signature(func: Callable[..., Any]) -> dict[str, object]:
    try:
        return dict.fromkeys(inspect.signature(func).parameters, "")
    except (TypeError, ValueError):  # some built-in functions have none
        return {}
