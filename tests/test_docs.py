"""What the documentation shows is run, and what it names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from metaagentx.workflow.validate import validate

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_workflow_is_a_valid_script() -> None:
    (script,) = [snippet for snippet in SNIPPETS if snippet.startswith("from workflow import")]
    assert validate(script) == []


@pytest.mark.parametrize("snippet", [snippet for snippet in SNIPPETS if not snippet.startswith("from workflow import")])
def test_the_readmes_snippets_run(snippet: str) -> None:
    assert run(snippet)


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
    for target in set(re.findall(r"make ([a-z-]+)", README)):
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
