"""The runtime of workflows: how a script's asks leave and its replies come back. No threads, asyncio or sockets.

Nodes are coroutines that await an `Ask` or a `gather` of others; `run_to_end` runs them and sends every ask that can be
sent before it waits for a reply. Replies are taken in the order of their asks, whichever comes first: what a script
does is then a function of the replies alone and does not depend on timing. A `Transport` carries the asks: the sandbox
installs its own with `use`, and a plain function instead of it answers in-process. Code under `run_to_end` may call it
again (a tool that runs an agent): replies that belong to the outer run are kept for it.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

from .inputs import LENIENT_INPUT, host_input
from .messages import Message, WorkflowError
from .protocol import JSON
from .structure import MAX_REPORTS, TOO_LARGE, Structure

T = TypeVar("T")
P = ParamSpec("P")
Chat: TypeAlias = "tuple[dict[str, str], ...]"


@dataclass(frozen=True, slots=True)
class PythonOutcome:
    """What a piece of Python printed, and how it ended."""

    stdout: str = ""
    stderr: str = ""
    returncode: int = 0
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to an ask, and the id of that ask."""

    id: int
    value: JSON


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to the host: a `model` call of an agent, `python` code to run, or an offered `tool` to call."""

    kind: Literal["model", "python", "tool"]
    agent: str = ""
    messages: Chat = ()
    code: str = ""
    stdin: str = ""
    timeout: float = 0.0
    tool: str = ""
    arguments: str = ""
    """JSON as text: what is wrong with it is found by the host, which tells the agent."""

    def body(self) -> dict[str, JSON]:
        """Return the ask as it is sent."""
        if self.kind == "model":
            return {"kind": "model", "agent": self.agent, "messages": [{**message} for message in self.messages]}
        if self.kind == "tool":
            return {"kind": "tool", "name": self.tool, "arguments": self.arguments}
        return {"kind": "python", "code": self.code, "stdin": self.stdin, "timeout": self.timeout}

    def __await__(self) -> Generator[Ask, Reply, Reply]:
        return (yield self)


@runtime_checkable
class Transport(Protocol):
    """Carries asks out and replies back. `{"error": text}` as a reply ends the asking run with that text."""

    def send(self, body: dict[str, JSON]) -> int:
        """Start an ask and return its id."""

    def receive(self) -> tuple[int, JSON]:
        """Wait for any reply: the id of its ask, and the reply."""

    def answer(self, value: JSON) -> None:
        """Hand over the final answer; a later one replaces it."""


Answerer: TypeAlias = "Callable[[Ask], str | PythonOutcome]"


class WorkflowSession:
    """One installed transport: what was asked through it (`asks`) and the final answer (`answer`)."""

    def __init__(self, transport: Transport | Answerer, max_calls: int | None) -> None:
        self.asks: list[Ask] = []
        self.answer: dict[str, JSON] | None = None
        self.notes: list[str] = []
        """What was ignored in the script."""
        self.depth = 0
        self._transport = transport if isinstance(transport, Transport) else _InProcess(transport, self)
        self._calls_left = max_calls
        self._arrived: dict[int, JSON] = {}
        self._reported: list[Structure] = []
        self._unsent: Structure | None = None
        self._previous: WorkflowSession | None = None

    def report_structure(self, structure: Structure) -> None:
        """Report the workflow that is about to run with its first model call; an equal one is reported once."""
        known = structure in self._reported or len(self._reported) >= MAX_REPORTS
        self._unsent = None if known else structure

    def refuse(self, reason: str) -> None:
        """Tell the host that a workflow is too large to run: its design is invalid."""
        self._transport.answer({"kind": TOO_LARGE, "value": reason, "call": None})

    def send(self, ask: Ask) -> int:
        """Start an ask, unless the budget of model calls is used up."""
        body = ask.body()
        if ask.kind == "model":
            if self._calls_left is not None:
                if self._calls_left <= 0:
                    raise WorkflowError("the budget of model calls is used up")
                self._calls_left -= 1
            if self._unsent is not None:
                body["structure"] = self._unsent.to_json()
                self._reported.append(self._unsent)
                self._unsent = None
        self.asks.append(ask)
        return self._transport.send(body)

    def receive(self, ask_id: int) -> Reply:
        """Wait for the reply to an ask; replies to others are kept until they are asked for."""
        while ask_id not in self._arrived:
            arrived_id, value = self._transport.receive()
            self._arrived[arrived_id] = value
        return Reply(ask_id, self._arrived.pop(ask_id))

    def finish(self, message: Message) -> None:
        """Hand over the final answer with the call it came from."""
        answer = message.answer
        self.answer = {"kind": answer.kind, "value": answer.value, "call": message.call}
        self._transport.answer(self.answer)

    def __enter__(self) -> WorkflowSession:
        return self

    def __exit__(self, *_: object) -> None:
        global _session
        _session = self._previous


class _InProcess:
    """Answers asks by calling a function, in the order of asking. The id of an ask is its index in `asks`."""

    def __init__(self, answerer: Answerer, session: WorkflowSession) -> None:
        self._answerer, self._session = answerer, session
        self._unanswered: deque[int] = deque()

    def send(self, body: dict[str, JSON]) -> int:
        self._unanswered.append(len(self._session.asks) - 1)
        return self._unanswered[-1]

    def receive(self) -> tuple[int, JSON]:
        ask_id = self._unanswered.popleft()
        ask = self._session.asks[ask_id]
        reply = self._answerer(ask)
        if isinstance(reply, str):
            return ask_id, {"stdout": reply} if ask.kind == "python" else reply
        return ask_id, asdict(reply)

    def answer(self, value: JSON) -> None:
        """Do nothing: the session stores the answer."""


_session: WorkflowSession | None = None


def use(transport: Transport | Answerer, max_calls: int | None = None) -> WorkflowSession:
    """Answer the asks of all workflows from now on: with a transport, or with a function from `Ask` to reply.

    As a context manager it puts back, at its end, what was in use before. `max_calls` bounds the model calls.
    """
    global _session
    session = WorkflowSession(transport, max_calls)
    session._previous, _session = _session, session
    return session


def ignore_unknown(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function ignore unknown keyword arguments in the lenient dialect; a note in the log says which."""
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        unknown = [name for name in kwargs if name not in parameters]
        if host_input(LENIENT_INPUT, False) and unknown:
            for name in unknown:
                del kwargs[name]
            _note(f"{function.__qualname__.removesuffix('.__init__')} has no {', '.join(unknown)}: ignored")
        return function(*args, **kwargs)

    return call


def _note(text: str) -> None:
    """Write a note to the script's log, once."""
    notes = [] if _session is None else _session.notes
    if text not in notes:
        notes.append(text)
        sys.stdout.write(f"note: {text}\n")


def finish(message: Message) -> None:
    """Hand over a message's answer as the final one, unless an outer run is still under way."""
    if _session and not _session.depth:
        _session.finish(message)


async def ask_model(agent: str, messages: Iterable[dict[str, str]]) -> tuple[int, str]:
    """Make a model call; return the host's number of it (its ask's id where the host gives none) and the reply."""
    reply = await Ask("model", agent, tuple(messages))
    value = _checked(reply.value)
    call, text = (value.get("call"), value.get("text")) if isinstance(value, dict) else (reply.id, value)
    if not isinstance(text, str):
        raise WorkflowError(f"the reply to {agent} is not a text")
    return call if isinstance(call, int) else reply.id, text


async def run_python(code: str, stdin: str = "", timeout: float = 10.0) -> PythonOutcome:
    """Run Python outside the script, in a process of its own."""
    value = _checked((await Ask("python", code=code, stdin=stdin, timeout=timeout)).value)
    if not isinstance(value, dict):
        raise WorkflowError("the reply to a python ask is not an outcome")
    returncode = value.get("returncode", 0)
    return PythonOutcome(
        stdout=str(value.get("stdout", "")),
        stderr=str(value.get("stderr", "")),
        returncode=returncode if isinstance(returncode, int) else 1,
        timed_out=value.get("timed_out") is True,
    )


async def call_tool(name: str, arguments: str) -> str:
    """Call an offered tool with arguments in JSON and return what the agent reads."""
    value = _checked((await Ask("tool", tool=name, arguments=arguments)).value)
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise WorkflowError(f"the reply of the tool {name} is not a text")
    return text


def _checked(value: JSON) -> JSON:
    if isinstance(value, dict) and "error" in value:
        raise WorkflowError(str(value["error"]))
    return value


class _Gather(Generic[T]):
    def __init__(self, coroutines: Iterable[Coroutine[Any, Any, T]]) -> None:
        self.coroutines = list(coroutines)

    def __await__(self) -> Generator[_Gather[T], list[T], list[T]]:
        return (yield self) if self.coroutines else []


def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> Awaitable[list[T]]:
    """Run coroutines concurrently; return their results in order, or raise the first error once all have ended."""
    return _Gather(coroutines)


class _Join:
    """Results that are being waited for, and the task that waits for them (None: the caller of `run_to_end`)."""

    def __init__(self, count: int, waiter: _Task | None) -> None:
        self.results: list[Any] = [None] * count
        self.errors: list[Exception | None] = [None] * count
        self.missing = count
        self.waiter = waiter

    @property
    def error(self) -> Exception | None:
        return next((error for error in self.errors if error is not None), None)


@dataclass(eq=False, slots=True)
class _Task:
    """A running coroutine, and where its result goes."""

    coroutine: Coroutine[Any, Any, Any]
    join: _Join
    index: int


def current_session() -> WorkflowSession:
    """Return what answers the asks now."""
    if _session is None:
        raise WorkflowError(
            "nothing answers the agents: call workflow.use(function) first, with a function that takes an Ask and "
            "returns the reply, or run the script in the sandbox"
        )
    return _session


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, with everything it gathers, on the transport in use."""
    session = current_session()
    session.depth += 1
    try:
        return _Scheduler(session).run(coroutine)
    finally:
        session.depth -= 1


class _Scheduler:
    def __init__(self, session: WorkflowSession) -> None:
        self._session = session
        self._ready: deque[tuple[_Task, Any]] = deque()
        self._waiting: dict[int, _Task] = {}
        self._alive: set[_Task] = set()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        join = _Join(1, None)
        self._start([coroutine], join)
        try:
            while join.missing:
                while self._ready:
                    self._step(*self._ready.popleft())
                if join.missing:
                    oldest = next(iter(self._waiting))
                    self._ready.append((self._waiting.pop(oldest), self._session.receive(oldest)))
        finally:
            for task in self._alive:
                task.coroutine.close()
        if join.error:
            raise join.error
        result: T = join.results[0]
        return result

    def _start(self, coroutines: list[Coroutine[Any, Any, Any]], join: _Join) -> None:
        for index, coroutine in enumerate(coroutines):
            task = _Task(coroutine, join, index)
            self._alive.add(task)
            self._ready.append((task, None))

    def _step(self, task: _Task, value: Any) -> None:
        try:
            throws = isinstance(value, Exception)
            request = task.coroutine.throw(value) if throws else task.coroutine.send(value)
        except StopIteration as stop:
            self._end(task, stop.value, None)
        except Exception as error:  # noqa: BLE001  any error of a coroutine belongs to the one that awaits it
            self._end(task, None, error)
        else:
            self._handle_request(task, request)

    def _handle_request(self, task: _Task, request: object) -> None:
        if isinstance(request, Ask):
            try:
                self._waiting[self._session.send(request)] = task
            except WorkflowError as error:
                self._ready.append((task, error))
        elif isinstance(request, _Gather):
            self._start(request.coroutines, _Join(len(request.coroutines), task))
        else:
            misuse = WorkflowError("a node can only await other nodes: asyncio does not run inside a workflow")
            self._ready.append((task, misuse))

    def _end(self, task: _Task, result: object, error: Exception | None) -> None:
        self._alive.discard(task)
        join = task.join
        join.results[task.index], join.errors[task.index] = result, error
        join.missing -= 1
        if join.waiter and not join.missing:
            self._ready.append((join.waiter, join.error or join.results))
