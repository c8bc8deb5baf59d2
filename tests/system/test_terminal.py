"""What `solve` shows on a terminal: a real pseudo-terminal, and models that write what terminals obey."""

import os
import pty
import re
import subprocess
import threading
from typing import Any

from tests.chat_server import Reply, said, serving
from tests.commands import COMMAND, command
from tests.rollout_helpers import COMPUTE, HEAD, RIGHT, RUN, SINGLE, TOOL, design

QUESTION = "How many squares are there on a 3 by 3 board?"
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b5n\r\x08\u202egnp"


def on_terminal(url: str, *words: str) -> tuple[int, str]:
    """Run `solve` on a terminal; return its exit code and everything that reached the terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(
        [COMMAND, "solve", QUESTION, "--base-url", url, "--model", "m", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                return
            if not data:
                return
            seen.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(60)
    reader.join(10)
    os.close(ours)
    return code, seen.decode("utf-8", "replace")


def playing(script: str, *replies: str) -> Any:
    """A server whose Designer writes a script, and whose agents say these things, the last one for ever."""
    left = list(replies)

    def answer(asked: dict[str, Any], number: int) -> Reply:
        if asked["messages"][-1]["content"] == "Hello":
            return said("Hello")
        if "Six labeled remarks" in asked["messages"][0]["content"]:
            return said(script)
        return said(left.pop(0) if len(left) > 1 else left[0])

    return serving(answer)


def test_the_terminal_shows_design_agents_tools_drawing_and_answer() -> None:
    with playing(design(TOOL), COMPUTE, RIGHT) as server:
        code, seen = on_terminal(server.url)
    assert code == 0
    for expected in (
        "design 1, attempt 1",
        "Problem Type: math",
        "Coder",
        "tools of Coder",
        "Output of python:",
        "single+tools",
        "Coder (agent) [python] x3",
        "3 calls",
    ):
        assert expected in seen, expected
    assert seen.rstrip().endswith("14")


def test_no_text_of_a_model_is_obeyed_by_the_terminal() -> None:
    name = f"[/red]{EVIL}[link=http://x]"
    script = SINGLE.replace('"Solver"', ascii(name)) + f"\nprint({EVIL!a})\n# {EVIL.replace(chr(13), '')}\n"
    with playing(design(script), f"[bold]{EVIL}[/nonsense] <delivery>\\boxed{{14{EVIL}}}</delivery>") as server:
        code, seen = on_terminal(server.url)
        piped = command("solve", QUESTION, "--base-url", server.url, "--model", "m")
    assert code == 0, seen
    assert "owned" in seen and "[/red]" in seen and "[bold]" in seen
    for obeyed in ("\x1b]0;", "\x1b[2J", "\x1b[31mred", "\x9b", "\x08", "\u202e"):
        assert obeyed not in seen, repr(obeyed)
    assert piped.returncode == 0 and piped.stdout.rstrip("\n").startswith("14")


def test_faults_and_notes_are_plain_text_too() -> None:
    crash = HEAD + f"raise ValueError({EVIL!a})\nworkflow.add_node(AgentNode('A', 'Solve.'))" + RUN
    with playing(design(crash), f"no answer {EVIL}") as server:
        _, seen = on_terminal(server.url, "--attempts", "2")
    assert "attempt 2" in seen
    assert not re.search("\x1b]0;|\x1b\\[2J|\x9b|\u202e", seen)


def test_a_question_that_nothing_answers_ends_with_a_note_and_code_1() -> None:
    with playing("no script", "") as server:
        done = command("solve", QUESTION, "--base-url", server.url, "--model", "m", "--attempts", "1")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
