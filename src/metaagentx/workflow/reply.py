"""The Designer's reply: labeled remarks, then the script between `<code>` and `</code>`.

No reply makes the parser raise, and it takes time linear in the reply. The script is returned as it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .protocol import fenced_blocks, visible

DESIGNER_LINE = "You design multi-agent systems."
DESIGN_REQUEST = "Design Multi Agent System for the Question: "
"""The whole prompt of a Designer that has learned the language: the system line, and this before the question."""

LABELS = ("Problem Type", "Analysis", "Workflow Pattern", "Reason", "Agent Design", "Flow")
"""The remarks before the script. They are for the model itself: nobody parses them."""

_MARK = re.compile(r"(?P<own_line>^[ \t]*)?<(?P<closes>/?)code>", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DesignerReply:
    """The script, or None and the problem that left none to run."""

    script: str | None
    problem: str | None = None


def parse_reply(text: str) -> DesignerReply:
    """Return the script of a reply: the last complete `<code>` block, or else the last python fence."""
    shown = visible(text)
    script, opened = _code_block(shown)
    if script is None and not opened:
        fences = [block for block in fenced_blocks(shown) if block.label in ("python", "py", "python3", "")]
        script = fences[-1].inner if fences else None
    if script is not None and script.strip():
        return DesignerReply(script)
    if script is not None:
        return DesignerReply(None, "the <code> block is empty: write the script inside it")
    if opened:
        return DesignerReply(None, "the <code> block is not closed: the reply was cut off before </code>")
    return DesignerReply(None, "there is no script: write it between <code> and </code>")


def _code_block(text: str) -> tuple[str | None, bool]:
    """Return the script of the last closed block, and whether any block was opened.

    A tag within a line counts as text of the script, such as a prompt that mentions tags, unless there is no other.
    """
    marks = list(_MARK.finditer(text))
    openings = [mark for mark in marks if not mark["closes"]]
    openings = [mark for mark in openings if mark["own_line"] is not None] or openings
    closings = [mark for mark in marks if mark["closes"]]
    closings = [mark for mark in closings if mark["own_line"] is not None] or closings
    for opening in reversed(openings):
        if closings and closings[-1].start() >= opening.end():
            return _unwrap(text[opening.end() : closings[-1].start()]), True
    return None, bool(openings)


def _unwrap(inner: str) -> str:
    """Return the script without the fence around it."""
    script = inner.strip("\r\n")
    fences = fenced_blocks(script) if script.lstrip().startswith("```") else []
    return fences[0].inner if fences and not script[fences[0].end :].strip() else script
