"""A system as something to ask: from Python and from the shell, on a real server and a real sandbox."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import metaagentx
from metaagentx.errors import MetaAgentXError
from metaagentx.runs import Run
from metaagentx.system import Result, System, SystemUnavailable, solve
from metaagentx.system.events import CallDone, CallStarted, CallText, DesignReady, DesignText, Event
from tests.chat_server import Reply, Server, refused, said, serving
from tests.commands import command
from tests.rollout_helpers import RIGHT, SINGLE, VOTE, WRONG, design

QUESTION = "How many squares are there on a 3 by 3 board?"
Designer = Callable[[int], str]


def is_designer(asked: dict[str, Any]) -> bool:
    return "Problem Type" in asked["messages"][0]["content"] or "workflow" in asked["messages"][0]["content"].lower()


def server_with(designs: list[str], agent: str = RIGHT) -> Iterator[Server]:
    drawn = iter(designs)

    def answer(asked: dict[str, Any], number: int) -> Reply:
        if asked["messages"][-1]["content"] == "Hello":  # the check before the first question
            return said("Hello")
        return said(next(drawn, designs[-1])) if is_designer(asked) else said(agent)

    with serving(answer) as server:
        yield server


@pytest.fixture
def server() -> Iterator[Server]:
    yield from server_with([design(SINGLE)])


def ask(url: str, on_event: Callable[[Event], None] | None = None, **options: Any) -> Result:
    async def work() -> Result:
        async with System.open("m", base_url=url) as system:
            return await system.solve(QUESTION, on_event=on_event, **options)

    return asyncio.run(work())


def test_the_public_names_are_these() -> None:
    assert sorted(metaagentx.__all__) == ["Result", "System", "SystemUnavailable", "Usage", "__version__", "solve"]
    for name in metaagentx.__all__:
        assert getattr(metaagentx, name) is not None


def test_a_question_gets_an_answer_its_script_and_its_cost(server: Server) -> None:
    events: list[Event] = []
    result = ask(server.url, events.append)
    assert (result.answer, result.note) == ("14", "")
    assert result.script is not None and "AgentNode" in result.script
    assert (result.usage.calls, result.usage.prompt_tokens, result.usage.completion_tokens) == (2, 14, 6)
    assert [type(event) for event in events] == [DesignText, DesignReady, CallStarted, CallText, CallDone]
    page = result._repr_html_()
    assert "<b>14</b>" in page and "AgentNode" in page


def test_a_result_in_a_notebook_shows_no_markup_of_the_model() -> None:
    for server in server_with([design(SINGLE)], r"<script>alert(1)</script> \boxed{<b>14}"):
        page = ask(server.url)._repr_html_()
        assert "<script>" not in page and "&lt;script&gt;" in page


def test_solve_works_where_an_event_loop_runs(server: Server) -> None:
    async def notebook() -> Result:
        return solve(QUESTION, "m", base_url=server.url)

    assert asyncio.run(notebook()).answer == "14"


@pytest.mark.parametrize("bad", ["no script at all", design("import os\n"), design("while True: pass"), ""])
def test_a_design_that_cannot_run_is_drawn_again(bad: str) -> None:
    for server in server_with([bad, design(SINGLE)]):
        result = ask(server.url)
        assert (result.answer, result.note) == ("14", "")
        assert len(result.rollout.designs) == 2


def test_after_the_last_attempt_a_single_agent_answers_and_the_result_says_so() -> None:
    for server in server_with(["no script"]):
        result = ask(server.url, attempts=2)
        assert result.answer == "14" and "single agent" in result.note
        assert [each.fault is None for each in result.rollout.designs] == [False, False, True]


def test_several_designs_vote() -> None:
    def answer(asked: dict[str, Any], number: int) -> Reply:
        if asked["messages"][-1]["content"] == "Hello":
            return said("Hello")
        if is_designer(asked):
            return said(design(SINGLE.replace("Solve.", f"Solve{asked['seed'] % 1000}.")))
        with lock:
            answer.agents += 1  # type: ignore[attr-defined]
            return said(WRONG if answer.agents == 2 else RIGHT)  # type: ignore[attr-defined]

    lock = threading.Lock()
    answer.agents = 0  # type: ignore[attr-defined]
    with serving(answer) as three:
        result = ask(three.url, designs=3)
    assert result.answer == "14" and len(result.rollout.designs) == 3
    found = sorted(run.answer.value for each in result.rollout.designs for run in each.executions if run.answer)
    assert found == ["14", "14", "9"]


def test_a_server_that_fails_later_is_named() -> None:
    def answer(asked: dict[str, Any], number: int) -> Reply:
        return said("Hello") if number == 1 else refused(500, "out of order")

    async def work() -> None:
        limits = ["rollout.execution_seconds=4", "rollout.retries=0", "rollout.cpu_seconds=1"]
        async with System.open("m", base_url=failing.url, overrides=limits) as system:
            await system.solve(QUESTION, attempts=1)

    with serving(answer) as failing, pytest.raises(SystemUnavailable, match="out of order"):
        asyncio.run(work())


def test_an_empty_question_is_refused(server: Server) -> None:
    with pytest.raises(MetaAgentXError, match="empty"):
        solve("  ", "m", base_url=server.url)


def test_solve_prints_the_answer_and_nothing_else(server: Server, tmp_path: Path) -> None:
    done = command("solve", QUESTION, "--base-url", server.url, "--model", "m")
    assert (done.stdout, done.stderr, done.returncode) == ("14\n", "", 0)
    file = tmp_path / "question.txt"
    file.write_text(QUESTION)
    done = command("solve", file, "--base-url", server.url, "--model", "m", "--json", "--save", tmp_path / "saved")
    found = json.loads(done.stdout)
    assert found["answer"] == "14" and found["usage"]["calls"] == 2 and found["question"] == QUESTION
    assert (
        command("solve", file, "--base-url", server.url, "--model", "m", "--save", tmp_path / "saved").stdout == "14\n"
    )
    run = Run.open(tmp_path / "saved")
    assert [run.rollouts(step)[0].task.question for step in (0, 1)] == [QUESTION] * 2
    assert f"metaagentx view {tmp_path / 'saved'}" in done.stderr.replace("'", ""), "how to see it"
    report = command("report", tmp_path / "saved")
    assert report.returncode == 0, report.stderr


def test_design_prints_the_script_and_run_runs_one(server: Server, tmp_path: Path) -> None:
    done = command("design", QUESTION, "--base-url", server.url, "--model", "m")
    assert done.returncode == 0 and done.stdout.strip() == SINGLE.strip()
    script = tmp_path / "script.py"
    script.write_text(VOTE)
    done = command("run", script, "--question", QUESTION, "--base-url", server.url, "--model", "m")
    assert done.returncode == 0 and done.stdout == "14\n", done.stderr
    script.write_text("def broken(:\n")
    done = command("run", script, "--question", QUESTION, "--base-url", server.url, "--model", "m")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["solve", "x"], "give one of --run, --system and --model"),
        (["solve", "x", "--run", "a", "--model", "b"], "found: --run and --model"),
        (["solve", "x", "--base-url", "http://localhost:1/v1"], "--base-url needs the name of a model"),
        (["solve", "x", "--model", "nowhere"], "nowhere"),
        (["solve", "x", "--run", "nowhere"], "nowhere"),
        (["solve", "x", "--system", "nowhere"], "nowhere"),
        (["solve", " ", "--model", "nowhere"], "the question is empty"),
        (["run", "nowhere.py", "--question", "x", "--model", "m"], "nowhere.py cannot be read"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    done = command(*words)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
