"""Helpers for tests of rollouts: a task, scripts, policies that fail on demand, and a rollout as a short text."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.policy import ChatModel, Completion, Policy, SamplingParams
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.sampling import RoleSampler
from metaagentx.rollout.tree import Resources
from metaagentx.sandbox import Sandbox
from metaagentx.types import Execution, MathGold, Role, Rollout, Task

TASK = Task("squares", "math", "How many squares are there on a 3 by 3 board?", MathGold(("14",)), "test", "train")
RIGHT = r"Nine, four and one. <delivery>\boxed{14}</delivery>"
WRONG = r"I see nine. <delivery>\boxed{9}</delivery>"
COMPUTE = "```python\nprint(9 + 4 + 1)\n```"

HEAD = """from workflow import AgentNode, Message, ToolRegistry, Workflow
from workflow.nodes import EnsembleNode, ReflectionNode, WorkflowNode
workflow = Workflow("w")
"""
RUN = """
print(workflow.run(question).content)
"""
SINGLE = HEAD + 'workflow.add_node(AgentNode("Solver", "Solve."))' + RUN
VOTE = (
    HEAD
    + 'members = [AgentNode(name, name) for name in ("A", "B", "C")]\n'
    + 'workflow.add_node(EnsembleNode("vote", members))'
    + RUN
)
TOOL = (
    HEAD
    + "tools = ToolRegistry()\ntools.register_python()\n"
    + 'workflow.add_node(AgentNode("Coder", "Compute.", tool_registry=tools, max_turns=3))'
    + RUN
)
REFLECTION = (
    HEAD
    + 'solver, critic = AgentNode("Solver", "Solve."), AgentNode("Critic", "Criticise.")\n'
    + 'workflow.add_node(ReflectionNode("review", solver, critic, num_iterations=1))'
    + RUN
)
TOOL_VOTE = (
    HEAD
    + "tools = ToolRegistry()\ntools.register_python()\n"
    + 'members = [AgentNode(name, name, tool_registry=tools, max_turns=4) for name in ("A", "B", "C", "D")]\n'
    + 'workflow.add_node(EnsembleNode("vote", members, consensus_agent=AgentNode("Judge", "Judge.")))'
    + RUN
)


def design(script: str) -> str:
    """A Designer's reply with this script."""
    return f"Problem Type: math\n<code>\n{script}\n</code>"


Reply = Callable[[list[dict[str, str]], int], str]


def by_agent(replies: Mapping[str, str | Sequence[str]]) -> Reply:
    """Replies by the first line of the agent's instructions and the turn of its conversation; the last one repeats."""

    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        own = replies[conversation[0]["content"].partition("\n")[0]]
        texts = [own] if isinstance(own, str) else own
        turn = sum(message["role"] == "assistant" for message in conversation)
        return texts[min(turn, len(texts) - 1)]

    return reply


class Actor(ScriptedPolicy):
    """Replies as a function of conversation and seed, after what `before` does; keeps how it was asked."""

    def __init__(self, reply: Reply | str, before: Callable[[int], Awaitable[None]] | None = None) -> None:
        super().__init__([])
        self._answer: Reply = reply if callable(reply) else lambda conversation, seed: reply
        self._before = before
        self.asked: list[SamplingParams] = []

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        self.asked.append(params)
        if self._before is not None:
            await self._before(len(self.asked))
        text = self._answer(self.tokenizer.read_chat(prompt), params.seed or 0)
        tokens = (*text.encode(), 256)[: params.max_tokens]
        logprobs = tuple(-0.25 - place / 1000 for place in range(len(tokens)))
        return Completion(tokens, logprobs, "stop" if len(tokens) < params.max_tokens else "length")


def resources(
    designer: Policy | ChatModel,
    executor: Policy | ChatModel,
    sandbox: Sandbox,
    graders: Graders,
    in_flight: int = 64,
) -> Resources:
    """Speakers that try again twice."""
    samplers = {
        Role.DESIGNER: RoleSampler(Role.DESIGNER, designer, 4096),
        Role.EXECUTOR: RoleSampler(Role.EXECUTOR, executor, 4096),
    }
    return Resources(samplers, sandbox, graders, asyncio.Semaphore(in_flight))


def with_speakers(shared: Resources, *, seconds: float = 600.0, retries: int = 0) -> Resources:
    """The same with other patience."""
    samplers = {
        role: replace(sampler, attempt_seconds=seconds, retries=retries) for role, sampler in shared.samplers.items()
    }
    return replace(shared, samplers=samplers)


def executions_of(rollouts: Sequence[Rollout]) -> list[Execution]:
    return [execution for tree in rollouts for design in tree.designs for execution in design.executions]


def timeless(rollouts: Sequence[Rollout]) -> str:
    """All of the trees but how long things took."""
    return re.sub(r"(seconds|started)=[\d.e-]+", "", repr(rollouts))


def in_words(execution: Execution) -> tuple[list[str], str | None, int | None, str | None, float | None]:
    """Who was called, the answer, the call it came from, the kind of fault, the reward."""
    fault = execution.fault.kind if execution.fault else None
    total = round(execution.reward.total, 9) if execution.reward else None
    answer = execution.answer
    text, number = (answer.text, answer.call) if answer else (None, None)
    return [call.agent for call in execution.calls], text, number, fault, total
