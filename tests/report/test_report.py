"""One page about a run: self-contained, whole whatever the run lacks, and safe whatever the models wrote."""

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation import Evaluation, Outcome
from metaagentx.evaluation.names import short_names
from metaagentx.evaluation.result import Summary
from metaagentx.report import save_picture, write_report
from metaagentx.report.examples import tree
from metaagentx.report.history import Band, History, change, pieces, smooth, thin
from metaagentx.report.svg import number, percent, spread_out, ticks, value_range
from metaagentx.runs import Run
from metaagentx.types import (
    AssertTest,
    Call,
    CodeTests,
    CustomGrader,
    Design,
    Execution,
    Fault,
    FinalAnswer,
    FunctionTest,
    Grading,
    GymEntry,
    MathGold,
    ProgramOutput,
    Reward,
    Role,
    Rollout,
    StdinTest,
    Task,
)

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
HOSTILE = "</pre></script><img src=x onerror=alert(1)><script>alert(2)</script>\x00\ud800"
CONFIG = """
steps = 40
stages = [{ steps = 10, executor = 2e-4 }, { steps = 10, designer = 2e-4 }]
[model]
path = "models/small"
[tasks]
train = "0.5*gym:products?min_digits=2 + 0.5*gsm8k"
"""
TITLES = (
    "Reward of both roles",
    "Workflow patterns",
    "Solved in training and held-out",
    "Solved, by source",
    "Parts of the reward",
    "Faults",
    "Faults by kind",
    "Spread of rewards",
    "Variety of designs",
    "Entropy of patterns",
    "Groups that teach nothing",
    "Entropy",
    "KL divergence",
    "Clipped tokens",
    "Gradient norm",
    "Tokens",
    "Calls per execution",
    "Replies cut off",
    "Seconds by phase",
)


def a_rollout(text: str = "fine", question: str = "What is 2 + 2?", spread: float = 1.0) -> Rollout:
    task = Task("t1", "math", question, MathGold(("4",)), "gym:products?min_digits=2", "train")
    asked = ({"role": "user", "content": task.question},)
    designed = Call(Role.DESIGNER, "Designer", asked, text, tokens=9, advantage=1.25)
    said = Call(Role.EXECUTOR, text, asked, text, tokens=3, advantage=-0.5, finish="length")
    solved = Execution([said], FinalAnswer("text", text, text, 0))
    solved.reward = Reward(1.0, 1.0, 1.0, 0.0, 0.8 + spread, True, text)
    stuck = Execution([], fault=Fault("timeout", text), reward=Reward(0.0, 0.0, 0.0, 0.0, 0.8, False))
    worked = Design(designed, text, [solved, stuck], reward=0.9, pattern=text[:30])
    return Rollout(task, [worked, Design(designed, None, fault=Fault("no_script", text), reward=0.8)])


def metrics_of(step: int, patterns: Sequence[str] = ("agent", "ensemble")) -> dict[str, float]:
    """All that a step measures, as functions of its number."""
    role = "executor" if step // 10 % 2 == 0 else "designer"
    up = 1 - math.exp(-step / 15)
    shares = [0.2 + up, *[1.2 - up] * (len(patterns) - 1)]
    metrics = {f"pattern/{name}": share / sum(shares) for name, share in zip(patterns, shares, strict=True)}
    metrics |= {f"reward/{name}": 0.5 + up for name in ("executor", "designer", "outcome", "solution", "delivery")}
    metrics |= {"reward/cost": 0.02, "solved": up, "solved/gym:products?min_digits=2": up, "solved/gsm8k": up / 2}
    metrics |= {f"{role}/{name}": 0.1 + up for name in ("entropy", "approx_kl", "clip_share", "grad_norm")}
    metrics |= {f"spread/{name}": 0.3 for name in ("between", "within")}
    metrics |= {f"designs/{name}": 0.9 for name in ("valid", "distinct", "entropy")}
    metrics |= {f"groups/{name}_flat": 0.4 for name in ("designer", "executor")}
    metrics |= {"faults/designs": 0.1, "faults/executions": 0.0, "faults/infra": 0.0, "replies/cut": 0.01}
    metrics |= {"tokens/per_execution": 300.0 - step, "tokens/per_design": 90.0, "calls/per_execution": 2.5}
    metrics |= {"seconds/rollout": 2.0, "seconds/update": 0.5, "seconds/step": 2.6, "seconds/execution": 1.0}
    if step % 3 == 0:
        metrics["faults/no_script"] = 2.0
    if step % 10 == 9:
        metrics |= {"evaluation/solved": up / 2, "seconds/evaluation": 1.0}
    return {**metrics, f"learning_rate/{role}": 2e-4}


def a_run(directory: Path, steps: int, text: str = "fine", config: str = CONFIG, keep: int = 1) -> Path:
    patterns = ("agent", text[:30])
    with Run.create(directory, config) as run:
        for step in range(steps):
            rollouts = [a_rollout(f"{text} {step}"), a_rollout(spread=0.2)] if step % keep == 0 else None
            run.write_step(step, metrics_of(step, patterns), rollouts)
        if steps:
            run.mark_best(steps, 0.4)
    return directory


class Reader(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def written(directory: Path) -> str:
    return write_report(directory).read_text()


def drawings(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


# The whole page


def test_a_report_shows_all_there_is(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "first", steps=40)
    path = write_report(directory)
    assert path == directory / "report.html"
    page = path.read_text()
    for title in TITLES:
        assert f"<b>{title}</b>" in page, title
    assert len(drawings(page)) == len(TITLES) + 2, "the two large ones are drawn for wide and for narrow screens"
    text = Reader(page).text
    assert "From the first 4 steps to the last 4 steps of 40, the share of executions" in text
    assert "rose from 9.3% to 92%" in text
    assert "“fine” at first" in text and "“agent” at the end" in text
    assert "0.5 × products, 0.5 × gsm8k; 8 a step" in text
    assert "10 steps Executor at 0.0002, then 10 steps Designer at 0.0002, repeated" in text
    assert "best checkpointstep 4040% of held-out tasks" in text
    assert "in progress" not in text
    assert [*re.findall(r"<h3>(Step \d+)</h3>", page)] == ["Step 0", "Step 20", "Step 39"]
    assert page.count("Executor learns") >= 4 and page.count("Designer learns") >= 4


def test_every_drawing_is_well_formed(tmp_path: Path) -> None:
    page = written(a_run(tmp_path / "first", 40, HOSTILE))
    for drawing in drawings(page):
        root = ElementTree.fromstring(drawing)
        assert root.attrib["aria-label"]
        assert "nan" not in drawing and "inf" not in drawing


def test_the_page_needs_no_other_and_runs_nothing(tmp_path: Path) -> None:
    page = written(a_run(tmp_path / "first", 25))
    reader = Reader(page)
    assert not re.search(r"https?:|//\w|url\(|@import", page)
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not {name for name, _ in reader.attributes} & {"src", "href", "srcset", "action"}
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in reader.attributes


def test_what_models_write_is_text_and_never_markup(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "<b>first", 3, HOSTILE)
    evaluated(directory, HOSTILE[-5], methods=(HOSTILE,), sets=(HOSTILE, "plain"), split=HOSTILE)
    page = written(directory)
    reader = Reader(page)
    assert not reader.tags & {"script", "img"}
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert reader.text.count("<img src=x onerror=alert(1)>") > 20
    assert "\x00" not in page


def test_a_task_with_the_largest_spread_is_shown_whole(tmp_path: Path) -> None:
    with Run.create(tmp_path / "first", CONFIG) as run:
        rollouts = [a_rollout(question="a dull one", spread=0.1), a_rollout("I answered", "a telling one")]
        run.write_step(0, {}, rollouts)
    page = Reader(written(tmp_path / "first")).text
    assert "a telling one" in page and "a dull one" not in page
    for shown in ("I answered", "reward 0.9", "advantage +1.25", "advantage -0.50", "1 of 2 solved"):
        assert shown in page, shown
    for shown in ("timeout", "no_script", "no pattern", "no answer", "cut off at the limit", "1 call, 3 tokens"):
        assert shown in page, shown


def test_long_texts_are_cut_and_say_so(tmp_path: Path) -> None:
    with Run.create(tmp_path / "first", CONFIG) as run:
        run.write_step(0, {}, [a_rollout("y" * 100_000)])
    page = written(tmp_path / "first")
    assert "97,000 more characters are not shown" in page
    assert len(page) < 100_000


# Runs that lack something


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    page = Reader(written(a_run(tmp_path / "first", 0))).text
    for said in (
        "No step is finished yet.",
        "0 of 40: in progress, or stopped",
        "No trees were recorded.",
        "No evaluation was made after training.",
    ):
        assert said in page, said


@pytest.mark.parametrize("steps", [1, 2, 3, 19, 21])
def test_short_runs_and_runs_in_progress(tmp_path: Path, steps: int) -> None:
    page = written(a_run(tmp_path / "first", steps))
    for drawing in drawings(page):
        ElementTree.fromstring(drawing)
    assert f"{steps} of 40: in progress, or stopped" in page
    assert ("One step is too few to compare." in page) == (steps == 1)


def test_a_run_without_anything_we_know(tmp_path: Path) -> None:
    with Run.create(tmp_path / "first", "name = 'other'\n") as run:
        for step in range(3):
            run.write_step(step, {"loss": 0.1, "note": "text", "reward/executor": float("nan")}, None)
    page = Reader(written(tmp_path / "first")).text
    assert "The recipe cannot be read: " in page
    assert "3 steps are done, and none of them measured a reward." in page
    assert page.count("Nothing to show: ") == 15
    assert "Nothing to show: no fault in any step." in page
    assert "No step of this run has metrics of an update." in page


def test_a_damaged_file_of_rollouts_is_named_and_the_rest_told(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "first", 3)
    (directory / "rollouts" / "000001.jsonl").write_text("{}\n")
    page = Reader(written(directory)).text
    assert "task: Field required" in page
    assert page.count("Design 1") == 2


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MetaAgentXError, match=r"is not a run: it has no run\.json"):
        write_report(tmp_path)
    with pytest.raises(MetaAgentXError, match="does not exist"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(MetaAgentXError, match="is a directory, expected the path of a file"):
        write_report(a_run(tmp_path / "first", 1), tmp_path)
    (tmp_path / "first" / "metrics.jsonl").unlink()
    with pytest.raises(MetaAgentXError, match=r"metrics\.jsonl is missing"):
        write_report(tmp_path / "first")
    with pytest.raises(MetaAgentXError, match="has no finished step"):
        save_picture(a_run(tmp_path / "second", 0), tmp_path / "picture.svg")


def test_a_long_run_with_many_patterns_stays_small(tmp_path: Path) -> None:
    with Run.create(tmp_path / "long", CONFIG) as run:
        (run.directory / "metrics.jsonl").write_text(
            "".join(
                json.dumps({**metrics_of(step, [f"kind{k}" for k in range(12)]), "step": step, "format": 1}) + "\n"
                for step in range(2000)
            )
        )
    page = written(tmp_path / "long")
    assert len(page) < 1_000_000
    assert "all others" in page
    assert "The roles took turns 200 times, too often to draw their stages." in page
    assert "Executor learns" not in page
    for drawing in drawings(page):
        ElementTree.fromstring(drawing)


# The evaluation


def evaluated(
    directory: Path,
    name: str,
    methods: Sequence[str] = ("metaagentx",),
    sets: Sequence[str] = ("gsm8k",),
    **fields: Any,
) -> Path:
    """Write an evaluation of 20 tasks of each set into a run; without a name, where earlier versions wrote it."""
    path = directory / "evaluation" / name if name else directory
    path.mkdir(parents=True, exist_ok=True)
    outcomes = [
        Outcome(f"t{number}", 0, 0, number < 9, tokens=10, calls=1, seconds=0.5, pattern="single")
        for number in range(20)
    ]
    strata = {method: [outcomes] for method in methods}
    summary = Summary.of(methods, methods[0], strata)
    content = {"samples": 1, "seed": 0, "against": methods[0], "methods": tuple(methods), "votes": {}, **fields}
    Evaluation(**content, sets=dict.fromkeys(sets, summary), overall=summary).write(path)
    return path


def test_an_evaluations_tables_are_shown(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "first", 20)
    (
        evaluated(directory, "", ("trained", "a | b"), ("one", "two"), votes={"a | b": {"two": 3}}) / "evaluation.md"
    ).unlink()
    page = written(directory)
    assert "<h4>All sets: 20 tasks</h4>" in page and "<h4>two: 20 tasks</h4>" in page
    assert (
        "<h3>Checkpoint not recorded</h3><p class='about'>20 tasks of one, two, 1 sample of each. evaluation.json"
        in page
    )
    numbers = "</td><td class='number'>".join(("45.0 (25.0 to 65.0)", "10", "1.0", "0.50", "0.0", "0"))
    for name in ("trained", "a | b", "a | b, 3 votes"):
        assert f"<tr><td>{name}</td><td class='number'>{numbers}</td></tr>" in page, name
    assert "<p>Against trained, task by task:</p>" in page and "+0.0 (+0.0 to +0.0)" in page
    assert "During training" in page and "No evaluation was made" not in page


@pytest.mark.parametrize(
    "damage, complaint",
    [
        (lambda data: {**data, "format": 2}, "(format: Input should be 1)"),
        (lambda data: {**data, "samples": None}, "(samples: Input should be a valid integer)"),
        (lambda data: {**data, "methods": ["other"]}, "every set needs a row with figures for each method"),
        (lambda data: {**data, "against": "other"}, "other is not among the methods"),
        (lambda data: [], "(the file: Input should be "),
    ],
)
def test_a_damaged_evaluation_is_named_and_the_rest_shown(
    tmp_path: Path, damage: Callable[[dict[str, object]], object], complaint: str
) -> None:
    directory = a_run(tmp_path / "first", 1)
    file = evaluated(directory, "000001") / "evaluation.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    page = Reader(written(directory)).text
    assert f"{file} cannot be read (" in page and complaint in page and "): run metaagentx eval again" in page
    assert "Checkpoint of step 1" in page and "Example trees" in page
    for content in ("{", "", "[" * 100_000, None):
        file.unlink() if content is None else file.write_text(content)
        assert f"{file} cannot be read (" in Reader(written(directory)).text


def test_all_evaluations_of_a_run_are_found_and_the_best_checkpoints_comes_first(tmp_path: Path) -> None:
    directory = a_run(tmp_path / "first", 20)  # of which step 20 is the best
    evaluated(directory, "000010", split="held-out", checkpoint=10)
    evaluated(directory, "000020", split="test", checkpoint=20, samples=4)
    evaluated(directory, "000030")  # by an earlier version, which told the step by the name only
    evaluated(directory, "long ago")
    page = written(directory)
    assert "<p>4 evaluations were made.</p>" in page
    titles = ["<h3>Checkpoint of step 20, the best on held-out tasks</h3>", "<b>Checkpoint of step 30</b>"]
    titles += ["<b>Checkpoint of step 10</b>", "<b>Checkpoint not recorded</b>"]
    places = [page.index(title) for title in titles]
    assert places == sorted(places)
    assert "20 test tasks of gsm8k, 4 samples of each. evaluation/000020" in page
    assert "20 held-out tasks of gsm8k, 1 sample of each. evaluation/000010" in page
    for name in ("000010", "000020", "000030", "long ago"):
        assert f"<td>evaluation/{name}</td>" in page
    assert page.count("<h4>gsm8k: 20 tasks</h4>") == 4
    assert "<td>metaagentx 45%</td>" in page


def test_the_title_says_which_run_it_is_of_which_recipe_and_how_far(tmp_path: Path) -> None:
    on = "on 0.5 × products, 0.5 × gsm8k"
    for directory, steps, said in (
        (tmp_path / "mine", 1, f"mine: 1 of 40 steps {on}"),
        (tmp_path / "quick" / "run", 40, f"quick/run: 40 steps {on}"),
    ):
        page = written(a_run(directory, steps))
        assert f"<title>MetaAgent-X run {said}</title>" in page
        assert f"<h1>MetaAgent-X run {said}</h1>" in page
    Run.create(tmp_path / "runs" / "a" / "b", CONFIG, recipe="tiny")
    assert "<title>MetaAgent-X run a/b: tiny, 0 of 40 steps</title>" in written(tmp_path / "runs" / "a" / "b")


def test_held_out_points_have_an_axis_of_shares(tmp_path: Path) -> None:
    reward, _, _, _, solved, *_ = drawings(written(a_run(tmp_path / "first", 40)))
    assert "held-out" not in reward
    assert "held-out" in solved and ">100%</text>" in solved and "<title>after step 40: 46%</title>" in solved


@pytest.mark.parametrize("grading, said", [
    (MathGold(("4", "-4"), (0.5,), "m"), "4 and -4 m, within 0.5"),
    (GymEntry("gcd", {}, {"answer": "12"}), "12"),
    (GymEntry("gcd", {}, {}), "what gcd accepts"),
    (CustomGrader("mine:haiku", {"lines": 3}), 'what mine:haiku accepts, with {"lines": 3}'),
    (CodeTests(()), "a program that passes 0 tests"),
    (CodeTests((StdinTest("1 2\n", "3\n"),)), "a program that passes 1 test, such as 3 printed for 1 2"),
    (CodeTests((FunctionTest((1, "a"), None),) * 2, "f"), 'a program that passes 2 tests, such as f(1, "a") = null'),
    (CodeTests((AssertTest("assert f(1) == 2"),), "f"), "a program that passes 1 test, such as assert f(1) == 2"),
])  # fmt: skip
def test_the_expected_answer_is_shown(grading: Grading, said: str) -> None:
    page = tree(Rollout(Task("t", "math", "?", grading, "own", "train"), a_rollout().designs))
    assert Reader(page).text.count(f"expected {said}") == 1


def test_what_the_grader_says_is_shown_for_every_execution() -> None:
    def execution(reward: Reward | None) -> Execution:
        return Execution([], FinalAnswer("text", "7", "7"), reward=reward)

    rollout = a_rollout()
    rewards = [Reward(0, 0, 0, 0, -0.0, False, "7 is not 4"), Reward(1, 1, 1, 0, 1.8, True), None]
    rollout.designs[0].executions = [execution(reward) for reward in rewards]
    rollout.designs[0].call.advantage = -0.0
    page = tree(rollout)
    heads = re.findall(r"<summary title='execution.*?</summary>", page)
    assert [re.sub("<.*?>", "", head.partition("grader: ")[2]) for head in heads] == [
        *("7 is not 4", "accepts the answer", "was not asked"),
    ]
    assert "advantage +0.00" in Reader(page).text and "-0" not in page


# The picture, the command, the documentation


def test_what_the_script_wrote_is_marked_and_a_fed_answer_is_named() -> None:
    rollout = a_rollout()
    asked = ({"role": "user", "content": "What is 2 + 2?\n<b>Say</b> 4.\n\nOutput of f:\n444"},)
    execution = Execution(
        [Call(Role.EXECUTOR, "A", asked, "4")], FinalAnswer.parse("4"), fed="in call 0 <i>", reward=None
    )
    execution.programs = [ProgramOutput(0, "444")]
    rollout.designs[0].executions = [execution]
    page = tree(rollout)
    assert "<span title='the question'>What is 2 + 2?</span>" in page
    assert "<mark title='written by the script'>\n&lt;b&gt;Say&lt;/b&gt; 4.\n\nOutput of f:\n444</mark>" in page
    assert "<b>fed</b> in call 0 &lt;i&gt;; the recipe rewards that" in page
    execution.calls.append(replace(execution.calls[0], text="5", messages=({"role": "user", "content": "444"},)))
    execution.fault = Fault("fed", "in call 0")
    page = tree(rollout)
    assert "<span title='the output of the program of call 0'>444</span>" in page
    assert "the recipe pays" not in page and "<b>fed</b> in call 0" in page


def test_the_picture_is_one_svg_file_on_white(tmp_path: Path) -> None:
    out = save_picture(a_run(tmp_path / "first", 40), tmp_path / "new" / "first.svg")
    root = ElementTree.fromstring(out.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.attrib["width"], root.attrib["height"], root.attrib["viewBox"]) == ("900", "570", "0 0 900 570")
    assert "var(" not in out.read_text()
    words = "".join(root.itertext())
    assert all(word in words for word in (*TITLES[:3], "Executor learns", "Designer learns", "held-out", "agent"))


def test_the_command_prints_where_the_report_is(tmp_path: Path) -> None:
    import typer

    from metaagentx.cli.report import report_command

    app = typer.Typer()
    app.command()(report_command)
    directory = a_run(tmp_path / "first", 2)
    done = CliRunner().invoke(app, [str(directory), "--out", str(tmp_path / "page.html")])
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "page.html"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_documentation_names_every_chart() -> None:
    for title in TITLES:
        assert title in PAGE, title


# What is read off the metrics


def test_bands_are_the_roles_that_learn() -> None:
    lines: list[dict[str, float]] = [{"step": step, **metrics_of(step)} for step in range(25)]
    executor, designer = (Role.EXECUTOR,), (Role.DESIGNER,)
    history = History([{**line, "step": int(line["step"])} for line in lines])
    assert history.bands() == [Band(0, 9, executor), Band(10, 19, designer), Band(20, 24, executor)]
    assert History([{"step": 0}]).bands() == [Band(0, 0, ())]
    both: dict[str, float] = {"learning_rate/executor": 1e-4, "learning_rate/designer": 1e-4}
    assert History([{"step": 0, **both}]).bands() == [Band(0, 0, tuple(Role))]


def test_numbers_only_are_series_and_absent_shares_are_zero() -> None:
    history = History([{"step": 0, "pattern/a": 1.0}, {"step": 1, "pattern/b": 1}, {"step": 2, "pattern/a": "nan"}])
    assert history.series("pattern/a") == [(0, 1.0)]
    assert history.filled_group("pattern") == {"a": [(0, 1.0), (1, 0.0)], "b": [(0, 0.0), (1, 1.0)]}


def test_averages_keep_ends_and_sums() -> None:
    series = [(float(step), float(step % 2)) for step in range(10)]
    assert smooth(series, 1) == series
    assert smooth(series, 3)[0] == (0, 0.5) and abs(smooth(series, 3)[4][1] - 2 / 3) < 1e-9
    assert thin(series, 10) == series
    assert thin(series, 5) == [(index * 2 + 0.5, 0.5) for index in range(5)]
    assert [len(piece) for piece in pieces([(float(s), 0.0) for s in (0, 1, 2, 10, 11, 30)])] == [3, 2, 1]
    assert [len(piece) for piece in pieces([(float(s), 0.0) for s in (0, 10, 20, 30)])] == [4]
    assert list(pieces([])) == []
    assert change([(0, 1.0)]) is None


def test_sources_are_short_while_that_is_clear() -> None:
    long = "gym:products?min_digits=2"
    assert short_names([long, "gsm8k", "jsonl:data/mine.jsonl"]) == {
        long: "products",
        "gsm8k": "gsm8k",
        "jsonl:data/mine.jsonl": "mine.jsonl",
    }
    assert short_names([long, "gym:products"]) == {long: long, "gym:products": "gym:products"}


def test_axes_have_round_numbers() -> None:
    assert ticks(0, 1, 4) == [0, 0.5, 1]
    assert ticks(0, 3, 8, whole=True) == [0, 1, 2, 3]
    assert ticks(5, 5, 4) == [5]
    assert value_range([0.2, 1.73], share=False) == (0, 2)
    assert value_range([0.2], share=True) == (0, 1)
    assert value_range([0.0], share=False) == (0, 1)
    assert (number(-0.0), percent(-0.0), percent(-0.0001)) == ("0", "0%", "0.0%")
    assert [number(value) for value in (0, 1.234, 0.1234, 12345, 1.2e-9, -3e7)] == [
        *("0", "1.23", "0.12", "12,345", "1.2e-9", "-3e7"),
    ]


def test_labels_do_not_lie_on_one_another() -> None:
    placed = spread_out([50, 51, 52, 99, 100], 10, 0, 100)
    assert sorted(placed) == placed
    assert all(after - before >= 10 for before, after in pairwise(placed))
    assert placed[-1] <= 100


# A real browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_scrolling_sideways(tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    directory = a_run(tmp_path / "first", 40, HOSTILE)
    evaluated(directory, "000040", methods=("metaagentx", "a method with a very long name, " * 9))
    page = write_report(directory)
    # The page itself runs nothing, so a frame around it, of the tested width, measures.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<iframe id=f src='{page.as_uri()}' style='width:{width}px;height:900px'></iframe><script>f.onload = () => "
        "{ const e = f.contentDocument.documentElement; document.title = ['wide', e.scrollWidth - e.clientWidth, "
        "e.querySelectorAll('svg').length, getComputedStyle(e.querySelector('.wide')).display, "
        "getComputedStyle(e.querySelector('.hint')).display].join(' ') }</script>"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    shown = "none block" if width < 700 else "block none"
    assert f"<title>wide 0 {len(TITLES) + 2} {shown}</title>" in done.stdout, done.stderr
