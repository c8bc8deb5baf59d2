"""Tools of one's own from the shell, from Python and over HTTP: real commands, a real MCP server, a scripted model."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaagentx.errors import MetaAgentXError
from metaagentx.runs import Run
from metaagentx.system import Result, System, solve
from metaagentx.system.events import Event, ToolOutput
from tests.chat_server import Reply, Server, said, serving
from tests.commands import command
from tests.rollout_helpers import HEAD, RIGHT, RUN, SINGLE, design
from tests.serve.serving import BODY, Model, served, wait_until

QUESTION = "How many squares are there on a 3 by 3 board?"
PYTHON = shlex.quote(sys.executable)  # commands are split as a shell splits them
MCP = f"{PYTHON} -m tests.tools.mcp_server"
ADD = "tests.tools.own_tools:add"
USES = (
    HEAD
    + "from workflow import tools\n"
    + 'workflow.add_node(AgentNode("Solver", "Compute.", tool_registry=tools.use("add", "calculate")))'
    + RUN
)
CALLS = """<tool_call>{"name": "add", "arguments": {"first": 13, "second": 1}}</tool_call>
<tool_call>{"name": "calculate", "arguments": {"expression": "9 + 4 + 1"}}</tool_call>"""


def answer(asked: dict[str, Any], number: int) -> Reply:
    first, last = (asked["messages"][index]["content"] for index in (0, -1))
    if last == "Hello":
        return said("Hello")
    if "Six labeled remarks" in first:
        return said(design(USES if "- add(first: integer, second: integer): Adds two integers." in last else SINGLE))
    if "You have tools:" in first:
        return said(RIGHT if last == "Output of add:\n14\n\nOutput of calculate:\n14" else CALLS)
    return said(RIGHT)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(answer) as started:
        yield started


def words(server: Server) -> list[str]:
    return ["--base-url", server.url, "--model", "m", "--tool", ADD, "--mcp", MCP]


def test_solve_offers_functions_and_servers_and_the_saved_tree_shows_their_calls(
    server: Server, tmp_path: Path
) -> None:
    done = command("solve", QUESTION, *words(server), "--save", tmp_path / "saved")
    assert (done.stdout, done.returncode) == ("14\n", 0)
    assert re.fullmatch(r"metaagentx: to see how this was solved: .+ view \S+\n", done.stderr)
    (tree,) = Run.open(tmp_path / "saved").rollouts(0)
    (execution,) = tree.designs[0].executions
    assert [(use.name, use.arguments, use.result, use.failed) for use in execution.tools] == [
        ("add", '{"first": 13, "second": 1}', "14", False),
        ("calculate", '{"expression": "9 + 4 + 1"}', "14", False),
    ]
    assert all(use.seconds > 0 for use in execution.tools)


def test_design_lists_them_and_run_gives_them_to_a_script(server: Server, tmp_path: Path) -> None:
    done = command("design", QUESTION, *words(server))
    assert done.returncode == 0 and done.stdout.strip() == USES.strip(), done.stderr
    script = tmp_path / "script.py"
    script.write_text(USES)
    done = command("run", script, "--question", QUESTION, *words(server))
    assert (done.stdout, done.returncode) == ("14\n", 0), done.stderr
    done = command("run", script, "--question", QUESTION, *words(server)[:4])
    assert done.returncode == 1 and "no tools are offered" in done.stderr


def test_python_offers_them_and_events_tell_what_they_returned(server: Server) -> None:
    events: list[Event] = []

    async def work() -> Result:
        async with System.open("m", base_url=server.url, tools=[ADD], mcp=[MCP]) as system:
            return await system.solve(QUESTION, on_event=events.append)

    result = asyncio.run(work())
    assert result.answer == "14" and "<td>tool add</td>" in result._repr_html_()
    (output,) = [event for event in events if isinstance(event, ToolOutput)]
    assert (output.agent, output.text) == ("Solver", "Output of add:\n14\n\nOutput of calculate:\n14")


def test_a_notebook_can_use_them(server: Server) -> None:
    """The server of the tools belongs to the event loop of another thread."""

    async def notebook() -> str:
        return solve(QUESTION, "m", base_url=server.url, tools=[ADD], mcp=[MCP]).answer

    assert asyncio.run(notebook()) == "14"


def test_serve_offers_them_too(tmp_path: Path) -> None:
    model = Model()
    model.answer = answer  # type: ignore[method-assign]
    with served(model, tmp_path, "--tool", ADD, "--mcp", MCP) as started:
        status, _, body = started.ask(BODY)
        assert status == 200 and body["choices"][0]["message"]["content"] == "14", body
        reasoning = body["choices"][0]["message"]["reasoning_content"]
        assert "[Tools of Solver]\nOutput of add:\n14" in reasoning
        children = len(started.children())
        assert [started.ask(BODY)[0] for _ in range(3)] == [200] * 3
        assert len(started.children()) <= children + 1
        left = started.children()
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in left))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": ["nonsense"]}, "expected module:function"),
        ({"tools": ["tests.tools.own_tools:untyped"]}, "has no type hint"),
        ({"mcp": [f"{PYTHON} -c 'raise SystemExit(\"no license\")'"]}, r"did not start \(no license\)"),
        ({"tools": [ADD], "overrides": ["rollout.execution_seconds=60"]}, "tools.seconds = 30 is more than a quarter"),
        ({"mcp": [MCP, MCP + " again"]}, "two tools have the name 'calculate'"),
    ],
)
def test_a_mistake_is_found_before_a_model_is_asked(options: dict[str, Any], message: str) -> None:
    async def work() -> None:
        async with System.open("m", base_url="http://127.0.0.1:9/v1", **options):
            raise AssertionError("it was opened")

    with pytest.raises(MetaAgentXError, match=message) as error:
        asyncio.run(work())
    assert "\n" not in str(error.value)


def test_a_mistake_is_one_line_in_the_shell() -> None:
    words = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--mcp", "no-such-program")
    done = command("solve", QUESTION, *words)
    assert done.returncode == 2 and "there is no program 'no-such-program'" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_an_export_carries_no_commands_of_the_machine_it_was_made_on(tmp_path: Path) -> None:
    from metaagentx.config import load_config
    from metaagentx.system.saved import read_system, write_system
    from metaagentx.system.sources import _NO_RECIPE
    from metaagentx.types import Role

    config = load_config(None, [*_NO_RECIPE, "tools.mcp=[\"sh -c 'exit 1'\"]"], require_peers=False)
    path = write_system(tmp_path, config, dict.fromkeys(Role, "shared"))
    assert "tools" not in json.loads(path.read_text())
    plain = load_config(None, list(_NO_RECIPE), require_peers=False)
    assert not read_system(tmp_path).apply(plain).tools.offered
    path.write_text(path.read_text().replace("{", '{"tools": {"mcp": ["sh"]}, ', 1))
    with pytest.raises(MetaAgentXError, match="tools: Extra inputs"):
        read_system(tmp_path)
