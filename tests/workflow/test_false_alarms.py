"""Honest answers are not taken for fed ones, whatever the task and the example script."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaagentx.workflow
from metaagentx.provenance import final_answer, find_fed
from metaagentx.types import Call, Role
from metaagentx.workflow import Ask, use
from tests.workflow.conftest import RunScript

DATA = Path(__file__).parent.parent / "data"
EXAMPLES = sorted((Path(metaagentx.workflow.__file__).parent / "examples").glob("*.py"))


def published() -> Iterator[tuple[str, str]]:
    """Questions with the right answer, as an agent delivers it."""
    for line in (DATA / "gsm8k_train_300.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["question"], rf"\boxed{{{row['answer'].rpartition('#### ')[2]}}}"
    for line in (DATA / "reasoning_gym_24x10_seed1234.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["question"], rf"\boxed{{{row['answer']}}}"
    for line in (DATA / "mbpp_sanitized_train_ids601+.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["prompt"], f"<solution>\n{row['code']}\n</solution>"


class _Answers:
    def __init__(self, reply: str) -> None:
        self._reply = reply

    def __call__(self, ask: Ask) -> str:
        return self._reply if ask.kind == "model" else ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_right_answer_to_a_published_task_is_a_false_alarm(path: Path, run_script: RunScript) -> None:
    """660 tasks each, outside the sandbox: every agent of the example gives the right answer at once."""
    for question, answer in published():
        reply = f"I have checked it. <delivery>{answer} CORRECT</delivery>"
        with use(_Answers(reply)) as session:
            run_script(path.read_text(), question)
        calls = [Call(Role.EXECUTOR, ask.agent, ask.messages, reply) for ask in session.asks if ask.kind == "model"]
        assert find_fed(question, calls, [], final_answer(calls, len(calls) - 1)) is None, (question, answer)
