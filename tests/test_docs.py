"""What the documentation shows is run, and what it names exists."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from metaagentx.cli.main import app
from metaagentx.runs import Run
from metaagentx.workflow.__main__ import main as try_out
from metaagentx.workflow.validate import validate

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUICK = ("tasks list", "tasks show gym:", "recipes list", "grade ", "report ", "doctor", "version")
"""The beginnings of commands that are really run; the others are parsed by the real command line."""
RUN_ELSEWHERE = {"use.md": "tests/system/test_use_page.py"}
"""Pages whose Python is run by another test, which has what it needs."""
UNCHECKED = {"git", "cd", "pip", "echo", "uv", "export", "cat", "hf"}


def blocks(language: str) -> list[Any]:
    """All code blocks of README and docs in a language, named by their page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            if block[1] == language and not (language == "python" and page.name in RUN_ELSEWHERE):
                line = text.count("\n", 0, block.start()) + 1
                found.append(pytest.param(block[2], id=f"{page.name}:{line}"))
    return found


def run(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a reader of the documentation is in: a clone with a short run, and README's design."""
    for name in ("src", "recipes", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    with Run.create(tmp_path / "runs" / "tiny", (ROOT / "recipes" / "tiny.toml").read_text(), "tiny") as made:
        for step in range(2):
            made.write_step(step, {"reward/executor": 0.5, "solved": 0.5}, [])
    (tmp_path / "runs" / "mine").symlink_to("tiny")
    (tmp_path / "runs" / "answers").symlink_to("tiny")
    (design,) = [block[2] for block in BLOCK.finditer(README) if block[2].startswith("from workflow import")]
    (tmp_path / "design.py").write_text(design)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_in_the_documentation_runs(snippet: str, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if validate(snippet) == []:  # a workflow script, written as the Designer writes it
        (clone / "script.py").write_text(snippet)
        assert try_out(["script.py", "--question", "How many?"]) == 0
        assert capsys.readouterr().out.endswith("Answer: 42\n")
    else:
        exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("snippet", blocks("sh"))
def test_commands_in_the_documentation_are_accepted(
    snippet: str, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in snippet.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        for redirection in (">", "<"):
            words = words[: words.index(redirection)] if redirection in words else words
        if words:
            accept(words)


def accept(words: list[str]) -> None:
    """Run a command, or see that it could be run."""
    if words[0] == "metaagentx":
        if " ".join(words[1:]).startswith(QUICK):
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, (words, done.output, done.exception)
        parse(words[1:])
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None, words
        if words[2] == "metaagentx.workflow":
            assert try_out(words[3:]) == 0
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", Path("Makefile").read_text(), re.MULTILINE), words
    elif words[0] == "source":
        assert words[1:] == [".venv/bin/activate"]
    else:
        assert words[0] in UNCHECKED, f"say in this test how to check `{shlex.join(words)}`"


def parse(words: list[str]) -> None:
    """See that our command line takes these words, without running anything."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no command {words}"
        command, words = command.commands[words[0]], words[1:]
    with command.make_context(command.name, list(words)):
        pass


def test_commands_within_sentences_are_accepted_too() -> None:
    spans = {span for page in PAGES for span in re.findall(r"`(metaagentx [^`]+)`", BLOCK.sub("", page.read_text()))}
    assert spans
    for span in sorted(spans):
        words = shlex.split(span)[1:]
        if len(words) > 1 or words[0] not in (
            "train",
            "plan",
            "eval",
            "report",
            "coldstart",
            "sft",
            "grade",
            "solve",
            "design",
            "run",
            "serve",
            "export",
        ):  # only its name
            parse(words)


def test_commands_are_written_in_one_way_and_marked() -> None:
    for page in PAGES:
        text = page.read_text()
        assert ".venv/bin/" not in text.replace("source .venv/bin/activate", ""), page.name
        for language, body in BLOCK.findall(text):
            begins = re.search(r"^(metaagentx|python|make) ", body, re.MULTILINE)
            assert language or not begins, f"{page.name}: say ```sh before {body.splitlines()[0]!r}"


def test_the_sandboxes_example_runs() -> None:
    import metaagentx.sandbox

    text = metaagentx.sandbox.__doc__ or ""
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    ") or not line)
    assert "ok hello\n you asked 'why?'" in run(example)


def test_files_the_readme_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_make_targets_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z0-9-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_no_function_or_file_outgrows_a_readers_view() -> None:
    import ast

    too_long = []
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text()
        if len(text.splitlines()) > 400:
            too_long.append(f"{file.name}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                if length > 60:
                    too_long.append(f"{file.name}: {node.name} has {length} lines")
    assert too_long == []
