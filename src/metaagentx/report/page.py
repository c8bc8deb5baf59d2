"""The page: head, charts, example trees and evaluation, in one file that needs no other."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ..config import Config, load_recipe
from ..errors import MetaAgentXError
from ..runs import Best, Run
from ..runs.files import explained, write_whole
from .charts import MOST_BANDS, View, percent, view_of
from .examples import examples
from .history import History
from .pictures import (
    Chart,
    design_charts,
    outcome_charts,
    picture,
    reward_chart,
    structure_chart,
    update_charts,
    work_charts,
)
from .svg import DARK, LIGHT, SHAPES, escape
from .tables import evaluation, table
from .words import facts, learnt, tiles

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is fetched and nothing runs, whatever a model wrote."""


def write_report(run_directory: Path, out: Path | None = None) -> Path:
    """Write the report of a run, also of one that is still being trained, and return where it is."""
    run = Run.open(run_directory)
    return _write(out or run_directory / "report.html", report(run))


def save_picture(run_directory: Path, out_svg: Path) -> Path:
    """Write one picture of a run: the rewards of both roles with the stages, and the structures."""
    history = _history(Run.open(run_directory))
    if not history.steps:
        raise MetaAgentXError(f"{run_directory} has no finished step, so there is nothing to draw")
    return _write(out_svg, picture(history))


def report(run: Run) -> str:
    """The whole page."""
    history = _history(run)
    view = view_of(history.steps, history.bands())
    name = escape(run.directory.absolute().name)
    best, problems = _best(run)
    config, more = _config(run)
    body = [
        _head(run, name, config, history, best),
        *(f"<p class='missing'>{escape(problem)}</p>" for problem in [*problems, *more]),
        _charts(history, view),
        _evaluation(run, history),
        _trees(run),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} · MetaAgent-X</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(run: Run, name: str, config: Config | None, history: History, best: Best | None) -> str:
    rows = "".join(f"<dt>{word}</dt><dd>{escape(meaning)}</dd>" for word, meaning in facts(config, history))
    boxes = "".join(
        f"<div class='tile'><span>{escape(title)}</span><b>{figure}</b><span>{escape(before)}</span></div>"
        for title, figure, before in tiles(history, best)
    )
    return (
        f"<header><p class='kind'>MetaAgent-X · training run{_created(run)}</p><h1>{name}</h1>"
        f"<p class='learnt'>{escape(learnt(history, best))}</p></header>"
        f"<div class='tiles'>{boxes}</div><dl>{rows}</dl>"
    )


def _charts(history: History, view: View) -> str:
    if not history.steps:
        return "<section><h2>Curves</h2><p class='missing'>No step is finished yet.</p></section>"
    average = f"Bold lines are moving averages over {view.window} steps. " if view.window > 1 else ""
    stages = "The strip above each chart and the tint behind it say which role learns."
    if len(view.bands) > MOST_BANDS:
        stages = f"The roles took turns {len(view.bands):,} times, too often to draw their stages."
    note = f"<p>{average}{stages}</p>"
    large = "".join(_large(chart, view) for chart in (reward_chart(history), structure_chart(history)))
    parts = [f"<section><h2>Learning</h2>{note}{large}{_grid(outcome_charts(history), view)}</section>"]
    for title, charts in (
        ("Designs, groups and faults", design_charts(history)),
        ("Updates", update_charts(history)),
        ("Work", work_charts(history)),
    ):
        missing = "<p class='missing'>No step of this run has figures of an update.</p>"
        parts.append(f"<section><h2>{title}</h2>{_grid(charts, view) if charts else missing}</section>")
    return "\n".join(parts)


def _large(chart: Chart, view: View) -> str:
    """Drawn twice, for a wide screen and for a narrow one, so that letters keep their size."""
    if chart.draw is None:
        return _figure(chart, "")
    wide = chart.svg(replace(view, width=980, height=330, labels=145))
    narrow = chart.svg(replace(view, width=400, height=280, labels=112))
    return _figure(chart, f"<div class='wide'>{wide}</div><div class='narrow'>{narrow}</div>")


def _grid(charts: Sequence[Chart], view: View) -> str:
    figures = [_figure(chart, chart.svg(view) if chart.draw else "") for chart in charts]
    return f"<div class='grid'>{''.join(figures)}</div>"


def _figure(chart: Chart, drawn: str) -> str:
    shown = drawn or f"<p class='missing'>Nothing to show: {escape(chart.missing)}.</p>"
    words = f"<figcaption><b>{escape(chart.title)}</b> {escape(chart.caption)}</figcaption>"
    return f"<figure>{words}{shown}</figure>\n"


def _trees(run: Run) -> str:
    found = examples(run)
    note = (
        "<p>Of the first step whose trees were written down, of the middle one and of the last, the task with the "
        "largest spread of rewards.</p>"
        if found
        else "<p class='missing'>No trees were written down.</p>"
    )
    return f"<section><h2>Example trees</h2>{note}{''.join(found)}</section>"


def _evaluation(run: Run, history: History) -> str:
    parts = [evaluation(run.directory) or "<p class='missing'>No evaluation was made after training.</p>"]
    held_out = history.series("evaluation/solved")
    if held_out:
        rows = [[f"{step + 1:.0f}", percent(value)] for step, value in held_out]
        parts.append(f"<h3>While training</h3>{table(['steps done', 'held-out tasks solved'], rows)}")
    return f"<section><h2>Evaluation</h2>{''.join(parts)}</section>"


def _history(run: Run) -> History:
    if not (run.directory / "metrics.jsonl").is_file():
        raise MetaAgentXError(f"{run.directory / 'metrics.jsonl'} is missing: the run is damaged")
    return History(run.metrics())


def _config(run: Run) -> tuple[Config | None, list[str]]:
    try:
        return load_recipe(run.directory / "config.toml").written, []
    except MetaAgentXError as error:
        return None, [f"What the run was told to do is not known: {error}"]


def _best(run: Run) -> tuple[Best | None, list[str]]:
    try:
        return run.best, []
    except MetaAgentXError as error:
        return None, [str(error)]


def _created(run: Run) -> str:
    about = json.loads((run.directory / "run.json").read_bytes())
    try:
        return f" · {datetime.fromisoformat(about['created']):%d %B %Y, %H:%M}"
    except (KeyError, TypeError, ValueError):
        return ""


def _style() -> str:
    def colours(of: dict[str, str]) -> str:
        return " ".join(f"--{name}: {value};" for name, value in of.items())

    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {colours(DARK)} }} }}"
    own = Path(__file__).with_name("style.css").read_text()
    return f":root {{ color-scheme: light; {colours(LIGHT)} }}\n{dark}\n{SHAPES}\n{own}"


def _write(path: Path, content: str) -> Path:
    if path.is_dir():
        raise MetaAgentXError(f"{path} is a directory: name a file")
    with explained(str(path), "choose another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode(errors="replace"))
    return path
