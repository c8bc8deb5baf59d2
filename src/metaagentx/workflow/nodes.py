"""Ways for agents to work together. Any node may stand where an agent is asked for, and the same one several times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from math import isfinite
from typing import Literal

from .agent import AgentNode
from .messages import Context, Message, WorkflowError
from .node import WorkflowNode, ask, checked_count, checked_node, checked_nodes
from .runtime import gather, ignore_unknown
from .structure import CallsOf, NodeInfo
from .voting import vote

__all__ = ["AgentNode", "DebateNode", "EnsembleNode", "ReflectionNode", "RouterNode", "WorkflowNode"]

STRATEGIES = ("majority_vote", "weighted_vote", "consensus")
JUDGE_REQUEST = "Compare these results, check where they differ, and give the final result in full yourself."
REFLECTION_REQUEST = (
    "Check the last result against the question, step by step. Name each error and where it is. "
    "End your delivery with the verdict CORRECT or INCORRECT."
)
REFINEMENT_REQUEST = "Improve the result with this criticism where it is right, and give it in full."
DEBATE_REQUEST = "Weigh the results of this round, your own included; keep or change yours, and give it in full."


async def _together(nodes: Sequence[WorkflowNode], context: Context) -> list[Message]:
    return await gather([ask(node, context.fork()) for node in nodes])


class EnsembleNode(WorkflowNode):
    """Agents that answer independently and at the same time, and one result.

    - "majority_vote": the most frequent answer; on a tie the earliest agent's. With a `consensus_agent`, that agent
      decides whenever no answer has more than half of the votes.
    - "weighted_vote": the same with `weights`, one number for each agent.
    - "consensus": the `consensus_agent` sees the question and all deliveries, and decides.

    Values are compared as values (0.5 is 1/2), programs by what they do on the question's examples.
    """

    @ignore_unknown
    def __init__(
        self,
        name: str,
        agents: Sequence[WorkflowNode],
        strategy: Literal["majority_vote", "weighted_vote", "consensus"] = "majority_vote",
        consensus_agent: WorkflowNode | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(name)
        self.agents = checked_nodes(name, agents)
        if strategy not in STRATEGIES:
            raise WorkflowError(f"{name}: strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
        if strategy == "consensus" and consensus_agent is None:
            raise WorkflowError(f'{name}: strategy "consensus" needs a consensus_agent')
        self.strategy = strategy
        self.consensus_agent = None if consensus_agent is None else checked_node(name, consensus_agent)
        self.weights = [1.0] * len(self.agents) if weights is None else [float(weight) for weight in weights]
        if len(self.weights) != len(self.agents) or not all(isfinite(w) and w >= 0 for w in self.weights):
            raise WorkflowError(f"{name}: weights must be one number of at least 0 for each of the agents")

    async def process(self, context: Context) -> Message:
        messages = await _together(self.agents, context)
        if self.strategy == "consensus":
            return await self._judge(context, messages)
        winner, share = await vote(context.question, messages, self.weights)
        return await self._judge(context, messages) if self.consensus_agent and share <= 0.5 else winner

    async def _judge(self, context: Context, messages: Sequence[Message]) -> Message:
        assert self.consensus_agent is not None
        return await ask(self.consensus_agent, context.view(messages, JUDGE_REQUEST))

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        judges = [self.consensus_agent] if self.consensus_agent else []
        children = [*self.agents, *judges]
        return NodeInfo("ensemble", sum(map(calls_of, children)), children, list(product(self.agents, judges)))


class ReflectionNode(WorkflowNode):
    """An agent answers, a critic checks, the agent improves: at most `num_iterations` times.

    It ends early only when the critic plainly approves ("CORRECT"). Without `critic_agent` the agent checks itself.
    `reflection_prompt` and `refinement_prompt` replace what critic and agent are asked for.
    """

    @ignore_unknown
    def __init__(
        self,
        name: str,
        agent: WorkflowNode,
        critic_agent: WorkflowNode | None = None,
        num_iterations: int = 2,
        reflection_prompt: str | None = None,
        refinement_prompt: str | None = None,
    ) -> None:
        super().__init__(name)
        self.agent = checked_node(name, agent)
        self.critic_agent = None if critic_agent is None else checked_node(name, critic_agent)
        self.num_iterations = checked_count(name, "num_iterations", num_iterations, least=0)
        self.reflection_prompt = reflection_prompt or REFLECTION_REQUEST
        self.refinement_prompt = refinement_prompt or REFINEMENT_REQUEST

    async def process(self, context: Context) -> Message:
        result = await ask(self.agent, context.view())
        for _ in range(self.num_iterations):
            critique = await ask(self.critic_agent or self.agent, context.view([result], self.reflection_prompt))
            if critique.verdict:
                break
            result = await ask(self.agent, context.view([result, critique], self.refinement_prompt))
        return result

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        critic, rounds = self.critic_agent or self.agent, self.num_iterations
        again = rounds * (calls_of(critic) + calls_of(self.agent)) if rounds else 0
        children = [self.agent] if critic is self.agent else [self.agent, critic]
        edges = [(self.agent, critic), (critic, self.agent)] if rounds else []
        return NodeInfo("reflection", calls_of(self.agent) + again, children, edges, rounds)


class DebateNode(WorkflowNode):
    """Agents answer at the same time, then see one another's answers and answer again, `num_rounds` rounds in all.

    The `judge` sees the last round and decides; without a judge the majority does.
    """

    @ignore_unknown
    def __init__(
        self, name: str, debaters: Sequence[WorkflowNode], judge: WorkflowNode | None = None, num_rounds: int = 2
    ) -> None:
        super().__init__(name)
        self.debaters = checked_nodes(name, debaters)
        self.judge = None if judge is None else checked_node(name, judge)
        self.num_rounds = checked_count(name, "num_rounds", num_rounds)

    async def process(self, context: Context) -> Message:
        answers = await _together(self.debaters, context)
        for _ in range(self.num_rounds - 1):
            answers = await _together(self.debaters, context.view(answers, DEBATE_REQUEST))
        if self.judge:
            return await ask(self.judge, context.view(answers, JUDGE_REQUEST))
        winner, _ = await vote(context.question, answers, [1.0] * len(answers))
        return winner

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        judges = [self.judge] if self.judge else []
        calls = self.num_rounds * sum(map(calls_of, self.debaters)) + sum(map(calls_of, judges))
        edges = list(permutations(self.debaters, 2)) if self.num_rounds > 1 else []
        edges += product(self.debaters, judges)
        return NodeInfo("debate", calls, [*self.debaters, *judges], edges, self.num_rounds)


class RouterNode(WorkflowNode):
    """One of several branches: `routing_func(context)` names a key of `routes`; anything else means `default_route`."""

    @ignore_unknown
    def __init__(
        self,
        name: str,
        routes: Mapping[str, WorkflowNode],
        routing_func: Callable[[Context], str],
        default_route: str = "default",
    ) -> None:
        super().__init__(name)
        if not isinstance(routes, Mapping) or not callable(routing_func):
            raise WorkflowError(
                f"{name} needs routes, a dict of nodes, and a routing_func that returns one of its keys"
            )
        checked_nodes(name, routes.values())
        self.routes = dict(routes)
        self.routing_func = routing_func
        self.default_route = default_route

    async def process(self, context: Context) -> Message:
        choice = self.routing_func(context)
        route = choice if isinstance(choice, str) and choice in self.routes else self.default_route
        if route not in self.routes:
            raise WorkflowError(
                f"{self.name}: {choice!r} is not a route and there is no default route {self.default_route!r}. "
                f"Routes: {', '.join(self.routes)}"
            )
        return await ask(self.routes[route], context.view())

    def _inspect(self, calls_of: CallsOf) -> NodeInfo:
        branches = list(self.routes.values())
        return NodeInfo("router", max(map(calls_of, branches)), branches)
