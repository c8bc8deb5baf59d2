"""The server of the viewer: who may ask, what is shown of runs that are whole, growing, damaged or hostile."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from benchmarks.sample_run import a_tree, add_step, metrics_of, write_run
from metaagentx.errors import MetaAgentXError
from metaagentx.runs import Run
from metaagentx.system.save import RECIPE
from metaagentx.types import Call, Execution, Role
from metaagentx.web import listen
from tests.commands import command
from tests.viewer.viewing import HOSTILE, Viewer, viewing, wait_until

CALL = {"task": 0, "design": 0, "execution": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "first", 21, tasks=2)
    write_run(root / "more" / "second", 3, tasks=2, seed=1)
    return root


@pytest.fixture
def viewer(runs: Path) -> Iterator[Viewer]:
    with viewing(runs) as viewer:
        yield viewer


# Who may ask


def test_the_link_opens_and_its_token_leaves_the_address(viewer: Viewer) -> None:
    status, headers, _ = viewer.get(f"/?token={viewer.token}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    allowed = {"Cookie": cookie.partition(";")[0]}
    assert viewer.get("/api/runs", allowed)[0] == 200
    assert viewer.get("/", allowed)[0] == 200


@pytest.mark.parametrize("other", ['state={"a":1}', "a b=1", "a[b]=x", "a@b=1", "plain"])
def test_cookies_of_other_servers_on_this_machine_do_not_hide_the_token(viewer: Viewer, other: str) -> None:
    own = viewer.get(f"/?token={viewer.token}")[1]["set-cookie"].partition(";")[0]
    for cookie in (f"{other}; {own}", f"{own}; {other}"):
        assert viewer.get("/api/runs", {"Cookie": cookie})[0] == 200, cookie


@pytest.mark.parametrize(
    "path", ["/api/runs", "/api/tree?run=first&step=0&task=0", "/api/events?run=first", "/export?run=first"]
)
def test_without_the_token_nothing_of_a_run_is_told(viewer: Viewer, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": "metaagentx_view_1=x"},
        {"Authorization": viewer.token},
    ):
        status, _, body = viewer.get(path, headers)
        assert status == 403 and b"open the link" in body
    assert viewer.get("/?token=wrong")[0] == 200, "the page itself says nothing of a run"


def test_other_hosts_and_origins_are_refused(viewer: Viewer) -> None:
    port = viewer.base.rpartition(":")[2]
    key = {"Authorization": f"Bearer {viewer.token}"}
    for host in ("evil.example", f"evil.example:{port}", "", "127.0.0.1.evil.example", "192.168.0.1"):
        assert viewer.get("/api/runs", {**key, "Host": host})[0] == 403, host
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost:1"):
        assert viewer.get("/api/runs", {**key, "Host": host})[0] == 200, host
    for origin in ("http://evil.example", "null", f"http://localhost:{int(port) + 1}"):
        assert viewer.get("/api/runs", {**key, "Origin": origin})[0] == 403, origin
    assert viewer.get("/api/runs", {**key, "Origin": viewer.base})[0] == 200
    for site in ("cross-site", "same-site"):
        assert viewer.get("/api/runs", {**key, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"})[0] == 403
    assert viewer.get("/api/runs", {**key, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"})[0] == 200


def test_nothing_can_be_changed_and_no_other_file_can_be_read(viewer: Viewer) -> None:
    key = {"Authorization": f"Bearer {viewer.token}"}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert viewer.get("/api/runs", key, method)[0] == 405
    for path in (
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/nothing.js",
        "/etc/passwd",
    ):
        assert viewer.get(path, key)[0] == 404, path
    for run in ("..", "../..", "/etc", "first/../..", "more", "nowhere"):
        assert "there is no run" in viewer.ask("run", run=run)["error"]
    for step in ("-1", "1e3", "x", "99999999999"):
        assert "expected a number" in viewer.ask("step", run="first", step=step)["error"]
    assert "no rollouts of step 77" in viewer.ask("step", run="first", step=77)["error"]


def test_the_browser_may_run_our_scripts_only(viewer: Viewer) -> None:
    _, headers, body = viewer.get("/")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    page = body.decode()
    assert "style=" not in page and not re.search(r"<script(?![^>]*\bsrc=)", page) and not re.search(r"\bon\w+=", page)
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page):
        assert viewer.get(f"/{name}")[0] == 200, name


# What is shown


def test_all_runs_are_listed_with_their_figures(viewer: Viewer) -> None:
    listed = {run["id"]: run for run in viewer.ask("runs")["runs"]}
    assert list(listed) == ["first", "more/second"]
    first = listed["first"]
    assert (first["state"], first["steps"], first["of"], first["recipe"], first["kind"]) == (
        "finished",
        21,
        21,
        "sample",
        "training",
    )
    assert first["settings"]["seed"] == "0" and listed["more/second"]["settings"]["seed"] == "1"
    assert 0 < first["solved"] < 1 and first["held_out"] and round(first["seconds"]) == 57


def test_a_run_has_its_head_curves_log_and_configuration(viewer: Viewer) -> None:
    head = viewer.ask("run", run="first")
    assert "share of executions that solve their task rose" in head["learned"]
    assert head["bands"] == [[0, 9, ["executor"]], [10, 19, ["designer"]], [20, 20, ["executor"]]]
    assert head["best"] == {"step": 21, "score": 0.4} and head["problems"] == []
    curves = viewer.ask("curves", run="first")
    assert curves["columns"]["step"] == list(range(21))
    assert curves["columns"]["designer/entropy"][:10] == [None] * 10
    later = viewer.ask("curves", run="first", start=20, generation=curves["generation"])
    assert (later["start"], later["rows"]) == (20, 1)
    assert "training from step 0" in viewer.ask("log", run="first")["text"]
    assert "gsm8k" in viewer.ask("config", run="first")["text"]


def test_every_node_of_a_tree_is_what_the_run_has(viewer: Viewer, runs: Path) -> None:
    for step in (0, 20):
        shown = viewer.ask("step", run="first", step=step)["tasks"]
        for number, tree in enumerate(Run.open(runs / "first").rollouts(step)):
            assert shown[number]["id"] == tree.task.id
            rewards = [
                [run.reward.total if run.reward else None for run in design.executions] for design in tree.designs
            ]
            assert [[run["reward"] for run in design["executions"]] for design in shown[number]["designs"]] == rewards
            outline = viewer.ask("tree", run="first", step=step, task=number)
            assert [design["script"] for design in outline["designs"]] == [design.script for design in tree.designs]
            for at, design in enumerate(tree.designs):
                for place, execution in enumerate(design.executions):
                    where = {"step": step, "task": number, "design": at, "execution": place}
                    page = viewer.ask("execution", run="first", **where)
                    assert [call["text"] for call in page["execution"]["calls"]] == [c.text for c in execution.calls]
                    assert page["execution"]["calls"][0]["logprobs"] == list(execution.calls[0].logprobs)


def test_a_prompt_names_the_source_of_each_part(viewer: Viewer, runs: Path) -> None:
    trees = Run.open(runs / "first").rollouts(20)
    task, design = next(
        (t, d) for t, tree in enumerate(trees) for d, made in enumerate(tree.designs) if made.pattern == "ensemble"
    )
    page = viewer.ask("execution", run="first", step=20, task=task, design=design, execution=0)
    messages = page["execution"]["calls"][3]["messages"]
    sources = page["sources"][3]
    assert [sum(length for _, length, _ in spans) for spans in sources] == [len(m["content"]) for m in messages]
    assert {source for source, _, _ in sources[1]} >= {"question", "reply", "script"}
    assert page["heard"][0] == [] and page["heard"][3]
    assert page["deliveries"][0].startswith("\\boxed{")


def test_a_task_is_found_wherever_it_was_drawn(viewer: Viewer) -> None:
    tree = viewer.ask("tree", run="first", step=0, task=1)
    viewer.ask("tree", run="first", step=20, task=1)
    wait_until(lambda: viewer.ask("run", run="first")["indexed"] == 21)
    assert [place[:2] for place in viewer.ask("task", run="first", id=tree["task"]["id"])["occurrences"]] == [
        [0, 1],
        [20, 1],
    ]
    wait_until(lambda: viewer.ask("run", run="more/second")["indexed"] == 3)
    assert [place[:2] for place in viewer.ask("task", run="more/second", id=tree["task"]["id"])["occurrences"]] == [
        [0, 1]
    ]


# Search


def search(viewer: Viewer, **query: object) -> list[dict[str, object]]:
    """All results of a search, over as many requests as it takes."""
    results, cursor = [], ""
    for _ in range(1000):
        answer = viewer.ask("search", **query, cursor=cursor)
        results += answer["results"]
        cursor = answer["cursor"]
        if not cursor:
            return results
    raise AssertionError("the search has no end")


def test_filters_find_exactly_the_executions_that_match(viewer: Viewer, runs: Path) -> None:
    expected = {
        (step, task, d, e)
        for step in range(21)
        for task, tree in enumerate(Run.open(runs / "first").rollouts(step))
        for d, design in enumerate(tree.designs)
        for e, run in enumerate(design.executions)
        if run.reward and run.reward.total == 0 and design.pattern == "ensemble" and tree.task.source == "gsm8k"
    }
    found = search(viewer, run="first", reward="0", pattern="ensemble", source="gsm8k")
    assert {(r["step"], r["task"], r["design"], r["execution"]) for r in found} == expected and expected
    assert all(result["fault"] for result in search(viewer, run="first", fault="any"))
    kinds = {result["fault"] for result in search(viewer, run="first", fault="script_error")}
    assert kinds == {"script_error"}
    assert {result["solved"] for result in search(viewer, run="first", solved="no", reward=">0.5")} == {0}
    steps = {result["step"] for result in search(viewer, first=5, last=6, run="first")}
    assert steps == {5, 6}
    assert {result["run"] for result in search(viewer, solved="yes", last=1)} == {"first", "more/second"}


def test_text_is_found_where_it_is(viewer: Viewer, runs: Path) -> None:
    tree = Run.open(runs / "first").rollouts(7)[1]
    text = tree.designs[2].call.text if not tree.designs[2].executions else tree.designs[2].executions[1].calls[0].text
    words = text[:60].strip()
    (found,) = search(viewer, q=words.upper(), run="first")
    assert (found["step"], found["task"], found["design"]) == (7, 1, 2)
    assert f"\x02{words}\x03" in str(found["excerpt"])
    assert search(viewer, q="AgentNode(name=name", run="first", role="designer", last=2)
    assert not search(viewer, q="AgentNode(name=name", run="first", role="executor")
    assert not search(viewer, q="not in any tree")
    questions = search(viewer, q="What is 17 * 14", run="first")
    assert {result["where"] for result in questions} >= {"question"}
    assert "expected a number" in viewer.ask("search", reward="many")["error"]


# Damage, growth, hostility


def test_a_damaged_line_costs_its_tree_and_a_damaged_file_its_step(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 4, tasks=3)
    file = run / "rollouts" / "000001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b'{"task": 3}\n' + lines[2][:-20])
    (run / "rollouts" / "000002.jsonl").write_bytes(b"\xff\xfe no JSON at all")
    metrics = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(metrics[0] + b"{ damaged\n" + b"".join(metrics[2:]) + b'{"step": 4, "solv')
    (run / "best").write_text("no JSON")
    (run / "evaluation" / "000004").mkdir(parents=True)
    (run / "evaluation" / "000004" / "evaluation.json").write_text("{}")
    with viewing(tmp_path) as viewer:
        head = viewer.ask("run", run="run")
        assert any("best is damaged" in problem for problem in head["problems"])
        assert any("line 2: damaged" in problem for problem in head["problems"])
        assert viewer.ask("curves", run="run")["columns"]["step"] == [0, 2, 3]
        tasks = viewer.ask("step", run="run", step=1)["tasks"]
        assert tasks[0]["problem"] is None and tasks[0]["designs"]
        assert "task: Input should be" in tasks[1]["problem"] and "cut off" in tasks[2]["problem"]
        assert viewer.ask("tree", run="run", step=1, task=0)["designs"]
        assert "000001.jsonl, line 2" in viewer.ask("tree", run="run", step=1, task=1)["error"]
        assert [task["problem"] for task in viewer.ask("step", run="run", step=2)["tasks"]] == [
            "the line was cut off while it was written"
        ]
        assert viewer.ask("step", run="run", step=3)["tasks"][2]["designs"]
        assert "cannot be read" in viewer.ask("evaluations", run="run")["evaluations"][0]["problem"]
        assert viewer.ask("steps", run="run")["steps"][1][4] == 2
        assert viewer.get("/export?run=run", {"Authorization": f"Bearer {viewer.token}"})[0] == 200


def test_a_run_that_grows_sends_events_and_shows_what_is_new(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "steps = 9\n", "sample") as run, viewing(tmp_path) as viewer:
        assert viewer.ask("run", run="run")["state"] == "running"
        assert viewer.ask("curves", run="run")["rows"] == 0
        add_step(run, 0, 1, 2, 2, 10, 0)
        events: list[bytes] = []
        path = "/api/events?run=run&token=" + viewer.token
        listener = threading.Thread(target=lambda: events.append(_events(viewer, path, 2)))
        listener.start()
        time.sleep(1.0)
        add_step(run, 1, 1, 2, 2, 10, 0)
        listener.join(15)
        assert events and events[0].count(b"event: change") >= 2
        curves = viewer.ask("curves", run="run", start=1, generation=1)
        assert curves["columns"]["step"][-1] == 1
        assert viewer.ask("step", run="run", step=1)["tasks"]
    with viewing(tmp_path) as viewer:
        assert viewer.ask("run", run="run")["state"] == "stopped", "nobody holds its lock any more"


def _events(viewer: Viewer, path: str, count: int) -> bytes:
    import http.client
    from urllib.parse import urlsplit

    connection = http.client.HTTPConnection(urlsplit(viewer.base).netloc, timeout=15)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    received = b""
    while received.count(b"event: change") < count:
        received += response.read1(4096)
    connection.close()
    return received


def test_a_file_that_was_rewritten_is_read_anew(tmp_path: Path, cache: Path) -> None:
    run = write_run(tmp_path / "run", 3, tasks=2)
    with viewing(tmp_path) as viewer:
        before = viewer.ask("tree", run="run", step=1, task=1)
        other = write_run(tmp_path / "elsewhere", 3, tasks=2, seed=5, words=50)
        os.replace(other / "rollouts" / "000001.jsonl", run / "rollouts" / "000001.jsonl")
        after = viewer.ask("tree", run="run", step=1, task=1)
        tokens = [
            [sum(call["tokens"] for e in d["executions"] for call in e["calls"]) for d in t["designs"]]
            for t in (before, after)
        ]
        assert tokens[0] != tokens[1]
        (run / "rollouts" / "000002.jsonl").unlink()
        assert [step for step, *_ in viewer.ask("steps", run="run")["steps"]] == [0, 1]
        old = viewer.ask("curves", run="run")
        lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        fresh = [json.dumps({**metrics_of(step, 9), "step": step, "format": 1}).encode() + b"\n" for step in (1, 2, 3)]
        (run / "metrics.jsonl").write_bytes(lines[0] + b"".join(fresh))
        new = viewer.ask("curves", run="run", start=3, generation=old["generation"])
        assert (new["start"], new["columns"]["step"]) == (0, [0, 1, 2, 3]) and new["generation"] > old["generation"]
    assert len(list((cache / "metaagentx" / "viewer").glob("*.sqlite"))) == 1


def test_what_models_wrote_stays_text(tmp_path: Path) -> None:
    import random

    with Run.create(
        tmp_path / HOSTILE.replace("/", "").replace("\x00", "").replace("\ud800", ""), "steps = 1\n", HOSTILE[:20]
    ) as run:
        tree = a_tree(random.Random(0), 0, 0, 2, 2, 10)
        tree = replace(tree, task=replace(tree.task, question=HOSTILE, source=HOSTILE, id=HOSTILE))
        for design in tree.designs:
            design.script, design.pattern, design.call.text = HOSTILE, HOSTILE[:30], HOSTILE
            design.executions = [
                Execution([Call(Role.EXECUTOR, HOSTILE, ({"role": HOSTILE, "content": HOSTILE},), HOSTILE)])
            ]
            design.executions[0].log = HOSTILE
            design.call.advantage = float("nan")
        run.write_step(0, {"solved": 1.0, HOSTILE: 1.0, "seconds/step": float("inf")}, [tree])
    with viewing(tmp_path) as viewer:
        ((name),) = [listed["id"] for listed in viewer.ask("runs")["runs"]]
        viewer.ask("run", run=name)
        assert viewer.ask("step", run=name, step=0)["tasks"][0]["designs"][0]["executions"]
        shown = viewer.ask("tree", run=name, step=0, task=0)
        assert shown["task"]["question"] == HOSTILE and shown["designs"][0]["call"]["advantage"] == "nan"
        assert viewer.ask("execution", run=name, step=0, **CALL)["execution"]["calls"][0]["text"] == HOSTILE
        assert len(search(viewer, q="onerror=alert")) >= 3
        key = {"Authorization": f"Bearer {viewer.token}"}
        for path in ("/api/runs", f"/api/log?{urlencode({'run': name})}"):
            assert viewer.get(path, key)[1]["content-type"] == "application/json"


def test_megabytes_and_thousands_of_calls_stay_fast(tmp_path: Path) -> None:
    import random

    with Run.create(tmp_path / "run", "steps = 1\n", "big") as run:
        tree = a_tree(random.Random(0), 0, 0, 1, 1, 10)
        asked = ({"role": "user", "content": "x" * 500},)
        calls = [Call(Role.EXECUTOR, f"A{number % 50}", asked, f"reply {number}", tokens=2) for number in range(3000)]
        calls[2].text = "y" * 3_000_000
        tree.designs[0].executions = [Execution(calls)]
        tree.designs[0].fault = None
        run.write_step(0, {}, [tree])
    with viewing(tmp_path) as viewer:
        viewer.ask("step", run="run", step=0)
        started = time.perf_counter()
        outline = viewer.ask("tree", run="run", step=0, task=0)
        page = viewer.ask("execution", run="run", step=0, **CALL)
        last = viewer.ask("execution", run="run", step=0, **CALL, start=2900)
        assert time.perf_counter() - started < 3
        assert len(outline["designs"][0]["executions"][0]["calls"]) == 3000
        assert len(page["execution"]["calls"]) == 100 and page["cut"] == {"execution.calls.2.text": 3_000_000}
        assert len(json.dumps(page)) < 1_000_000
        assert last["execution"]["calls"][-1]["text"] == "reply 2999"
        path = "designs.0.executions.0.calls.2.text"
        assert len(viewer.ask("text", run="run", step=0, task=0, path=path)["text"]) == 3_000_000
        assert "no text at" in viewer.ask("text", run="run", step=0, task=0, path="designs.9.x")["error"]


def test_saved_answers_open_too(tmp_path: Path) -> None:
    import random

    directory = tmp_path / "saved"
    Run.create(directory, "", RECIPE)
    (directory / "rollouts").mkdir(exist_ok=True)
    from metaagentx.runs import records, rollout_to_json

    for number in range(2):
        line = records.json_line(rollout_to_json(a_tree(random.Random(number), 0, number, 1, 1, 5)))
        (directory / "rollouts" / f"{number:06d}.jsonl").write_bytes(line)
    with viewing(directory) as viewer:
        (listed,) = viewer.ask("runs")["runs"]
        assert (listed["id"], listed["kind"], listed["recipe"]) == (".", "trees", "solve")
        assert viewer.ask("run", run=".")["problems"] == []
        assert viewer.ask("tree", run=".", step=1, task=0)["designs"]


def test_an_index_that_cannot_be_written_or_is_damaged_is_no_obstacle(runs: Path, cache: Path) -> None:
    directory = cache / "metaagentx" / "viewer"
    with viewing(runs) as viewer:
        viewer.ask("step", run="first", step=3)
    (file,) = directory.glob("*.sqlite")
    file.write_bytes(b"this is no database" * 1000)
    with viewing(runs) as viewer:
        assert viewer.ask("step", run="first", step=3)["tasks"]
    for leftover in directory.iterdir():
        leftover.unlink()
    directory.rmdir()
    directory.write_text("a file is in the way")
    with viewing(runs) as viewer:
        assert viewer.ask("step", run="first", step=3)["tasks"]
        assert search(viewer, run="first", solved="yes", last=0)


def test_an_index_that_is_damaged_inside_is_made_again(runs: Path, cache: Path) -> None:
    with viewing(runs) as viewer:
        viewer.ask("run", run="first")
        wait_until(lambda: viewer.ask("steps", run="first")["indexed"] == 21)
    (file,) = (cache / "metaagentx" / "viewer").glob("*.sqlite")
    content = bytearray(file.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    file.write_bytes(content)
    journal = file.with_name(f"{file.name}-journal")
    journal.write_bytes(b"of the damaged one")
    with viewing(runs) as viewer:
        assert viewer.ask("step", run="first", step=3)["tasks"]
        assert search(viewer, run="first", solved="yes", last=0)
    assert not journal.exists()


def _damage_tree(run: Path, change: Callable[[dict[str, Any]], None], text: str = "") -> None:
    """Change the first call of the first tree; `text` takes the place of "@@" in it."""
    path = run / "rollouts" / "000000.jsonl"
    line, *others = path.read_text().splitlines(keepends=True)
    tree = json.loads(line)
    change(tree)
    path.write_text("".join([json.dumps(tree).replace('"@@"', text) + "\n", *others]))


def _wait_for_index(viewer: Viewer, run: str, files: int) -> None:
    wait_until(lambda: viewer.ask("run", run=run)["indexed"] == files)


def test_numbers_beyond_all_bounds_cost_what_they_are_in(tmp_path: Path) -> None:
    for name in ("metrics", "tokens", "names", "sound"):
        write_run(tmp_path / name, 2, tasks=1)
    huge = "1" + "0" * 400
    with (tmp_path / "metrics" / "metrics.jsonl").open("a") as file:
        file.write(f'{{"format": 1, "step": 2, "solved": {huge}}}\n{{"format": 1, "step": {huge}}}\n')
    _damage_tree(tmp_path / "tokens", lambda tree: tree["designs"][0]["call"].update(tokens=-(10**30)))
    (tmp_path / "names" / "rollouts" / f"{'9' * 30}.jsonl").write_text("{}\n")
    with viewing(tmp_path) as viewer:
        assert len(viewer.ask("runs")["runs"]) == 4
        curves = viewer.ask("curves", run="metrics")["columns"]
        assert curves["step"] == [0, 1, 2] and curves["solved"][2] is None
        (problem,) = viewer.ask("run", run="metrics")["problems"]
        assert "metrics.jsonl, line 4" in problem
        assert viewer.ask("tree", run="tokens", step=0, task=0)["designs"]
        assert [step for step, *_ in viewer.ask("steps", run="names")["steps"]] == [0, 1]
        for name in ("metrics", "tokens", "names"):
            assert "results" in viewer.ask("search", run=name)
        for name in ("metrics", "tokens", "names", "sound"):
            _wait_for_index(viewer, name, 2)


def test_pipes_and_devices_in_the_place_of_files_are_not_waited_for(tmp_path: Path) -> None:
    names = ("metrics.jsonl", "log.txt", "config.toml", "best", "lock", "evaluation/1/evaluation.json")
    for number, name in enumerate(names):
        write_run(tmp_path / f"run-{number}", 1, tasks=1)
        path = tmp_path / f"run-{number}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    write_run(tmp_path / "device", 1, tasks=1)
    (tmp_path / "device" / "config.toml").unlink()
    (tmp_path / "device" / "config.toml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "device" / "rollouts" / "000007.jsonl")
    with viewing(tmp_path) as viewer:
        assert len(viewer.ask("runs")["runs"]) == 7
        for run in (f"run-{number}" for number in range(6)):
            for page in ("run", "curves", "log", "config", "evaluations"):
                viewer.ask(page, run=run)
        assert "not a regular file" in viewer.ask("config", run="device")["text"]
        assert "not a regular file" in viewer.ask("step", run="device", step=7)["error"]


def test_a_run_that_is_removed_ends_its_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path / "runs" / "gone", 1, tasks=1)
    (tmp_path / "runs" / "other").mkdir()
    with viewing(tmp_path / "runs") as viewer:
        key = {"Authorization": f"Bearer {viewer.token}"}
        ended: list[bytes] = []
        thread = threading.Thread(target=lambda: ended.append(viewer.get("/api/events?run=gone", key)[2]))
        thread.start()
        time.sleep(1)
        shutil.rmtree(tmp_path / "runs" / "gone")
        wait_until(lambda: viewer.ask("runs")["runs"] == [])
        thread.join(20)
        assert len(ended) == 1 and ended[0].startswith(b"retry")
    assert not caplog.records, "nothing of it is a fault of the viewer"


def test_a_tree_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "deep", 1, tasks=2)
    entry = {"generator": "x", "config": {}, "entry": {"question": "@@"}}
    _damage_tree(tmp_path / "deep", lambda tree: tree["task"].update(grading=entry), "[" * 800 + "]" * 800)
    with viewing(tmp_path) as viewer:
        assert "nested too deeply" in viewer.ask("tree", run="deep", step=0, task=0)["error"]
        assert viewer.ask("tree", run="deep", step=0, task=1)["designs"]
        status, _, _ = viewer.get("/export?run=deep", {"Authorization": f"Bearer {viewer.token}"})
        assert status == 200


# The command


def test_the_command_prints_its_link_and_ctrl_c_ends_it(runs: Path) -> None:
    words = [
        sys.executable,
        "-c",
        "from metaagentx.cli.main import main; main()",
        "view",
        str(runs),
        "--port",
        "0",
        "--no-browser",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        viewer = Viewer(process.stdout.readline().strip())
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", viewer.url)
        assert len(viewer.ask("runs")["runs"]) == 2
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    done = command("view", tmp_path / "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "does not exist" in done.stderr
    (tmp_path / "file").touch()
    done = command("view", tmp_path / "file")
    assert done.returncode == 2 and "is not a directory" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = command("view", tmp_path, "--port", taken.getsockname()[1], "--no-browser")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "choose another --host or --port" in done.stderr


@pytest.mark.parametrize("host", ["", "[::1]", "a..b", "x" * 300, "a\0b"])
def test_a_text_that_is_no_host_is_one_line(host: str) -> None:
    with pytest.raises(MetaAgentXError, match="choose another --host or --port"):
        listen(host, 0)
