"""The source of every span of a prompt: the question, an earlier reply, a program's output, the language, the script.

Text of unknown source counts as the script's. Known texts are searched verbatim, the longest first: the question;
earlier replies, whole or what they hand on; outputs of programs that an agent wrote; the fixed texts of the workflow
language. A text too short to be recognized anywhere is recognized as a line of its own. The output of a tool that the
script defines is the script's, unless it is the value of what the agent wrote as argument. The result of a tool that
the operator offers is the script's, too, unless an agent wrote the call with its arguments.
"""

import json
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..types import JSON, Call, FinalAnswer, ProgramOutput, ToolCall
from ..workflow.agent import LAST_TURN
from ..workflow.nodes import DEBATE_REQUEST, JUDGE_REQUEST, REFINEMENT_REQUEST, REFLECTION_REQUEST
from ..workflow.protocol import (
    INSTRUCTION,
    Answer,
    ToolUse,
    delivery,
    fenced_blocks,
    last_solution,
    parse_answer,
    pending_tool_uses,
    reply_answer,
    visible,
)
from ..workflow.tools import MAX_OUTPUT_CHARACTERS, MAX_USES_PER_REPLY, ToolRegistry, shorten
from .arithmetic import values_of
from .values import canonical, is_common, variants

SpanSource: TypeAlias = Literal["question", "reply", "tool", "instruction", "script"]

KEPT_CHARACTERS = 2 * MAX_OUTPUT_CHARACTERS
"""How many characters of a program's output are kept: more than an agent is shown."""
_RECOGNIZED_ANYWHERE = 12
"""Minimum number of characters: another text may contain a shorter one by chance."""
# Text beyond these limits counts as the script's unexamined: that can only take a reward away.
_MESSAGE_CHARACTERS = 400_000
_ALL_CHARACTERS = 4_000_000
_MAX_SPANS = 2000
_VALUE_CHARACTERS = 200
_INPUT_CHARACTERS = 20_000
SCRIPT_CHARACTERS = 1_000_000
"""How much text of the script is searched. Text beyond counts as holding whatever is searched for."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a prompt and its source. `call` is the call that replied, or that wrote the program."""

    source: SpanSource
    text: str
    call: int | None = None


_Origin: TypeAlias = tuple[SpanSource, int | None]


def _fixed_texts() -> list[str]:
    tools = ToolRegistry()
    tools.register_python()
    requests = [JUDGE_REQUEST, REFLECTION_REQUEST, REFINEMENT_REQUEST, DEBATE_REQUEST]
    return [INSTRUCTION, LAST_TURN, *requests, *tools.describe().splitlines(), "Question:", "Output of python:"]


_FIXED = _fixed_texts()


class Prompts:
    """The prompts of an execution, call by call, each message as its spans."""

    def __init__(
        self,
        question: str,
        calls: Sequence[Call],
        programs: Sequence[ProgramOutput] = (),
        told: Sequence[str] = (),
    ) -> None:
        """Split all prompts. `told`: what the operator says about tools, `Execution.told`."""
        self._texts: list[tuple[int, str, _Origin]] = []
        """By length, the longest first."""
        self._lines: dict[str, _Origin] = {}
        self._values: dict[str, _Origin] = {}
        """Numbers that follow from the arguments of a tool, in their canonical form."""
        self._messages: dict[str, tuple[Span, ...]] = {}
        self._searched_characters = 0
        self._question = canonical(question)
        self._forms: list[list[str]] = []
        self._seen: set[str] = set()
        self._characters_left = SCRIPT_CHARACTERS
        self.calls: list[list[tuple[Span, ...]]] = []
        for text in dict.fromkeys([*_FIXED, *told, *(call.instruction for call in calls)]):
            self._add_known(text, ("instruction", None))
        self._add_known(question, ("question", None))
        self._add_known(question.strip(), ("question", None))
        for number, call in enumerate(calls):
            self.calls.append([self._spans(message.get("content", "")) for message in call.messages])
            for text in (call.text, call.text.strip(), *forwarded_texts(call)):
                self._add_known(text, ("reply", number))
            for expression, form in _computed_values(call.text):
                if not self.is_dictated(expression, number):
                    self._values.setdefault(form, ("tool", number))
            for program in programs:
                if program.call == number:
                    for text in _forms_shown(program.output):
                        self._add_known(text, ("tool", number))

    def script_texts(self, number: int) -> list[str]:
        """Return what the script wrote into the prompt of a call, in order."""
        return [span.text for spans in self.calls[number] for span in spans if span.source == "script"]

    def replies_in(self, number: int) -> set[int]:
        """Return the calls whose replies are in the prompt of a call."""
        spans = (span for message in self.calls[number] for span in message)
        return {span.call for span in spans if span.source == "reply" and span.call is not None}

    def is_dictated(self, text: str, number: int) -> bool:
        """Return whether the script wrote a text, which is not in the question, into a prompt up to that of a call."""
        form = canonical(text)
        if form in self._question:
            return False
        while self._characters_left > 0 and len(self._forms) <= number:
            new = [text for text in self.script_texts(len(self._forms)) if text not in self._seen]
            self._seen.update(new)
            self._characters_left -= sum(map(len, new))
            self._forms.append([canonical(text) for text in new] if self._characters_left > 0 else [])
        return self._characters_left <= 0 or any(
            form in written for forms in self._forms[: number + 1] for written in forms
        )

    def _add_known(self, text: str, origin: _Origin) -> None:
        if len(text) >= _RECOGNIZED_ANYWHERE:
            insort(self._texts, (-len(text), text, origin), key=lambda known: known[0])
        elif text.strip():
            self._lines.setdefault(text.strip(), origin)

    def _spans(self, content: str) -> tuple[Span, ...]:
        """Return the spans of a message. A repeated message keeps its spans: later replies did not write it."""
        if content not in self._messages:
            self._messages[content] = tuple(_join(self._split(content)))
        return self._messages[content]

    def _split(self, content: str) -> Iterator[Span]:
        known, unknown = content[:_MESSAGE_CHARACTERS], content[_MESSAGE_CHARACTERS:]
        self._searched_characters += len(known)
        if self._searched_characters > _ALL_CHARACTERS:
            known, unknown = "", content
        parts = [Span("script", known)]
        for _, text, origin in self._texts:
            if len(text) <= len(known) and len(parts) < _MAX_SPANS and text in known:
                parts = [piece for part in parts for piece in _mark_text(part, text, origin)]
        for part in parts:
            yield from self._mark_lines(part)
        yield Span("script", unknown)

    def _mark_lines(self, part: Span) -> Iterator[Span]:
        if part.source != "script":
            yield part
            return
        for line in part.text.splitlines(keepends=True):
            origin = self._lines.get(line.strip())
            if origin is None and self._values and len(line) <= _VALUE_CHARACTERS:
                origin = self._values.get(canonical(line))
            source, call = origin or ("script", None)
            yield Span(source, line, call)


def _mark_text(part: Span, text: str, origin: _Origin) -> Iterator[Span]:
    """Yield a part of the script's with a known text marked in it wherever that does not split a word."""
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
            yield Span(origin[0], text, origin[1])
            done = end
        start = whole.find(text, end)
    yield Span("script", whole[done:])


def _join(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans without empty ones, adjacent spans of one source merged."""
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


def forwarded_texts(call: Call) -> list[str]:
    """Return what later prompts may hold of a reply: its delivery, if it has one, and its visible text."""
    delivered = delivery_of(call)
    shown = visible(call.text).strip()
    return [shown] if delivered is None else [delivered, shown]


def delivery_of(call: Call) -> str | None:
    """Return the delivery of a call's reply, if it has exactly one that the model wrote itself."""
    return delivery(call.text, *_told(call))


def answer_of(call: Call) -> Answer:
    """Return the answer of a call's reply."""
    return reply_answer(call.text, *_told(call))


def _told(call: Call) -> tuple[str, str]:
    """Return the system messages of a call, and the part of them that all agents were told."""
    system = [message.get("content", "") for message in call.messages if message.get("role") == "system"]
    return "\n".join(system), call.instruction or INSTRUCTION


def final_answer(calls: Sequence[Call], number: int) -> FinalAnswer:
    """Return the answer of a call, with the passage that states it: the delivery, or else the whole reply."""
    call = calls[number]
    delivered = delivery_of(call)
    if delivered is not None and (answer := parse_answer(delivered)).kind != "text":
        return FinalAnswer(answer.kind, answer.value, delivered, number)
    answer = answer_of(call)
    return FinalAnswer(answer.kind, answer.value, call.text, number)


def _forms_shown(output: str) -> list[str]:
    """Return an output as an agent may be shown it: whole, or its beginning and its end."""
    half = MAX_OUTPUT_CHARACTERS // 2
    return [output] if len(output) <= MAX_OUTPUT_CHARACTERS else [output, output[:half], output[-half:]]


def accept_programs(
    question: str, calls: Sequence[Call], programs: Sequence[tuple[str, str, str]]
) -> list[ProgramOutput]:
    """Return outputs of the programs (code, standard input, output) that an agent wrote, in the order of execution.

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
        for text in {*written, call.text, *forwarded_texts(call), answer_of(call).value}:
            if len(text) <= _INPUT_CHARACTERS:
                inputs.setdefault(canonical(text), number)
    prompts, asked = Prompts(question, calls), canonical(question)
    accepted: list[ProgramOutput] = []
    for code, stdin, output in programs:
        author = authors.get(code.strip())
        if author is None or len(stdin) > _INPUT_CHARACTERS:
            continue
        form = canonical(stdin)
        # Not a part of a reply: whoever chose the part might have chosen the answer.
        source = 0 if form.strip() == "" or form in asked else inputs.get(form)
        if source is not None and not prompts.is_dictated(code, author):
            accepted.append(ProgramOutput(max(author, source), shorten(output.strip("\n"), KEPT_CHARACTERS)))
            inputs.setdefault(canonical(accepted[-1].output), accepted[-1].call)
    return accepted


def accept_tools(question: str, calls: Sequence[Call], uses: Sequence[ToolCall]) -> list[ProgramOutput]:
    """Return the results of the tool calls that an agent wrote, in the order of the calls.

    A call is an agent's when a reply holds it with the same arguments and the script did not dictate them in a prompt.
    """
    if not uses or not calls:
        return []
    authors: dict[tuple[str, str], int] = {}
    for number, call in enumerate(calls):
        for use in _tool_uses(call.text):
            authors.setdefault((use.name or "", _sorted_json(use.arguments)), number)
    prompts = Prompts(question, calls)
    accepted: list[ProgramOutput] = []
    for called in uses:
        try:
            arguments: JSON = json.loads(called.arguments)
        except (ValueError, RecursionError):
            continue
        key = _sorted_json(arguments)
        author = authors.get((called.name, key), authors.get(("", key)))  # a python block names no tool
        if author is not None and not _is_dictated(prompts, arguments, author):
            accepted.append(ProgramOutput(author, called.result.strip("\n")))
    return accepted


def _is_dictated(prompts: Prompts, arguments: JSON, author: int) -> bool:
    """Return whether the script wrote all arguments into prompts. Short and common values say nothing: 5, yes."""
    leaves = [leaf for leaf in _leaves(arguments) if not is_common(canonical(leaf))]
    return bool(leaves) and all(prompts.is_dictated(leaf, author) for leaf in leaves)


def _leaves(value: JSON) -> Iterator[str]:
    """Yield the values in a JSON value as texts."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        else:
            yield str(part)


def _sorted_json(value: JSON) -> str:
    """Return a value as text that tells 1 from 1.0 and true."""
    return json.dumps(value, sort_keys=True)


def _tool_uses(reply: str) -> Iterator[ToolUse]:
    """Yield the tool uses of a reply that are run: which ones depends on whether the agent has a tool for Python."""
    if "tool_call" not in reply and "```" not in reply:
        return
    for runs_python in (True, False):
        yield from pending_tool_uses(visible(reply), runs_python)[:MAX_USES_PER_REPLY]


def _computed_values(reply: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments of the tool calls in a reply, each with its value."""
    if "tool_call" not in reply:
        return
    for use in pending_tool_uses(visible(reply))[:MAX_USES_PER_REPLY]:
        for argument in use.arguments.values():
            for value in values_of([argument]):
                for form in variants(str(value)):
                    yield str(argument), form


def _code_in(reply: str) -> set[str]:
    """Return all code in a reply that a tool may run: the first blocks, up to the limit of a tool, and the solution."""
    shown = visible(reply)
    blocks = fenced_blocks(shown)[:MAX_USES_PER_REPLY]
    code = {block.inner.strip() for block in blocks} | {(last_solution(shown) or "").strip()}
    for use in pending_tool_uses(shown)[:MAX_USES_PER_REPLY]:
        code |= {value.strip() for value in use.arguments.values() if isinstance(value, str)}
    return code - {""}
