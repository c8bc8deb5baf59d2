"""What a workflow looks like before it runs: a tree of parts, who hands on to whom, and how many calls it can make.

Every node gives its own `outline()`. `structure_of` sums one up for statistics and drawings. Tools, conditions and
routing functions that run agents themselves are not seen here: their calls come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

Kind: TypeAlias = Literal["single", "reflection", "ensemble", "debate", "router", "mixed"]
Edge: TypeAlias = "tuple[str, str]"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """One agent: its name, its instructions, how many turns it has and which tools."""

    name: str
    system_prompt: str
    max_turns: int
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """A part of a workflow. `calls` bounds its model calls (None: nothing is known).

    `entries` are the agents that start it, `exits` those whose message it may hand on, `edges` who hands on to whom.
    """

    kind: str
    name: str
    calls: int | None
    children: tuple[Outline, ...] = ()
    entries: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    agent: AgentInfo | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a script's workflow. `exact` is False when part of it could not be told before running."""

    kind: Kind
    agents: tuple[AgentInfo, ...]
    edges: tuple[Edge, ...]
    worst_case_calls: int | None
    tree: Outline
    exact: bool = True


def structure_of(tree: Outline, exact: bool = True) -> Structure:
    """Sum up an outline."""
    agents: dict[AgentInfo, None] = {}
    parts, seen = [tree], set()
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.agent:
            agents[part.agent] = None
        parts.extend(reversed(part.children))
    return Structure(_kind(tree), tuple(agents), tree.edges, tree.calls, tree, exact and tree.calls is not None)


def _kind(tree: Outline) -> Kind:
    core = _core(tree)
    if core.kind == "agent":
        return "single"
    named: tuple[Kind, ...] = ("reflection", "ensemble", "debate", "router")
    for kind in named:
        if core.kind == kind and all(_core(child).kind == "agent" for child in core.children):
            return kind
    return "mixed"


def _core(tree: Outline) -> Outline:
    """A workflow of one node is that node."""
    while tree.kind == "sequence" and len(tree.children) == 1:
        tree = tree.children[0]
    return tree


def agent_outline(info: AgentInfo) -> Outline:
    # Only tools give a reason for a second turn.
    calls = info.max_turns if info.tools else 1
    return Outline("agent", info.name, calls, entries=(info.name,), exits=(info.name,), agent=info)


def sequence_outline(
    name: str, parts: Sequence[Outline], optional: Sequence[bool] = (), rounds: int = 1, kind: str = "sequence"
) -> Outline:
    """Parts one after the other, `rounds` times over; optional parts may be skipped."""
    edges = [edge for part in parts for edge in part.edges]
    entries: tuple[str, ...] = ()
    exits: tuple[str, ...] = ()
    may_start = True
    for i, part in enumerate(parts):
        skippable = i < len(optional) and optional[i]
        edges += links(exits, part.entries)
        entries += part.entries if may_start else ()
        exits = (exits if skippable else ()) + part.exits
        may_start = may_start and skippable
    edges += links(exits, entries) if rounds > 1 else []
    calls = times(rounds, total([part.calls for part in parts]))
    return Outline(kind, name, calls, tuple(parts), unique(entries), unique(exits), unique(edges))


def parallel_outline(kind: str, name: str, members: Sequence[Outline], rounds: int = 1) -> Outline:
    """Members side by side, `rounds` times over; from the second round on each sees all the others."""
    names = [e for member in members for e in member.entries]
    exits = [e for member in members for e in member.exits]
    edges = [edge for member in members for edge in member.edges]
    if rounds > 1:
        edges += [edge for edge in links(exits, names) if edge[0] != edge[1]]
    calls = times(rounds, total([member.calls for member in members]))
    return Outline(kind, name, calls, tuple(members), unique(names), unique(exits), unique(edges))


def judged_outline(members: Outline, judge: Outline, always: bool) -> Outline:
    """The members' messages go to a judge: always, or when they do not agree."""
    exits = judge.exits if always else unique([*members.exits, *judge.exits])
    edges = unique([*members.edges, *judge.edges, *links(members.exits, judge.entries)])
    calls = total([members.calls, judge.calls])
    return Outline(members.kind, members.name, calls, (*members.children, judge), members.entries, exits, edges)


def reflection_outline(name: str, agent: Outline, critic: Outline | None, rounds: int) -> Outline:
    """Solve, then `rounds` times criticise and refine; without a critic the agent criticises itself."""
    judge = critic or agent
    edges = [*agent.edges, *judge.edges]
    edges += [*links(agent.exits, judge.entries), *links(judge.exits, agent.entries)] if rounds else []
    calls = total([agent.calls, times(rounds, total([agent.calls, judge.calls]))])
    children = (agent, critic) if critic else (agent,)
    return Outline("reflection", name, calls, children, agent.entries, agent.exits, unique(edges))


def total(calls: Sequence[int | None]) -> int | None:
    known = [count for count in calls if count is not None]
    return sum(known) if len(known) == len(calls) else None


def largest(calls: Sequence[int | None]) -> int | None:
    known = [count for count in calls if count is not None]
    return max(known, default=0) if len(known) == len(calls) else None


def times(rounds: int, calls: int | None) -> int | None:
    return None if calls is None else rounds * calls


def links(sources: Sequence[str], targets: Sequence[str]) -> list[Edge]:
    return [(source, target) for source in sources for target in targets]


def unique(items: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
