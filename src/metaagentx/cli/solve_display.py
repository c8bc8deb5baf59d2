"""What a terminal shows while a question is answered: the design as it is written, then agents and tools side by side.

Everything that a model or a script wrote is shown as plain text: no markup, no control characters.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from ..system.events import CallDone, CallStarted, CallText, DesignReady, DesignText, Event, ToolOutput
from .terminal_text import without_controls

if TYPE_CHECKING:
    from ..system import Result
    from ..workflow.structure import Structure

_SHOWN_LINES = 12
_PANEL_WIDTH = 46
_SHOWN_CALLS = 8


@dataclass(slots=True)
class _Shown:
    """One panel: what an agent says, or what its tools returned."""

    title: str
    text: str = ""
    color: str = "yellow"


class Display:
    """A live view on a terminal; elsewhere nothing."""

    def __init__(self, enabled: bool) -> None:
        self._live = Live(console=Console(), refresh_per_second=8, transient=False) if enabled else None
        self._designs: dict[tuple[int, int], str] = {}
        self._faults: dict[tuple[int, int], str] = {}
        self._calls: dict[tuple[int, int, str], _Shown] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: Event) -> None:
        """Take one event."""
        if self._live is None:
            return
        match event:
            case DesignText():
                key = (event.design, event.attempt)
                self._designs[key] = self._designs.get(key, "") + event.text
            case DesignReady(fault=fault) if fault is not None:
                self._faults[event.design, event.attempt] = fault.message
            case CallStarted(design, call, agent):
                self._calls[design, call, "call"] = _Shown(agent)
            case CallText(design, call, agent, text):
                self._calls.setdefault((design, call, "call"), _Shown(agent)).text += text
            case CallDone(design, call, agent, text):
                self._calls[design, call, "call"] = _Shown(agent, text, "green")
            case ToolOutput(design, call, agent, text):
                self._calls[design, call, "tools"] = _Shown(f"tools of {agent}", text, "cyan")
        self._live.update(self._view())

    def finish(self, result: "Result") -> None:
        """Show the workflow that was run, as a drawing."""
        if self._live is None:
            return
        structures = [design.structure for design in result.rollout.designs if design.structure is not None]
        drawings = [draw_structure(structure) for structure in structures[-1:]]
        usage = f"{result.usage.calls} calls, {result.usage.completion_tokens} tokens, {result.seconds:.1f} s"
        self._live.update(Group(self._view(), *drawings, Text(usage, style="dim")))

    def _view(self) -> Group:
        parts = [
            Panel(_plain(_last_lines(text)), title=f"design {design + 1}, attempt {attempt + 1}", title_align="left")
            for (design, attempt), text in self._designs.items()
        ]
        faults = [_plain(f"cannot run: {message}", "red") for message in self._faults.values()]
        panels = [
            Panel(
                _plain(_last_lines(shown.text)),
                title=_plain(shown.title[:_PANEL_WIDTH]),
                width=_PANEL_WIDTH,
                border_style=shown.color,
            )
            for shown in list(self._calls.values())[-_SHOWN_CALLS:]
        ]
        return Group(*parts, *faults, Columns(panels))


def draw_structure(structure: "Structure") -> Tree:
    """Return a drawing of a workflow: its nodes in the order they run, each with its tools and rounds."""
    root = Tree(_plain(structure.pattern or "workflow", "bold"))
    inner = {child for node in structure.nodes for child in node.children}

    def add(tree: Tree, index: int) -> None:
        node = structure.nodes[index]
        tools = f" [{', '.join(node.tools)}]" if node.tools else ""
        rounds = f" x{node.rounds}" if node.rounds > 1 else ""
        branch = tree.add(_plain(f"{node.name} ({node.kind}){tools}{rounds}"))
        for child in node.children:  # always greater than the node's own index, so that this ends
            add(branch, child)

    for index in range(len(structure.nodes)):
        if index not in inner:
            add(root, index)
    return root


def _plain(text: str, style: str = "") -> Text:
    return Text(without_controls(text), style=style)


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])
