"""The one thing all parts of a workflow have in common: they turn a `Context` into a `Message`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from .messages import Context, Message, WorkflowError
from .outline import Outline
from .runtime import drive


class WorkflowNode:
    """Base of all nodes. A node of your own needs a `name` and a `process(context)` that returns a Message.

    If `process` is async it may `await ask(node, context)` for other nodes; a plain one can call `node.run(question)`.
    """

    name: str

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise WorkflowError(f"the name of a {type(self).__name__} must be a str, not {type(name).__name__}")
        self.name = name

    def process(self, context: Context) -> Message | Awaitable[Message]:
        """Do this node's work; leave the context as it is."""
        raise WorkflowError(f"{type(self).__name__} has no process method")

    def run(self, question: str, initial_state: Mapping[str, object] | None = None) -> Message:
        """Run this node alone on a question and return its message."""
        if not isinstance(question, str):
            raise WorkflowError(f"the question must be a str, not {type(question).__name__}")
        return drive(ask(self, Context(question, state=dict(initial_state or {}))))

    def outline(self) -> Outline:
        """What this node consists of and how many model calls it can make."""
        known: dict[int, Outline] = {}

        def outline_of(node: WorkflowNode) -> Outline:
            # A node may stand in many places: each is looked at once.
            if id(node) not in known:
                known[id(node)] = node._outline(outline_of)
            return known[id(node)]

        return outline_of(self)

    def _outline(self, outline_of: Callable[[WorkflowNode], Outline]) -> Outline:
        """The outline from those of the parts; of a node that a script makes itself, nothing is known."""
        return Outline("custom", self.name, None)


OutlineOf: TypeAlias = Callable[[WorkflowNode], Outline]


async def ask(node: WorkflowNode, context: Context) -> Message:
    """A node's message for a context, from within another node."""
    result = node.process(context)
    message = await result if isinstance(result, Awaitable) else result
    if not isinstance(message, Message):
        raise WorkflowError(f"{node.name}: process must return a Message, not {type(message).__name__}")
    return message


def checked_node(owner: str, node: object) -> WorkflowNode:
    """The node, or an error that says what stands in its place."""
    if not isinstance(node, WorkflowNode):
        raise WorkflowError(f"{owner} needs a node such as AgentNode, not {type(node).__name__}")
    return node


def checked_nodes(owner: str, nodes: Iterable[object]) -> list[WorkflowNode]:
    """At least one node, and nothing but nodes."""
    found = [checked_node(owner, node) for node in nodes]
    if not found:
        raise WorkflowError(f"{owner} needs at least one agent")
    return found


def checked_count(owner: str, name: str, value: object, least: int = 1) -> int:
    """A whole number that is not too small."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise WorkflowError(f"{owner}: {name} must be a whole number of at least {least}, not {value!r}")
    return value
