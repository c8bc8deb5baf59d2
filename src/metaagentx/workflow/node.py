"""The one thing all parts of a workflow have in common: they turn a `Context` into a `Message`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from math import inf

from .messages import Context, Message, WorkflowError, WorkflowTooLarge
from .runtime import current_session, ignore_unknown, run_to_end
from .structure import CallsOf, NodeInfo, inspect_workflow


class WorkflowNode:
    """Base of all nodes. A node of your own needs a `name` and a `process(context)` that returns a Message.

    If `process` is async it may `await ask(node, context)` for other nodes; a plain one can call `node.run(question)`.
    """

    name: str

    @ignore_unknown
    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise WorkflowError(f"the name of a {type(self).__name__} must be a str, not {type(name).__name__}")
        self.name = name

    def process(self, context: Context) -> Message | Awaitable[Message]:
        """Do this node's work; leave the context as it is."""
        raise WorkflowError(f"{type(self).__name__} has no process method")

    @ignore_unknown
    def run(self, question: str, initial_state: Mapping[str, object] | None = None) -> Message:
        """Run this node alone on a question and return its message."""
        if not isinstance(question, str):
            raise WorkflowError(f"the question must be a str, not {type(question).__name__}")
        session = current_session()
        if not session.depth:
            try:
                session.report_structure(inspect_workflow(self).check())
            except WorkflowTooLarge as error:
                session.refuse(str(error))
                raise
        return run_to_end(ask(self, Context(question, state=dict(initial_state or {}))))

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        """Return what is known of this node: nothing, for a node that a script defines itself."""
        return NodeInfo("custom", inf)


async def ask(node: WorkflowNode, context: Context) -> Message:
    """Return a node's message for a context, from within another node."""
    result = node.process(context)
    message = await result if isinstance(result, Awaitable) else result
    if not isinstance(message, Message):
        raise WorkflowError(f"{node.name}: process must return a Message, not {type(message).__name__}")
    return message


def checked_node(owner: str, node: object) -> WorkflowNode:
    """Return the node, or raise an error that names what was given instead."""
    if not isinstance(node, WorkflowNode):
        raise WorkflowError(f"{owner} needs a node such as AgentNode, not {type(node).__name__}")
    return node


def checked_nodes(owner: str, nodes: Iterable[object]) -> list[WorkflowNode]:
    """Return the nodes, of which there must be at least one."""
    checked = [checked_node(owner, node) for node in nodes]
    if not checked:
        raise WorkflowError(f"{owner} needs at least one agent")
    return checked


def checked_count(owner: str, name: str, value: object, least: int = 1) -> int:
    """Return a whole number that is at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise WorkflowError(f"{owner}: {name} must be a whole number of at least {least}, not {value!r}")
    return value
