"""Every command and snippet of docs/use.md is run, on a small trained run and a scripted server."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from metaagentx.config import ToolsConfig
from metaagentx.workflow.validate import validate
from tests.chat_server import Reply, Server, said, serving
from tests.rollout_helpers import RIGHT, SINGLE, design
from tests.tiny_model import QUESTIONS, THINK, VOTE, school, write_recipe
from tests.trainers import Mother

PAGE = (Path(__file__).parents[2] / "docs" / "use.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
SERVED = "http://localhost:8000/v1"


def answer(asked: dict[str, Any], number: int) -> Reply:
    if asked["messages"][-1]["content"] == "Hello":
        return said("Hello")
    return said(design(SINGLE) if "Six labeled remarks" in asked["messages"][0]["content"] else RIGHT)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(answer) as started:
        yield started


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, mother: Mother) -> Path:
    """A directory as after the quickstart, with the files that the page has the reader save."""
    place = tmp_path_factory.mktemp("use")
    quickstart = place / "runs" / "quickstart"
    quickstart.mkdir(parents=True)
    school(quickstart / "student", (THINK, VOTE))
    recipe = write_recipe(place, quickstart / "student", steps=1, stages="{ steps = 1, executor = 1e-4 }")
    settings = ["rollout.designs=2", "rollout.executions=2", "rollout.designer_tokens=64", "tasks.per_step=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    ended = mother.run(recipe, "--run", quickstart / "run", *words)
    assert ended.code == 0, ended.err
    (functions,) = [text for text in PYTHON if "def population" in text]
    (notes,) = [text for text in PYTHON if "MCPServer" in text]
    (place / "my_tools.py").write_text(functions)
    (place / "my_server.py").write_text(notes)
    return place


@pytest.mark.slow
def test_every_command_of_the_page_runs(place: Path, server: Server, mother: Mother) -> None:
    """In the order of the page: some use what an earlier one wrote."""
    commands = [line for line in SHELL if not line.startswith("metaagentx serve")]
    assert len(commands) == len(SHELL) - 1 >= 13
    for line in commands:
        text = re.sub(r'"[A-Z][^"]*[.?]"', f'"{QUESTIONS[0]}"', line)  # one that this small model has seen
        text = text.replace(SERVED, server.url).replace('"python my_server.py"', f'"{sys.executable} my_server.py"')
        if text.startswith("echo "):
            subprocess.run(text, shell=True, cwd=place, check=True)
            continue
        words = shlex.split(text)
        assert words[0] == "metaagentx", line
        target = words[words.index(">") + 1] if ">" in words else None
        if "<" in words:  # commands of this process have no standard input of their own
            words = [words[words.index("<") + 1] if word == "-" else word for word in words[: words.index("<")]]
        words = words[: words.index(">")] if target else words
        ended = mother.run(*words[2:], command=words[1], cwd=place)
        assert ended.code == 0, (line, ended.err)
        if target:
            (place / target).write_text(ended.out)
        if "--json" in words:
            assert set(json.loads(ended.out)) == {"question", "answer", "script", "note", "seconds", "usage"}
        elif words[1] == "solve":
            assert len(ended.out.splitlines()) >= 1
    assert (place / "exported" / "system.json").is_file() and (place / "runs" / "answers" / "run.json").is_file()


@pytest.mark.slow
def test_the_snippets_in_python_run(place: Path) -> None:
    snippets = [text for text in PYTHON if "quickstart/run" in text]
    assert len(snippets) == 2
    source = "\n".join([*snippets, "assert '<b>' in result._repr_html_()"])
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and "Usage(calls=" in done.stdout, done.stderr


def test_the_script_and_the_recipe_of_the_page_are_right() -> None:
    (script,) = [text for text in PYTHON if "from workflow import" in text]
    assert validate(script) == []
    import tomllib

    (recipe,) = [text for language, text in BLOCKS if language == "toml"]
    assert ToolsConfig.model_validate(tomllib.loads(recipe)["tools"]).offered


def test_the_options_of_the_page_are_those_of_solve() -> None:
    from tests.commands import command

    shown = set(re.findall(r"(?<!-)(--[a-z][a-z-]+)", command("solve", "--help").stdout)) - {"--help"}
    assert shown == set(re.findall(r"(?<!-)(--[a-z][a-z-]+)", PAGE[: PAGE.index("The script alone")]))


@pytest.mark.slow
def test_the_run_is_served_to_fifty_clients_at_once(place: Path, tmp_path: Path) -> None:
    """A local model: the official client, streaming and not; then SIGTERM."""
    (line,) = [line for line in SHELL if line.startswith("metaagentx serve")]
    words = shlex.split(line.replace("8080", "0"))[1:]
    command = [str(Path(sys.executable).parent / "metaagentx"), *words, "--concurrency", "16"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().split()[0]

    async def ask(client: openai.AsyncOpenAI, number: int) -> bool:
        content = QUESTIONS[number % len(QUESTIONS)]
        messages: Any = [{"role": "user", "content": content}]
        if number % 2:
            reply = await client.chat.completions.create(model=name_served, messages=messages)
            return bool(reply.choices[0].message.content)
        stream = await client.chat.completions.create(model=name_served, messages=messages, stream=True)
        return any([chunk.choices[0].delta.content async for chunk in stream])

    async def all_of_them() -> list[bool]:
        import asyncio

        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(50)))

    import asyncio

    name_served = httpx.get(f"{url}/models").json()["data"][0]["id"]
    try:
        answered = asyncio.run(all_of_them())
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
        process.stdout.close()
    assert len(answered) == 50 and sum(answered) == 50


@pytest.mark.slow
def test_the_first_output_comes_within_seconds(place: Path) -> None:
    """From the start of the command to the first text of the design, in processor time, so that load does not count."""
    probe = (
        "import asyncio, time\n"
        "from metaagentx import System\n"
        "async def main():\n"
        "    async with System.open('runs/quickstart/run') as system:\n"
        "        await system.solve(QUESTION, on_event=show)\n"
        "def show(event):\n    import os; print(time.process_time(), flush=True); os._exit(0)\n"
        f"QUESTION = {QUESTIONS[0]!r}\nasyncio.run(main())\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    print("first output after", done.stdout, "s of processor time,", time.monotonic() - started, "s")
    assert float(done.stdout) < 5
