r"""What agents write for one another, and how it is read. Pure functions; the host scores with the same ones.

- `<delivery></delivery>`, once: what an agent hands on. `\boxed{}` or `<solution></solution>`: a final answer.
- A fenced python block or `<tool_call></tool_call>` around JSON: tool use.
- `<think>...</think>` at the start of a reply is private: nothing in it counts.

No text makes these functions raise, and each takes time linear in the text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

# Tags stand empty in whatever we tell an agent: an echo of it then holds no delivery, no answer and no tool call.
INSTRUCTION = (
    "When you are done, write your result once inside <delivery></delivery>: short, complete, with the reasons that "
    "matter. The other agents see the delivery and nothing else of your reply. If you have a final answer, state it "
    r"inside the delivery: a value in \boxed{}, a program in <solution></solution>."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A typed answer: a `boxed` value, the source of a `solution`, or, when there is neither, the plain `text`."""

    kind: Literal["boxed", "solution", "text"]
    value: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool: code to run, or a named call. `problem` says why a call could not be read."""

    name: str | None
    arguments: dict[str, JSON]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two marks; `start` and `end` include the marks."""

    start: int
    end: int
    inner: str
    label: str = ""


_TAGS = {tag: re.compile(rf"<(/?){tag}>", re.IGNORECASE) for tag in ("delivery", "solution", "tool_call")}
_FENCE = re.compile(r"^ {0,3}(`{3,})([^\n`]*)$", re.MULTILINE)
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


def visible(text: str) -> str:
    """Return the reply without its thinking; of a reply that was cut off while thinking, nothing."""
    _, closed, shown = text.rpartition("</think>")
    if closed:
        return shown
    return "" if text.lstrip().startswith("<think>") else text


def blocks(tag: str, text: str) -> list[Block]:
    """Return the closed blocks of a tag. Where a tag is opened twice in a row, the second opening counts."""
    closed: list[Block] = []
    opened: re.Match[str] | None = None
    for mark in _TAGS[tag].finditer(text):
        if not mark[1]:
            opened = mark
        elif opened:
            closed.append(Block(opened.start(), mark.end(), text[opened.end() : mark.start()].strip()))
            opened = None
    return closed


def fenced_blocks(text: str) -> list[Block]:
    """Return closed fenced blocks with their language in lower case. A fence that names a language opens a block."""
    closed: list[Block] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        label = fence[2].strip()
        if opened is None or label:
            opened = fence
        elif len(fence[1]) >= len(opened[1]):
            words = opened[2].split()
            inner = text[opened.end() + 1 : fence.start()].removesuffix("\n")
            closed.append(Block(opened.start(), fence.end(), inner, words[0].lower() if words else ""))
            opened = None
    return closed


def deliveries(text: str, prompt: str = "", instruction: str = INSTRUCTION) -> list[str]:
    """Return what the model wrote in delivery blocks, without those that are empty, repeat the prompt's, or repeat a
    part of the instruction.
    """
    told, written = _collapse(instruction), blocks("delivery", visible(text))
    echoes = {told} | {_collapse(block.inner) for block in blocks("delivery", prompt)}
    return [block.inner for block in written if not _is_echo(block.inner, echoes, told)]


def delivery(text: str, prompt: str = "", instruction: str = INSTRUCTION) -> str | None:
    """Return the delivery of a reply that has exactly one, opened and closed.

    `prompt` is the agent's whole system message, `instruction` the part of it that all agents are told.
    """
    shown = visible(text)
    written = deliveries(shown, prompt, instruction)
    echoed = len(blocks("delivery", shown)) - len(written)
    marks = sum(1 for _ in _TAGS["delivery"].finditer(shown))
    return written[0] if len(written) == 1 and marks == 2 + 2 * echoed else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` that is closed and not empty; braces are matched."""
    box = _last_box(visible(text))
    return box.inner if box else None


def last_solution(text: str) -> str | None:
    """Return the program in the last `<solution>` that is closed and not empty, without the fence around it."""
    block = _last_solution(visible(text))
    return unfence(block.inner) if block else None


def unfence(text: str) -> str:
    """Return the last fenced block of a text, or the whole text when nothing is fenced."""
    fenced = [block.inner for block in fenced_blocks(text) if block.inner.strip()]
    return fenced[-1] if fenced else text


def parse_answer(text: str) -> Answer:
    """Return the answer a text ends on: its last box or solution. A box inside a program is part of the program."""
    shown = visible(text)
    box, solution = _last_box(shown), _last_solution(shown)
    if solution and not (box and (box.start >= solution.end or solution.inner == shown[box.start : box.end])):
        return Answer("solution", unfence(solution.inner))
    return Answer("boxed", box.inner) if box else Answer("text", shown.strip())


def stated_answer(content: str, text: str) -> Answer:
    """Return the answer of a message: what its content states, else what the whole reply states, else the content."""
    stated = parse_answer(content)
    anywhere = parse_answer(text) if stated.kind == "text" else stated
    return stated if anywhere.kind == "text" else anywhere


def reply_answer(text: str, prompt: str = "", instruction: str = INSTRUCTION) -> Answer:
    """Return the answer of a whole reply. The host compares what a script says a call answered with this."""
    delivered = delivery(text, prompt, instruction)
    return stated_answer(text if delivered is None else delivered, text)


def pending_tool_uses(text: str, runs_python: bool = True) -> list[ToolUse]:
    """Return the tool uses that wait for their output: none when a delivery or an answer follows the last of them.

    Code inside a delivery or a solution is a result and not a tool use.
    """
    shown = visible(text)
    delivered, solved = blocks("delivery", shown), blocks("solution", shown)
    fences = [b for b in fenced_blocks(shown) if b.label in ("python", "py", "python3")]
    uses: list[tuple[Block, ToolUse]] = []
    for fence in fences if runs_python else []:
        if fence.inner.strip() and not _inside(fence, delivered, solved):
            uses.append((fence, ToolUse(None, {"code": fence.inner})))
    for call in blocks("tool_call", shown):
        if call.inner and not _inside(call, delivered, solved, fences):
            uses.append((call, _parse_call(call.inner)))
    uses.sort(key=lambda use: use[0].start)
    box = _last_box(shown)
    told = _collapse(INSTRUCTION)
    results = [b for b in delivered + solved if not _is_echo(b.inner, set(), told)] + ([box] if box else [])
    if uses and any(result.start >= uses[-1][0].end for result in results):
        return []
    return [use for _, use in uses]


def _parse_call(inner: str) -> ToolUse:
    try:
        call = json.loads(unfence(inner))
    except (ValueError, RecursionError) as error:
        return ToolUse(None, {}, f"the tool call is not valid JSON ({error}). Write one object, with double quotes.")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolUse(None, {}, 'a tool call is one JSON object with a "name" and its "arguments".')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolUse(call["name"], {}, '"arguments" must be a JSON object.')
    return ToolUse(call["name"], arguments)


def _last_box(text: str) -> Block | None:
    last: Block | None = None
    opened: list[re.Match[str]] = []
    for mark in _BRACE.finditer(text):
        if mark[0] in ("\\{", "\\}"):
            continue
        if mark[0].endswith("{"):
            opened.append(mark)
        elif opened:
            start = opened.pop()
            # The later start wins, so that of a box within a box the inner one is read.
            if len(start[0]) > 1 and (last is None or start.start() > last.start):
                inner = text[start.end() : mark.start()].strip()
                last = Block(start.start(), mark.end(), inner) if inner else last
    return last


def _last_solution(text: str) -> Block | None:
    written = [block for block in blocks("solution", text) if unfence(block.inner).strip(" \n\t.…")]
    return written[-1] if written else None


def _inside(block: Block, *groups: list[Block]) -> bool:
    for group in groups:  # each in order and without overlap, so that only one block can hold this one
        before = bisect_right(group, block.start, key=lambda other: other.start)
        if before and block.end <= group[before - 1].end:
            return True
    return False


def _collapse(text: str) -> str:
    """Return the text with single spaces and without case."""
    return " ".join(text.split()).casefold()


def _is_echo(inner: str, echoes: set[str], told: str) -> bool:
    written = _collapse(inner)
    return not written.strip(".…") or written in echoes or (len(written) >= 20 and written in told)


_NEGATION = re.compile(r"not|no|never|neither|nor|cannot|without|hardly|barely|nothing|far|isnt|wasnt|\w+n't")
_HEDGE = re.compile(
    r"partially|partly|mostly|almost|nearly|if|whether|may|might|could|would|should|seems|appears|possibly|probably|"
    r"likely|perhaps|unless|until|please|must|to|or"
)
_APPROVAL = re.compile(r"correct|approved?|accept(ed)?")
_REJECTION = re.compile(r"incorrect|wrong|invalid|flawed|reject(ed)?|inaccurate")
_DOUBT = re.compile(r"errors?|mistakes?|but|however|except|fix")
# "correct the sign", "the correct value is 7", "correct?" and "correct or incorrect" do not approve of anything.
_NOT_APPROVING_NEXT = re.compile(r"the|this|that|it|its|your|these|those|by|for|answer|result|value|approach|\?|or")
_WORD = re.compile(r"[a-z']+|[.,;:!?\n]")


def critic_decision(text: str) -> bool | None:
    """Return what a critic decided: True approves, False rejects, None is anything that is not plainly one of them.

    What follows the last word "verdict" outweighs the rest.
    """
    plain = visible(text).lower().replace("\u2019", "'")
    opinions = _opinions(plain.rpartition("verdict")[2]) or _opinions(plain)
    return opinions.pop() if len(opinions) == 1 else None


def _opinions(text: str) -> set[bool | None]:
    words = _WORD.findall(text)
    opinions: set[bool | None] = set()
    for position, (word, following) in enumerate(zip(words, [*words[1:], ""], strict=False)):
        clause = _clause_before(words, position)
        negated = any(map(_NEGATION.fullmatch, clause))
        hedged = any(map(_HEDGE.fullmatch, clause))
        if _REJECTION.fullmatch(word):
            opinions.add(None if negated or hedged else False)
        elif _APPROVAL.fullmatch(word):
            opinions.add(None if hedged or _NOT_APPROVING_NEXT.fullmatch(following) else not negated)
        elif _DOUBT.fullmatch(word) and not negated:  # "no errors" says nothing on its own
            opinions.add(None)
    return opinions


def _clause_before(words: list[str], position: int) -> list[str]:
    near = words[max(0, position - 5) : position]
    cut = max((i + 1 for i, word in enumerate(near) if word in ".,;:!?\n"), default=0)
    return near[cut:]
