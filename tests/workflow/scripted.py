"""Replies without a model: what each agent says, in order, and Python that really runs."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

from metaagentx.workflow import Ask, PythonOutcome, WorkflowSession


class Scripted:
    """Replies by agent name; the last reply of an agent repeats. Python asks are run by this interpreter."""

    def __init__(self, replies: Mapping[str, str | Sequence[str]]) -> None:
        self._replies = {name: [text] if isinstance(text, str) else list(text) for name, text in replies.items()}

    def __call__(self, ask: Ask) -> str | PythonOutcome:
        if ask.kind == "python":
            return run_here(ask)
        replies = self._replies[ask.agent]
        return replies.pop(0) if len(replies) > 1 else replies[0]


def run_here(ask: Ask) -> PythonOutcome:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ask.code],
            input=ask.stdin, capture_output=True, text=True, timeout=ask.timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return PythonOutcome(timed_out=True, returncode=-9)
    return PythonOutcome(done.stdout, done.stderr, done.returncode)


def model_asks(session: WorkflowSession, agent: str | None = None) -> list[Ask]:
    return [ask for ask in session.asks if ask.kind == "model" and agent in (None, ask.agent)]


def prompts(session: WorkflowSession, agent: str) -> list[str]:
    """The last user message of each call of an agent."""
    return [ask.messages[-1]["content"] for ask in model_asks(session, agent)]


def boxed(value: object) -> str:
    return f"Let me think. <delivery>\\boxed{{{value}}}</delivery>"


def program(source: str) -> str:
    return f"<delivery>\n<solution>\n```python\n{source}\n```\n</solution>\n</delivery>"
