"""The pages in a real browser: headless Chromium of the system, driven by Playwright."""

import json
import random
import re
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.sample_run import a_tree, add_step, write_run
from metaagentx.runs import Run
from metaagentx.types import Call, Design, Execution, Fault, Role
from metaagentx.viewer import write_report
from metaagentx.workflow.structure import Structure, StructureNode
from tests.viewer.viewing import HOSTILE, Viewer, viewing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
SECONDS = 30_000
"""How long a test waits for something to be shown, in milliseconds."""


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield browser
        browser.close()


class Tab:
    """A page with what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda m: self.problems.append(m.text) if m.type == "error" else None)
        page.on("dialog", self.refuse)
        page.on("request", lambda request: self.requests.append(request.url))

    def refuse(self, dialog: Any) -> None:
        self.problems.append("a dialog")
        dialog.dismiss()

    def go(self, *path: object, tab: str = "") -> None:
        """Open a place in the page that is shown."""
        parts = "/".join(urllib.parse.quote(str(part), safe="") for part in (*path, *(("tab", tab) if tab else ())))
        self.page.evaluate("hash => { location.hash = hash }", f"/{parts}")
        self.page.wait_for_function("hash => location.hash === hash", arg=f"#/{parts}")

    def see(self, selector: str, text: str | re.Pattern[str] | None = None) -> Any:
        """Wait until something is visible and return it."""
        found = self.page.locator(selector, has_text=text) if text is not None else self.page.locator(selector)
        found.first.wait_for()
        return found

    def has_no_sideways_scrolling(self) -> bool:
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return bool(self.page.evaluate(wide) <= 0)


@pytest.fixture
def tab(browser: "Browser") -> Iterator[Callable[..., Tab]]:
    """Open tabs; at the end nothing may have gone wrong in any."""
    opened: list[Tab] = []

    def open_tab(url: str, **options: Any) -> Tab:
        context = browser.new_context(**{"viewport": {"width": 1300, "height": 850}, **options})
        opened.append(Tab(context.new_page()))
        opened[-1].page.goto(url)
        return opened[-1]

    yield open_tab
    for each in opened:
        each.page.context.close()
    assert [problem for each in opened for problem in each.problems] == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "first", 24, tasks=2, designs=3, executions=3)
    for seed in (1, 2):
        write_run(root / f"seed-{seed}", 12, tasks=1, designs=1, executions=1, seed=seed)
    return root


@pytest.fixture(scope="module")
def viewer(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    with viewing(runs) as viewer:
        yield viewer
    patch.undo()


def an_ensemble(runs: Path, step: int) -> tuple[int, int]:
    """The task and the design of an ensemble that ran."""
    trees = Run.open(runs / "first").rollouts(step)
    return next(
        (task, at) for task, tree in enumerate(trees) for at, design in enumerate(tree.designs)
        if design.pattern == "ensemble" and design.executions[0].answer
    )  # fmt: skip


def test_the_walk_from_a_curve_to_a_token(viewer: Viewer, runs: Path, tab: Callable[..., Tab]) -> None:
    task, design = an_ensemble(runs, 23)
    shown = tab(viewer.url)
    assert "token" not in shown.page.url, "the token is in no history"
    shown.see("td", "sample")
    shown.see("[data-run='first']").click()
    shown.see("[data-learned]", "share of executions that solve their task rose")
    for title in (
        "Reward of both roles",
        "Workflow patterns",
        "Faults by kind",
        "Gradient norm",
        "KL divergence",
        "Seconds by phase",
    ):
        shown.see(f"figure[data-chart='{title}'] canvas")
    plot = shown.see("figure[data-chart='Reward of both roles'] .u-over")
    box = plot.bounding_box()
    plot.hover(position={"x": box["width"] - 3, "y": 60})
    shown.see(".tip", "step23")
    plot.click(position={"x": box["width"] - 3, "y": 60})
    shown.see("h1", "Step 23")
    shown.see(f"[data-task='{task}'] a.cell").first.wait_for()
    shown.see(f"[data-task='{task}'] > .row > a").first.click()
    shown.see("h1", f"Task {task} of step 23")
    shown.see(f"[data-design='{design}'] a.head").click()
    shown.see(f"[data-design='{design}'].chosen")
    shown.see(".script li", "EnsembleNode")
    shown.see(".drawing text", "Judge")
    shown.see(f"[data-column='{design}'][data-cell='0']").click()
    shown.see(".drawing .taken", "Judge")
    assert shown.page.locator(".drawing path.edge.taken").count() == 3
    assert shown.page.locator(".drawing .taken text.sub").first.text_content().count("tokens") == 1
    assert shown.see(".timeline rect.call").count() == 4
    assert shown.page.locator(".timeline path.heard").count() >= 1
    shown.see("dd", "accepts the answer") if shown.page.locator(".tag.good", has_text="solved").count() else None
    shown.see("dd a", "call 3")
    shown.see("#call-3 summary", "prompt").click()
    shown.see("#call-3 .src-reply")
    assert shown.see("#call-3 .src-question").first.text_content().startswith("What is")
    token = shown.see("#call-3 .token").nth(4)
    token.click()
    shown.see("#call-3 .token-info", "log-probability")
    assert shown.page.url.endswith(f"/task/{task}/design/{design}/execution/0/call/3/token/4")
    shown.see("button", "shade tokens").click()
    assert shown.page.locator("#call-3 .token").count() == 0
    assert all(url.startswith((viewer.base, "data:")) for url in shown.requests), "nothing else is asked"


def test_a_click_opens_the_nearest_step_with_trees(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    run = write_run(tmp_path / "run", 12, tasks=1, designs=1, executions=1)
    for step in (*range(1, 11),):
        (run / "rollouts" / f"{step:06d}.jsonl").unlink()
    with viewing(tmp_path) as viewer:
        shown = tab(viewer.url)
        plot = shown.see("figure[data-chart='Reward of both roles'] .u-over")
        plot.click(position={"x": plot.bounding_box()["width"] * 0.8, "y": 50})
        shown.see("h1", "Step 11")


def test_a_deep_link_opens_a_token_in_a_new_window(viewer: Viewer, runs: Path, tab: Callable[..., Tab]) -> None:
    task, design = an_ensemble(runs, 23)
    shown = tab(f"{viewer.url}#/run/first/step/23/task/{task}/design/{design}/execution/0/call/1/token/2")
    shown.see("#call-1.chosen .token.chosen")
    shown.see("nav.crumbs a", "token 2")
    top = shown.page.locator("#call-1 .token.chosen").bounding_box()
    assert 0 < top["y"] < 850, "it is scrolled to"
    shown.page.reload()
    shown.see("#call-1.chosen .token.chosen")
    shown.go("run", "first", "step", 999)
    shown.see(".note", "no rollouts of step 999 were written")
    shown.problems = [problem for problem in shown.problems if "404" not in problem]


def test_runs_are_laid_over_one_another_with_seeds_as_bands(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(viewer.url)
    for run in ("seed-1", "seed-2", "first"):
        shown.see(f"input[aria-label='compare {run}']").check()
    shown.see("h2", "3 runs, 2 with different settings")
    shown.see("figure[data-chart='solved'] .legend button", "seed-1 and 1 more")
    shown.see("[data-differences] td", "steps")
    shown.page.select_option("select[aria-label='metric']", "tokens/per_execution")
    shown.see("figure[data-chart='tokens/per_execution'] canvas")


def test_search_and_filters(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(viewer.url)
    shown.see("[data-run='first']").click()
    shown.see("[data-learned]")
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("EnsembleNode")
    shown.page.keyboard.press("Enter")
    shown.see("[data-results] mark", "EnsembleNode")
    assert shown.page.locator("select[name=run]").input_value() == "first"
    shown.page.select_option("select[name=fault]", "script_error")
    shown.page.fill("input[name=q]", "")
    shown.page.keyboard.press("Enter")
    results = shown.see(".result .tag", "script_error")
    shown.see("[role=status][data-done]")
    assert results.count() == shown.page.locator(".result").count() > 0
    results.first.click()
    shown.see(".note", "ZeroDivisionError")
    assert shown.see(".script li.fault").first.get_attribute("id") == "line-4"


def test_one_task_at_two_steps(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(f"{viewer.url}#/run/first/step/1/task/1")
    shown.see("a", "Compare").first.click()
    shown.see("[data-summary] th", "step 21")
    shown.see("[data-summary] td", "executions solved")
    assert shown.see("[data-side]").count() == 2
    shown.page.select_option("select[aria-label='other run']", "seed-1")
    shown.see(".note", "no other tree of this task")


def test_the_change_is_from_the_earlier_step_to_the_later(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(f"{viewer.url}#/run/first/step/21/task/1")
    shown.see("a", "Compare").first.click()
    shown.see("[data-summary] th", "step 21")
    assert shown.page.locator("[data-summary] th").all_inner_texts()[1:3] == ["step 1", "step 21"]
    assert shown.page.locator("[data-side] h2").all_inner_texts() == ["first, step 1, task 1", "first, step 21, task 1"]


def test_a_run_without_steps_has_a_row_like_others(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    Run.create(tmp_path / "new", "steps = 1\n")
    write_run(tmp_path / "trained", 1, tasks=1)
    with viewing(tmp_path) as viewer:
        shown = tab(viewer.url)
        shown.see("tr", "trained")
        new, trained = (shown.see("tbody tr", name).bounding_box()["height"] for name in ("new", "trained"))
        assert abs(new - trained) < 8


def test_evaluations_log_and_configuration(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(f"{viewer.url}#/run/first/tab/evaluations")
    shown.see("h2", "During training")
    shown.see(".tabs a", "Log").click()
    shown.see(".log", "training from step 0")
    shown.see(".tabs a", "Configuration").click()
    shown.see(".log", "gsm8k")
    shown.see(".tabs a", "Steps and trees").click()
    shown.see("td a", "step 23")


def test_a_live_run_grows_while_the_page_is_open(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    with Run.create(tmp_path / "run", "steps = 9\n", "sample") as run, viewing(tmp_path) as viewer:
        shown = tab(viewer.url)
        shown.see(".empty", "No step is finished yet.")
        shown.see(".live", "live")
        for step in range(2):
            add_step(run, step, 1, 2, 2, 10, 0)
        shown.see("figure[data-chart='Reward of both roles'] canvas")
        shown.see("span", re.compile("^2 steps"))
        shown.go("run", "run", tab="steps")
        shown.see("td a", "step 1")
        add_step(run, 2, 1, 2, 2, 10, 0)
        shown.see("td a", "step 2")
        run.log("a new line")
        shown.go("run", "run", tab="log")
        run.log("and another one")
        shown.see(".log", "and another one")
        shown.page.context.close()  # before the viewer ends, which the page would notice


def test_an_exported_run_opens_from_the_disk(runs: Path, tmp_path: Path, tab: Callable[..., Tab]) -> None:
    file = write_report(runs / "first", tmp_path / "report.html")
    shown = tab(file.as_uri())
    shown.see("[data-learned]")
    shown.see("figure[data-chart='Reward of both roles'] canvas")
    task, design = an_ensemble(runs, 23)
    shown.see(".tabs a", "Steps and trees").click()
    shown.see("td a", "step 23").click()
    shown.see(f"[data-task='{task}'] > .row > a").first.click()
    shown.see(f"[data-column='{design}'][data-cell='0']").click()
    shown.see("#call-3 .token")
    shown.see("a", "Compare").first.click()
    shown.see("[data-summary]")
    assert shown.requests == [file.as_uri()], "one file, no network"


def test_a_run_with_any_name_is_exported_from_the_viewer(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    name = "more/50% of ~a run's #1 & é?"
    write_run(tmp_path / "runs" / name, 2, tasks=1)
    with viewing(tmp_path / "runs") as viewer:
        live = tab(f"{viewer.url}#/runs")
        live.see("a", "#1").click()
        live.see("[data-learned]")
        with live.page.expect_download() as download:
            live.see("a", "Export this run").click()
        download.value.save_as(tmp_path / "run.html")
        live.page.context.close()
    shown = tab((tmp_path / "run.html").as_uri())
    shown.see("[data-learned]")
    shown.see(".tabs a", "Steps and trees").click()
    shown.see("td a", "step 1").click()
    shown.see("[data-task='0'] > .row > a").first.click()
    shown.see("h1", "Task 0 of step 1")


def test_one_exported_tree_opens_from_the_disk(
    viewer: Viewer, runs: Path, tmp_path: Path, tab: Callable[..., Tab]
) -> None:
    task, design = an_ensemble(runs, 23)
    live = tab(f"{viewer.url}#/run/first/step/23/task/{task}")
    with live.page.expect_download() as download:
        live.see("a", "Export this tree").click()
    download.value.save_as(tmp_path / "tree.html")
    shown = tab((tmp_path / "tree.html").as_uri())
    shown.see("h1", f"Task {task} of step 23")
    shown.see(f"[data-column='{design}'][data-cell='0']").click()
    shown.see("#call-3 .token")


def test_dark_and_light(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(f"{viewer.url}#/run/first", color_scheme="dark")
    shown.see("figure canvas")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = shown.page.evaluate(background)
    assert sum(map(int, re.findall(r"\d+", dark))) < 120
    shown.page.keyboard.press("t")
    light = shown.page.evaluate(background)
    assert light == "rgb(255, 255, 255)"
    shown.page.reload()
    shown.see("figure canvas")
    assert shown.page.evaluate(background) == light, "the choice stays"


def test_a_phone_needs_no_sideways_scrolling(viewer: Viewer, runs: Path, tab: Callable[..., Tab]) -> None:
    task, design = an_ensemble(runs, 23)
    shown = tab(viewer.url, viewport={"width": 400, "height": 800})
    shown.see("[data-run='first']")
    tree = ("run", "first", "step", 23, "task", task, "design", design, "execution", 0)
    for path, selector in (
        (("runs",), "[data-run='first']"),
        (("run", "first"), "figure canvas"),
        (("run", "first", "step", 23), "[data-task]"),
        (tree, "#call-3 .token"),
        (("search",), "form.filters"),
    ):
        shown.go(*path)
        shown.see(selector)
        assert shown.has_no_sideways_scrolling(), path


def test_the_keyboard_alone_is_enough(viewer: Viewer, runs: Path, tab: Callable[..., Tab]) -> None:
    task, design = an_ensemble(runs, 23)
    shown = tab(viewer.url)
    shown.see("[data-run='first']")
    press = shown.page.keyboard.press
    press("?")
    shown.see("dialog kbd")
    press("Escape")
    for _ in range(10):
        press("j")
        if shown.page.evaluate("document.activeElement.dataset.run") == "first":
            break
    press("Enter")
    shown.see("[data-learned]")
    press("g")
    press("s")
    shown.see("td a", "step 23")
    press("j")
    press("Enter")
    shown.see("h1", "Step 23")
    press("[")
    shown.see("h1", "Step 22")
    press("]")
    shown.see("h1", "Step 23")
    for _ in range(task + 1):
        press("j")
    press("Enter")
    shown.see("h1", f"Task {task} of step 23")
    shown.page.locator("[data-column='0'][data-cell='0'], [data-column='1'][data-cell='0']").first.focus()
    start = int(shown.page.evaluate("document.activeElement.dataset.column"))
    for _ in range(design - start):
        press("ArrowRight")
    press("ArrowDown")
    press("ArrowUp")
    press("Enter")
    shown.see("[data-execution='0']")
    press("j")
    press("Enter")
    shown.see("#call-0.chosen")
    shown.page.locator("#call-0 .tokens").focus()
    press("ArrowRight")
    press("ArrowRight")
    shown.see("#call-0 .token-info", "token 1 of")
    for expected in (f"execution/{0}", f"design/{design}", "step/23", "tab/steps"):
        press("u")
        shown.page.wait_for_function("end => location.hash.endsWith(end)", arg=expected)


def test_a_hostile_run_is_shown_as_text_and_stays_fast(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    with Run.create(tmp_path / "evil <b>", "steps = 1\n", "<i>recipe") as run:
        tree = a_tree(random.Random(0), 0, 0, 2, 1, 10)
        calls = [
            Call(Role.EXECUTOR, f"{HOSTILE}{n % 60}", ({"role": HOSTILE, "content": HOSTILE},), HOSTILE)
            for n in range(2000)
        ]
        calls[1].text = HOSTILE + "y" * 2_000_000
        calls[0].lengths = tuple([1] * len(HOSTILE))
        calls[0].logprobs = tuple([-1.0] * len(HOSTILE))
        calls[0].text = HOSTILE
        execution = Execution(calls, fault=Fault(HOSTILE, HOSTILE), log=HOSTILE)
        call = Call(Role.DESIGNER, "Designer", ({"role": "user", "content": HOSTILE},), HOSTILE)
        tree.designs = [
            Design(call, f"{HOSTILE}\n'{HOSTILE}", [execution], pattern=HOSTILE[:40]),
            Design(call, None, fault=Fault("x", HOSTILE)),
        ]
        object.__setattr__(tree.task, "question", HOSTILE)
        object.__setattr__(tree.task, "id", HOSTILE)
        object.__setattr__(tree.task, "source", HOSTILE)
        run.write_step(0, {"solved": 1.0, f"pattern/{HOSTILE}": 1.0, "faults/<script>": 2.0}, [tree])
        run.log(HOSTILE)
    with viewing(tmp_path) as viewer:
        shown = tab(viewer.url)
        shown.see("h1", "evil <b>")
        shown.see(".legend", "<script>alert(2)</script>")
        for tab_name in ("log", "config", "steps", "evaluations"):
            shown.go("run", "evil <b>", tab=tab_name)
        shown.go("run", "evil <b>", "step", 0)
        shown.see("[data-task] a", "<img src=x")
        shown.go("run", "evil <b>", "step", 0, "task", 0, "design", 0, "execution", 0)
        shown.see("#call-1 .text", "<script>alert(2)</script>")
        assert shown.page.locator(".call-card").count() == 100
        shown.see("#call-1 button", "show all 2,000,0").click()
        shown.page.wait_for_function("() => document.querySelector('#call-1 .text').textContent.length > 2e6")
        assert shown.page.evaluate("document.querySelectorAll('main script, main img, main b > script').length") == 0
        shown.go("run", "evil <b>", "step", 0, "task", 0, "design", 0, "execution", 0, "call", 1950)
        shown.see("#call-1950.chosen")
        shown.page.evaluate("location.hash = '/search?q=onerror'")
        shown.see(".result mark", "onerror")
        file = write_report(tmp_path / "evil <b>", tmp_path / "report.html")
    exported = tab(file.as_uri())
    exported.see("h1", "evil <b>")
    exported.see(".legend", "<script>alert(2)</script>")
    exported.page.evaluate("location.hash = '/run/./step/0/task/0/design/0/execution/0'")
    exported.see("#call-1 .text", "<script>alert(2)</script>")
    assert exported.page.evaluate("document.querySelectorAll('main script, main img').length") == 0


def test_a_workflow_of_nodes_that_share_nodes_is_drawn_in_part(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    levels = [(level, 5 if level else 1) for level in range(12)]
    nodes = [
        StructureNode("sequence", "n", tuple(range(1 + 5 * level, 6 + 5 * level)), (), 1)
        for level, width in levels
        for _ in range(width)
    ]
    nodes += [StructureNode("agent", "Solver", (), (), 1), StructureNode("sequence", "n", (9999,), (), 1)] * 3
    call = Call(Role.EXECUTOR, "Solver", ({"role": "user", "content": "?"},), "42")
    execution = Execution([call], structure=Structure("mixed", tuple(nodes), ((0, 9999),)))
    with Run.create(tmp_path / "run", "steps = 1\n") as run:
        tree = a_tree(random.Random(0), 0, 0, 1, 1, 10)
        tree.designs = [Design(replace(call, role=Role.DESIGNER), "script", [execution], pattern="mixed")]
        run.write_step(0, {"solved": 1.0}, [tree])
    with viewing(tmp_path) as viewer:
        shown = tab(f"{viewer.url}#/run/run/step/0/task/0/design/0/execution/0")
        shown.see(".drawing svg text", "drawn in part")
        assert shown.page.locator(".drawing svg rect").count() < 400


def test_a_damaged_line_costs_its_tree_and_not_the_page(tmp_path: Path, tab: Callable[..., Tab]) -> None:
    run = write_run(tmp_path / "run", 3, tasks=2, designs=2, executions=2)
    file = run / "rollouts" / "000001.jsonl"
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0] + b'{"half": ')
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0] + "damaged\n" + lines[2])
    with viewing(tmp_path) as viewer:
        shown = tab(f"{viewer.url}#/run/run")
        shown.see(".note", "line 2: damaged")
        shown.see("figure canvas")
        shown.go("run", "run", "step", 1)
        shown.see("[data-task='0'] a.cell")
        shown.see(".note", "the line was cut off while it was written")


def test_without_the_token_the_page_says_what_to_do(viewer: Viewer, tab: Callable[..., Tab]) -> None:
    shown = tab(f"{viewer.base}/")
    shown.see(".note", "open the link that `metaagentx view` printed")
    shown.problems = [problem for problem in shown.problems if "403" not in problem]
    assert json.dumps(shown.requests).count("/api/") >= 1
