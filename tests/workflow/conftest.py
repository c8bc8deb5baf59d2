"""Scripts import `workflow`; here that is the same package as `metaagentx.workflow`."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import metaagentx.workflow
import metaagentx.workflow.nodes

RunScript = Callable[[str, str], dict[str, object]]


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """Runs the text of a script, unchanged, with a question; returns its variables, and under "stdout" its output."""
    monkeypatch.setitem(sys.modules, "workflow", metaagentx.workflow)
    monkeypatch.setitem(sys.modules, "workflow.nodes", metaagentx.workflow.nodes)
    # Scripts start "python", which is there in the sandbox.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

    def run(script: str, question: str) -> dict[str, object]:
        variables: dict[str, object] = {"__name__": "__main__", "question": question}
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(script, "<script>", "exec"), variables)
        return {**variables, "stdout": printed.getvalue()}

    return run
