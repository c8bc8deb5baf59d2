"""Made-up rows in the published formats, and files of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"

GSM8K = f"gsm8k?file={DATA / 'gsm8k_train_300.jsonl'}"
HUMANEVAL = f"humaneval?file={DATA / 'humaneval_164.jsonl'}"
MBPP = f"mbpp?file={DATA / 'mbpp_sanitized_train_ids601+.jsonl'}"
CODECONTESTS = f"codecontests?file={DATA / 'codecontests_40_clean.jsonl'}"


def write(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def made_up(source: str, number: int) -> dict[str, Any]:
    """A valid row of a source, different for each number."""
    question = f"What is {number} plus {number + 1}?"
    tests = {"input": [f"{number}\n"], "output": [f"{2 * number + 1}\n"]}
    cases = [{"input": f"{number}\n", "output": f"{2 * number + 1}\n", "testtype": "stdin"}]
    rows: dict[str, dict[str, Any]] = {
        "gsm8k": {"question": question, "answer": f"Add them.\n#### {2 * number + 1}"},
        "math": {"problem": question, "solution": f"It is $\\boxed{{{2 * number + 1}}}$.", "level": "Level 2"},
        "math500": {"problem": question, "answer": str(2 * number + 1), "level": 2},
        "aime24": {"id": number, "problem": question, "answer": f"{number:03d}"},
        "aime25": {"question": question, "answer": str(number)},
        "olympiadbench": {"id": number, "question": question, "final_answer": [f"${2 * number + 1}$"]},
        "polaris": {"problem": question, "answer": str(2 * number + 1), "difficulty": "7/8"},
        "humaneval": {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def f{number}():\n    """{question}"""\n',
            "entry_point": f"f{number}",
            "test": f"def check(candidate):\n    assert candidate() == {2 * number + 1}\n",
        },
        "mbpp": {"task_id": number, "prompt": question, "test_list": [f"assert f() == {2 * number + 1}"]},
        "apps": {"question": question, "input_output": json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})},
        "codecontests": {"name": f"p{number}", "description": question, "public_tests": tests},
        "livecodebench": {
            "question_id": f"p{number}",
            "question_content": question,
            "public_test_cases": json.dumps(cases),
            "private_test_cases": "[]",
        },
    }
    return rows[source]
