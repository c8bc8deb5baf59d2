"""Script to Execution: the script runs in the sandbox, its agents' calls go to the Executor, its answer is checked.

The answer leaves the sandbox as a typed value that names the call it came from. The host keeps every call and trusts
only what it can check: an answer that differs from what that call wrote is hard-coded, and one that the script wrote
into a prompt before any agent had said it is fed. Both are faults. An assistant message must be an earlier reply, word
for word.

Calls of the tools that an operator offers come out of the sandbox, too. They run here, within a budget, and what goes
wrong in a tool is a text for the agent. A tool server that is gone is an infrastructure fault.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..config import RolloutConfig
from ..policy import PromptRejected
from ..provenance import accept_programs, accept_tools, final_answer, find_fed
from ..sandbox import (
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
from ..tools import ToolBox, ToolResult, ToolServerGone
from ..types import Call, Execution, Fault, FinalAnswer, ProgramOutput, Task, ToolCall
from ..workflow.inputs import CALLS_INPUT, INSTRUCTION_INPUT, LENIENT_INPUT, TOOLS_INPUT
from ..workflow.protocol import INSTRUCTION
from ..workflow.structure import MAX_REPORTS, TOO_LARGE, Structure, join_structures, parse_structure
from ..workflow.tools import describe_offered
from .evidence import Turns
from .model_call import parse_model_call
from .sampling import Chat, RoleSampler, SamplingFailed, seed_of

_ASKS_PER_CALL = 4
_LOG_CHARACTERS = 10_000
_MADE_UP_CHARACTERS = 20_000
"""What is kept of an answer that the script made up: parsing it takes time of the host."""
_GRACE_SECONDS = 90.0
"""Time for the sandbox to end a run by itself, or to find that memory is short."""
_CONCURRENT_CALLS = 8
"""How many calls of one execution are under way at a time, so that no script overloads the backend by itself. The same
holds for calls of tools."""
_TOOL_ATTEMPTS = 2
"""A tool whose server is gone is called again, once: the call starts the server anew."""
_NAME_CHARACTERS = 60
_ENDS: dict[str, type[Exception]] = {"infra": Infra, "protocol": ProtocolViolation}
"""The exception by which the fault of a call ends the run; for any other kind it is BudgetExceeded."""


async def run_script(  # noqa: PLR0913, PLR0917  all of them are needed, and none belongs to another
    script: str,
    task: Task,
    sampler: RoleSampler,
    sandbox: Sandbox,
    limits: RolloutConfig,
    seed_path: Sequence[object],
    instruction: str = INSTRUCTION,
    tools: ToolBox | None = None,
) -> Execution:
    """Run a script once. The seeds of its calls are derived from `seed_path`. `instruction`: what all agents are told.

    When the sandbox or a tool server fails, the script is run again, at most `limits.retries` times. A call that failed
    has been retried by its sampler, and a timeout is final. The execution ends at the latest `_GRACE_SECONDS` after its
    limit.
    """
    clock, started = time.time(), time.perf_counter()
    deadline = started + limits.execution_seconds
    for _ in range(limits.retries + 1):
        asks = _Asks(sampler, limits, seed_path, instruction, tools)
        execution = await _run_once(script, task, sandbox, asks, deadline)
        failed = execution.fault is not None and execution.fault.infra and asks.first_fault() is None
        if not failed or time.perf_counter() >= deadline:
            break
    execution.seconds, execution.started = time.perf_counter() - started, round(clock, 4)
    return execution


async def _run_once(script: str, task: Task, sandbox: Sandbox, asks: "_Asks", deadline: float) -> Execution:
    limits = asks.limits
    try:
        async with asyncio.timeout(deadline + _GRACE_SECONDS - time.perf_counter()):
            result = await sandbox.run(
                script,
                inputs={
                    "question": task.question,
                    CALLS_INPUT: limits.calls,
                    INSTRUCTION_INPUT: asks.instruction,
                    LENIENT_INPUT: limits.lenient,
                    **asks.tools_input,
                },
                limits=_sandbox_limits(limits, deadline - time.perf_counter(), asks.tool_budget),
                on_ask=asks.reply_to,
                on_program=asks.record_program,
                excuse_slow_replies=False,  # a reply may be late because of other calls of the script: see `Evidence`
            )
            late = await asks.wait_for_calls(result.verdict, deadline)
        return _build_execution(result, asks, task.question, late)
    except SandboxUnavailable as error:
        return Execution(asks.calls(), fault=Fault("infra", str(error)), tools=asks.tool_calls())
    except TimeoutError:
        waited = limits.execution_seconds + _GRACE_SECONDS
        fault = Fault("infra", f"the sandbox did not end a run within {waited:g} s")
        return Execution(asks.calls(), fault=fault, tools=asks.tool_calls())
    finally:
        asks.cancel()


def _sandbox_limits(limits: RolloutConfig, seconds: float, tool_budget: int) -> Limits:
    """Return the limits that the sandbox enforces, for a run that has this much time left."""
    return Limits(
        cpu_seconds=limits.cpu_seconds,
        asks=max(256, _ASKS_PER_CALL * limits.calls) + (tool_budget + 1 if tool_budget else 0),
        idle_seconds=limits.evidence_seconds,
        total_seconds=seconds,
    )


class _Asks:
    """Answers the model and tool calls that one script asks for and keeps the replies by the number of the call."""

    def __init__(
        self,
        sampler: RoleSampler,
        limits: RolloutConfig,
        seed_path: Sequence[object],
        instruction: str,
        tools: ToolBox | None,
    ) -> None:
        self.replies: dict[int, Call | Fault] = {}
        self._sampler = sampler
        self.limits = limits
        self.instruction = instruction
        self._seed_path = seed_path
        self._asked = 0
        self._tokens = 0
        self._sampling: dict[int, asyncio.Task[Call | Fault]] = {}
        self._turns = Turns(_CONCURRENT_CALLS)
        self._programs: list[tuple[str, str, str]] = []
        self._reports: dict[int, Structure | None] = {}
        self._tools = tools
        self._tool_turn = asyncio.Semaphore(_CONCURRENT_CALLS)
        self._tool_calls: dict[int, ToolCall] = {}
        self._tools_running: list[asyncio.Task[ToolCall | Fault]] = []

    @property
    def tools_input(self) -> dict[str, JSON]:
        """What the script is told about tools: nothing where none are offered."""
        return {} if self._tools is None else {TOOLS_INPUT: [tool.to_json() for tool in self._tools.specs]}

    @property
    def tool_budget(self) -> int:
        """How many calls of tools the script may make."""
        return 0 if self._tools is None else self._tools.config.calls

    async def reply_to(self, body: JSON) -> JSON:
        """Return the reply to one ask of the script."""
        if self._tools is not None and isinstance(body, dict) and body.get("kind") == "tool":
            return await self._reply_to_tool(body, self._tools)
        model_call = parse_model_call(body)
        if model_call is None:
            return {
                "error": "a model call has an agent and messages, each with a role and a content: a system message or "
                "none, then user and assistant in turn, the user last"
            }
        if self._asked >= self.limits.calls:
            raise BudgetExceeded(f"more than {self.limits.calls} model calls")
        number = self._asked
        self._asked += 1
        if isinstance(body, dict) and "structure" in body and len(self._reports) < MAX_REPORTS:
            self._reports[number] = parse_structure(body["structure"])
        # A call that was started is finished even if the script ends meanwhile: which calls an execution has must
        # not depend on timing.
        sampling = asyncio.create_task(self._sample(number, *model_call))
        self._sampling[number] = sampling
        reply = await asyncio.shield(sampling)
        if isinstance(reply, Fault):
            raise _ENDS.get(reply.kind, BudgetExceeded)(reply.message)
        if self._tokens > self.limits.tokens:
            raise BudgetExceeded(self._too_many_tokens().message)
        return {"text": reply.text, "call": number}

    async def _reply_to_tool(self, body: dict[str, JSON], tools: ToolBox) -> JSON:
        name, arguments = body.get("name"), body.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, str):
            return {"error": "a tool call has a name and its arguments, a JSON object as text"}
        if name not in tools:  # `tools.use` refuses it, so no honest script gets here
            raise ProtocolViolation(f"a call of the tool {name[:_NAME_CHARACTERS]!r}, which is not offered")
        number = len(self._tools_running)
        if number >= self.tool_budget:
            raise BudgetExceeded(f"more than {self.tool_budget} tool calls")
        # As with model calls, a call that was started is finished: the tree must not depend on timing.
        running = asyncio.create_task(self._call_tool(number, name, arguments, tools))
        self._tools_running.append(running)
        called = await asyncio.shield(running)
        if isinstance(called, Fault):
            raise Infra(called.message)
        return {"text": called.result, "failed": called.failed}

    async def _call_tool(self, number: int, name: str, arguments: str, tools: ToolBox) -> ToolCall | Fault:
        async with self._tool_turn:
            clock, started = time.time(), time.perf_counter()
            result: ToolResult | None = None
            for _ in range(_TOOL_ATTEMPTS):
                try:
                    result = await tools.call(name, arguments)
                    break
                except ToolServerGone as error:
                    problem = str(error)
            if result is None:
                return Fault("infra", problem)
        seconds = time.perf_counter() - started
        shown = arguments[: tools.config.argument_characters]
        called = ToolCall(name, shown, result.text, seconds, result.failed, round(clock, 4))
        self._tool_calls[number] = called
        return called

    def tool_calls(self) -> list[ToolCall]:
        """Return the finished calls of tools in the order they were asked for."""
        return [self._tool_calls[number] for number in sorted(self._tool_calls)]

    def told(self) -> tuple[str, ...]:
        """Return what prompts hold that the operator says about tools."""
        if self._tools is None:
            return ()
        specs = self._tools.specs
        lines = [*describe_offered(tool.to_json() for tool in specs), *(f"Output of {tool.name}:" for tool in specs)]
        contents = {message["content"] for call in self.calls() for message in call.messages}
        return tuple(line for line in lines if any(line in content for content in contents))

    async def _sample(self, number: int, agent: str, messages: Chat) -> Call | Fault:
        if not await self._repeats_replies(number, messages):
            reply: Call | Fault = Fault("protocol", "an assistant turn that is not an earlier reply of this execution")
            self.replies[number] = reply
            return reply
        earlier = self.calls()
        try:
            await self._turns.enter(number)
            try:
                seed, retry_alone = seed_of(*self._seed_path, number), partial(self._turns.retry_alone, number)
                reply = await self._sampler.call(agent, messages, seed, earlier, on_timeout=retry_alone)
            finally:
                self._turns.leave(number)
            reply.instruction = "" if self.instruction == INSTRUCTION else self.instruction
        except PromptRejected as error:
            reply = Fault("budget", str(error))
        except SamplingFailed as error:
            reply = Fault("infra", str(error))
        self.replies[number] = reply
        self._tokens += 0 if isinstance(reply, Fault) else reply.tokens
        return reply

    async def _repeats_replies(self, number: int, messages: Chat) -> bool:
        """Return whether every assistant turn is an earlier reply, word for word."""
        turns = {message["content"] for message in messages if message["role"] == "assistant"}
        if turns <= self._texts_before(number):
            return True
        # An honest script knows a reply only when it has come. Whether a guess is right must not depend on timing.
        await asyncio.gather(*(sampling for earlier, sampling in self._sampling.items() if earlier < number))
        return turns <= self._texts_before(number)

    def _texts_before(self, number: int) -> set[str]:
        replies = self.replies.items()
        return {reply.text for earlier, reply in replies if earlier < number and not isinstance(reply, Fault)}

    def record_program(self, code: str, stdin: str, output: str) -> None:
        """Record a program that was run for the script."""
        self._programs.append((code, stdin, output))

    def agent_programs(self, question: str) -> list[ProgramOutput]:
        """Return the outputs of those programs that agents wrote, and of those tools that agents called."""
        calls = self.calls()
        return [
            *accept_programs(question, calls, self._programs),
            *accept_tools(question, calls, self.tool_calls()),
        ]

    async def wait_for_calls(self, verdict: Verdict, deadline: float) -> Fault | None:
        """Wait for the calls that were started; return a fault if the execution is not done at the deadline.

        `verdict` is that of the sandbox, which finds by itself that the machine was too busy.
        """
        started: list[asyncio.Task[Any]] = [*self._sampling.values(), *self._tools_running]
        if started:
            await asyncio.wait(started, timeout=max(0.0, deadline - time.perf_counter()))
        out_of_time = verdict is Verdict.WALL and time.perf_counter() >= deadline
        if verdict is Verdict.INFRA or (all(task.done() for task in started) and not out_of_time):
            return None
        kind = "infra" if self._turns.evidence.shows(self.limits.evidence_seconds) else "wall"
        seconds = self.limits.execution_seconds
        return Fault(kind, f"not done after {seconds:g} s, with {len(self.replies)} calls answered")

    def cancel(self) -> None:
        """Cancel the calls that are still running."""
        for task in (*self._sampling.values(), *self._tools_running):
            task.cancel()

    def calls(self) -> list[Call]:
        """Return the replies in the order they were asked for."""
        replies = (self.replies[number] for number in sorted(self.replies))
        return [reply for reply in replies if not isinstance(reply, Fault)]

    def structure(self, calls: int = sys.maxsize) -> Structure | None:
        """Return what the script reported to have run, with its first `calls` calls."""
        reports = [report for number, report in self._reports.items() if number < calls and report is not None]
        return join_structures(reports)

    def first_fault(self) -> tuple[int, Fault] | None:
        """Return the first fault in the order of asking, and how many calls come before it.

        Concurrent calls may be answered in any order; the fault does not depend on that.
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


def _build_execution(result: Result, asks: _Asks, question: str, late: Fault | None) -> Execution:
    log = result.stdout[:_LOG_CHARACTERS]
    execution = Execution(asks.calls(), tools=asks.tool_calls(), told=asks.told(), log=log, structure=asks.structure())
    if failed := asks.first_fault():
        before, execution.fault = failed
        del execution.calls[before:]
        execution.structure = asks.structure(max(1, before))  # later ones depend on who was faster
    elif not execution.calls and (reason := _refusal(result)) is not None:
        execution.fault = Fault("invalid_script", reason)
    elif late is not None:
        execution.fault = late
    elif result.verdict is not Verdict.OK:
        execution.fault = Fault(result.verdict.value, result.located_detail)
    elif result.answer is None:
        execution.fault = Fault("no_answer", "the script ended without an answer: no workflow was run to its end")
    else:
        execution.programs = asks.agent_programs(question)
        claimed: dict[str, JSON] = result.answer if isinstance(result.answer, dict) else {"value": result.answer}
        _check_answer(execution, claimed, question)
    return execution


def _refusal(result: Result) -> str | None:
    """Return why the runtime refused the workflow as too large; a script that says so itself gains nothing by it."""
    match result.answer:
        case {"kind": str() as kind, "value": str() as reason} if kind == TOO_LARGE:
            return reason[:_LOG_CHARACTERS]
    return None


def _check_answer(execution: Execution, claimed: dict[str, JSON], question: str) -> None:
    """Set the answer. It must be what the call that the script names replied; otherwise it is hard-coded."""
    number = claimed.get("call")
    if type(number) is int and 0 <= number < len(execution.calls):
        answer = final_answer(execution.calls, number)
        if (answer.kind, answer.value) == (claimed.get("kind"), claimed.get("value")):
            execution.answer = answer
            execution.fed = find_fed(question, execution.calls, execution.programs, answer, execution.told)
            if execution.fed is not None:
                execution.fault = Fault("fed", execution.fed)
            return
    execution.answer = FinalAnswer.parse(_write_answer(claimed))
    execution.fault = Fault("hard_coded", "the answer is not what an agent replied: the script made it itself")


def _write_answer(claimed: dict[str, JSON]) -> str:
    """Write an answer of the script's own as an agent would."""
    kind, value = claimed.get("kind"), str(claimed.get("value"))[:_MADE_UP_CHARACTERS]
    if kind == "boxed":
        return f"\\boxed{{{value}}}"
    return f"<solution>{value}</solution>" if kind == "solution" else value
