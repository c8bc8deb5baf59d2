"""Line charts as one SVG file on white, for the documentation: lines differ in color and dash, names at their ends."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

Series: TypeAlias = list[tuple[float, float]]
"""Pairs of a step and a value, in order."""
COLORS = ("#009e73", "#b4558d", "#d18f00", "#3a9bdc", "#0b4f8a", "#b23b00", "#7a8394")
"""The Okabe-Ito palette, which is safe for color-blind readers, some colors darker so that thin lines are visible."""
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 4", "1 3")
FONT = 'font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
STYLE = f"text {{ {FONT}; fill: #5d6676 }} .heading {{ font-size: 14px; font-weight: 650; fill: #1d2330 }}"
LABELS = 190
"""Width for the names at the right."""


@dataclass(frozen=True, slots=True)
class Plot:
    """The area of a chart in pixels, and the steps at its edges; values are shares."""

    left: float
    top: float
    right: float
    bottom: float
    steps: int

    def x(self, step: float) -> float:
        """Return the x coordinate of a step."""
        return self.left + step / max(1, self.steps - 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return self.bottom - value * (self.bottom - self.top)

    def path(self, points: Series) -> str:
        """Return the `d` attribute of a path through all points."""
        return "M" + "L".join(f"{self.x(step):.1f} {self.y(value):.1f}" for step, value in points)


def share_charts(charts: Sequence[tuple[str, Mapping[str, Series]]], width: int = 720, height: int = 320) -> str:
    """Draw charts of shares over steps, each with its heading and its own steps, one below the other."""
    parts = []
    for number, (heading, lines) in enumerate(charts):
        top = number * height
        steps = max((len(points) for points in lines.values()), default=1)
        window = 2 * max(3, steps // 12 | 1) + 1
        parts.append(f'<text class="heading" x="8" y="{top + 20}">{html.escape(heading)}</text>')
        parts.append(_chart(lines, Plot(52, top + 36, width - LABELS, top + height - 34, steps), window))
    size = f'width="{width}" height="{height * len(charts)}" viewBox="0 0 {width} {height * len(charts)}"'
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    content = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>{paper}{content}</svg>\n'


def smooth(series: Series, window: int) -> Series:
    """Return the centered moving average; at the ends the window is cut."""
    values, reach = [value for _, value in series], window // 2
    return [(step, fmean(values[max(0, at - reach) : at + reach + 1])) for at, (step, _) in enumerate(series)]


def _chart(lines: Mapping[str, Series], plot: Plot, window: int) -> str:
    parts = []
    for tenth in (0, 2, 4, 6, 8, 10):
        y = plot.y(tenth / 10)
        parts.append(f'<path d="M{plot.left} {y:.1f}H{plot.right}" stroke="#e3e7ee"/>')
        parts.append(f'<text x="{plot.left - 6}" y="{y + 4:.1f}" text-anchor="end">{10 * tenth}%</text>')
    for step in range(0, plot.steps, max(1, 10 ** math.floor(math.log10(max(2, plot.steps)) - 0.3) * 5)):
        x, y = plot.x(step), plot.bottom + 17
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{plot.right + 6}" y="{plot.bottom + 17:.1f}">step</text>')
    ends = []
    for (name, series), color, dash in zip(lines.items(), COLORS, DASHES, strict=False):
        mean = smooth(series, window)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<path d="{plot.path(series)}" fill="none" stroke="{color}" stroke-opacity=".3"/>')
        parts.append(f'<path d="{plot.path(mean)}" fill="none" stroke="{color}" stroke-width="2.4"{dashed}/>')
        ends.append((plot.y(mean[-1][1]), name, mean[-1][1], color))
    below = plot.top - 15.0
    for y, name, value, color in sorted(ends):
        below = max(y, below + 15)
        text = f'<tspan font-weight="600" fill="{color}">{html.escape(name)}</tspan> {value:.0%}'
        parts.append(f'<path d="M{plot.right + 1} {y:.1f}L{plot.right + 8} {below:.1f}" stroke="{color}"/>')
        parts.append(f'<text x="{plot.right + 10}" y="{below + 4:.1f}">{text}</text>')
    return "".join(parts)
