"""The source of every span of a prompt: the question, an earlier reply, a program's output, the language, the script.

What is not known to be from elsewhere is the script's. Known texts are looked for as they are, the longest first: the
question; earlier replies, whole or what they hand on; what a program printed that an agent wrote; the fixed texts of
the workflow language. A text too short to be recognized anywhere is recognized as a line of its own. The
output of a tool that the script defines is the script's, unless it is the value of what the agent wrote as argument.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..types import Call, ProgramOutput
from ..workflow.agent import LAST_TURN
from ..workflow.nodes import DEBATE_REQUEST, JUDGE_REQUEST, REFINEMENT_REQUEST, REFLECTION_REQUEST
from ..workflow.protocol import (
    INSTRUCTION,
    delivery,
    fenced_blocks,
    last_solution,
    pending_tool_uses,
    reply_answer,
    visible,
)
from ..workflow.tools import MAX_OUTPUT_CHARACTERS, MAX_USES_PER_REPLY, ToolRegistry, shorten
from .arithmetic import values_of
from .values import canonical, variants

Source: TypeAlias = Literal["question", "reply", "tool", "instruction", "script"]

KEPT_CHARACTERS = 2 * MAX_OUTPUT_CHARACTERS
"""Of a program's output: more than an agent is shown."""
_RECOGNIZED_ANYWHERE = 12
"""Characters. A shorter text might stand in another by chance."""
# Beyond these, text counts as the script's without a look: that can only take a reward away.
_MESSAGE_CHARACTERS = 400_000
_ALL_CHARACTERS = 4_000_000
_MOST_SPANS = 2000
_VALUE_CHARACTERS = 200
_INPUT_CHARACTERS = 20_000
SCRIPT_CHARACTERS = 1_000_000
"""Of the script's own text. What is beyond counts as holding whatever is looked for."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a prompt and where it is from. `call`: the number of the call that replied, or wrote the program."""

    source: Source
    text: str
    call: int | None = None


_Mark: TypeAlias = tuple[Source, int | None]


def _fixed_texts() -> list[str]:
    tools = ToolRegistry()
    tools.register_python()
    requests = [JUDGE_REQUEST, REFLECTION_REQUEST, REFINEMENT_REQUEST, DEBATE_REQUEST]
    return [INSTRUCTION, LAST_TURN, *requests, *tools.describe().splitlines(), "Question:", "Output of python:"]


_FIXED = _fixed_texts()


class Prompts:
    """The prompts of an execution, call by call, each message as its spans."""

    def __init__(self, question: str, calls: Sequence[Call], programs: Sequence[ProgramOutput] = ()) -> None:
        self._texts: list[tuple[int, str, _Mark]] = []
        """By length, the longest first."""
        self._lines: dict[str, _Mark] = {}
        self._values: dict[str, _Mark] = {}
        """Numbers that follow from the arguments of a tool, in their canonical form."""
        self._messages: dict[str, tuple[Span, ...]] = {}
        self._looked_at = 0
        self._question = canonical(question)
        self._forms: list[list[str]] = []
        self._seen: set[str] = set()
        self._room = SCRIPT_CHARACTERS
        self.calls: list[list[tuple[Span, ...]]] = []
        for text in _FIXED:
            self._know(text, ("instruction", None))
        self._know(question, ("question", None))
        self._know(question.strip(), ("question", None))
        for number, call in enumerate(calls):
            self.calls.append([self._spans(message.get("content", "")) for message in call.messages])
            for text in (call.text, call.text.strip(), *handed_on(call)):
                self._know(text, ("reply", number))
            for expression, form in _computed(call.text):
                if not self.dictated(expression, number):
                    self._values.setdefault(form, ("tool", number))
            for program in programs:
                if program.call == number:
                    for text in _shown_of(program.output):
                        self._know(text, ("tool", number))

    def script_texts(self, number: int) -> list[str]:
        """What the script wrote into the prompt of a call, in order."""
        return [span.text for spans in self.calls[number] for span in spans if span.source == "script"]

    def replies_in(self, number: int) -> set[int]:
        """The calls whose replies stand in the prompt of a call."""
        spans = (span for message in self.calls[number] for span in message)
        return {span.call for span in spans if span.source == "reply" and span.call is not None}

    def dictated(self, text: str, number: int) -> bool:
        """Whether the script wrote this into the prompts up to that of a call, and the question does not hold it."""
        form = canonical(text)
        if form in self._question:
            return False
        while self._room > 0 and len(self._forms) <= number:
            new = [text for text in self.script_texts(len(self._forms)) if text not in self._seen]
            self._seen.update(new)
            self._room -= sum(map(len, new))
            self._forms.append([canonical(text) for text in new] if self._room > 0 else [])
        return self._room <= 0 or any(form in written for forms in self._forms[: number + 1] for written in forms)

    def _know(self, text: str, mark: _Mark) -> None:
        if len(text) >= _RECOGNIZED_ANYWHERE:
            insort(self._texts, (-len(text), text, mark), key=lambda known: known[0])
        elif text.strip():
            self._lines.setdefault(text.strip(), mark)

    def _spans(self, content: str) -> tuple[Span, ...]:
        """The spans of a message. One that came before has the spans it had: later replies did not write it."""
        if content not in self._messages:
            self._messages[content] = tuple(_join(self._split(content)))
        return self._messages[content]

    def _split(self, content: str) -> Iterator[Span]:
        known, unknown = content[:_MESSAGE_CHARACTERS], content[_MESSAGE_CHARACTERS:]
        self._looked_at += len(known)
        if self._looked_at > _ALL_CHARACTERS:
            known, unknown = "", content
        parts = [Span("script", known)]
        for _, text, mark in self._texts:
            if len(text) <= len(known) and len(parts) < _MOST_SPANS and text in known:
                parts = [piece for part in parts for piece in _mark_text(part, text, mark)]
        for part in parts:
            yield from self._mark_lines(part)
        yield Span("script", unknown)

    def _mark_lines(self, part: Span) -> Iterator[Span]:
        if part.source != "script":
            yield part
            return
        for line in part.text.splitlines(keepends=True):
            mark = self._lines.get(line.strip())
            if mark is None and self._values and len(line) <= _VALUE_CHARACTERS:
                mark = self._values.get(canonical(line))
            source, call = mark or ("script", None)
            yield Span(source, line, call)


def _mark_text(part: Span, text: str, mark: _Mark) -> Iterator[Span]:
    """A part of the script's, with the places marked where a known text stands and does not cut a word in two."""
    if part.source != "script":
        yield part
        return
    whole, done, start = part.text, 0, part.text.find(text)
    while start >= 0:
        end = start + len(text)
        inside_word = whole[start - 1 : start].isalnum() and text[0].isalnum()
        inside_word = inside_word or (text[-1].isalnum() and whole[end : end + 1].isalnum())
        if not inside_word:
            yield Span("script", whole[done:start])
            yield Span(mark[0], text, mark[1])
            done = end
        start = whole.find(text, end)
    yield Span("script", whole[done:])


def _join(spans: Iterable[Span]) -> Iterator[Span]:
    """Without empty spans, neighbors of one source as one."""
    last: Span | None = None
    texts: list[str] = []
    for span in spans:
        if not span.text:
            continue
        if last is not None and (last.source, last.call) != (span.source, span.call):
            yield Span(last.source, "".join(texts), last.call)
            texts = []
        last = span
        texts.append(span.text)
    if last is not None:
        yield Span(last.source, "".join(texts), last.call)


def handed_on(call: Call) -> list[str]:
    """What a reply hands on: its delivery, or all that is visible of it."""
    delivered = delivery(call.text, instructions(call))
    shown = visible(call.text).strip()
    return [shown] if delivered is None else [delivered, shown]


def instructions(call: Call) -> str:
    """The system messages of a call."""
    return "\n".join(message.get("content", "") for message in call.messages if message.get("role") == "system")


def _shown_of(output: str) -> list[str]:
    """An output as an agent may be shown it: whole, or its beginning and its end."""
    half = MAX_OUTPUT_CHARACTERS // 2
    return [output] if len(output) <= MAX_OUTPUT_CHARACTERS else [output, output[:half], output[-half:]]


def accept_programs(
    question: str, calls: Sequence[Call], programs: Sequence[tuple[str, str, str]]
) -> list[ProgramOutput]:
    """Outputs of the programs (code, standard input, output) that an agent wrote, in the order they were run.

    A program is an agent's when a reply holds its code as a block or as an argument of a tool, the script did not
    dictate that code in a prompt, and its standard input is empty, from the question, or all of a reply, of its answer,
    of a block in it, or of such an output.
    """
    if not programs or not calls:
        return []
    authors: dict[str, int] = {}
    inputs: dict[str, int] = {}
    for number, call in enumerate(calls):
        written = _code_in(call.text)
        for code in written:
            authors.setdefault(code, number)
        answer = reply_answer(call.text, instructions(call)).value
        for text in {*written, call.text, *handed_on(call), answer}:
            if len(text) <= _INPUT_CHARACTERS:
                inputs.setdefault(canonical(text), number)
    prompts, asked = Prompts(question, calls), canonical(question)
    accepted: list[ProgramOutput] = []
    for code, stdin, output in programs:
        author = authors.get(code.strip())
        if author is None or len(stdin) > _INPUT_CHARACTERS:
            continue
        form = canonical(stdin)
        # A part of a reply will not do: the one that chose it might have chosen the answer.
        source = 0 if form.strip() == "" or form in asked else inputs.get(form)
        if source is not None and not prompts.dictated(code, author):
            accepted.append(ProgramOutput(max(author, source), shorten(output.strip("\n"), KEPT_CHARACTERS)))
            inputs.setdefault(canonical(accepted[-1].output), accepted[-1].call)
    return accepted


def _computed(reply: str) -> Iterator[tuple[str, str]]:
    """The arguments with which a reply calls a tool, and what each comes to."""
    if "tool_call" not in reply:
        return
    for use in pending_tool_uses(visible(reply))[:MAX_USES_PER_REPLY]:
        for argument in use.arguments.values():
            for value in values_of([argument]):
                for form in variants(str(value)):
                    yield str(argument), form


def _code_in(reply: str) -> set[str]:
    """Everything in a reply that a tool may run; of many blocks the first, as a tool runs no more of them."""
    shown = visible(reply)
    blocks = fenced_blocks(shown)[:MAX_USES_PER_REPLY]
    found = {block.inner.strip() for block in blocks} | {(last_solution(shown) or "").strip()}
    for use in pending_tool_uses(shown)[:MAX_USES_PER_REPLY]:
        found |= {value.strip() for value in use.arguments.values() if isinstance(value, str)}
    return found - {""}
