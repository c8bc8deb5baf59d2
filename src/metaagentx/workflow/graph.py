"""Agents as the nodes of a graph: branches run side by side, joins wait, cycles are bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .flow import Condition, Flow
from .messages import Context, Message, WorkflowError
from .node import WorkflowNode, ask, checked_count, checked_node
from .runtime import gather, ignore_unknown
from .structure import CallsOf, NodeInfo

END = "END"
Routing: TypeAlias = "Callable[[Context], str | Sequence[str] | None]"


@dataclass(slots=True)
class _Exits:
    """The edges out of a node, with an optional condition, and the functions that name the next node."""

    edges: list[tuple[str, Condition | None]] = field(default_factory=list)
    routings: list[tuple[Routing, tuple[str, ...] | None]] = field(default_factory=list)


class AgentGraph(Flow):
    """Nodes and edges, cycles included. It starts at the entry point and follows every edge whose condition holds.

    Nodes that are due together run concurrently; a node that several branches lead to waits for them. It ends after a
    finish point, when no edge is left to follow, or after `max_steps` node runs; the last message is the result.
    """

    @ignore_unknown
    def __init__(self, name: str = "agent_graph", max_steps: int = 50) -> None:
        super().__init__(name)
        self.max_steps = checked_count(name, "max_steps", max_steps)
        self._nodes: dict[str, WorkflowNode] = {}
        self._exits: dict[str, _Exits] = {}
        self._entry: str | None = None
        self._finish: set[str] = set()

    @ignore_unknown
    def add_node(self, name: str, node: WorkflowNode) -> AgentGraph:
        """Add a node under a name. The first one is the entry point unless another is set."""
        if not isinstance(name, str):
            raise WorkflowError(f"{self.name}: add_node needs a name first: add_node('solve', solver)")
        self._nodes[name] = checked_node(self.name, node)
        self._exits.setdefault(name, _Exits())
        return self

    def add_edge(self, source: str, target: str, condition: Condition | None = None) -> AgentGraph:
        """After `source`, run `target`, if `condition(context)` is true. The target `END` leads nowhere."""
        self._checked(source, ends=False)
        self._exits[source].edges.append((self._checked(target), condition))
        return self

    def add_conditional_edges(
        self, source: str, routing_func: Routing, targets: Sequence[str] | None = None
    ) -> AgentGraph:
        """After `source`, run the node that `routing_func(context)` names; `END` or None ends this branch.

        `targets` may list the names it can return, which makes the graph's bounds tighter.
        """
        self._checked(source, ends=False)
        self._exits[source].routings.append((routing_func, None if targets is None else tuple(targets)))
        return self

    def set_entry_point(self, node_name: str) -> AgentGraph:
        """Start here."""
        self._entry = self._checked(node_name, ends=False)
        return self

    def set_finish_point(self, node_name: str) -> AgentGraph:
        """Stop after this node; there may be several."""
        self._finish.add(self._checked(node_name, ends=False))
        return self

    async def process(self, context: Context) -> Message:
        inner = context.view()
        forward = self._forward_edges()
        reach = {name: _reachable(name, forward) for name in self._nodes}
        due = [self._start()]
        steps_left = self.max_steps
        while due and steps_left:
            # A join waits while a branch that leads to it is due.
            now = [name for name in due if not any(name in reach[other] for other in due)][:steps_left]
            steps_left -= len(now)
            messages = await self._run_together(now, inner)
            finished = [message for name, message in zip(now, messages, strict=True) if name in self._finish]
            if finished:
                return finished[-1]
            waiting = [name for name in due if name not in now]
            due = list(dict.fromkeys(waiting + [target for name in now for target in self._next(name, inner)]))
        return inner.messages[-1]

    async def _run_together(self, names: Sequence[str], context: Context) -> list[Message]:
        before = dict(context.state)
        branches = [context.fork() for _ in names]
        messages = await gather([ask(self._nodes[n], branch) for n, branch in zip(names, branches, strict=True)])
        for branch, message in zip(branches, messages, strict=True):
            context.add_message(message)
            changed = {k: v for k, v in branch.state.items() if k not in before or before[k] is not v}
            context.state.update(changed)
        return messages

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        targets = {name: self._targets(name) for name in self._nodes}
        counts = [calls_of(node) for node in self._nodes.values()]
        cyclic = any(name in _reachable(name, targets) for name in targets)
        bounded_by_steps = cyclic or len(targets) > self.max_steps
        calls = self.max_steps * max(counts) if bounded_by_steps else sum(counts)
        edges = [(self._nodes[name], self._nodes[target]) for name in targets for target in targets[name]]
        return NodeInfo("graph", calls, list(self._nodes.values()), edges, self.max_steps if cyclic else 1)

    def _start(self) -> str:
        if not self._nodes:
            raise WorkflowError(f"{self.name} has no node: call add_node(name, node) first")
        return self._entry or next(iter(self._nodes))

    def _checked(self, name: str, ends: bool = True) -> str:
        if name not in self._nodes and not (ends and name == END):
            known = ", ".join(self._nodes) or "none yet"
            raise WorkflowError(f"{self.name} has no node {name!r}: add it first. Nodes: {known}")
        return name

    def _next(self, name: str, context: Context) -> list[str]:
        exits = self._exits[name]
        targets = [target for target, condition in exits.edges if condition is None or condition(context)]
        for routing, listed in exits.routings:
            chosen = routing(context)
            for target in [chosen] if isinstance(chosen, str) else chosen or []:
                if listed is not None and target not in (*listed, END):
                    raise WorkflowError(f"{self.name}: {name} leads to {target!r}, which is not among its targets")
                targets.append(self._checked(target))
        return [target for target in targets if target != END]

    def _targets(self, name: str, guess: bool = True) -> list[str]:
        """Return where a node may lead. `guess`: a routing function that lists no targets may lead anywhere."""
        targets = [target for target, _ in self._exits[name].edges]
        for _, listed in self._exits[name].routings:
            targets += list(self._nodes if guess else ()) if listed is None else listed
        return [target for target in dict.fromkeys(targets) if target in self._nodes]

    def _forward_edges(self) -> dict[str, list[str]]:
        """Return where nodes lead, without edges that close a cycle and routing functions that list no targets."""
        forward: dict[str, list[str]] = {name: [] for name in self._nodes}
        path = [(self._start(), iter(self._targets(self._start(), guess=False)))]
        on_path, done = {self._start()}, set[str]()
        while path:
            name, targets = path[-1]
            target = next((target for target in targets if target not in on_path), None)
            if target is None:
                path.pop()
                on_path.discard(name)
                done.add(name)
                continue
            forward[name].append(target)
            if target not in done:
                path.append((target, iter(self._targets(target, guess=False))))
                on_path.add(target)
        return forward


def _reachable(name: str, targets: Mapping[str, Sequence[str]]) -> set[str]:
    reachable: set[str] = set()
    pending = list(targets[name])
    while pending:
        target = pending.pop()
        if target not in reachable:
            reachable.add(target)
            pending += targets[target]
    return reachable
