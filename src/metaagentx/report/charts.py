"""Charts as SVG: lines with their moving averages, and stacked areas, over the steps of a run and its stages.

Every line is told apart by colour, by dash and by its name at its end; areas by colour and name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..types import Role
from .history import Band, Series, averaged, pieces, thin, window_of
from .svg import DASHES, FONT, HUES, LETTER, Plot, escape, fitting, number, rule, spread_out, text, ticks, value_range

MOST_LINES = 7
MOST_BANDS = 120
"""Of more, as in one-step alternation, no eye would tell one from the next: they are not drawn."""
Scale: TypeAlias = Literal["number", "share", "rate"]
"""How values are shown: as they are, as per cents of an axis that goes to 100 %, or as per cents up to the largest."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series with its look."""

    name: str
    series: Series
    colour: str
    dash: str = ""
    dots: bool = False
    """Single measurements, not a curve."""


@dataclass(frozen=True, slots=True)
class View:
    """What the charts of a run have in common, and the size of this one."""

    steps: tuple[int, int]
    bands: Sequence[Band]
    window: int
    width: float = 480
    height: float = 270
    labels: float = 130
    """Room for names at the right; a chart with long names takes more."""
    top: float = 0
    """Where the chart begins, when it stands below another in one picture."""


@dataclass(frozen=True, slots=True)
class _Label:
    name: str
    value: float | None
    colour: str
    y: float


def view_of(steps: Sequence[int], bands: Sequence[Band]) -> View:
    """The view of a run."""
    return View((min(steps, default=0), max(steps, default=0)), bands, window_of(len(steps)))


def lines_of(series: dict[str, Series], names: dict[str, str] | None = None) -> list[Line]:
    """Lines in the order they come in, the first ones if there are too many to tell apart."""
    looks = zip(HUES, DASHES, strict=True)
    shown = zip(series.items(), looks, strict=False)
    return [Line((names or {}).get(name, name), own, hue, dash) for (name, own), (hue, dash) in shown if own]


def line_chart(lines: Sequence[Line], view: View, scale: Scale = "number") -> str:
    """Each line raw and light, and its moving average bold."""
    values = [value for line in lines for _, value in line.series]
    view = _with_room(view, [line.name for line in lines])
    plot = _plot(view, value_range(values, scale == "share"))
    shown = number if scale == "number" else percent
    marks = [_frame(plot, view, shown), *(_drawn(line, plot, view.window, shown) for line in lines)]
    labels = []
    for line in lines:
        last = line.series[-1][1] if line.dots else _ends(line.series, view.window)
        labels.append(_Label(line.name, last, line.colour, plot.y(last)))
    return "".join([*marks, _labels(labels, plot, view, shown)])


def area_chart(areas: dict[str, Series], view: View, scale: Scale = "number", smoothed: bool = True) -> str:
    """Series over the same steps, piled on one another; the first one lies at the bottom."""
    areas = _few(areas)
    window = view.window if smoothed else 1
    layers = [averaged(series, window) for series in areas.values()]
    sums = [sum(layer[place][1] for layer in layers) for place in range(len(layers[0]))]
    view = _with_room(view, list(areas))
    plot = _plot(view, (0.0, 1.0) if scale == "share" else value_range(sums, share=False))
    shown = number if scale == "number" else percent
    below, fills, labels = [0.0] * len(sums), [], []
    for name, colour, layer in zip(areas, HUES, layers, strict=False):
        above = [low + value for low, (_, value) in zip(below, layer, strict=True)]
        steps = [step for step, _ in layer]
        outline = _steps_out(list(zip(steps, above, strict=True)), view)
        base = _steps_out(list(zip(steps, below, strict=True)), view)
        path = plot.path([*outline, *reversed(base)])
        look = f'class="area" fill="var(--{colour})" fill-opacity=".82"'
        fills.append(f'<path {look} d="{path}Z"><title>{escape(name)}</title></path>')
        labels.append(_Label(name, layer[-1][1], colour, plot.y((below[-1] + above[-1]) / 2)))
        below = above
    frame = _frame(plot, view, shown, tint=False)
    return "".join([frame, *fills, _edges(plot, view), _labels(labels, plot, view, shown)])


def drawing(inside: str, view: View, about: str) -> str:
    """A whole picture; `about` says in words what it shows, for those who do not see it."""
    size = f'viewBox="0 0 {view.width:g} {view.height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(about)}">{inside}</svg>'


def stacked(parts: Sequence[tuple[str, Callable[[View], str]]], heights: Sequence[float], view: View) -> str:
    """Charts under headings, one below the other, in one picture."""
    inside, top = [], 0.0
    for (heading, draw), height in zip(parts, heights, strict=True):
        inside.append(text(8, top + 20, heading, "heading"))
        inside.append(draw(replace(view, top=top + 24, height=height - 24)))
        top += height
    return drawing("".join(inside), replace(view, height=top), "; ".join(heading for heading, _ in parts))


def percent(value: float) -> str:
    """A share for a person."""
    return f"{value:z.1%}" if 0 < abs(value) < 0.0995 else f"{value:z.0%}"


def _few(areas: dict[str, Series]) -> dict[str, Series]:
    """The largest ones, and all others together."""
    if len(areas) <= MOST_LINES:
        return areas
    kept, rest = list(areas.items())[: MOST_LINES - 1], list(areas.values())[MOST_LINES - 1 :]
    together = [(points[0][0], sum(value for _, value in points)) for points in zip(*rest, strict=True)]
    return dict([*kept, ("all others", together)])


def _steps_out(points: Series, view: View) -> Series:
    """To the edges of the plot, so that the first and the last step are as wide as they are."""
    first, last = points[0], points[-1]
    return [(view.steps[0] - 0.5, first[1]), *points, (view.steps[1] + 0.5, last[1])]


def _with_room(view: View, names: Sequence[str]) -> View:
    longest = max(map(len, names), default=0)
    return replace(view, labels=max(view.labels, min(LETTER * FONT * (longest + 5), 0.34 * view.width)))


def _plot(view: View, values: tuple[float, float]) -> Plot:
    edges = (view.steps[0] - 0.5, view.steps[1] + 0.5)
    return Plot(52, view.top + 20, view.width - view.labels, view.top + view.height - 34, edges, values)


def _frame(plot: Plot, view: View, shown: Callable[[float], str], tint: bool = True) -> str:
    marks = [_stages(plot, view, tint)]
    for value in ticks(*plot.values, about=4):
        marks.append(rule(plot.left, plot.y(value), plot.right, plot.y(value)))
        marks.append(text(plot.left - 6, plot.y(value) + 4, shown(value), text_anchor="end"))
    for step in ticks(*view.steps, about=max(2, int((plot.right - plot.left) / 70)), whole=True):
        marks.append(rule(plot.x(step), plot.bottom, plot.x(step), plot.bottom + 4, "muted"))
        marks.append(text(plot.x(step), plot.bottom + 17, number(step), text_anchor="middle"))
    marks.append(rule(plot.left, plot.bottom, plot.right, plot.bottom, "muted"))
    marks.append(text(plot.right + 6, plot.bottom + 17, "step"))
    return "".join(marks)


def _stages(plot: Plot, view: View, tint: bool) -> str:
    """Who learns when: a strip above the plot with names, and a tint behind it."""
    if len(view.bands) > MOST_BANDS:
        return ""
    marks = []
    for band in view.bands:
        left, right = plot.x(band.first - 0.5), plot.x(band.last + 0.5)
        colour, name = _stage(band)
        size = f'x="{left:.1f}" width="{right - left:.1f}" fill="var(--{colour})"'
        if tint:
            marks.append(f'<rect {size} y="{plot.top:.1f}" height="{plot.bottom - plot.top:.1f}" fill-opacity=".07"/>')
        marks.append(f'<rect {size} y="{plot.top - 4:.1f}" height="3"/>')
        words = [word for word in (f"{name} learns", name, name[0]) if len(word) * 6.2 + 4 < right - left]
        if words and band.roles:
            middle = {"text_anchor": "middle", "fill": f"var(--{colour})"}
            marks.append(
                text((left + right) / 2, plot.top - 8, words[0].replace("Both learns", "Both learn"), "stage", **middle)
            )
    return "".join(marks)


def _stage(band: Band) -> tuple[str, str]:
    if len(band.roles) == 1:
        role = band.roles[0]
        return ("executor", "Executor") if role is Role.EXECUTOR else ("designer", "Designer")
    return ("muted", "Both") if band.roles else ("grid", "Nobody")


def _edges(plot: Plot, view: View) -> str:
    """Where one stage ends and the next begins, for plots that cover their background."""
    if len(view.bands) > MOST_BANDS / 4:
        return ""
    return "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:.1f}" y2="{plot.bottom:.1f}" stroke="var(--paper)" '
        'stroke-dasharray="3 3" stroke-opacity=".8"/>'
        for x in (plot.x(band.first - 0.5) for band in view.bands[1:])
    )


def _drawn(line: Line, plot: Plot, window: int, shown: Callable[[float], str]) -> str:
    colour = f"var(--{line.colour})"
    if line.dots:
        return "".join(
            f'<path d="M{plot.x(step):.1f} {plot.y(value) - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5-5.5Z" fill="{colour}" '
            f'stroke="var(--paper)"><title>after step {step + 1:g}: {shown(value)}</title></path>'
            for step, value in line.series
        )
    marks = []
    for piece in pieces(line.series):
        if len(piece) == 1:
            (step, value) = piece[0]
            marks.append(f'<circle cx="{plot.x(step):.1f}" cy="{plot.y(value):.1f}" r="2" fill="{colour}"/>')
            continue
        if window > 1:
            marks.append(f'<path class="raw" stroke="{colour}" d="{plot.path(thin(piece))}"/>')
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        marks.append(f'<path class="mean" stroke="{colour}"{dash} d="{plot.path(averaged(piece, window))}"/>')
    return "".join(marks)


def _ends(series: Series, window: int) -> float:
    """Where the bold line ends."""
    last = list(pieces(series))[-1]
    return averaged(last, window)[-1][1]


def _labels(labels: Sequence[_Label], plot: Plot, view: View, shown: Callable[[float], str]) -> str:
    """Names and last values beside the ends of lines and areas."""
    heights = spread_out([label.y for label in labels], FONT + 3, plot.top + 2, plot.bottom - 2)
    marks = []
    for label, y in zip(labels, heights, strict=True):
        value = "" if label.value is None else shown(label.value)
        room = view.labels - 10 - LETTER * FONT * (len(value) + 0.5)
        name = escape(fitting(label.name, room))
        x = plot.right + 10
        marks.append(
            f'<path d="M{plot.right + 1:.1f} {label.y:.1f}L{x - 2:.1f} {y:.1f}" stroke="var(--{label.colour})"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" class="label" fill="var(--{label.colour})">'
            f'<title>{escape(label.name)}</title>{name} <tspan class="tick" font-weight="400">{value}</tspan></text>'
        )
    return "".join(marks)
