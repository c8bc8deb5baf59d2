"""The page: head, charts, evaluations and example trees, in one file that needs no other."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from ..atomic import atomic_write, friendly_io_errors
from ..config import Config, load_recipe
from ..errors import MetaAgentXError
from ..runs import Best, Run
from .charts import MOST_BANDS, View, view_of
from .evaluations import evaluations
from .examples import examples
from .history import History
from .sections import (
    Chart,
    design_charts,
    outcome_charts,
    pattern_chart,
    picture,
    reward_chart,
    update_charts,
    work_charts,
)
from .summary import page_title, settings, tiles, what_was_learned
from .svg import COLORS, STYLE, escape, percent
from .tables import html_table

CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser fetches nothing and runs nothing, whatever a model wrote."""
T = TypeVar("T")


def write_report(run_directory: Path, out: Path | None = None) -> Path:
    """Write the report of a run, also of one that is still training, and return its path."""
    run = Run.open(run_directory)
    return _write(out or run_directory / "report.html", report(run))


def save_picture(run_directory: Path, out_svg: Path) -> Path:
    """Write one picture of a run: the rewards of both roles with the stages, solve rates, and workflow patterns."""
    history = _history(Run.open(run_directory))
    if not history.steps:
        raise MetaAgentXError(f"{run_directory} has no finished step: there is nothing to draw")
    return _write(out_svg, picture(history))


def report(run: Run) -> str:
    """Return the page."""
    history, problems = _history(run), list[str]()
    config = _try(lambda: load_recipe(run.directory / "config.toml").written, problems, "The recipe cannot be read: ")
    best = _try(lambda: run.best, problems)
    title = escape(page_title(run, config, history))
    body = [
        _head(run, title, config, history, best),
        *(_missing(problem) for problem in problems),
        _charts(history, view_of(history.steps, history.bands())),
        _evaluations(run, history, best),
        _trees(run),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(run: Run, title: str, config: Config | None, history: History, best: Best | None) -> str:
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in settings(config, history))
    boxes = "".join(
        f"<div class='tile'><span>{escape(name)}</span><b>{figure}</b><span>{escape(note)}</span></div>"
        for name, figure, note in tiles(history, best)
    )
    return (
        f"<header><p class='kind'>Report of a training run{_created(run)}</p><h1>{title}</h1>"
        f"<p class='learned'>{escape(what_was_learned(history, best))}</p></header>"
        f"<div class='tiles'>{boxes}</div><dl>{rows}</dl>"
    )


def _charts(history: History, view: View) -> str:
    if not history.steps:
        return _section("Curves", _missing("No step is finished yet."))
    average = f"Bold lines are moving averages over {view.window} steps. " if view.window > 1 else ""
    stages = "The strip above each chart and the tint behind it show which role learns."
    if len(view.bands) > MOST_BANDS:
        stages = f"The roles took turns {len(view.bands):,} times, too often to draw their stages."
    large = "".join(_large(chart, view) for chart in (reward_chart(history), pattern_chart(history)))
    parts = [_section("Learning", f"<p>{average}{stages}</p>{large}{_grid(outcome_charts(history), view)}")]
    for title, charts in (
        ("Designs, groups and faults", design_charts(history)),
        ("Updates", update_charts(history)),
        ("Work", work_charts(history)),
    ):
        missing = _missing("No step of this run has metrics of an update.")
        parts.append(_section(title, _grid(charts, view) if charts else missing))
    return "\n".join(parts)


def _large(chart: Chart, view: View) -> str:
    """Draw a chart twice, for a wide screen and for a narrow one, so that letters keep their size."""
    if chart.draw is None:
        return _figure(chart, "")
    wide = chart.svg(replace(view, width=980, height=330, labels=145))
    narrow = chart.svg(replace(view, width=400, height=280, labels=112))
    return _figure(chart, f"<div class='wide'>{wide}</div><div class='narrow'>{narrow}</div>")


def _grid(charts: Sequence[Chart], view: View) -> str:
    figures = [_figure(chart, chart.svg(view) if chart.draw else "") for chart in charts]
    return f"<div class='grid'>{''.join(figures)}</div>"


def _figure(chart: Chart, svg: str) -> str:
    caption = f"<figcaption><b>{escape(chart.title)}</b> {escape(chart.caption)}</figcaption>"
    return f"<figure>{caption}{svg or _missing(f'Nothing to show: {chart.missing}.')}</figure>\n"


def _trees(run: Run) -> str:
    trees = examples(run)
    if not trees:
        return _section("Example trees", _missing("No trees were recorded."))
    note = (
        "<p>Of the first step with recorded trees, of the middle one and of the last: the task with the largest spread "
        "of rewards.</p>"
    )
    return _section("Example trees", note + "".join(trees))


def _evaluations(run: Run, history: History, best: Best | None) -> str:
    content = evaluations(run.directory, best)
    rows = [[f"{step + 1:.0f}", percent(value)] for step, value in history.series("evaluation/solved")]
    if rows:
        content += f"<h3>During training</h3>{html_table(['steps done', 'held-out tasks solved'], rows, 0)}"
    return _section("Evaluation", content)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _missing(note: str) -> str:
    return f"<p class='missing'>{escape(note)}</p>"


def _history(run: Run) -> History:
    if not (run.directory / "metrics.jsonl").is_file():
        raise MetaAgentXError(f"{run.directory / 'metrics.jsonl'} is missing: the run is damaged")
    return History(run.metrics())


def _try(read: Callable[[], T], problems: list[str], prefix: str = "") -> T | None:
    """Read a part of the run. If it is damaged, record the problem: the rest of the page does not need it."""
    try:
        return read()
    except MetaAgentXError as error:
        problems.append(f"{prefix}{error}")
        return None


def _created(run: Run) -> str:
    about = json.loads((run.directory / "run.json").read_bytes())
    try:
        return f" · {datetime.fromisoformat(about['created']):%d %B %Y, %H:%M}"
    except (KeyError, TypeError, ValueError):
        return ""


def _style() -> str:
    light, dark = (" ".join(f"--{name}: {both[mode]};" for name, both in COLORS.items()) for mode in (0, 1))
    dark_mode = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {dark} }} }}"
    page = Path(__file__).with_name("style.css").read_text()
    return f":root {{ color-scheme: light; {light} }}\n{dark_mode}\n{STYLE}\n{page}"


def _write(path: Path, content: str) -> Path:
    if path.is_dir():
        raise MetaAgentXError(f"{path} is a directory, expected the path of a file")
    with friendly_io_errors(str(path), "choose another path"):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content.encode(errors="replace"))
    return path
