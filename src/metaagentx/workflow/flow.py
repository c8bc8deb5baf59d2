"""Workflows: nodes in order, with conditions, in loops. A workflow is a node too, so that workflows nest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from . import runtime
from .messages import Context, Message, WorkflowError
from .node import WorkflowNode, ask, checked_count, checked_node
from .runtime import ignore_unknown
from .structure import CallsOf, NodeInfo, chain

Condition: TypeAlias = "Callable[[Context], bool]"


class Flow(WorkflowNode):
    """A node whose `run` answers the task: the message of the outermost, last run is the final answer."""

    @ignore_unknown
    def run(self, question: str, initial_state: Mapping[str, object] | None = None) -> Message:
        """Run on a question. The message returned is the final answer, unless another run follows."""
        message = super().run(question, initial_state)
        runtime.finish(message)
        return message


class Workflow(Flow):
    """Nodes in order: each sees the question and what the earlier ones delivered; the last message is the result.

    Inside another workflow it counts as one node, of which the others see only the result.
    """

    @ignore_unknown
    def __init__(self, name: str = "workflow") -> None:
        super().__init__(name)
        self._steps: list[tuple[WorkflowNode, Condition | None]] = []

    @ignore_unknown
    def add_node(self, node: WorkflowNode, condition: Condition | None = None) -> Workflow:
        """Add a node at the end; with a condition, it runs only if `condition(context)` is true when its turn comes."""
        self._steps.append((checked_node(self.name, node), condition))
        return self

    def add_nodes(self, nodes: Iterable[WorkflowNode]) -> Workflow:
        """Add several nodes at the end."""
        for node in nodes:
            self.add_node(node)
        return self

    async def process(self, context: Context) -> Message:
        inner = context.view()
        await self._once(inner)
        return self._result(inner)

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        children = [node for node, _ in self._steps]
        return NodeInfo("sequence", sum(map(calls_of, children)), children, chain(children))

    async def _once(self, context: Context) -> None:
        for node, condition in self._steps:
            if condition is None or condition(context):
                context.add_message(await ask(node, context.view()))

    def _result(self, inner: Context) -> Message:
        if not inner.messages:
            reason = "all its conditions were false" if self._steps else "it has none: call add_node first"
            raise WorkflowError(f"no node of {self.name} ran: {reason}")
        return inner.messages[-1]


class ConditionalWorkflow(Workflow):
    """A workflow whose nodes have conditions: `add_node(node, condition)`; a node without one always runs."""

    @ignore_unknown
    def __init__(self, name: str = "conditional_workflow") -> None:
        super().__init__(name)


class LoopWorkflow(Workflow):
    """Its nodes in order, then again while the loop condition holds, at most `max_iterations` times in all."""

    @ignore_unknown
    def __init__(self, name: str = "loop_workflow", max_iterations: int = 10) -> None:
        super().__init__(name)
        self.max_iterations = checked_count(name, "max_iterations", max_iterations)
        self._loop_condition: Condition | None = None

    def set_loop_condition(self, condition: Condition) -> LoopWorkflow:
        """Go on while `condition(context)` is true; it is asked after each iteration."""
        self._loop_condition = condition
        return self

    async def process(self, context: Context) -> Message:
        inner = context.view()
        for _ in range(self.max_iterations):
            await self._once(inner)
            if self._loop_condition and not self._loop_condition(inner):
                break
        return self._result(inner)

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        children, rounds = [node for node, _ in self._steps], self.max_iterations
        return NodeInfo("loop", rounds * sum(map(calls_of, children)), children, chain(children, rounds), rounds)
