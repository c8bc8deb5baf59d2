"""Script to Execution: the script runs in the sandbox, its agents' calls go to the Executor, its answer is checked.

The answer leaves the sandbox as a typed value that names the call it came from. The host keeps every call and believes
only what it can check: an answer that is not what that call wrote has no author, and one that the script wrote into a
prompt before any agent had said it is the script's. Both are faults. A message in the name of the assistant must be an
earlier reply, word for word.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .calls import Messages, Speaker, TooLong, Unanswered, seed_of
from .provenance import accept_programs, find_fed, instructions
from .sandbox import (
    JSON,
    BudgetExceeded,
    Infra,
    Limits,
    ProtocolViolation,
    Result,
    Sandbox,
    SandboxUnavailable,
    Verdict,
)
from .types import Call, Execution, Fault, ProgramOutput, Task
from .workflow.protocol import delivery, parse_answer, reply_answer
from .workflow.validate import MAX_CALLS

_ASKS_PER_CALL = 4
_LOG_CHARACTERS = 10_000
_EVIDENCE_SHARE = 0.25
"""Of its time: a call that took this long is evidence that the backend made an execution late."""
_GRACE_SECONDS = 90.0
"""For the sandbox to end what it runs, which it does by itself, or to find that memory is short."""
_ENDS: dict[str, type[Exception]] = {"infra": Infra, "protocol": ProtocolViolation}
"""How the fault of a call ends the run; any other is a budget."""


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """What one execution may use."""

    calls: int = MAX_CALLS
    tokens: int = 32768
    """Written by the model in all. Looked at when a reply has come."""
    seconds: float = 600.0
    """In all, waiting and every try included. A script that is late is at fault itself, unless the host has evidence of
    its own that the machinery took a quarter of this time: one call that long, or a machine too busy to run it."""
    cpu_seconds: float = 10.0
    """Of the script, and as much again of the programs it runs."""

    def sandbox(self, seconds: float) -> Limits:
        """The part the sandbox sees to, for a run that has this much time left."""
        return Limits(
            cpu_seconds=self.cpu_seconds,
            asks=max(256, _ASKS_PER_CALL * self.calls),
            idle_seconds=self.seconds / 4,
            total_seconds=seconds,
        )


async def run_script(  # noqa: PLR0913  what an execution is made of
    script: str,
    task: Task,
    speaker: Speaker,
    sandbox: Sandbox,
    limits: ExecutionLimits,
    path: Sequence[object],
    *,
    retries: int = 0,
) -> Execution:
    """One execution of a script. `path` is its place in the run, from which its calls have their seeds.

    The script is run again, so many times at most, when the sandbox failed. A call that failed has been tried again by
    its speaker, and what is late stays late. It ends `_GRACE_SECONDS` after its limit, whatever breaks.
    """
    started = time.perf_counter()
    deadline = started + limits.seconds
    for _ in range(retries + 1):
        asks = _Asks(speaker, limits, path)
        execution = await _run_once(script, task, sandbox, asks, deadline)
        failed = execution.fault is not None and execution.fault.infra and asks.first_fault() is None
        if not failed or time.perf_counter() >= deadline:
            break
    execution.seconds = time.perf_counter() - started
    return execution


async def _run_once(script: str, task: Task, sandbox: Sandbox, asks: "_Asks", deadline: float) -> Execution:
    limits = asks.limits
    try:
        async with asyncio.timeout(deadline + _GRACE_SECONDS - time.perf_counter()):
            result = await sandbox.run(
                script,
                inputs={"question": task.question},
                limits=limits.sandbox(deadline - time.perf_counter()),
                on_ask=asks.answer,
                on_program=asks.keep_program,
            )
            late = await asks.settle(deadline)
        return _judge(result, asks, task.question, late)
    except SandboxUnavailable as error:
        return Execution(asks.calls(), fault=Fault("infra", str(error)))
    except TimeoutError:
        waited = limits.seconds + _GRACE_SECONDS
        return Execution(asks.calls(), fault=Fault("infra", f"the sandbox did not end a run within {waited:g} s"))
    finally:
        asks.cancel()


class _Asks:
    """Answers the asks of one script and keeps what came of them, each under the number of its ask."""

    def __init__(self, speaker: Speaker, limits: ExecutionLimits, path: Sequence[object]) -> None:
        self.replies: dict[int, Call | Fault] = {}
        self._speaker = speaker
        self.limits = limits
        self._path = path
        self._asked = 0
        self._tokens = 0
        self._sampling: dict[int, asyncio.Task[Call | Fault]] = {}
        self._begun: dict[int, float] = {}
        self._programs: list[tuple[str, str, str]] = []

    async def answer(self, body: JSON) -> JSON:
        """The reply to one ask of the script."""
        asked = _read_ask(body)
        if asked is None:
            return {
                "error": "a model call has an agent and messages, each with a role and a content: a system message or "
                "none, then user and assistant in turn, the user last"
            }
        if self._asked >= self.limits.calls:
            raise BudgetExceeded(f"more than {self.limits.calls} model calls")
        number = self._asked
        self._asked += 1
        # What was begun is finished, even if the script ends meanwhile: which calls a tree has must not depend on
        # who was faster.
        sampling = asyncio.create_task(self._sample(number, *asked))
        self._sampling[number] = sampling
        self._begun[number] = time.perf_counter()
        reply = await asyncio.shield(sampling)
        if isinstance(reply, Fault):
            raise _ENDS.get(reply.kind, BudgetExceeded)(reply.message)
        if self._tokens > self.limits.tokens:
            raise BudgetExceeded(self._too_many_tokens().message)
        return {"text": reply.text, "call": number}

    async def _sample(self, number: int, agent: str, messages: Messages) -> Call | Fault:
        if not await self._repeats_replies(number, messages):
            reply: Call | Fault = Fault("protocol", "an assistant turn that is no earlier reply of this execution")
            self.replies[number] = reply
            return reply
        try:
            reply = await self._speaker.call(agent, messages, seed_of(*self._path, number), self.calls())
        except TooLong as error:
            reply = Fault("budget", str(error))
        except Unanswered as error:
            reply = Fault("infra", str(error))
        self.replies[number] = reply
        self._tokens += 0 if isinstance(reply, Fault) else reply.tokens
        return reply

    async def _repeats_replies(self, number: int, messages: Messages) -> bool:
        """Whether every assistant turn is an earlier reply, word for word."""
        turns = {message["content"] for message in messages if message["role"] == "assistant"}
        if turns <= self._texts_before(number):
            return True
        # An honest script knows a reply only when it has come. Whether a guess is right must not depend on time.
        await asyncio.gather(*(sampling for earlier, sampling in self._sampling.items() if earlier < number))
        return turns <= self._texts_before(number)

    def _texts_before(self, number: int) -> set[str]:
        replies = self.replies.items()
        return {reply.text for earlier, reply in replies if earlier < number and not isinstance(reply, Fault)}

    def keep_program(self, code: str, stdin: str, output: str) -> None:
        """Remember a program that was run for the script."""
        self._programs.append((code, stdin, output))

    def agent_programs(self, question: str) -> list[ProgramOutput]:
        """Outputs of those programs that agents wrote."""
        return accept_programs(question, self.calls(), self._programs)

    async def settle(self, deadline: float) -> Fault | None:
        """Wait for what was begun. A fault when the time is up before it has come."""
        if self._sampling:
            await asyncio.wait(self._sampling.values(), timeout=max(0.0, deadline - time.perf_counter()))
        waiting = [number for number, sampling in self._sampling.items() if not sampling.done()]
        if not waiting:
            return None
        longest = time.perf_counter() - min(self._begun[number] for number in waiting)
        kind = "infra" if longest >= _EVIDENCE_SHARE * self.limits.seconds else "wall"
        return Fault(kind, f"not done after {self.limits.seconds:g} s, with {len(self.replies)} calls answered")

    def cancel(self) -> None:
        """Stop what was begun."""
        for sampling in self._sampling.values():
            sampling.cancel()

    def calls(self) -> list[Call]:
        """The calls in the order they were asked for."""
        replies = (self.replies[number] for number in sorted(self.replies))
        return [reply for reply in replies if not isinstance(reply, Fault)]

    def first_fault(self) -> tuple[int, Fault] | None:
        """How many calls come before the first one that failed or went over the budget, in the order of asking.

        Calls under way at the same time may be answered in any order; what is a fault does not depend on that.
        """
        tokens = 0
        for number, reply in sorted(self.replies.items()):
            if isinstance(reply, Fault):
                return number, reply
            tokens += reply.tokens
            if tokens > self.limits.tokens:
                return number + 1, self._too_many_tokens()
        return None

    def _too_many_tokens(self) -> Fault:
        return Fault("budget", f"more than {self.limits.tokens} tokens")


def _read_ask(body: JSON) -> tuple[str, Messages] | None:
    if not isinstance(body, dict) or body.get("kind") != "model":
        return None
    agent, messages = body.get("agent"), body.get("messages")
    if not isinstance(agent, str) or not isinstance(messages, list) or not messages:
        return None
    chat: list[dict[str, str]] = []
    for message in messages:
        if not isinstance(message, dict):
            return None
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        chat.append({"role": role, "content": content})
    return (agent, tuple(chat)) if _in_turn([message["role"] for message in chat]) else None


def _in_turn(roles: list[str]) -> bool:
    """Whether a conversation has the order that every chat template takes: a script must not be able to upset one."""
    turns = roles[1:] if roles[0] == "system" else roles
    return len(turns) % 2 == 1 and turns[::2] == ["user"] * len(turns[::2]) and set(turns[1::2]) <= {"assistant"}


def _judge(result: Result, asks: _Asks, question: str, late: Fault | None) -> Execution:
    execution = Execution(asks.calls(), log=result.stdout[:_LOG_CHARACTERS])
    if failed := asks.first_fault():
        before, execution.fault = failed
        del execution.calls[before:]
    elif late is not None:
        execution.fault = late
    elif result.verdict is not Verdict.OK:
        execution.fault = Fault(result.verdict.value.replace(" ", "_"), result.detail)
    elif result.answer is None:
        execution.fault = Fault("no_answer", "the script ended without an answer: no workflow was run to its end")
    else:
        execution.programs = asks.agent_programs(question)
        _take_answer(
            execution, result.answer if isinstance(result.answer, dict) else {"value": result.answer}, question
        )
    return execution


def _take_answer(execution: Execution, answer: dict[str, JSON], question: str) -> None:
    number = answer.get("call")
    if type(number) is int and 0 <= number < len(execution.calls) and _wrote(execution.calls[number], answer):
        execution.answer, execution.answer_call = _stated(execution.calls[number]), number
        execution.fed = find_fed(question, execution.calls, execution.programs, number)
        if execution.fed is not None:
            execution.fault = Fault("fed", execution.fed)
    else:
        execution.answer = _in_words(answer)
        execution.fault = Fault("hard_coded", "the answer is not what an agent replied: the script made it itself")


def _in_words(answer: dict[str, JSON]) -> str:
    """An answer of the script's own, written as an agent would have."""
    kind, value = answer.get("kind"), str(answer.get("value"))
    return (
        f"\\boxed{{{value}}}" if kind == "boxed" else f"<solution>{value}</solution>" if kind == "solution" else value
    )


def _wrote(call: Call, answer: dict[str, JSON]) -> bool:
    stated = reply_answer(call.text, instructions(call))
    return (stated.kind, stated.value) == (answer.get("kind"), answer.get("value"))


def _stated(call: Call) -> str:
    """The part of a reply that states its answer: the delivery, or all of it."""
    delivered = delivery(call.text, instructions(call))
    return call.text if delivered is None or parse_answer(delivered).kind == "text" else delivered
