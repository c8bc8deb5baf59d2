"""`metaagentx eval --model`: a model without a run, in a directory or on a server."""

import json
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from metaagentx.cli.eval import evaluate_command
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation.methods import SELF_SHORT, model_names
from metaagentx.workflow.manual import language_manual
from metaagentx.workflow.reply import DESIGNER_LINE
from tests.chat_server import Reply, refused, said, serving
from tests.commands import command
from tests.rollout_helpers import VOTE, design
from tests.trainers import Mother

pytest.importorskip("openai")

KEY = "sk-a-key-that-nobody-may-see"
METHODS = ["self-designed", "single agent", "fixed: tool", "fixed: vote", "self-consistency"]
app = typer.Typer()
app.command()(evaluate_command)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with four tasks: What is n + 1?"""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + 1?", "grader": "math", "answer": str(n + 1)} for n in range(4)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def number_in(asked: dict[str, Any]) -> int:
    """Return the n of the task that a request is about; -1 for the check before the evaluation."""
    found = re.search(r"What is (\d+) \+ 1", asked["messages"][-1]["content"])
    return int(found[1]) if found else -1


def designs(asked: dict[str, Any]) -> bool:
    return bool(asked["messages"][0]["content"].startswith(DESIGNER_LINE))


def solves(asked: dict[str, Any], number: int) -> Reply:
    """As a Designer, write a vote of three; as an agent, be right."""
    if designs(asked):
        return said(design(VOTE))
    return said(rf"<delivery>\boxed{{{number_in(asked) + 1}}}</delivery>")


def words(url: str, *more: object) -> list[str]:
    tasks = ("--tasks", "jsonl:own.jsonl", "--split", "train")
    return [str(word) for word in ("--model", "m", "--base-url", url, *tasks, *more)]


def invoke(*more: str) -> str:
    """Run the command in this process; return what it printed, or raise what it raised."""
    done = CliRunner().invoke(app, list(more))
    if done.exception is not None:
        raise done.exception
    return done.stdout


def results(directory: str = "runs/eval/m") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(directory, "evaluation.json").read_text())
    return data


def rows_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in data["overall"]["rows"]}


def test_a_model_on_a_server_by_the_command() -> None:
    """All methods, the server's tokens as budget, the manual for the Designer, the extra body and the key."""
    with serving(solves) as server:
        options = words(server.url, "--api-key-env", "MY_KEY", "--extra-body", '{"top_k": 5}', "--concurrency", 2)
        options += ["--set", "rollout.executor_tokens=99"]
        done = command("eval", *options)
        assert done.returncode == 0, done.stderr
        data, check, requests = results(), server.asked[0], server.asked[1:]
        again = command("eval", *options)
        assert (again.returncode, results()) == (0, data)
        assert len(server.asked) == 1 + len(requests) + 1, "only the check is sent again"
    assert data["methods"] == METHODS and data["model"] == f"m at {server.url}"
    assert (data["against"], data["checkpoint"], data["split"]) == ("self-designed", None, "train")
    rows = rows_of(data)
    assert {row["average"] for row in rows.values()} == {1.0}
    # The server counts 3 tokens for each reply: a design and three votes have the budget of four single agents.
    assert {name: (row["tokens"], row["calls"]) for name, row in rows.items()} == {
        "self-designed": (12, 4), "single agent": (3, 1), "fixed: tool": (3, 1), "fixed: vote": (9, 3),
        "self-consistency": (12, 4),
    }  # fmt: skip
    assert data["votes"] == {"self-consistency": {"jsonl:own.jsonl": 4}}
    counted = len(requests) + 1
    assert f"{counted} requests, {7 * counted} prompt tokens, {3 * counted} completion tokens\n" in done.stdout
    assert f"Model m at {server.url}. 1 sample" in done.stdout and "runs/eval/m/evaluation.md" in done.stdout
    prompts = [asked["messages"][0]["content"] for asked in requests if designs(asked)]
    assert len(prompts) == 4 and all(language_manual() in prompt for prompt in prompts)
    assert {asked["top_k"] for asked in server.asked} == {5} and check["max_tokens"] == 16
    assert {asked["max_tokens"] for asked in requests if not designs(asked)} == {99}
    assert set(server.keys) == {f"Bearer {KEY}"} and server.most_under_way <= 2


def test_the_short_prompt_and_a_script_of_our_own() -> None:
    Path("three.py").write_text(VOTE)
    with serving(solves) as server:
        invoke(*words(server.url, "--methods", "self-designed-short-prompt", "--script", "three.py", "--limit", 2))
    data = results()
    assert data["methods"] == ["self-designed short prompt", "fixed: three"]
    assert [asked["messages"][0]["content"] for asked in server.asked if designs(asked)] == [DESIGNER_LINE] * 2


def test_an_evaluation_that_was_killed_resumes(mother: Mother, place: Path) -> None:
    hang, late = threading.Event(), threading.Event()

    def hangs(asked: dict[str, Any], number: int) -> Reply:
        if number > 18:
            late.set()
            hang.wait(30)
        return solves(asked, number)

    with serving(hangs) as server:
        options = ["eval", *words(server.url)]
        process = mother.start_command(*options, cwd=place)
        assert late.wait(60)
        assert mother.kill(process, signal.SIGKILL).code == -signal.SIGKILL
        hang.set()
        assert not Path("runs/eval/m/evaluation.json").exists()
        finished = sum(len(file.read_text().splitlines()) - 1 for file in Path("runs/eval/m/outcomes").glob("*.jsonl"))
        assert finished >= 4
        before, server.answer = len(server.asked), solves
        mother.start_command(*options, cwd=place)
        done = mother.wait()
        assert done.code == 0, done.err
        resumed = len(server.asked) - before
    with serving(solves) as server:
        mother.start_command("eval", *words(server.url, "--out", "whole"), cwd=place)
        assert mother.wait().code == 0
        assert resumed <= len(server.asked) - 4 * 4, "what the first one finished is not asked again"

    def timeless(data: dict[str, Any]) -> str:
        return re.sub(r'"(seconds|model)": [^,]*', "", json.dumps(data))

    assert timeless(results()) == timeless(results("whole"))


BRIEF = ["--methods", "single-agent", "--set", "rollout.execution_seconds=6", "--set", "rollout.retries=0"]
BRIEF += ["--set", "rollout.cpu_seconds=1"]
"""An attempt has 3 s, and a busy server is retried for half of that."""


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (refused(429, "slow down", Retry_After="99"), "returned an error (429): slow down"),
        (Reply(200, b"<html>"), "did not return a chat completion, but '<html>'"),
        (None, "no reply within 3 s"),
    ],
)
def test_a_failing_server_is_left_out_and_tried_again_later(reply: Reply | None, message: str) -> None:
    """Of one task first, then of all: then the evaluation ends with the reason."""
    broken = [2]

    def breaks(asked: dict[str, Any], number: int) -> Reply:
        if number_in(asked) not in broken:
            return solves(asked, number)
        if reply is None:
            time.sleep(3.5)
        return reply or solves(asked, number)

    with serving(breaks) as server:
        invoke(*words(server.url, *BRIEF))
        row = rows_of(results())["single agent"]
        assert (row["tasks"], row["infra"], row["average"], row["faults"]) == (3, 1, 1.0, 0.0)
        broken.clear()
        asked = len(server.asked)
        invoke(*words(server.url, *BRIEF))
        row = rows_of(results())["single agent"]
        assert (row["tasks"], row["infra"], row["average"]) == (4, 0, 1.0)
        assert len(server.asked) == asked + 2, "the check, and the one that was left out"
        broken[:] = range(4)
        with pytest.raises(MetaAgentXError) as caught:
            invoke(*words(server.url, *BRIEF, "--out", "none"))
    text = str(caught.value)
    assert text.startswith("single agent on jsonl:own.jsonl: every sample failed with an infrastructure fault; first: ")
    assert message in text and "\n" not in text


def test_a_busy_server_costs_nothing_but_time() -> None:
    seen: set[int] = set()

    def busy(asked: dict[str, Any], number: int) -> Reply:
        if asked["seed"] in seen:
            return solves(asked, number)
        seen.add(asked["seed"])
        return refused(429, "slow down", Retry_After="0.1") if len(seen) % 2 else refused(503, "loading")

    with serving(lambda asked, number: busy(asked, number) if "seed" in asked else said("Hi")) as server:
        invoke(*words(server.url, "--methods", "single-agent"))
    row = rows_of(results())["single agent"]
    assert (row["average"], row["infra"], row["faults"], len(server.asked)) == (1.0, 0, 0.0, 1 + 2 * 4)


def test_a_context_overflow_is_a_fault_of_the_model() -> None:
    def overflows(asked: dict[str, Any], number: int) -> Reply:
        if designs(asked) or number_in(asked) == 3:
            return refused(400, "the request exceeds the available context size, try increasing it")
        return solves(asked, number)

    with serving(overflows) as server:
        invoke(*words(server.url, "--methods", "self-designed,single-agent"))
    rows = rows_of(results())
    designed, single = rows["self-designed"], rows["single agent"]
    assert (designed["tasks"], designed["infra"], designed["fault_kinds"]) == (4, 0, {"context": 4})
    assert (single["tasks"], single["infra"], single["average"]) == (4, 0, 0.75)
    assert single["fault_kinds"] == {"budget": 1}


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


REFUSED: dict[str, list[str]] = {
    "nothing to evaluate: give a run directory, such as runs/tiny, or a model with --model": [],
    r"a run \(run\) and --model m are two evaluations: give one of them": ["run", "--model", "m"],
    "--base-url is for a model without a run: give --model instead of a run": ["run", "--base-url", "http://x/v1"],
    "--set is for a model without a run: .*": ["run", "--set", "seed=1"],
    "--recipe is for a model without a run: .*": ["run", "--recipe", "tiny"],
    "--checkpoint is for a run: give its directory instead of --model": ["--model", "m", "--checkpoint", "last"],
    "--initial-model is for a run: .*": ["--model", "m", "--initial-model", "x"],
    "--concurrency is for a model on a server: give its URL with --base-url": ["--model", "m", "--concurrency", "2"],
    "--extra-body is for a model on a server: .*": ["--model", "m", "--extra-body", "{}"],
    "a model without a run has no tasks of its own: choose some, such as --tasks gsm8k": ["--model", "m"],
    "no model at nowhere: .*": ["--model", "nowhere", "--tasks", "jsonl:own.jsonl", "--split", "train"],
    "preset:nano is a new model, not one to evaluate: .*": ["--model", "preset:nano", "--tasks", "gsm8k"],
    r"invalid URL 'localhost:1': .*": words("localhost:1"),
    "--api-key-env NOT_SET: this variable is not set or empty: .*": words("http://x/v1", "--api-key-env", "NOT_SET"),
    r"--extra-body is not JSON \(.*": words("http://x/v1", "--extra-body", "{"),
    "invalid key 'messages' in extra_body: .*": words("http://x/v1", "--extra-body", '{"messages": []}'),
    r'without a recipe with --set "rollout\.design=1": unknown key "rollout\.design"; did you mean .*': words(
        "http://x/v1", "--set", "rollout.design=1"
    ),
    "unknown method 'metaagentx'; did you mean .*": words("http://x/v1", "--methods", "metaagentx"),
    "self-consistency has the budget of self-designed: measure that as well": words(
        "http://x/v1", "--methods", "self-consistency"
    ),
    r"http://127\.0\.0\.1:\d+/v1 cannot be reached: .*": words(f"http://127.0.0.1:{unused_port()}/v1"),
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_a_bad_request_is_one_line_and_writes_nothing(complaint: str, place: Path) -> None:
    with pytest.raises(MetaAgentXError) as caught:
        invoke(*REFUSED[complaint])
    assert re.match(complaint, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value) and [path.name for path in place.iterdir()] == ["own.jsonl"]


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (
            refused(401, f"Incorrect API key provided: {KEY}"),
            "'m' at .* refuses access (401) with the key in MY_KEY; .*",
        ),
        (refused(404, "no such model"), "'m' at .* was not found (404), .*: no such model; the server has 'a', 'b'"),
        (refused(400, "unknown field top_q"), "'m' at .* returned an error (400): unknown field top_q; the server .*"),
    ],
)
def test_a_server_that_rejects_the_check_is_one_line_and_nothing_is_written(
    reply: Reply, complaint: str, place: Path
) -> None:
    with serving(reply) as server:
        server.models = ["a", "b"]
        with pytest.raises(MetaAgentXError) as caught:
            invoke(*words(server.url, "--api-key-env", "MY_KEY"))
    assert re.fullmatch(re.escape(complaint).replace(r"\.\*", ".*"), str(caught.value)), str(caught.value)
    assert len(server.asked) == 1 and [path.name for path in place.iterdir()] == ["own.jsonl"]


def test_another_server_or_another_body_is_another_evaluation() -> None:
    with serving(solves) as server, serving(solves) as other:
        invoke(*words(server.url, "--methods", "single-agent"))
        for options in (words(other.url), words(server.url, "--extra-body", '{"top_k": 1}')):
            with pytest.raises(MetaAgentXError, match="has results with another weights: choose another directory"):
                invoke(*options, "--methods", "single-agent")


SHORT = ["--set", "rollout.executor_tokens=6", "--set", "rollout.designer_tokens=6", "--set", "model.compiled=false"]


def test_a_new_model_and_the_checkpoint_of_a_run_by_the_command(mother: Mother, place: Path) -> None:
    """A checkpoint has the same outcomes by itself as in its run: one evaluator, one way to draw seeds."""

    def run(*options: object) -> str:
        mother.start_command(*options, cwd=place)
        done = mother.wait()
        assert done.code == 0, done.err
        return done.out

    run("model", "new", "models/nano", "--preset", "nano")
    tasks = ["--tasks", "jsonl:own.jsonl", "--split", "train"]
    run("eval", "--model", "models/nano", *tasks, *SHORT)
    data = results("runs/eval/models-nano")
    rows = rows_of(data)
    assert data["methods"] == METHODS and data["model"] == "models/nano"
    assert (rows["single agent"]["tokens"], rows["single agent"]["infra"]) == (6, 0)
    assert rows["self-designed"]["fault_kinds"] == {"context": 4}, "the manual is longer than its context"

    Path("recipe.toml").write_text(
        "steps = 1\nstages = [{ steps = 1, executor = 1e-3 }]\n"
        '[model]\npath = "models/nano"\ncompiled = false\n[tasks]\ntrain = "jsonl:own.jsonl"\nheld_out = 1\n'
        "per_step = 1\n[rollout]\ndesigns = 2\nexecutions = 1\ndesigner_tokens = 6\nexecutor_tokens = 6\n"
    )
    run("train", "recipe.toml", "--run", "runs/first")
    run("eval", "runs/first", *tasks, "--out", "of_run", "--methods", "metaagentx,single-agent")
    (checkpoint,) = Path("runs/first/checkpoints").glob("0*")
    for path, options in ((checkpoint, SHORT), (checkpoint / "executor", ["--recipe", "recipe.toml"])):
        out = f"of_{path.name}"
        chosen = ["--methods", "self-designed-short-prompt,single-agent", "--out", out]
        run("eval", "--model", path, *tasks, *options, *chosen)
        for name in ("self-designed short prompt", "single agent"):
            (own,) = Path(out, "outcomes").glob(f"{name.replace(' ', '-')}-*")
            (of_run,) = Path("of_run", "outcomes").glob(f"{'metaagentx' if 'short' in name else 'single-agent'}-*")
            assert timeless(own) == timeless(of_run)


def timeless(file: Path) -> list[dict[str, Any]]:
    outcomes = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    return sorted(({**outcome, "seconds": 0} for outcome in outcomes), key=lambda outcome: str(outcome["task"]))


def test_the_page_names_every_method() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    assert [name for name in model_names(["single", "vote"]) if f"`{name}`" not in page] == []
    assert SELF_SHORT not in METHODS and set(METHODS) < set(model_names(["single", "tool", "vote"]))
