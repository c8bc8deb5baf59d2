"""A sampler that tells those who watch what the Designer and the agents write."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..rollout.sampling import OnTimeout, RoleSampler
from ..types import Call, Role
from .events import CallDone, CallStarted, CallText, DesignText, Event, ToolOutput

OnEvent: TypeAlias = Callable[[Event], None]
_OUTPUTS = ("Output of ", "Error: ")
"""How the language begins what an agent reads after it used a tool."""


def ignore(event: Event) -> None:
    """Watch nothing."""


@dataclass(frozen=True, slots=True)
class WatchedSampler(RoleSampler):
    """A sampler that reports each call as it starts, grows and ends."""

    design: int = 0
    attempt: int = 0
    on_event: OnEvent = ignore
    started: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def watching(cls, plain: RoleSampler, design: int, attempt: int, on_event: OnEvent) -> "WatchedSampler":
        """Return a sampler like this one for one design."""
        return cls(
            plain.role,
            plain.policy,
            plain.max_tokens,
            plain.temperature,
            plain.attempt_seconds,
            plain.retries,
            design=design,
            attempt=attempt,
            on_event=on_event,
        )

    async def call(
        self,
        agent: str,
        messages: Sequence[Mapping[str, str]],
        seed: int,
        earlier: Sequence[Call] = (),
        on_text: Callable[[str], None] | None = None,
        on_timeout: OnTimeout | None = None,
    ) -> Call:
        """Make the call and report it."""
        number = self.started[0]
        self.started[0] += 1
        sample, design = RoleSampler.call, self.design
        if self.role is Role.DESIGNER:

            def on_design(text: str) -> None:
                self.on_event(DesignText(design, self.attempt, text))

            return await sample(self, agent, messages, seed, earlier, on_design, on_timeout)

        def on_reply(text: str) -> None:
            self.on_event(CallText(design, number, agent, text))

        if len(messages) > 2 and messages[-1]["content"].startswith(_OUTPUTS):
            self.on_event(ToolOutput(design, number, agent, messages[-1]["content"]))
        self.on_event(CallStarted(design, number, agent))
        call = await sample(self, agent, messages, seed, earlier, on_reply, on_timeout)
        self.on_event(CallDone(design, number, agent, call.text, call.tokens))
        return call
