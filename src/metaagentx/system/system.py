"""Ask a trained run, a model directory or a server: each question gets its own workflow.

A design that cannot run, or whose execution fails, is drawn again; after the last attempt a single agent answers, and
the result says so. Nothing that a model writes makes `solve` raise. Where the infrastructure fails in every attempt,
`SystemUnavailable` is raised.
"""

import asyncio
import html
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ..config import Config
from ..errors import MetaAgentXError
from ..evaluation.designs import FIXED_DESIGNS
from ..evaluation.sampling import evaluation_samplers
from ..rollout.designer import write_script
from ..rollout.executor import run_script
from ..rollout.sampling import RoleSampler, seed_of
from ..rollout.tree import RolloutOptions, gather
from ..sandbox import Sandbox
from ..tools import ToolBox
from ..types import Call, Design, Execution, Fault, FinalAnswer, MathGold, Role, Rollout, Task
from .events import DesignReady
from .models import build_samplers
from .sources import local_source, offer_tools, served_model
from .watched import OnEvent, WatchedSampler, ignore

SINGLE_AGENT = "no design led to an answer: a single agent answered"


class SystemUnavailable(MetaAgentXError):
    """The infrastructure failed in every attempt, for instance a server that does not reply."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer cost: the Designer's calls and those of all agents."""

    calls: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Result:
    """An answer, the script that led to it, and the whole tree."""

    question: str
    answer: str
    """The content of the box, the program, or the whole reply, as the last agent stated it; empty: there is none."""
    script: str | None
    """The script whose execution gave the answer; None: no script ran to its end."""
    note: str
    """Why a single agent answered, or why there is no answer; empty where a design answered."""
    usage: Usage
    seconds: float
    rollout: Rollout = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the tree."""
        usage = {name: getattr(self.usage, name) for name in ("calls", "prompt_tokens", "completion_tokens")}
        names = ("question", "answer", "script", "note", "seconds")
        return {**{name: getattr(self, name) for name in names}, "usage": usage}

    def _repr_html_(self) -> str:
        """Return the result for a notebook."""
        rows = []
        for design in self.rollout.designs:
            for execution in design.executions:
                told = [(call.agent, call.text) for call in execution.calls]
                told += [(f"tool {use.name}", f"{use.arguments}\n{use.result}") for use in execution.tools]
                rows += [f"<tr><td>{html.escape(who)}</td><td>{html.escape(text)}</td></tr>" for who, text in told]
        usage = f"{self.usage.calls} calls, {self.usage.completion_tokens} tokens, {self.seconds:.1f} s"
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f"<p><b>{html.escape(self.answer)}</b></p>{note}<p>{usage}</p>"
            f"<details><summary>script</summary><pre>{html.escape(self.script or '')}</pre></details>"
            f"<details><summary>calls</summary><table>{''.join(rows)}</table></details>"
        )


class System:
    """A Designer and an Executor that answer questions. Use it as `async with System.open(...) as system`."""

    def __init__(
        self,
        name: str,
        config: Config,
        samplers: Mapping[Role, RoleSampler],
        sandbox: Sandbox,
        *,
        manual: bool,
        tools: ToolBox | None = None,
    ) -> None:
        """Take what `open` has opened."""
        self._tools = tools
        self.name = name
        self._samplers = samplers
        self._sandbox = sandbox
        self._in_flight = asyncio.Semaphore(config.rollout.in_flight)
        self._options = replace(RolloutOptions.of(config), manual=manual)
        self._seed = config.seed

    @classmethod
    @asynccontextmanager
    async def open(  # noqa: PLR0913  keyword arguments, each of which a user may leave out
        cls,
        source: str | Path,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        designer: str | None = None,
        manual: bool | None = None,
        settings: Path | None = None,
        tools: Sequence[str] = (),
        mcp: Sequence[str] = (),
        overrides: Sequence[str] = (),
    ) -> AsyncIterator[Self]:
        """Open a run (`RUN` or `RUN@STEP`), a model directory, an exported system, or with `base_url` a served model.

        `designer` names another model for the Designer, of the same kind as `source`. With `manual` the Designer reads
        the manual of the workflow language: the default for models that were not trained here. `settings` is the
        directory of an exported system whose weights the server has: its prompts and budgets are used. `tools` are
        functions, `module:function`, and `mcp` commands that start MCP servers: agents may call them, besides those
        that a run was trained with.
        """
        name = str(source)
        async with AsyncExitStack() as stack:
            if base_url is not None:
                found = served_model(stack, name, designer, base_url, api_key_env, settings, overrides)
            else:
                found = local_source(name, designer, overrides)
            config = offer_tools(found.config, tools, mcp)
            # Before a model is loaded: a mistake in a tool shows at once.
            box = await stack.enter_async_context(ToolBox.open(config.tools)) if config.tools.offered else None
            policies = await found.load()
            sandbox = await stack.enter_async_context(Sandbox(max_runs=config.rollout.in_flight + 64))
            samplers = evaluation_samplers(build_samplers(config, policies), config.evaluation)
            yield cls(
                name, config, samplers, sandbox, manual=not found.trained if manual is None else manual, tools=box
            )

    async def design(self, question: str, on_event: OnEvent | None = None, design: int = 0, attempt: int = 0) -> Design:
        """Return a design for a question, without executing it."""
        watch = on_event or ignore
        sampler = self._watched(Role.DESIGNER, design, attempt, watch)
        options = self._options
        seed = seed_of(self._seed, "solve", question, design, attempt)
        specs = () if self._tools is None else self._tools.specs
        written = await write_script(
            _task(question), sampler, seed, options.rollout, options.prompts, options.manual, specs
        )
        watch(DesignReady(design, attempt, written.script, written.fault))
        return written

    async def run(self, script: str, question: str, on_event: OnEvent | None = None, design: int = 0) -> Execution:
        """Run a script on a question in the sandbox. It is not graded."""
        sampler = self._watched(Role.EXECUTOR, design, 0, on_event or ignore)
        path = (self._seed, "solve", question, design)
        options, sandbox = self._options, self._sandbox
        async with self._in_flight:
            return await run_script(
                script,
                _task(question),
                sampler,
                sandbox,
                options.rollout,
                path,
                options.prompts.agent_instruction,
                self._tools,
            )

    async def solve(
        self, question: str, *, designs: int = 1, attempts: int = 3, on_event: OnEvent | None = None
    ) -> Result:
        """Answer a question. With several designs their answers are put to a vote."""
        if not question.strip():
            raise MetaAgentXError("the question is empty: write one")
        started = time.perf_counter()
        tried = await gather(self._attempt(question, number, attempts, on_event) for number in range(designs))
        rollout = Rollout(_task(question), [design for group in tried for design in group])
        found = [(design, answer) for group in tried if (answer := _answer_of(group[-1])) for design in group[-1:]]
        note = ""
        if not found:
            single = await self._single_agent(question, designs, on_event)
            rollout.designs.append(single)
            answer = _answer_of(single)
            note = SINGLE_AGENT if answer else "no design and no single agent led to an answer"
            if answer:
                found = [(single, answer)]
            _check_available(rollout)
        best = _vote([answer for _, answer in found])
        chosen = next((design for design, answer in found if answer == best), None)
        script = chosen.script if chosen is not None else None
        return Result(question, best, script, note, _usage(rollout), time.perf_counter() - started, rollout)

    async def _attempt(self, question: str, number: int, attempts: int, on_event: OnEvent | None) -> list[Design]:
        """Draw designs until one leads to an answer, and return all of them."""
        tried: list[Design] = []
        for attempt in range(max(1, attempts)):
            design = await self.design(question, on_event, number, attempt)
            tried.append(design)
            if design.script is not None and design.fault is None:
                await self._execute(design, question, number, on_event)
            if _answer_of(design):
                break
        return tried

    async def _execute(self, design: Design, question: str, number: int, on_event: OnEvent | None) -> None:
        assert design.script is not None
        design.executions = [await self.run(design.script, question, on_event, number)]
        design.pattern = design.structure.pattern if design.structure else ""

    async def _single_agent(self, question: str, number: int, on_event: OnEvent | None) -> Design:
        script = FIXED_DESIGNS["single"]
        design = Design(Call(Role.DESIGNER, "Designer", (), ""), script)
        await self._execute(design, question, number, on_event)
        return design

    def _watched(self, role: Role, design: int, attempt: int, on_event: OnEvent) -> RoleSampler:
        return WatchedSampler.watching(self._samplers[role], design, attempt, on_event)


def solve(question: str, source: str | Path, *, designs: int = 1, attempts: int = 3, **options: Any) -> Result:
    """Open a system, answer one question, and close it; also where an event loop runs, as in a notebook."""
    from concurrent.futures import ThreadPoolExecutor

    async def work() -> Result:
        async with System.open(source, **options) as system:
            return await system.solve(question, designs=designs, attempts=attempts)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work()).result()


def _task(question: str) -> Task:
    return Task("question", "math", question, MathGold(()), "solve", "")


def _answer_of(design: Design) -> str:
    """Return the answer that a design led to; empty: none. An answer that the script fed to an agent is one, too."""
    for execution in design.executions:
        usable = execution.fault is None or execution.fault.kind == "fed"
        if usable and execution.answer is not None:
            return _text_of(execution.answer)
    return ""


def _text_of(answer: FinalAnswer) -> str:
    return (answer.value or answer.text).strip()


def _vote(answers: Sequence[str]) -> str:
    """Return the most frequent answer, the first of several; empty if there is none."""
    return Counter(answers).most_common(1)[0][0] if answers else ""


def _usage(rollout: Rollout) -> Usage:
    calls = [design.call for design in rollout.designs if design.call.text or design.call.tokens]
    calls += [call for design in rollout.designs for execution in design.executions for call in execution.calls]
    return Usage(len(calls), sum(call.prompt_tokens for call in calls), sum(call.tokens for call in calls))


def _check_available(rollout: Rollout) -> None:
    """Raise if nothing but infrastructure faults happened."""
    faults: list[Fault | None] = []
    for design in rollout.designs:
        faults += [design.fault] if design.fault else [execution.fault for execution in design.executions]
    infra = [fault for fault in faults if fault is not None and fault.infra]
    if infra and len(infra) == len(faults):
        raise SystemUnavailable(f"every attempt failed with an infrastructure fault; first: {infra[0].message}")
