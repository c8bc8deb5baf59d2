"""The Designer's reply: labelled text, then the script between `<code>` and `</code>`.

No reply makes the parser raise, and it takes time linear in the reply. The script is handed on as it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .protocol import fenced_blocks, visible

DESIGNER_LINE = "You design multi-agent systems."
DESIGN_REQUEST = "Design Multi Agent System for the Question: "
"""The whole prompt of a Designer that has learnt the language: the system line, and this before the question."""

LABELS = ("Problem Type", "Analysis", "Workflow Pattern", "Reason", "Agent Design", "Flow")

_LABEL = re.compile(rf"^[ \t#*\-\d.]{{0,8}}({'|'.join(LABELS)})[ \t*]{{0,4}}:[ \t*]{{0,4}}(.*)$", re.IGNORECASE)
_MARK = re.compile(r"(?P<own_line>^[ \t]*)?<(?P<closes>/?)code>", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DesignerReply:
    """The script (None when there is none to run), the labelled remarks before it, and what is wrong, if anything."""

    script: str | None
    labels: dict[str, str]
    problem: str | None = None


def parse_reply(text: str) -> DesignerReply:
    """Read a reply: the last complete `<code>` block, or else the last python fence, is the script."""
    shown = visible(text)
    before, script, opened = _code_block(shown)
    if script is None and not opened:
        fences = [block for block in fenced_blocks(shown) if block.label in ("python", "py", "python3", "")]
        if fences:
            before, script = shown[: fences[-1].start], fences[-1].inner
    labels = _labels(before)
    if script is not None and script.strip():
        return DesignerReply(script, labels)
    if script is not None:
        return DesignerReply(None, labels, "the <code> block is empty: write the script inside it")
    if opened:
        return DesignerReply(None, labels, "the <code> block is not closed: the reply was cut off before </code>")
    return DesignerReply(None, labels, "there is no script: write it between <code> and </code>")


def _code_block(text: str) -> tuple[str, str | None, bool]:
    """What stands before the last closed block, that block's script, and whether any block was opened.

    A tag within a line is taken for text of the script, such as a prompt that speaks of tags, unless no other is there.
    """
    marks = list(_MARK.finditer(text))
    openings = [mark for mark in marks if not mark["closes"]]
    openings = [mark for mark in openings if mark["own_line"] is not None] or openings
    closings = [mark for mark in marks if mark["closes"]]
    closings = [mark for mark in closings if mark["own_line"] is not None] or closings
    for opening in reversed(openings):
        if closings and closings[-1].start() >= opening.end():
            inner = text[opening.end() : closings[-1].start()]
            return text[: opening.start()], _unwrap(inner), True
    return text[: openings[0].start()] if openings else text, None, bool(openings)


def _unwrap(inner: str) -> str:
    script = inner.strip("\r\n")
    fences = fenced_blocks(script) if script.lstrip().startswith("```") else []
    return fences[0].inner if fences and not script[fences[0].end :].strip() else script


def _labels(text: str) -> dict[str, str]:
    names = {name.lower(): name for name in LABELS}
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            lines = found.setdefault(names[label[1].lower()], [])
            lines.append(label[2])
        elif lines is not None:
            lines.append(line)
    return {name: "\n".join(lines).strip() for name, lines in found.items()}
