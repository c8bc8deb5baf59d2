"""The parts charts are drawn from: marks as text, scales with round ticks, labels that do not lie on one another.

Colours are CSS variables, which the page sets for light and dark; `alone` puts the light ones in for a file of its own.
"""

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

FONT = 12
LETTER = 0.66
"""The usual width of a letter, bold, by the size of the font."""
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1d2330",
    "muted": "#5d6676",
    "grid": "#e3e7ee",
    "shade": "#8d97a9",
    "executor": "#0072b2",
    "designer": "#d55e00",
    "c0": "#009e73",
    "c1": "#b4558d",
    "c2": "#d18f00",
    "c3": "#3a9bdc",
    "c4": "#0b4f8a",
    "c5": "#b23b00",
    "c6": "#7a8394",
}
"""Okabe and Ito's colours, which the colour-blind tell apart, some darker so that thin lines show on white."""
DARK = {
    "paper": "#12161d",
    "ink": "#e6eaf2",
    "muted": "#9aa5b6",
    "grid": "#2a313d",
    "shade": "#6d7a90",
    "executor": "#56b4e9",
    "designer": "#ff8a3d",
    "c0": "#2fc795",
    "c1": "#e39ac6",
    "c2": "#f0b53a",
    "c3": "#7cc4f5",
    "c4": "#4f8fe0",
    "c5": "#f2693a",
    "c6": "#8b95a6",
}
HUES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6")
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 4", "1 3")


def escape(text: str) -> str:
    """Text that is only text in HTML and in SVG, also where it has signs that neither may hold."""
    clean = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    return html.escape(clean, quote=True)


def fitting(text: str, width: float, size: float = FONT) -> str:
    """As much of a text as a width holds, by the usual width of letters."""
    room = max(1, int(width / (LETTER * size)))
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def number(value: float) -> str:
    """A number for a person, two or three digits of it."""
    if value and not 1e-2 <= abs(value) < 1e5:
        return re.sub(r"e([+-])0?(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", f"{value:.2g}")
    value += 0.0  # which makes a negative zero a plain one
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def text(x: float, y: float, content: str, style: str = "", **attributes: str) -> str:
    """A text; `style` names a class."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style or "tick"}"{more}>{escape(content)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, colour: str = "grid") -> str:
    """A thin straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--{colour})"/>'


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle that values are drawn in, in pixels, and what its edges mean."""

    left: float
    top: float
    right: float
    bottom: float
    steps: tuple[float, float]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        """Where a step is."""
        first, last = self.steps
        return self.left + (step - first) / (last - first) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where a value is."""
        low, high = self.values
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Through all points, as the `d` of a path."""
        return "M" + "L".join(f"{self.x(step):.1f} {self.y(value):.1f}" for step, value in points)


def ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """Round numbers within a range."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    step = max(1.0, step) if whole else step
    return [place * step for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def value_range(values: Sequence[float], share: bool) -> tuple[float, float]:
    """What the value axis spans: 0 and all values, up to a round number; shares up to 1."""
    if share:
        return 0.0, max([1.0, *values])
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        return 0.0, 1.0
    marks = ticks(low, high, 4)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights near the wanted ones that keep a distance from one another, within bounds if there is room."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = list(wanted)
    floor = low
    for index in order:
        placed[index] = floor = max(wanted[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        placed[index] = ceiling = min(placed[index], ceiling)
        ceiling -= gap
    return placed


SHAPES = f"""text {{ font: {FONT}px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }}
.tick {{ fill: var(--muted); }}
.label {{ font-weight: 600; }}
.heading {{ font-size: 14px; font-weight: 650; fill: var(--ink); }}
.stage {{ font-size: 11px; }}
.raw {{ fill: none; stroke-width: 1; stroke-opacity: .35; }}
.mean {{ fill: none; stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: butt; }}
.area {{ stroke: var(--paper); stroke-width: .7; }}"""


def alone(drawing: str) -> str:
    """A drawing as a file of its own, with light colours on white."""
    opening, rest = drawing.split(">", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    whole = f"{opening}><style>{SHAPES}</style>{paper}{rest}\n"
    return re.sub(r"var\(--([\w-]+)\)", lambda found: LIGHT[found[1]], whole)
