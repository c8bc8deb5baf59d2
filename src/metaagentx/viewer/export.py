"""A run, or one tree of it, as one HTML file that needs no server, no network and no other file.

The file has the pages, scripts and charts of the viewer, and the answers that the server would give. Its content
security policy allows exactly its own script and its own style, by their digests. What models wrote is in it as data.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ..atomic import atomic_write, friendly_io_errors
from ..errors import MetaAgentXError
from ..runs import Run
from . import assets
from .encoding import to_json
from .library import Library
from .pages import Pages

MEGABYTES = 8.0
"""How much room the trees of a run have in a file: whole steps, evenly spread, the first and the last among them."""


def write_report(run_directory: Path, out: Path | None = None, megabytes: float = MEGABYTES) -> Path:
    """Write a run, also one that is still training, as one HTML file and return its path."""
    Run.open(run_directory)
    if not (run_directory / "metrics.jsonl").is_file():
        raise MetaAgentXError(f"{run_directory / 'metrics.jsonl'} is missing: the run is damaged")
    path = out or run_directory / "report.html"
    if path.is_dir():
        raise MetaAgentXError(f"{path} is a directory, expected the path of a file")
    library = Library(run_directory, None, background=False)
    try:
        content = export_run(Pages(library), ".", megabytes)
    finally:
        library.close()
    with friendly_io_errors(str(path), "choose another path"):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content)
    return path


def export_run(pages: Pages, run: str, megabytes: float = MEGABYTES) -> bytes:
    """Return a run as a file."""
    answers = _run_answers(pages, run)
    index = pages.library.index(run)
    steps = [*index.files()]
    room, kept = int(megabytes * 1e6), list[int]()
    for step in spread(steps):
        try:
            of_step = dict(_step_answers(pages, run, step))
        except MetaAgentXError as error:
            of_step = {key("step", run=run, step=step): {"error": str(error)}}
        size = sum(len(json.dumps(answer)) for answer in of_step.values())
        if size > room and kept:
            break
        room -= size
        kept.append(step)
        answers |= of_step
    answers[key("steps", run=run)] = {**pages.steps(run), "kept": sorted(kept)}
    answers[key("facets", run=run)] = pages.facets(run)
    return _file(answers, _address(run), _title(answers, run))


def export_tree(pages: Pages, run: str, step: int, task: int) -> bytes:
    """Return one tree, with the head of its run, as a file."""
    answers = _run_answers(pages, run)
    answers |= dict(_tree_answers(pages, run, step, task))
    of_step: Any = pages.step(run, step)
    answers[key("step", run=run, step=step)] = {
        **of_step,
        "tasks": [shown for shown in of_step["tasks"] if shown["task"] == task],
        "previous": None,
        "next": None,
    }
    answers[key("steps", run=run)] = {"steps": [[step]], "kept": [step], "indexed": 1, "files": 1}
    return _file(
        answers, f"{_address(run)}/step/{step}/task/{task}", f"{_title(answers, run)}, step {step}, task {task}"
    )


def key(name: str, **parameters: object) -> str:
    """Return the name of an answer: the request that the page would send."""
    pairs = sorted((name, str(value)) for name, value in parameters.items())
    return f"{name}?{urlencode(pairs, safe='*').replace('~', '%7E')}"  # as browsers write it


def spread(steps: list[int]) -> Iterator[int]:
    """Yield steps in the order in which a file takes them: the last, the first, the middle, then halves of the gaps."""
    if not steps:
        return
    seen = set[int]()
    gaps = [(0, len(steps) - 1)]
    for position in (len(steps) - 1, 0):
        if position not in seen:
            seen.add(position)
            yield steps[position]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle not in seen:
            seen.add(middle)
            yield steps[middle]
        if high - low > 1:
            gaps += [(low, middle), (middle, high)]


def _run_answers(pages: Pages, run: str) -> dict[str, dict[str, Any]]:
    answers = {
        key("run", run=run): {**pages.run(run), "indexed": 1, "files": 1},
        key("curves", run=run): pages.curves(run),
        key("log", run=run): pages.log(run),
        key("config", run=run): pages.config(run),
        key("evaluations", run=run): pages.evaluations(run),
    }
    summary = pages.library.run(run).summary()
    return answers | {key("runs"): {"root": pages.library.run(run).name, "runs": [summary]}}


def _step_answers(pages: Pages, run: str, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
    of_step: Any = pages.step(run, step)
    yield key("step", run=run, step=step), of_step
    for task in of_step["tasks"]:
        yield from _tree_answers(pages, run, step, task["task"])


def _tree_answers(pages: Pages, run: str, step: int, task: int) -> Iterator[tuple[str, dict[str, Any]]]:
    place: dict[str, Any] = {"run": run, "step": step, "task": task}
    try:
        tree: Any = pages.tree(**place)
    except MetaAgentXError as error:
        yield key("tree", **place), {"error": str(error)}
        return
    yield key("tree", **place), tree
    for design, shown in enumerate(tree["designs"]):
        for execution in range(len(shown["executions"])):
            inside: dict[str, Any] = {"design": design, "execution": execution}
            yield key("execution", **place, **inside), pages.execution(**place, **inside)


def _address(run: str) -> str:
    """Return where the page of a run is in the page: a run below others has slashes in its name."""
    return f"#/run/{quote(run, safe='')}"


def _title(answers: dict[str, dict[str, Any]], run: str) -> str:
    return str(answers[key("run", run=run)]["title"])


def _file(answers: dict[str, dict[str, Any]], start: str, title: str) -> bytes:
    data = to_json({"start": start, "answers": answers}).decode().replace("<", "\\u003c").replace(">", "\\u003e")
    script, style = assets.script().replace("</script", "<\\/script"), assets.style()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        "<noscript>This page draws its charts with the script in this file: allow it to run.</noscript>\n"
        f'<script type="application/json" id="answers">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )
    return text.encode("utf-8", "replace")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
