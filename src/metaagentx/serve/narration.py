"""The work on a question as one text for `reasoning_content`: the designs, then what each agent says.

Agents may work at the same time, and one text has one order. The source that started first is told live; what others
say meanwhile is kept and told when their turn comes.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from ..system.events import CallDone, CallStarted, CallText, DesignReady, DesignText, Event, ToolOutput

_Key: TypeAlias = tuple[str, int, int]


@dataclass(slots=True)
class _Source:
    """One reply of the Designer or of an agent."""

    title: str
    pieces: list[str] = field(default_factory=list)
    """What was said and not yet told."""
    told: bool = False
    spoke: bool = False
    done: bool = False


class Narration:
    """Takes events and gives the text that they add."""

    def __init__(self) -> None:
        self._sources: dict[_Key, _Source] = {}  # in the order in which they started, without those told to the end
        self._begun = False

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case DesignText(design, attempt, text):
                self._say(self._designer(design, attempt), text)
            case DesignReady(design, attempt, script, fault):
                source = self._designer(design, attempt)
                if script is not None and not source.spoke:
                    self._say(source, script)
                if fault is not None:
                    self._say(source, f"\nThis design cannot run: {fault.message}")
                source.done = True
            case CallStarted(design, call, agent):
                self._agent(design, call, agent)
            case CallText(design, call, agent, text):
                self._say(self._agent(design, call, agent), text)
            case CallDone(design, call, agent, text, _):
                source = self._agent(design, call, agent)
                if not source.spoke:
                    self._say(source, text)
                source.done = True
            case ToolOutput(design, call, agent, text):
                source = self._sources.setdefault(("tools", design, call), _Source(f"Tools of {agent}"))
                self._say(source, text)
                source.done = True

    def take(self, *, finish: bool = False) -> str:
        """Return the text that can be told now; with `finish` all of it, also of calls that never ended."""
        told: list[str] = []
        for key, source in list(self._sources.items()):
            if source.pieces and not source.told:
                told.append(f"{chr(10) * 2 if self._begun else ''}[{source.title}]\n")
                source.told = self._begun = True
            told += source.pieces
            source.pieces.clear()
            if source.done or finish:
                del self._sources[key]
            else:
                break
        return "".join(told)

    def _say(self, source: _Source, text: str) -> None:
        if text:
            source.pieces.append(text)
            source.spoke = True

    def _designer(self, design: int, attempt: int) -> _Source:
        key = ("design", design, attempt)
        if key not in self._sources:
            for (_, number, _), source in self._sources.items():
                if number == design:  # a call of the attempt before, which failed without an end
                    source.done = True
            again = f", attempt {attempt + 1}" if attempt else ""
            self._sources[key] = _Source(f"Design {design + 1}{again}")
        return self._sources[key]

    def _agent(self, design: int, call: int, agent: str) -> _Source:
        return self._sources.setdefault(("call", design, call), _Source(agent))
