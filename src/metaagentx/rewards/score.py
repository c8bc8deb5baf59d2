"""The reward of an execution: outcome, two format terms, and what it cost, each kept apart.

`outcome` comes from the task's grader. `delivery` is the share of messages between agents that carry exactly one
well-formed delivery as the model wrote it; a turn that only called a tool is no message. `solution` says whether the
final answer can be read at all. The cost term lets the Designer learn to be frugal; its weights are 0 by default.
A model's fault is a reward of 0; an infra fault has no reward.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Call, Execution, Grade, Reward, Task
from ..workflow.protocol import last_solution, reply_answer, well_formed_delivery


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """How much each part counts."""

    outcome: float = 1.0
    solution: float = 0.4
    delivery: float = 0.4
    cost_per_call: float = 0.0
    cost_per_1000_tokens: float = 0.0


def score(task: Task, execution: Execution, grade: Grade | None, weights: RewardWeights, full: bool) -> Reward | None:
    """The reward with its parts. At evaluation (`full`) the outcome is all or nothing."""
    if execution.fault is not None:
        if execution.fault.infra:
            return None
        return Reward(0.0, 0.0, 0.0, 0.0, 0.0, False, f"{execution.fault.kind}: {execution.fault.message}")
    grade = grade or Grade(0.0, False, "there is no answer")
    outcome = float(grade.solved) if full else grade.score
    solution = float(parses(task, execution.answer))
    delivery = delivery_share(execution.calls)
    tokens = sum(call.tokens for call in execution.calls)
    cost = weights.cost_per_call * len(execution.calls) + weights.cost_per_1000_tokens * tokens / 1000
    total = weights.outcome * outcome + weights.solution * solution + weights.delivery * delivery - cost
    return Reward(outcome, solution, delivery, cost, total, grade.solved, grade.reason)


def parses(task: Task, answer: str | None) -> bool:
    """Whether a reply holds a final answer of the kind the task asks for."""
    if answer is None:
        return False
    if task.kind != "code":
        return reply_answer(answer).kind == "boxed" or (task.kind == "custom" and bool(answer.strip()))
    source = last_solution(answer)
    if not source:
        return False
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def delivery_share(calls: Sequence[Call]) -> float:
    """The share of messages that carry exactly one delivery of the model's own."""
    messages = [call for number, call in enumerate(calls) if not _goes_on(call, calls[number + 1 :])]
    good = sum(well_formed_delivery(call.text, _instructions(call)) for call in messages)
    return good / len(messages) if messages else 0.0


def _goes_on(call: Call, later: Sequence[Call]) -> bool:
    """Whether a later call continues this one's conversation: then it was a turn with a tool and no message."""
    length = len(call.messages)
    return any(
        other.agent == call.agent
        and len(other.messages) > length
        and other.messages[:length] == call.messages
        and other.messages[length].get("content") == call.text
        for other in later
    )


def _instructions(call: Call) -> str:
    return "\n".join(message["content"] for message in call.messages if message["role"] == "system")
