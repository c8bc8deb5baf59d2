"""What a workflow consists of, as its real nodes describe it before the first model call.

`inspect_workflow` walks the nodes: it bounds the model calls, counts the agents and returns the `Structure` that
statistics and drawings use. The structure travels to the host with the first model call of a run. There it is untrusted
data: `parse_structure` reads it and `join_structures` combines those of the runs of one script. Calls that tools,
conditions and routing functions make by running agents themselves come on top of the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from .inputs import CALLS_INPUT, host_input
from .messages import WorkflowTooLarge
from .protocol import JSON

if TYPE_CHECKING:
    from .node import WorkflowNode

MAX_AGENTS = 16
MAX_CALLS = 64
"""Model calls of one execution, for runtime, manual and executor alike, unless a recipe sets `rollout.calls`."""

TOO_LARGE = "too_large"
"""The kind of the answer by which the runtime tells the host why it refused a workflow."""
MAX_REPORTS = 8
"""Structures that one execution reports."""
MAX_NODES = 64
MAX_LINKS = 512
"""Children, tools and edges together. A larger workflow is reported by its pattern alone."""
MAX_NAME = 100
PATTERNS = ("single", "reflection", "ensemble", "debate", "router", "mixed")
KINDS = ("agent", "ensemble", "reflection", "debate", "router", "sequence", "loop", "graph", "custom")
_TOOLS = "+tools"

CallsOf: TypeAlias = "Callable[[WorkflowNode], float]"
"""The most model calls that a node makes each time it runs; infinite if that is unknown."""


@dataclass(frozen=True, slots=True)
class StructureNode:
    """One agent, or a node made of others. `rounds`: how often its children run at most; of an agent, its turns."""

    kind: str
    name: str
    children: tuple[int, ...] = ()
    """Indices of nodes, all greater than its own; one that runs several times side by side is repeated."""
    tools: tuple[str, ...] = ()
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a workflow: its pattern, its nodes, the outermost first, and who hands on to whom among siblings.

    The pattern is `single`, `ensemble`, ..., with `+tools` where an agent has some.
    """

    pattern: str
    nodes: tuple[StructureNode, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, JSON]:
        """Return what `parse_structure` reads."""
        nodes: list[JSON] = [
            {"kind": n.kind, "name": n.name, "children": [*n.children], "tools": [*n.tools], "rounds": n.rounds}
            for n in self.nodes
        ]
        return {"pattern": self.pattern, "nodes": nodes, "edges": [[*edge] for edge in self.edges]}


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """How one node describes itself. `identity`: nodes that have the same one are drawn and counted as one."""

    kind: str
    calls: float
    children: Sequence[WorkflowNode] = ()
    edges: Iterable[tuple[WorkflowNode, WorkflowNode]] = ()
    rounds: int = 1
    tools: tuple[str, ...] = ()
    identity: Hashable = None


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """The structure of a workflow, how many agents it has, and its `NodeInfo.calls`."""

    structure: Structure
    agents: int
    calls: float

    def check(self) -> Structure:
        """Return the structure of a workflow that is within the limits, else raise."""
        if self.agents > MAX_AGENTS:
            raise WorkflowTooLarge(f"{self.agents} agents are too many; at most {MAX_AGENTS} are allowed")
        limit = host_input(CALLS_INPUT, MAX_CALLS)
        if limit < self.calls < inf:
            raise WorkflowTooLarge(
                f"up to {self.calls} model calls are too many; at most {limit} are allowed: use fewer agents, rounds "
                "or turns"
            )
        return self.structure


def inspect_workflow(root: WorkflowNode) -> WorkflowInfo:
    """Return the structure and the bounds of a workflow, without running it."""
    parts: dict[int, NodeInfo] = {}  # by id of the node, children before their parents
    names: dict[int, str] = {}

    def calls_of(node: WorkflowNode) -> float:
        if id(node) not in parts:
            try:
                part = node._inspect(calls_of)
                hash(part.identity)
                for child in part.children:
                    calls_of(child)
            except Exception:  # noqa: BLE001  a class of the script may lack any attribute, and contain itself
                part = NodeInfo("custom", inf)
            parts[id(node)] = part
            names[id(node)] = _clean(getattr(node, "name", type(node).__name__))
        return parts[id(node)].calls

    calls = calls_of(root)
    distinct: dict[Hashable, int] = {}  # the first node of each identity
    for key, part in parts.items():
        distinct.setdefault(part.identity or key, key)
    order = {key: index for index, key in enumerate(reversed(distinct.values()))}  # parents before their children
    indices = {key: order[distinct[part.identity or key]] for key, part in parts.items()}
    nodes: list[StructureNode] = []
    edges: dict[tuple[int, int], None] = {}
    for key in order:
        part = parts[key]
        children = tuple(indices[id(child)] for child in part.children)
        nodes.append(StructureNode(part.kind, names[key], children, tuple(map(_clean, part.tools)), part.rounds))
        edges |= {(indices[id(source)], indices[id(target)]): None for source, target in part.edges}
    structure = Structure(_pattern(parts[id(root)], parts), tuple(nodes), tuple(edges))
    agents = sum(node.kind == "agent" for node in nodes)
    return WorkflowInfo(structure if _is_small(structure) else Structure(structure.pattern), agents, calls)


def _pattern(root: NodeInfo, parts: dict[int, NodeInfo]) -> str:
    """Return the label of a workflow."""

    def core(part: NodeInfo) -> NodeInfo:
        """Return the node itself, or for a sequence of one node, that node."""
        for _ in parts:  # a workflow that contains itself has no end
            if part.kind != "sequence" or len(part.children) != 1:
                break
            part = parts[id(part.children[0])]
        return part

    kind = core(root).kind
    plain = all(core(parts[id(child)]).kind == "agent" for child in core(root).children)
    pattern = "single" if kind == "agent" else kind if kind in PATTERNS and plain else "mixed"
    return pattern + _TOOLS * any(part.tools for part in parts.values())


def chain(nodes: Sequence[WorkflowNode], rounds: int = 1) -> list[tuple[WorkflowNode, WorkflowNode]]:
    """Return the edges from each node to the next; in a loop also from the last to the first."""
    return [*pairwise(nodes), *([(nodes[-1], nodes[0])] if rounds > 1 and nodes else [])]


def parse_structure(value: object) -> Structure | None:
    """Return a structure from untrusted JSON; None for anything that `inspect_workflow` does not return."""
    match value:
        case {"pattern": str(pattern), "nodes": [*nodes], "edges": [*edges]}:
            count = len(nodes)
            if pattern.removesuffix(_TOOLS) in PATTERNS and max(count, len(edges)) <= MAX_LINKS:
                read = [_parse_node(node, index, count) for index, node in enumerate(nodes)]
                structure = Structure(
                    pattern,
                    tuple(node for node in read if node is not None),
                    tuple((edge[0], edge[1]) for edge in edges if _are_indices(edge, 0, count) and len(edge) == 2),
                )
                whole = len(structure.nodes) == count and len(structure.edges) == len(edges)
                return structure if whole and _is_small(structure) else None
    return None


def join_structures(structures: Sequence[Structure]) -> Structure | None:
    """Return the structure of a script that ran these workflows one after the other."""
    if len(structures) <= 1:
        return structures[0] if structures else None
    nodes: list[StructureNode] = []
    edges: list[tuple[int, int]] = []
    roots: list[int] = []
    for structure in structures:
        offset = 1 + len(nodes)
        roots += [offset] if structure.nodes else []
        nodes += [replace(n, children=tuple(offset + child for child in n.children)) for n in structure.nodes]
        edges += [(offset + source, offset + target) for source, target in structure.edges]
    tools = any(structure.pattern.endswith(_TOOLS) for structure in structures)
    script = StructureNode("sequence", "script", tuple(roots))
    joined = Structure("mixed" + _TOOLS * tools, (script, *nodes), (*pairwise(roots), *edges))
    return joined if _is_small(joined) else Structure(joined.pattern)


def _clean(name: object) -> str:
    """Return a name as it can be sent: short, and without lone surrogates."""
    return str(name)[:MAX_NAME].encode("utf-8", "replace").decode()


def _is_small(structure: Structure) -> bool:
    links = len(structure.edges) + sum(len(node.children) + len(node.tools) for node in structure.nodes)
    return len(structure.nodes) <= MAX_NODES and links <= MAX_LINKS


def _parse_node(value: object, index: int, count: int) -> StructureNode | None:
    match value:
        case {"kind": str(kind), "name": name, "children": [*children], "tools": [*tools], "rounds": int(rounds)}:
            known = kind in KINDS and all(isinstance(t, str) and len(t) <= MAX_NAME for t in (name, *tools))
            if known and _are_indices(children, index + 1, count) and type(rounds) is int:
                return StructureNode(kind, name, tuple(children), tuple(tools), max(0, min(rounds, 10**6)))
    return None


def _are_indices(values: object, least: int, count: int) -> bool:
    return isinstance(values, list | tuple) and all(type(value) is int and least <= value < count for value in values)
