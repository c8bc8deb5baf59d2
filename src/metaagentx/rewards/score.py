"""The reward of an execution: outcome, two format terms and a cost, each recorded separately.

`outcome` comes from the task's grader. `delivery` is the share of messages between agents that carry exactly one
well-formed delivery as the model wrote it; a turn that used a tool and got its output is not a message, and a
well-formed message that takes no part in the work does not count. `solution` says whether the final answer can be read
at all. The cost term lets the Designer learn to be frugal; its weights are 0 by default. A fault of the model has
reward 0; an infrastructure fault has none.
"""

import ast
from collections.abc import Sequence

from ..config import RewardConfig
from ..provenance import Prompts, answer_of, canonical, delivery_of
from ..types import Call, Execution, FinalAnswer, Grade, Reward, Task
from ..workflow.protocol import blocks, critic_decision, pending_tool_uses


def score(task: Task, execution: Execution, grade: Grade | None, config: RewardConfig, strict: bool) -> Reward | None:
    """Return the reward with its parts; None for an infrastructure fault.

    At evaluation (`strict`) the outcome is all or nothing.
    """
    if execution.fault is not None:
        if execution.fault.infra:
            return None
        return Reward(0.0, 0.0, 0.0, 0.0, 0.0, False, f"{execution.fault.kind}: {execution.fault.message}")
    grade = grade or Grade(0.0, False, "no answer")
    outcome = float(grade.solved) if strict else grade.score
    solution = float(can_be_parsed(task, execution.answer) and (grade.solved or not _repeats_instruction(execution)))
    delivered = delivery_share(task.question, execution)
    tokens = sum(call.tokens for call in execution.calls)
    cost = config.cost_per_call * len(execution.calls) + config.cost_per_1000_tokens * tokens / 1000
    total = config.outcome * outcome + config.solution * solution + config.delivery * delivered - cost
    return Reward(outcome, solution, delivered, cost, total, grade.solved, grade.reason)


def can_be_parsed(task: Task, answer: FinalAnswer | None) -> bool:
    """Return whether an answer is of the kind that the task asks for."""
    if answer is None:
        return False
    if task.kind != "code":
        return answer.kind == "boxed" or (task.kind == "custom" and bool(answer.text.strip()))
    source = answer.program
    if not source:
        return False
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _repeats_instruction(execution: Execution) -> bool:
    r"""Return whether the answer is an example of a recipe's own instruction, such as `\boxed{your answer}`."""
    answer = execution.answer
    if answer is None or answer.call is None:
        return False
    told = execution.calls[answer.call].instruction
    return f"\\boxed{{{answer.value}}}" in told or answer.value in [block.inner for block in blocks("solution", told)]


def delivery_share(question: str, execution: Execution) -> float:
    """Return the share of messages that carry exactly one delivery written by the model.

    Every malformed message counts. A well-formed one counts only if it takes part in the work on the task, so that a
    script cannot dilute its malformed messages with calls that serve no other purpose: see `_CountedMessages`.
    """
    calls = execution.calls
    tool_turns = _tool_turns(calls)
    messages = [number for number in range(len(calls)) if number not in tool_turns]
    well_formed = [number for number in messages if delivery_of(calls[number]) is not None]
    if not well_formed or len(well_formed) == len(messages):
        return float(bool(well_formed))
    counted_messages = _CountedMessages(question, execution)
    counted = sum(map(counted_messages.is_counted, well_formed))
    return counted / (counted + len(messages) - len(well_formed))


def _tool_turns(calls: Sequence[Call]) -> set[int]:
    """Return the calls that used a tool and got its output: turns of a conversation, not messages.

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


class _CountedMessages:
    """Decides which well-formed messages of an execution count: those that take part in the work on its task."""

    def __init__(self, question: str, execution: Execution) -> None:
        self._question = question.strip()
        self._execution = execution
        self._prompts = Prompts(question, execution.calls, execution.programs, execution.told)
        # A span of a prompt names the first call that replied with its text; other calls may have replied the same.
        calls_by_text: dict[str, set[int]] = {}
        for number, call in enumerate(execution.calls):
            calls_by_text.setdefault(delivery_of(call) or call.text, set()).add(number)
        same_reply = [calls_by_text[delivery_of(call) or call.text] for call in execution.calls]
        replies_read = [
            set().union(*(same_reply[reply] for reply in self._prompts.replies_in(number)))
            for number in range(len(execution.calls))
        ]
        self._read_by_others = set().union(*replies_read)
        self._answer_depends_on: set[int] = set()
        self._answer_call = execution.answer.call if execution.answer else None
        pending = [] if self._answer_call is None else [self._answer_call]
        while pending:
            number = pending.pop()
            if number not in self._answer_depends_on:
                self._answer_depends_on.add(number)
                pending += replies_read[number]
        self._typed = execution.answer is not None and execution.answer.kind != "text"

    def is_counted(self, number: int) -> bool:
        """Return whether a message counts.

        The message of the answer does. Any other message counts if all of this holds:
        - the script did not dictate it;
        - it is about the task: its prompt holds the question, or the answer depends on it;
        - it can have had an effect: another agent read it, it states an answer, it is a verdict, its prompt is that of
          a message which the answer depends on, or the final answer is plain text, too.
        """
        if number == self._answer_call:
            return True
        call = self._execution.calls[number]
        delivered = delivery_of(call) or ""
        if critic_decision(delivered) is not None:
            dictated = False  # a critic's verdict is one of two words, and its instructions name them
        else:
            content = canonical(delivered)
            dictated = any(content in canonical(text) for text in self._prompts.script_texts(number))
        about_task = number in self._answer_depends_on or any(self._question in m["content"] for m in call.messages)
        effective = (
            number in self._read_by_others
            or not self._typed
            or critic_decision(delivered) is not None
            or answer_of(call).kind != "text"
            or any(self._execution.calls[other].messages == call.messages for other in self._answer_depends_on)
        )
        return not dictated and about_task and effective
