"""Tables as HTML: of rows, of an evaluation's Markdown, or of its JSON when there is no Markdown."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..types import JSON
from .svg import escape, number

NARROW_LETTERS = 56
"""What a screen of 400 pixels holds."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts in a table; columns of numbers stand to the right."""
    right = [all(_numeric(row[place]) for row in rows if place < len(row)) for place in range(len(head))]
    heads = "".join(_cell("th", name, right[place]) for place, name in enumerate(head))
    lines = ["".join(_cell("td", name, right[place]) for place, name in enumerate(row[: len(head)])) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    hint = '<p class="hint">Scroll the table sideways to see all columns. →</p>' if _is_wide(head, rows) else ""
    inside = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'{hint}<div class="scroll" tabindex="0"><table>{inside}</table></div>'


def _is_wide(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table will not fit a narrow screen, by its letters."""
    widths = [max(len(row[place]) for row in (head, *rows) if place < len(row)) for place in range(len(head))]
    return sum(widths) + 2 * len(widths) > NARROW_LETTERS


def evaluation_tables(directory: Path) -> str | None:
    """What `metaagentx eval` left in a directory; None when there is nothing that can be read."""
    try:
        return "".join(_markdown((directory / "evaluation.md").read_text(errors="replace"))) or None
    except OSError:
        pass
    try:
        found: JSON = json.loads((directory / "evaluation.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return "".join(_tables(found, "", 0)) or None


def _markdown(text: str) -> Iterator[str]:
    """Headings, lists, paragraphs and pipe tables, which is what reports of numbers are made of."""
    lines = [line.rstrip() for line in text.splitlines()] + [""]
    start = 0
    while start < len(lines):
        end = next(place for place in range(start, len(lines)) if not lines[place])
        block = lines[start:end]
        start = end + 1
        while block and block[0].startswith("#"):
            heading = block.pop(0)
            if not heading.startswith("# "):  # the page has a heading of its own
                yield f"<h4>{_inline(heading.lstrip('# '))}</h4>"
        before = [line for line in block if not line.lstrip().startswith("|")]
        rows = [_row(line) for line in block if line.lstrip().startswith("|")]
        if before:
            yield f"<p>{'<br>'.join(map(_inline, before))}</p>"
        if rows:
            yield table(rows[0], [row for row in rows[1:] if not all(re.fullmatch(":?-+:?", cell) for cell in row)])


def _row(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    # Earlier versions wrote differences that round to nothing with a minus.
    return [re.sub(r"(?<![\w.])-(0\.0+)(?!\d)", r"+\1", cell.strip().replace("\\|", "|")) for cell in cells]


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)


def _tables(value: JSON, name: str, depth: int) -> Iterator[str]:
    """Lists of objects and objects of objects, wherever they are, under the name they have."""
    rows = _rows_of(value)
    if rows:
        columns = list(dict.fromkeys(key for _, row in rows for key in row))
        named = any(title for title, _ in rows)
        head = ["", *columns] if named else columns
        cells = [[*([title] if named else []), *(_plain(row.get(key)) for key in columns)] for title, row in rows]
        yield (f"<h4>{escape(name)}</h4>" if name else "") + table(head, cells)
    elif isinstance(value, dict) and depth < 4:
        for key, inner in value.items():
            yield from _tables(inner, key, depth + 1)


def _rows_of(value: JSON) -> list[tuple[str, dict[str, JSON]]]:
    pairs: list[tuple[str, JSON]] = []
    if isinstance(value, list):
        pairs = [("", inner) for inner in value]
    elif isinstance(value, dict):
        pairs = list(value.items())
    rows = [(key, {k: v for k, v in inner.items() if _single(v)}) for key, inner in pairs if isinstance(inner, dict)]
    return rows if len(rows) == len(pairs) and all(row for _, row in rows) else []


def _single(value: JSON) -> bool:
    return value is not None and not isinstance(value, dict | list)


def _plain(value: JSON) -> str:
    if value is None:
        return "–"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _cell(tag: str, content: str, right: bool) -> str:
    look = " class='number'" if right else ""
    return f"<{tag}{look}>{_inline(content)}</{tag}>"


def _numeric(content: str) -> bool:
    return re.fullmatch(r"\**[-+−]?[\d.,]+(e-?\d+)?\s*%?(\s*(±|\[|\().*)?\**|–|-|", content.strip()) is not None
