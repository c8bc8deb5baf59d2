"""Charts as SVG: lines with their moving averages, and stacked areas, over the steps of a run and its stages.

Lines differ in color and dash, and each has its name at its end. Areas differ in color and have names beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from ..types import Role
from .history import Band, Series, averaged, pieces, smoothing_window, thin
from .svg import (
    DASHES,
    FONT,
    LETTER,
    LINE_COLORS,
    Plot,
    escape,
    number,
    percent,
    rule,
    spread_out,
    text,
    ticks,
    truncate_to_width,
    value_range,
)

MOST_LINES = 7
MOST_BANDS = 120
"""More stages than this, as in one-step alternation, are not drawn: they would be too narrow to see."""
Scale: TypeAlias = Literal["number", "share", "rate"]
"""How values are shown: as numbers, as percentages on an axis up to 100 %, or as percentages up to the largest."""


@dataclass(frozen=True, slots=True)
class Line:
    """A series and how it is drawn."""

    name: str
    series: Series
    color: str
    dash: str = ""
    dots: bool = False
    """Separate measurements, not a curve."""


@dataclass(frozen=True, slots=True)
class View:
    """What the charts of a run have in common, and the size of this one."""

    steps: tuple[int, int]
    bands: Sequence[Band]
    window: int
    width: float = 480
    height: float = 270
    labels: float = 130
    """Width for names at the right; a chart with long names takes more."""
    top: float = 0
    """Where the chart begins, if it is below another one in the same picture."""


class _Label(NamedTuple):
    name: str
    value: float
    color: str
    y: float


def view_of(steps: Sequence[int], bands: Sequence[Band]) -> View:
    """Return the view of a run."""
    return View((min(steps, default=0), max(steps, default=0)), bands, smoothing_window(len(steps)))


def lines_of(series: Mapping[str, Series], names: Mapping[str, str] | None = None) -> list[Line]:
    """Return the series as lines, in order. More lines than there are colors are left out."""
    shown = zip(series.items(), LINE_COLORS, DASHES, strict=False)
    return [Line((names or {}).get(name, name), points, color, dash) for (name, points), color, dash in shown if points]


def line_chart(lines: Sequence[Line], view: View, scale: Scale = "number") -> str:
    """Draw each line raw and light, and its moving average bold."""
    values = [value for line in lines for _, value in line.series]
    view = _with_room(view, [line.name for line in lines])
    plot = _plot(view, value_range(values, scale == "share"))
    show = number if scale == "number" else percent
    marks = [_frame(plot, view, show), *(_draw_line(line, plot, view.window, show) for line in lines)]
    labels = []
    for line in lines:
        last = line.series[-1][1] if line.dots else averaged(list(pieces(line.series))[-1], view.window)[-1][1]
        labels.append(_Label(line.name, last, line.color, plot.y(last)))
    return "".join([*marks, _draw_labels(labels, plot, view, show)])


def area_chart(areas: Mapping[str, Series], view: View, scale: Scale = "number", smoothed: bool = True) -> str:
    """Draw series over the same steps on top of one another; the first one is at the bottom."""
    areas = _merge_smallest(areas)
    window = view.window if smoothed else 1
    layers = [averaged(series, window) for series in areas.values()]
    sums = [sum(value for _, value in points) for points in zip(*layers, strict=True)]
    view = _with_room(view, list(areas))
    plot = _plot(view, (0.0, 1.0) if scale == "share" else value_range(sums, share=False))
    show = number if scale == "number" else percent
    below, fills, labels = [0.0] * len(sums), [], []
    for name, color, layer in zip(areas, LINE_COLORS, layers, strict=False):
        above = [low + value for low, (_, value) in zip(below, layer, strict=True)]
        steps = [step for step, _ in layer]
        outline = _extend_to_edges(list(zip(steps, above, strict=True)), view)
        base = _extend_to_edges(list(zip(steps, below, strict=True)), view)
        path = plot.path([*outline, *reversed(base)])
        look = f'class="area" fill="var(--{color})" fill-opacity=".82"'
        fills.append(f'<path {look} d="{path}Z"><title>{escape(name)}</title></path>')
        labels.append(_Label(name, layer[-1][1], color, plot.y((below[-1] + above[-1]) / 2)))
        below = above
    frame = _frame(plot, view, show, tint=False)
    return "".join([frame, *fills, _draw_stage_edges(plot, view), _draw_labels(labels, plot, view, show)])


def drawing(inside: str, view: View, about: str) -> str:
    """Return an SVG element; `about` describes it for readers who do not see it."""
    size = f'viewBox="0 0 {view.width:g} {view.height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(about)}">{inside}</svg>'


def stack_charts(charts: Sequence[tuple[str, Callable[[View], str], float]], view: View) -> str:
    """Draw charts, each with its heading and height, one below the other in one picture."""
    inside, top = [], 0.0
    for heading, draw, height in charts:
        inside.append(text(8, top + 20, heading, "heading"))
        inside.append(draw(replace(view, top=top + 24, height=height - 24)))
        top += height
    return drawing("".join(inside), replace(view, height=top), "; ".join(heading for heading, *_ in charts))


def _merge_smallest(areas: Mapping[str, Series]) -> Mapping[str, Series]:
    """Return the largest areas, and the sum of all others."""
    if len(areas) <= MOST_LINES:
        return areas
    items = list(areas.items())
    others = zip(*(series for _, series in items[MOST_LINES - 1 :]), strict=True)
    total = [(points[0][0], sum(value for _, value in points)) for points in others]
    return dict([*items[: MOST_LINES - 1], ("all others", total)])


def _extend_to_edges(points: Series, view: View) -> Series:
    """Extend an outline by half a step at both ends, so that the first and the last step have their full width."""
    return [(view.steps[0] - 0.5, points[0][1]), *points, (view.steps[1] + 0.5, points[-1][1])]


def _with_room(view: View, names: Sequence[str]) -> View:
    longest = max(map(len, names), default=0)
    return replace(view, labels=max(view.labels, min(LETTER * FONT * (longest + 5), 0.34 * view.width)))


def _plot(view: View, values: tuple[float, float]) -> Plot:
    edges = (view.steps[0] - 0.5, view.steps[1] + 0.5)
    return Plot(52, view.top + 20, view.width - view.labels, view.top + view.height - 34, edges, values)


def _frame(plot: Plot, view: View, show: Callable[[float], str], tint: bool = True) -> str:
    marks = [_draw_stages(plot, view, tint)]
    for value in ticks(*plot.values, about=4):
        marks.append(rule(plot.left, plot.y(value), plot.right, plot.y(value)))
        marks.append(text(plot.left - 6, plot.y(value) + 4, show(value), text_anchor="end"))
    for step in ticks(*view.steps, about=max(2, int((plot.right - plot.left) / 70)), whole=True):
        marks.append(rule(plot.x(step), plot.bottom, plot.x(step), plot.bottom + 4, "muted"))
        marks.append(text(plot.x(step), plot.bottom + 17, number(step), text_anchor="middle"))
    marks.append(rule(plot.left, plot.bottom, plot.right, plot.bottom, "muted"))
    marks.append(text(plot.right + 6, plot.bottom + 17, "step"))
    return "".join(marks)


def _draw_stages(plot: Plot, view: View, tint: bool) -> str:
    """Draw which roles learn when: a strip with names above the plot, and a tint behind it."""
    marks = []
    for band in view.bands if len(view.bands) <= MOST_BANDS else ():
        left, right = plot.x(band.first - 0.5), plot.x(band.last + 0.5)
        color, *words = _stage_look(band)
        size = f'x="{left:.1f}" width="{right - left:.1f}" fill="var(--{color})"'
        if tint:
            marks.append(f'<rect {size} y="{plot.top:.1f}" height="{plot.bottom - plot.top:.1f}" fill-opacity=".07"/>')
        marks.append(f'<rect {size} y="{plot.top - 4:.1f}" height="3"/>')
        fitting = [word for word in words if len(word) * 6.2 + 4 < right - left]
        if fitting:
            middle, look = (left + right) / 2, {"text_anchor": "middle", "fill": f"var(--{color})"}
            marks.append(text(middle, plot.top - 8, fitting[0], "stage", **look))
    return "".join(marks)


def _stage_look(band: Band) -> tuple[str, ...]:
    """Return the color of a stage, and its names from the longest to the shortest."""
    if band.roles == (Role.EXECUTOR,):
        return "executor", "Executor learns", "Executor", "E"
    if band.roles == (Role.DESIGNER,):
        return "designer", "Designer learns", "Designer", "D"
    return ("muted", "Both learn", "Both", "B") if band.roles else ("grid",)


def _draw_stage_edges(plot: Plot, view: View) -> str:
    """Draw where stages begin, for areas that cover the tint."""
    if len(view.bands) > MOST_BANDS / 4:
        return ""
    return "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:.1f}" y2="{plot.bottom:.1f}" stroke="var(--paper)" '
        'stroke-dasharray="3 3" stroke-opacity=".8"/>'
        for x in (plot.x(band.first - 0.5) for band in view.bands[1:])
    )


def _draw_line(line: Line, plot: Plot, window: int, show: Callable[[float], str]) -> str:
    color = f"var(--{line.color})"
    if line.dots:
        return "".join(
            f'<path d="M{plot.x(step):.1f} {plot.y(value) - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5-5.5Z" fill="{color}" '
            f'stroke="var(--paper)"><title>after step {step + 1:g}: {show(value)}</title></path>'
            for step, value in line.series
        )
    marks = []
    for piece in pieces(line.series):
        if len(piece) == 1:
            (step, value) = piece[0]
            marks.append(f'<circle cx="{plot.x(step):.1f}" cy="{plot.y(value):.1f}" r="2" fill="{color}"/>')
            continue
        if window > 1:
            marks.append(f'<path class="raw" stroke="{color}" d="{plot.path(thin(piece))}"/>')
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        marks.append(f'<path class="mean" stroke="{color}"{dash} d="{plot.path(averaged(piece, window))}"/>')
    return "".join(marks)


def _draw_labels(labels: Sequence[_Label], plot: Plot, view: View, show: Callable[[float], str]) -> str:
    """Write names and last values beside the ends of lines and areas."""
    heights = spread_out([label.y for label in labels], FONT + 3, plot.top + 2, plot.bottom - 2)
    marks = []
    for label, y in zip(labels, heights, strict=True):
        value = show(label.value)
        room = view.labels - 10 - LETTER * FONT * (len(value) + 0.5)
        name = escape(truncate_to_width(label.name, room))
        x = plot.right + 10
        marks.append(
            f'<path d="M{plot.right + 1:.1f} {label.y:.1f}L{x - 2:.1f} {y:.1f}" stroke="var(--{label.color})"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" class="label" fill="var(--{label.color})">'
            f'<title>{escape(label.name)}</title>{name} <tspan class="tick" font-weight="400">{value}</tspan></text>'
        )
    return "".join(marks)
