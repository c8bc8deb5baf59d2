"""Tables as HTML."""

from collections.abc import Sequence

from .svg import escape

NARROW_LETTERS = 56
"""How many letters a screen of 400 pixels shows side by side."""


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table of texts. The columns after the first `text_columns` hold numbers and are aligned to the right."""

    def line(tag: str, cells: Sequence[str]) -> str:
        looks = [""] * text_columns + [" class='number'"] * (len(cells) - text_columns)
        content = [f"<{tag}{look}>{escape(cell)}</{tag}>" for look, cell in zip(looks, cells, strict=False)]
        return f"<tr>{''.join(content)}</tr>"

    body = "".join(line("td", row) for row in rows)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    is_wide = sum(widths) + 2 * len(widths) > NARROW_LETTERS
    hint = '<p class="hint">Scroll the table sideways to see all columns. →</p>' if is_wide else ""
    inside = f"<thead>{line('th', head)}</thead><tbody>{body}</tbody>"
    return f'{hint}<div class="scroll" tabindex="0"><table>{inside}</table></div>'
