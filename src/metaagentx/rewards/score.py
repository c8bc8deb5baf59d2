"""The reward of an execution: outcome, two format terms, and what it cost, each kept apart.

`outcome` comes from the task's grader. `delivery` is the share of messages between agents that carry exactly one
well-formed delivery as the model wrote it; a turn that used a tool and was told its output is no message, and a
well-formed message that takes no part in the work does not count. `solution` says whether the final answer can be read
at all. The cost term lets the Designer learn to be frugal; its weights are 0 by default. A model's fault is a reward of
0; an infra fault has no reward.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..provenance import Prompts, canonical, instructions
from ..types import Call, Execution, Grade, Reward, Task
from ..workflow.protocol import (
    delivery,
    last_solution,
    pending_tool_uses,
    reply_answer,
    verdict,
    well_formed_delivery,
)


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
    delivered = delivery_share(task.question, execution)
    tokens = sum(call.tokens for call in execution.calls)
    cost = weights.cost_per_call * len(execution.calls) + weights.cost_per_1000_tokens * tokens / 1000
    total = weights.outcome * outcome + weights.solution * solution + weights.delivery * delivered - cost
    return Reward(outcome, solution, delivered, cost, total, grade.solved, grade.reason)


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


def delivery_share(question: str, execution: Execution) -> float:
    """The share of messages that carry exactly one delivery of the model's own.

    Every malformed message counts. Of the well-formed ones those count that take part in the work on the task, so that
    a script cannot dilute its malformed messages with calls that are good for nothing else: see `_takes_part`.
    """
    calls = execution.calls
    turns = _tool_turns(calls)
    messages = [number for number in range(len(calls)) if number not in turns]
    good = [number for number in messages if well_formed_delivery(calls[number].text, instructions(calls[number]))]
    if not good or len(good) == len(messages):
        return float(bool(good))
    taking_part = _Work(question, execution).counts
    counted = sum(map(taking_part, good))
    return counted / (counted + len(messages) - len(good))


def _tool_turns(calls: Sequence[Call]) -> set[int]:
    """The calls that used a tool and were told its output: turns of a conversation, and no messages.

    A call continues one conversation, so it makes a tool turn of one call only.
    """
    turns: set[int] = set()
    for number, call in enumerate(calls):
        if len(call.messages) < 3 or call.messages[-2]["role"] != "assistant" or call.messages[-1]["role"] != "user":
            continue
        text, earlier = call.messages[-2]["content"], call.messages[:-2]
        for before in range(number):
            turn = calls[before]
            if before not in turns and (turn.agent, turn.text, turn.messages) == (call.agent, text, earlier):
                if pending_tool_uses(text):
                    turns.add(before)
                break
    return turns


def _delivered(call: Call) -> str | None:
    return delivery(call.text, instructions(call))


class _Work:
    """Which well-formed messages of an execution take part in the work on its task."""

    def __init__(self, question: str, execution: Execution) -> None:
        self._question = question.strip()
        self._execution = execution
        self._prompts = Prompts(question, execution.calls, execution.programs)
        # A span is known as the first reply that says so; others may have said the same.
        alike: dict[str, set[int]] = {}
        for number, call in enumerate(execution.calls):
            alike.setdefault(_delivered(call) or call.text, set()).add(number)
        same = [alike[_delivered(call) or call.text] for call in execution.calls]
        read = [
            set().union(*(same[reply] for reply in self._prompts.replies_in(number)))
            for number in range(len(execution.calls))
        ]
        self._handed_on = set().union(*read)
        self._rested_on: set[int] = set()
        pending = [] if execution.answer_call is None else [execution.answer_call]
        while pending:
            number = pending.pop()
            if number not in self._rested_on:
                self._rested_on.add(number)
                pending += read[number]
        self._typed = execution.answer is not None and reply_answer(execution.answer).kind != "text"

    def counts(self, number: int) -> bool:
        """The answer itself does. Another message does if the script did not dictate it, if it is about the task (its
        prompt holds the question, or the answer rests on it), and if it can have had an effect: others read it, it
        states an answer where answers are stated, it is a verdict, or it was asked for in the very words of one that
        the answer rests on.
        """
        if number == self._execution.answer_call:
            return True
        call = self._execution.calls[number]
        delivered = _delivered(call) or ""
        if verdict(delivered) is not None:
            dictated = False  # a critic's verdict is one of two words, and its instructions name them
        else:
            content = canonical(delivered)
            dictated = any(content in canonical(text) for text in self._prompts.script_texts(number))
        about_task = number in self._rested_on or any(self._question in m["content"] for m in call.messages)
        effective = (
            number in self._handed_on
            or not self._typed
            or verdict(delivered) is not None
            or reply_answer(call.text, instructions(call)).kind != "text"
            or any(self._execution.calls[other].messages == call.messages for other in self._rested_on)
        )
        return not dictated and about_task and effective
