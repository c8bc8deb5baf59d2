"""The parts of charts: SVG elements, scales with round ticks, labels that do not overlap, and numbers as text.

Colors are CSS variables, which the page sets for light and dark mode; `standalone_svg` inserts the light values.
"""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

FONT = 12
LETTER = 0.66
"""The usual width of a bold letter, relative to the font size."""
COLORS = {
    "paper": ("#ffffff", "#12161d"),
    "ink": ("#1d2330", "#e6eaf2"),
    "muted": ("#5d6676", "#9aa5b6"),
    "grid": ("#e3e7ee", "#2a313d"),
    "shade": ("#8d97a9", "#6d7a90"),
    "executor": ("#0072b2", "#56b4e9"),
    "designer": ("#d55e00", "#ff8a3d"),
    "c0": ("#009e73", "#2fc795"),
    "c1": ("#b4558d", "#e39ac6"),
    "c2": ("#d18f00", "#f0b53a"),
    "c3": ("#3a9bdc", "#7cc4f5"),
    "c4": ("#0b4f8a", "#4f8fe0"),
    "c5": ("#b23b00", "#f2693a"),
    "c6": ("#7a8394", "#8b95a6"),
}
"""CSS variables with their light and dark values: the Okabe-Ito palette, which is safe for color-blind readers, some
colors darker so that thin lines are visible on white."""
LINE_COLORS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 4", "1 3")


def escape(text: str) -> str:
    """Escape a text for HTML and SVG. Characters that neither may contain are replaced."""
    clean = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    return html.escape(clean, quote=True)


def truncate_to_width(text: str, width: float) -> str:
    """Cut a text to a width, by the usual width of letters."""
    room = max(1, int(width / (LETTER * FONT)))
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def number(value: float) -> str:
    """Format a number with two or three digits."""
    if value and not 1e-2 <= abs(value) < 1e5:
        return re.sub(r"e([+-])0?(\d)", lambda match: f"e{match[1].strip('+')}{match[2]}", f"{value:.2g}")
    value += 0.0  # which makes a negative zero a plain one
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{share:z.1%}" if 0 < abs(share) < 0.0995 else f"{share:z.0%}"


def text(x: float, y: float, content: str, style: str = "", **attributes: str) -> str:
    """Return a text element; `style` is its class."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style or "tick"}"{more}>{escape(content)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, color: str = "grid") -> str:
    """Return a thin straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--{color})"/>'


@dataclass(frozen=True, slots=True)
class Plot:
    """The area of a chart in pixels, and the steps and values at its edges."""

    left: float
    top: float
    right: float
    bottom: float
    steps: tuple[float, float]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        """Return the x coordinate of a step."""
        first, last = self.steps
        return self.left + (step - first) / (last - first) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        low, high = self.values
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Return the `d` attribute of a path through all points."""
        return "M" + "L".join(f"{self.x(step):.1f} {self.y(value):.1f}" for step, value in points)


def ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """Return round numbers within a range."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    step = max(1.0, step) if whole else step
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def value_range(values: Sequence[float], share: bool) -> tuple[float, float]:
    """Return the range of the value axis: 0 and all values, up to a round number; shares up to 1."""
    if share:
        return 0.0, max([1.0, *values])
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        return 0.0, 1.0
    marks = ticks(low, high, 4)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def spread_out(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move heights apart until they are `gap` from one another, within bounds if there is room."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    floor = low
    for index in order:
        placed[index] = floor = max(heights[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        placed[index] = ceiling = min(placed[index], ceiling)
        ceiling -= gap
    return placed


STYLE = f"""text {{ font: {FONT}px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }}
.tick {{ fill: var(--muted); }}
.label {{ font-weight: 600; }}
.heading {{ font-size: 14px; font-weight: 650; fill: var(--ink); }}
.stage {{ font-size: 11px; }}
.raw {{ fill: none; stroke-width: 1; stroke-opacity: .35; }}
.mean {{ fill: none; stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: butt; }}
.area {{ stroke: var(--paper); stroke-width: .7; }}"""


def standalone_svg(drawing: str) -> str:
    """Return a drawing as the content of an SVG file, with light colors on white."""
    opening, rest = drawing.split(">", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    content = f"{opening}><style>{STYLE}</style>{paper}{rest}\n"
    return re.sub(r"var\(--([\w-]+)\)", lambda match: COLORS[match[1]][0], content)
