"""Detects fed answers: the script wrote the value into a prompt before the question or any agent had said it.

The author of a value is the first to say it: the question, then the prompt and the reply of each call, in the order of
the calls. So a chain of agents that repeat what the script told the first of them is fed, too.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..types import Call, FinalAnswer, ProgramOutput
from .arithmetic import evaluate
from .spans import SCRIPT_CHARACTERS, Prompts, answer_of, forwarded_texts
from .values import canonical, contains_spaced_digits, contains_value, is_common, states_as_answer, variants

_MAX_NUMBERS = 20
"""If agents mentioned more numbers than this, they are a list to choose from: the author is the one who chose."""
_MAX_LINES = 400
_LINE_CHARACTERS = 6
_BOILERPLATE_CHARACTERS = 60
_FED_SHARE = 0.7
_BOILERPLATE = ("import ", "from ", "if __name__", "def main", "main()", "class Solution", "#")
_MULTIPLIED = re.compile(r"\\times|\\cdot")
_EXCERPT_CHARACTERS = 60
_SEAM_CHARACTERS = 60


def find_fed(
    question: str,
    calls: Sequence[Call],
    programs: Sequence[ProgramOutput],
    answer: FinalAnswer,
    told: Sequence[str] = (),
) -> str | None:
    """Return where the script fed this answer of a call, in a sentence; None when it did not.

    `told`: what the operator says about tools, `Execution.told`.
    """
    if answer.call is None or not 0 <= answer.call < len(calls):
        return None
    calls_so_far = calls[: answer.call + 1]
    prompts = Prompts(question, calls_so_far, programs, told)
    script_texts = _ScriptTexts([prompts.script_texts(number) for number in range(len(calls_so_far))])
    agent_texts: _AgentTexts | None = None
    for parts in _readings(answer):
        prompt_numbers = [script_texts.first_prompt_with(part) for part in parts]
        if all(number is None for number in prompt_numbers):
            continue
        agent_texts = agent_texts or _AgentTexts(question, calls_so_far, programs)
        if fed := _first_fed(parts, prompt_numbers, agent_texts):
            number, part = fed
            if not script_texts.holds(number, part):
                return f"the prompts up to call {number} hold more text of the script than is searched"
            where = f"the prompt of call {number} ({_cut(calls_so_far[number].agent)})"
            return f'the script wrote "{_cut(part.text)}" into {where} before any agent had said it'
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """A value, or a line of a program or a text, in each form in which it may be written."""

    text: str
    forms: list[str]
    weight: int


def _first_fed(
    parts: Sequence[_Part], prompt_numbers: Sequence[int | None], agent_texts: "_AgentTexts"
) -> tuple[int, _Part] | None:
    """Return the first fed part with its call, if most of what is not in the question is fed."""
    fed: list[tuple[int, _Part]] = []
    total = 0
    for part, number in zip(parts, prompt_numbers, strict=True):
        if agent_texts.question_holds(part):
            continue
        total += part.weight
        if number is not None and not agent_texts.said_before(part, number):
            fed.append((number, part))
    return fed[0] if fed and sum(part.weight for _, part in fed) >= _FED_SHARE * total else None


def _readings(answer: FinalAnswer) -> Iterator[list[_Part]]:
    """Yield what to search for, of everything that a grader may read: the answer, and a box or a program beside it."""
    yield from _readings_of(answer.kind, answer.value)
    if answer.kind == "solution" and answer.box is not None:
        yield from _readings_of("boxed", answer.box)
    elif answer.kind == "boxed" and answer.program is not None:
        yield from _readings_of("solution", answer.program)


def _readings_of(kind: str, value: str) -> Iterator[list[_Part]]:
    """Yield a value, then the values in it; or the lines of a program or a text."""
    lines = [line.strip() for line in value.splitlines() if line.strip()][:_MAX_LINES]
    if kind == "boxed" or (kind == "text" and len(lines) == 1):
        yield list(_values([value]))
        components = value.split(",")[:_MAX_LINES]
        if len(components) > 1:
            yield list(_values(components))
        return
    significant = [line for line in lines if not _is_boilerplate(line)]
    yield [_Part(line, [canonical(line)], len(line)) for line in dict.fromkeys(significant or lines)]


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


class _ScriptTexts:
    """The texts that the script wrote into the prompts; each text counts for the first prompt that holds it."""

    def __init__(self, prompts: Sequence[Sequence[str]]) -> None:
        self._prompts: list[list[tuple[str, str]]] = []
        self._first_unsearched: int | None = None
        seen: set[str] = set()
        size = 0
        for number, texts in enumerate(prompts):
            new = [text for text in dict.fromkeys([*texts, *_seams(texts)]) if text not in seen]
            seen.update(new)
            size += sum(map(len, new))
            if size > SCRIPT_CHARACTERS:
                self._first_unsearched = number
                break
            self._prompts.append([(text, canonical(text)) for text in new])

    def first_prompt_with(self, part: _Part) -> int | None:
        """Return the first call whose prompt holds a part."""
        return next((n for n in range(len(self._prompts)) if self.holds(n, part)), self._first_unsearched)

    def holds(self, number: int, part: _Part) -> bool:
        """Return whether a part is in the new text of the prompt of a call."""
        if number >= len(self._prompts):
            return False
        return any(
            states_as_answer(form, text)
            if is_common(form)
            else contains_value(form, tokens) or contains_spaced_digits(form, text)
            for text, tokens in self._prompts[number]
            for form in part.forms
        )


def _seams(texts: Sequence[str]) -> list[str]:
    """Return the texts of a prompt joined at their ends: a value may begin in one message and end in the next."""
    size = _SEAM_CHARACTERS
    ends = [text if len(text) <= 2 * size else f"{text[:size]} {text[-size:]}" for text in texts]
    return ["".join(ends)] if len(texts) > 1 else []


class _AgentTexts:
    """The texts of the question, of the agents and of their programs, in their canonical form."""

    def __init__(self, question: str, calls: Sequence[Call], programs: Sequence[ProgramOutput]) -> None:
        self._question = canonical(question)
        self._replies = [[canonical(text) for text in forwarded_texts(call)[:1]] for call in calls]
        self._answers = [set(variants(answer_of(call).value)) if len(call.text) < 100_000 else set() for call in calls]
        for program in programs:
            if program.call < len(calls):
                self._replies[program.call].append(canonical(program.output))

    def question_holds(self, part: _Part) -> bool:
        """Return whether the question holds a part."""
        return any(contains_value(form, self._question) for form in part.forms)

    def said_before(self, part: _Part, number: int) -> bool:
        """Return whether an agent said a part before a call was made: as its answer, or in what it passed on."""
        forms = set(part.forms)
        if any(forms & answers for answers in self._answers[:number]):
            return True
        texts = [text for reply in self._replies[:number] for text in reply]
        if not any(contains_value(form, text) for text in texts for form in forms):
            return False
        if not any(form.strip().replace(".", "").isdecimal() for form in forms):
            return True
        return len({token for text in texts for token in text.split() if token[0].isdecimal()}) <= _MAX_NUMBERS


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXCERPT_CHARACTERS else f"{flat[:_EXCERPT_CHARACTERS]}…"
