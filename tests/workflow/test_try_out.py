"""`python -m metaagentx.workflow`: a script tried outside the sandbox, with scripted replies or a server."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import metaagentx.workflow
from metaagentx.workflow.__main__ import main
from metaagentx.workflow.manual import EXAMPLES

JUDGE = str(EXAMPLES / "math_ensemble_judge.py")
TOOL = str(EXAMPLES / "tool_math.py")


def test_the_command_prints_the_conversation_and_the_answer() -> None:
    replies = ["--reply", "```python\nprint(6 * 7)\n```", "--reply", r"It is <delivery>\boxed{42}</delivery>"]
    words = [sys.executable, "-m", "metaagentx.workflow", TOOL, "--question", "What is 6 * 7?", *replies]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "=== call 1: " in done.stdout and "=== call 2: " in done.stdout
    assert "--- user\nWhat is 6 * 7?\n--- reply\n```python" in done.stdout
    assert "42\n" in done.stdout.partition("--- assistant")[2], "the tool really ran"
    assert done.stdout.endswith("Answer: 42\n")
    assert "without a sandbox" in done.stderr


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs_as_it_is(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(example), "--question", "How many?"]) == 0
    assert capsys.readouterr().out.endswith("Answer: 42\n")
    assert "workflow" not in sys.modules, "nothing is left behind"


def test_a_script_of_the_lenient_dialect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from workflow import AgentNode, Workflow\nw = Workflow(name='w', llm='m')\n"
        "w.add_node(AgentNode(name='A', system_prompt='Solve.'))\nw.run(question)\n"
    )
    words = [str(script), "--question", "How many?"]
    assert main(words) == 2
    assert "unexpected keyword argument 'llm'" in capsys.readouterr().err
    assert main([*words, "--lenient"]) == 0
    assert capsys.readouterr().out.startswith("note: Workflow has no llm: ignored\n")
    assert main(words) == 2, "nothing is left behind"


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.path, self.headers.get("Authorization"), body))
            good = body["model"] == "small"
            text = rf"<delivery>\boxed{{{len(heard)}}}</delivery>" if good else None
            reply = (
                {"choices": [{"message": {"content": text}}]} if body["model"] != "absent" else {"error": "no model"}
            )
            self.send_response(404 if body["model"] == "absent" else 200)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    heard: list[tuple[str, str | None, dict[str, object]]] = []
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.heard = heard  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_plays_the_agents(
    server: HTTPServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    url = f"http://127.0.0.1:{server.server_port}/v1"
    words = [JUDGE, "--question", "What is 2 + 2?", "--base-url", url, "--model"]
    assert main([*words, "small"]) == 0
    assert capsys.readouterr().out.endswith("Answer: 4\n"), "three solvers, then the judge"
    path, key, body = server.heard[0]  # type: ignore[attr-defined]
    assert (path, key, body["messages"][-1]) == (
        "/v1/chat/completions", "Bearer a key", {"role": "user", "content": "What is 2 + 2?"},
    )  # fmt: skip
    assert main([*words, "absent"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith('v1/chat/completions refused the call with status 404: {"error": "no model"}')
    assert main([*words, "silent"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("gave a chat completion without text")
    server.shutdown()
    server.socket.close()
    assert main([*words, "small"]) == 2
    assert "cannot be reached: " in capsys.readouterr().err


def test_what_cannot_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import socket\n")
    for words, said in (
        ([str(tmp_path / "nowhere.py")], "nowhere.py cannot be read as a script: "),
        ([str(script)], "script.py is not a valid script: line 1, "),
        ([JUDGE, "--model", "m"], "a server needs both --base-url and --model"),
        ([JUDGE, "--model", "m", "--base-url", "file:///x"], "--base-url: invalid value file:///x, expected http"),
        ([JUDGE, "--model", "m", "--base-url", "http://x", "--reply", "a"], "from --reply or from a server"),
    ):
        assert main([*words, "--question", "?"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("python -m metaagentx.workflow: ") and said in line
    agents = "[AgentNode(str(n), 'Solve.') for n in range(17)]"
    script.write_text(
        "from workflow import AgentNode, Workflow\nfrom workflow.nodes import EnsembleNode\n"
        f"workflow = Workflow('w')\nworkflow.add_node(EnsembleNode('v', {agents}))\n"
        "print(workflow.run(question).content)\n"
    )
    assert main([str(script), "--question", "?"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m metaagentx.workflow: 17 agents are too many")


def test_a_script_that_fails_or_gives_no_answer_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    text = Path(JUDGE).read_text()
    script.write_text(text.replace("print(result.content)", "print(result.contents)"))
    assert main([str(script), "--question", "?"]) == 1
    trace = capsys.readouterr().err
    assert "AttributeError" in trace and f'File "{script}"' in trace and "__main__.py" not in trace
    script.write_text(text.replace("result = ", "if len(question) > 9:\n    result = ").replace("print", "    print"))
    assert main([str(script), "--question", "?"]) == 1
    assert capsys.readouterr().out == "No answer: no workflow was run to its end.\n"


def test_scripts_share_the_package_of_their_host(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(Path(JUDGE).read_text() + "print(type(judge).__module__)\n")
    assert main([str(script), "--question", "?"]) == 0
    assert f"{metaagentx.workflow.AgentNode.__module__}\n" in capsys.readouterr().out
