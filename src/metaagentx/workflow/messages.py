"""What nodes exchange: a `Message` per result, and the `Context` in which a node works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .protocol import INSTRUCTION, Answer, critic_decision, delivery, stated_answer, visible


class WorkflowError(Exception):
    """A workflow that cannot be built or cannot continue; the text says what to do about it."""


class WorkflowTooLarge(WorkflowError):
    """A workflow with more agents or model calls than are allowed; it is refused before its first call."""


@dataclass(frozen=True, slots=True)
class Message:
    """A node's result.

    `content` is what is handed on: the delivery when the reply has exactly one, otherwise the whole reply.
    `sender` is the agent's name, `text` its whole reply, `call` the model call it came from (None: from no model),
    `answer` the typed answer in it: `answer.kind` is "boxed", "solution" or "text"; `answer.value` is a string.
    `verdict` is a critic's decision: True if it plainly approves ("CORRECT"), False if it rejects, None if unclear.
    """

    content: str
    sender: str = ""
    text: str = ""
    call: int | None = None

    @classmethod
    def from_reply(cls, sender: str, text: str, call: int, prompt: str = "", instruction: str = INSTRUCTION) -> Message:
        """Return the message of one model reply. An echo of the agent's prompt delivers nothing: see `delivery`."""
        delivered = delivery(text, prompt, instruction)
        return cls(visible(text).strip() if delivered is None else delivered, sender, text, call)

    @property
    def answer(self) -> Answer:
        return stated_answer(self.content, self.text)

    @property
    def verdict(self) -> bool | None:
        return critic_decision(self.content)


@dataclass(slots=True)
class Context:
    """What a node sees: `question`, the earlier `messages`, a `state` dict shared by the nodes of one run,
    and a `request`: what is asked of this node besides the question. Conditions and routing functions receive it.
    """

    question: str
    messages: list[Message] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)
    request: str = ""

    @property
    def latest(self) -> Message:
        """The last message; before any agent has spoken, the question as a message."""
        return self.messages[-1] if self.messages else Message(self.question, "question")

    @property
    def deliveries(self) -> list[str]:
        """The contents of the messages so far."""
        return [message.content for message in self.messages]

    def get_latest_message(self) -> Message:
        """The same as `latest`."""
        return self.latest

    def add_message(self, message: Message) -> None:
        self.messages.append(message)

    def get_state(self, key: str, default: object = None) -> object:
        """A value some node or condition of this run has set."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: object) -> None:
        """Keep a value for later nodes and conditions of this run."""
        self.state[key] = value

    def view(self, extra: Iterable[Message] = (), request: str = "") -> Context:
        """Return the context of a step inside a node: with more messages and a further request, and the same state."""
        asked = "\n\n".join(part for part in (self.request, request) if part)
        return Context(self.question, [*self.messages, *extra], self.state, asked)

    def fork(self) -> Context:
        """Return the context of one of several concurrent branches, which do not see one another's changes."""
        return Context(self.question, list(self.messages), dict(self.state), self.request)
