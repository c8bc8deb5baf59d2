"""Whether the script fed an answer: wrote its value into a prompt before the question or any agent had said it.

Over the question, and then for each call in the order of asking its prompt and its reply, the first to say the value is
its author. So a chain of agents that repeat what the script told the first of them is fed, too.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..types import Call, ProgramOutput
from ..workflow.protocol import Answer, reply_answer
from .arithmetic import evaluate
from .spans import SCRIPT_CHARACTERS, Prompts, handed_on, instructions
from .values import canonical, is_common, stands_apart, stands_in, states, variants

_LIST = 20
"""So many numbers that agents have mentioned, or more, are a list to choose from: the one who chose is the author."""
_MOST_LINES = 400
_LINE_CHARACTERS = 6
_BOILERPLATE_CHARACTERS = 60
_FED_SHARE = 0.7
_BOILERPLATE = ("import ", "from ", "if __name__", "def main", "main()", "class Solution", "#")
_MULTIPLIED = re.compile(r"\\times|\\cdot")
_EXCERPT = 60
_SEAM = 60


def find_fed(
    question: str, calls: Sequence[Call], programs: Sequence[ProgramOutput], answer_call: int | None
) -> str | None:
    """Where the script fed the answer of this call, in a sentence; None when it did not."""
    if answer_call is None or not 0 <= answer_call < len(calls):
        return None
    led = calls[: answer_call + 1]
    answer = reply_answer(led[-1].text, instructions(led[-1]))
    prompts = Prompts(question, led, programs)
    written = _Written([prompts.script_texts(number) for number in range(len(led))])
    said: _Said | None = None
    for parts in _readings(answer):
        places = [written.first(part) for part in parts]
        if all(place is None for place in places):
            continue
        said = said or _Said(question, led, programs)
        if fed := _first_fed(parts, places, said):
            number, part = fed
            if not written.holds(number, part):
                return f"the prompts up to call {number} hold more text of the script's than is looked at"
            where = f"the prompt of call {number} ({_cut(led[number].agent)})"
            return f'the script wrote "{_cut(part.text)}" into {where} before any agent had said it'
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """A value, or a line of a program or a text, in each form in which it may stand."""

    text: str
    forms: list[str]
    weight: int


def _first_fed(parts: Sequence[_Part], places: Sequence[int | None], said: "_Said") -> tuple[int, _Part] | None:
    """The first fed part and its call, when most of what is not in the question is fed."""
    fed: list[tuple[int, _Part]] = []
    whole = 0
    for part, place in zip(parts, places, strict=True):
        if said.by_question(part):
            continue
        whole += part.weight
        if place is not None and not said.before(part, place):
            fed.append((place, part))
    return fed[0] if fed and sum(part.weight for _, part in fed) >= _FED_SHARE * whole else None


def _readings(answer: Answer) -> Iterator[list[_Part]]:
    """What to look for: a value, and the values it consists of; or the lines of a program or a text."""
    lines = [line.strip() for line in answer.value.splitlines() if line.strip()][:_MOST_LINES]
    if answer.kind == "boxed" or (answer.kind == "text" and len(lines) == 1):
        yield list(_values([answer.value]))
        components = answer.value.split(",")[:_MOST_LINES]
        if len(components) > 1:
            yield list(_values(components))
        return
    telling = [line for line in lines if not _is_boilerplate(line)]
    yield [_Part(line, [canonical(line)], len(line)) for line in dict.fromkeys(telling or lines)]


def _values(texts: Iterable[str]) -> Iterator[_Part]:
    for text in texts:
        forms = variants(text)
        if (value := evaluate(_MULTIPLIED.sub("*", text))) is not None:
            forms += [form for form in variants(str(value)) if form not in forms]
        if forms:
            yield _Part(text.strip(), forms, len(forms[0]))


def _is_boilerplate(line: str) -> bool:
    if len(line) > _BOILERPLATE_CHARACTERS or ";" in line:
        return False
    return line.startswith(_BOILERPLATE) or len(canonical(line).replace(" ", "")) < _LINE_CHARACTERS


class _Written:
    """What the script wrote into the prompts, each text looked at where it comes first."""

    def __init__(self, prompts: Sequence[Sequence[str]]) -> None:
        self._prompts: list[list[tuple[str, str]]] = []
        self._beyond: int | None = None
        seen: set[str] = set()
        size = 0
        for number, texts in enumerate(prompts):
            new = [text for text in dict.fromkeys([*texts, *_seams(texts)]) if text not in seen]
            seen.update(new)
            size += sum(map(len, new))
            if size > SCRIPT_CHARACTERS:
                self._beyond = number
                break
            self._prompts.append([(text, canonical(text)) for text in new])

    def first(self, part: _Part) -> int | None:
        """The first call whose prompt holds it."""
        return next((n for n in range(len(self._prompts)) if self.holds(n, part)), self._beyond)

    def holds(self, number: int, part: _Part) -> bool:
        """Whether it stands in what is new in the prompt of this call."""
        if number >= len(self._prompts):
            return False
        return any(
            states(form, text) if is_common(form) else stands_in(form, tokens) or stands_apart(form, text)
            for text, tokens in self._prompts[number]
            for form in part.forms
        )


def _seams(texts: Sequence[str]) -> list[str]:
    """Where the texts of a prompt meet, side by side: a value may begin in one message and end in the next."""
    ends = [text if len(text) <= 2 * _SEAM else f"{text[:_SEAM]} {text[-_SEAM:]}" for text in texts]
    return ["".join(ends)] if len(texts) > 1 else []


class _Said:
    """What the question, the agents and their programs said."""

    def __init__(self, question: str, calls: Sequence[Call], programs: Sequence[ProgramOutput]) -> None:
        self._question = canonical(question)
        self._replies = [[canonical(text) for text in handed_on(call)[:1]] for call in calls]
        self._answers = [
            set(variants(reply_answer(call.text, instructions(call)).value)) if len(call.text) < 100_000 else set()
            for call in calls
        ]
        for program in programs:
            if program.call < len(calls):
                self._replies[program.call].append(canonical(program.output))

    def by_question(self, part: _Part) -> bool:
        """Whether it stands in the question."""
        return any(stands_in(form, self._question) for form in part.forms)

    def before(self, part: _Part, number: int) -> bool:
        """Whether an agent said it before a call was asked: as its answer, or in what it handed on."""
        forms = set(part.forms)
        if any(forms & answers for answers in self._answers[:number]):
            return True
        texts = [text for reply in self._replies[:number] for text in reply]
        if not any(stands_in(form, text) for text in texts for form in forms):
            return False
        if not any(form.strip().replace(".", "").isdecimal() for form in forms):
            return True
        return len({token for text in texts for token in text.split() if token[0].isdecimal()}) <= _LIST


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXCERPT else f"{flat[:_EXCERPT]}…"
