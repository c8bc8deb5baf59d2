"""One file about a run: self-contained, whole whatever the run lacks, and safe whatever the models wrote."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sample_run import a_tree, metrics_of, write_run
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation import Evaluation, Outcome
from metaagentx.evaluation.names import short_names
from metaagentx.evaluation.result import Summary
from metaagentx.runs import Run
from metaagentx.types import Role
from metaagentx.viewer import write_report
from metaagentx.viewer.export import spread
from metaagentx.viewer.history import Band, History, change
from metaagentx.viewer.text import number, percent
from tests.commands import command

PAGE = (Path(__file__).parents[2] / "docs" / "viewer.md").read_text()
STATIC = Path(__file__).parents[2] / "src" / "metaagentx" / "viewer" / "static"


class Reader(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = str(dict(attrs).get("id") or tag)

    def handle_data(self, data: str) -> None:
        if self.tags and data.strip():
            self.inside[self._open] = self.inside.get(self._open, "") + data

    @property
    def answers(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.inside["answers"])
        return dict(content["answers"])


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_file_needs_no_other_and_runs_its_own_script_only(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "first", 25, tasks=1))
    assert path == tmp_path / "first" / "report.html"
    reader = Reader(path.read_text())
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(reader.tags)
    assert not {name for name, _ in reader.attributes} & {"src", "href", "srcset", "action"}
    assert reader.tags.count("script") == 2 and reader.tags.count("style") == 1
    (policy,) = [value for name, value in reader.attributes if name == "content" and value and "default-src" in value]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert digest(reader.inside["script"]) in policy and digest(reader.inside["style"]) in policy


def test_the_file_has_the_run_and_whole_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", 9, tasks=2, designs=2, executions=2)
    everything = Reader(write_report(run).read_text()).answers
    assert everything["steps?run=."]["kept"] == list(range(9))
    assert "rose from" in everything["run?run=."]["learned"]
    little = Reader(write_report(run, megabytes=0.2).read_text()).answers
    kept = little["steps?run=."]["kept"]
    assert 2 <= len(kept) < 9 and {0, 8} <= set(kept)
    for step in kept:
        assert len(little[f"step?run=.&step={step}"]["tasks"]) == 2
        assert little[f"tree?run=.&step={step}&task=1"]["designs"]
    whole = Run.open(run).rollouts(8)[1].designs
    at = next(index for index, design in enumerate(whole) if design.executions)
    call = little[f"execution?design={at}&execution=0&run=.&step=8&task=1"]["execution"]["calls"][0]
    assert call["text"] == whole[at].executions[0].calls[0].text


def test_steps_are_spread_evenly() -> None:
    assert list(spread([])) == [] and list(spread([7])) == [7]
    assert list(spread([1, 2])) == [2, 1]
    order = list(spread(list(range(0, 90, 10))))
    assert order[:3] == [80, 0, 40] and sorted(order) == list(range(0, 90, 10))


@pytest.mark.parametrize("steps", [0, 1, 2, 19, 21])
def test_short_runs_and_runs_in_progress(tmp_path: Path, steps: int) -> None:
    run = write_run(tmp_path / "first", steps, tasks=1, designs=1, executions=1)
    head = Reader(write_report(run).read_text()).answers["run?run=."]
    assert head["steps"] == steps and head["problems"] == []
    assert ("One step is too few" in head["learned"]) == (steps == 1)
    assert ("No step is finished yet." in head["learned"]) == (steps == 0)


def test_a_run_without_anything_we_know(tmp_path: Path) -> None:
    with Run.create(tmp_path / "first", "name = 'other'\n") as run:
        for step in range(3):
            run.write_step(step, {"loss": 0.1, "note": "text", "reward/executor": float("nan")}, None)
    head = Reader(write_report(tmp_path / "first").read_text()).answers["run?run=."]
    assert any(problem.startswith("The recipe cannot be read: ") for problem in head["problems"])
    assert head["learned"] == "3 steps are done, and none of them measured a reward."


def test_damage_costs_what_is_damaged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", 3, tasks=1)
    (run / "rollouts" / "000001.jsonl").write_text("{}\n")
    answers = Reader(write_report(run).read_text()).answers
    assert "task: Field required" in answers["step?run=.&step=1"]["tasks"][0]["problem"]
    assert answers["tree?run=.&step=2&task=0"]["designs"]


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MetaAgentXError, match=r"is not a run: it has no run\.json"):
        write_report(tmp_path)
    with pytest.raises(MetaAgentXError, match="does not exist"):
        write_report(tmp_path / "nowhere")
    run = write_run(tmp_path / "first", 1, tasks=1)
    with pytest.raises(MetaAgentXError, match="is a directory, expected the path of a file"):
        write_report(run, tmp_path)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(MetaAgentXError, match=r"metrics\.jsonl is missing"):
        write_report(run)


def test_the_command_prints_where_the_file_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", 2, tasks=1)
    done = command("report", run, "--out", tmp_path / "new" / "page.html")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "new" / "page.html")), done.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
    refused = command("report", tmp_path / "nowhere")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_a_file_needs_no_server_library() -> None:
    blocked = (
        "import sys; sys.modules.update(starlette=None, uvicorn=None); import metaagentx.viewer, metaagentx.cli.report"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_documentation_names_every_chart() -> None:
    titles = re.findall(r'title: "([^"]+)"', (STATIC / "run_charts.js").read_text())
    charts = [title for title in titles if title not in ("Learning", "Designs", "Groups and faults", "Updates", "Work")]
    assert len(charts) > 20
    for title in charts:
        assert title in PAGE, title


def test_the_chart_library_is_whole_and_has_its_license() -> None:
    vendored = STATIC / "vendor" / "uplot"
    assert {path.name for path in vendored.iterdir()} == {"LICENSE", "uPlot.iife.min.js", "uPlot.min.css"}
    assert "MIT" in (vendored / "LICENSE").read_text()


def test_no_module_makes_markup_of_text() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert word not in text, (path.name, word)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name


# Evaluations


def evaluated(directory: Path, name: str, **fields: Any) -> Path:
    """Write an evaluation of 20 tasks into a run; without a name, where earlier versions wrote it."""
    path = directory / "evaluation" / name if name else directory
    path.mkdir(parents=True, exist_ok=True)
    outcomes = [
        Outcome(f"t{task}", 0, 0, task < 9, tokens=10, calls=1, seconds=0.5, pattern="single") for task in range(20)
    ]
    methods = ("metaagentx", "a | b")
    summary = Summary.of(methods, methods[0], {method: [outcomes] for method in methods})
    content = {"samples": 1, "seed": 0, "against": methods[0], "methods": methods, "votes": {}, **fields}
    Evaluation(**content, sets={"gsm8k": summary}, overall=summary).write(path)
    return path


def test_evaluations_are_shown_with_that_of_the_best_checkpoint_first(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", 20, tasks=1, designs=1, executions=1)
    for name, step in (("000010", 10), ("000020", 20), ("more", None)):
        evaluated(run, name, checkpoint=step)
    (run / "evaluation" / "broken").mkdir()
    (run / "evaluation" / "broken" / "evaluation.json").write_text("[]")
    (run / "best").write_text('{"format": 1, "step": 10, "score": 0.5}')
    shown = Reader(write_report(run).read_text()).answers["evaluations?run=."]["evaluations"]
    assert [entry["step"] for entry in shown] == [10, 20, None, None]
    assert "20 tasks of gsm8k" in shown[0]["tasks"] and shown[0]["solved"] == 0.45
    rows = [row for table in shown[0]["tables"] for row in table["rows"]]
    assert ["a | b", "45.0 (25.0 to 65.0)", "10", "1.0", "0.50", "0.0", "0"] in rows
    assert any("broken" in entry["location"] and "cannot be read" in entry["problem"] for entry in shown)


# What is read off the metrics


def test_bands_are_the_roles_that_learn() -> None:
    history = History([{**metrics_of(step), "step": step} for step in range(25)])
    executor, designer = (Role.EXECUTOR,), (Role.DESIGNER,)
    assert history.bands() == [Band(0, 9, executor), Band(10, 19, designer), Band(20, 24, executor)]
    assert History([{"step": 0}]).bands() == [Band(0, 0, ())]


def test_numbers_only_are_series_and_absent_shares_are_zero() -> None:
    history = History([{"step": 0, "pattern/a": 1.0}, {"step": 1, "pattern/b": 1}, {"step": 2, "pattern/a": "nan"}])
    assert history.series("pattern/a") == [(0, 1.0)]
    assert history.filled_group("pattern") == {"a": [(0, 1.0), (1, 0.0)], "b": [(0, 0.0), (1, 1.0)]}
    assert change([(0, 1.0)]) is None


def test_sources_are_short_while_that_is_clear() -> None:
    long = "gym:products?min_digits=2"
    assert short_names([long, "gsm8k", "jsonl:data/mine.jsonl"]) == {
        long: "products",
        "gsm8k": "gsm8k",
        "jsonl:data/mine.jsonl": "mine.jsonl",
    }
    assert short_names([long, "gym:products"]) == {long: long, "gym:products": "gym:products"}


def test_numbers_have_two_or_three_digits() -> None:
    assert (number(-0.0), percent(-0.0), percent(-0.0001)) == ("0", "0%", "0.0%")
    assert [number(value) for value in (0, 1.234, 0.1234, 12345, 1.2e-9, -3e7)] == [
        *("0", "1.23", "0.12", "12,345", "1.2e-9", "-3e7"),
    ]


def test_made_up_trees_are_as_the_real_ones() -> None:
    import random

    from metaagentx.runs import rollout_from_json, rollout_to_json

    tree = a_tree(random.Random(0), 3, 1, 4, 4, 20)
    assert rollout_from_json(json.loads(json.dumps(rollout_to_json(tree)))) == tree
    for design in tree.designs:
        for execution in design.executions:
            assert all(sum(call.lengths) == len(call.text) for call in execution.calls)
