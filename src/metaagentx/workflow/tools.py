"""Tools an agent may use. Whatever goes wrong in a tool is returned to the model as text and does not end the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .messages import WorkflowError
from .protocol import JSON, ToolUse
from .runtime import PythonOutcome, ignore_unknown, run_python

MAX_OUTPUT_CHARACTERS = 4000
MAX_USES_PER_REPLY = 8


@dataclass(frozen=True, slots=True)
class Tool:
    """A function an agent may call, and how it is described to the agent."""

    name: str
    func: Callable[..., object]
    description: str
    parameters: Mapping[str, object]

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
            arguments = ", ".join(tool.argument_names())
            lines.append(f"- {tool.name}({arguments}): {tool.description}".rstrip(": "))
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
        return f"Output of {tool.name}:\n{shorten(await _call(tool, use.arguments))}"


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
