"""Duplicates by normalized text."""

from pathlib import Path

import pytest

from metaagentx.tasks import Shared, TaskError, load, overlap
from metaagentx.tasks.fingerprint import fingerprint, normalized
from tests.tasks.files import GSM8K, made_up, write


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is  $2 + 3$?", "what is 2+3"),
        (r"Find $\dfrac{1}{2}$.", r"Find \(\frac{1}{2}\)"),
        (r"$\left( x \right)$", "(x)"),
        (r"$3 \times 4$", "3 * 4"),
        ("He has 1,000 apples.", "He has 1000 apples"),
        (r"He has $1{,}000$ apples.", "he has 1000 apples"),
        (r"$x_{1}$, $x_2$", "x_1 x_{2}"),
        ("ﬁnd − 1", "find -1"),
        (r"in \text{cm}", "in cm"),
    ],
)
def test_the_same_question(one: str, other: str) -> None:
    assert normalized(one) == normalized(other) and fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2+3", "2-3"),
        ("1.5", "15"),
        ("1,5", "15"),
        ("x<y", "x>y"),
        ("a b", "b a"),
        ("?!", "..."),
        ("12", "1 2"),
        ("✅❌", "❌✅"),
    ],
)
def test_different_questions(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_overlap_names_the_ids_of_both_sides(tmp_path: Path) -> None:
    left = write(tmp_path / "left.jsonl", [made_up("gsm8k", number) for number in range(10)])
    rows = [{**made_up("aime24", number), "answer": "1"} for number in range(8, 12)]
    right = write(tmp_path / "right.jsonl", rows)
    shared = overlap(load(f"gsm8k?file={left}", "train"), load(f"aime24?file={right}", "test"))
    assert [pair.right for pair in shared] == [("aime24/test/8",), ("aime24/test/9",)]
    assert all(pair.left[0].startswith("gsm8k/train/") for pair in shared)
    assert isinstance(shared[0], Shared)


def test_statements_are_compared_without_the_form_of_the_answer(tmp_path: Path) -> None:
    """The same problem from two sources, one of which asks for a function."""
    one = write(tmp_path / "a.jsonl", [made_up("apps", 5)])
    other = write(tmp_path / "b.jsonl", [made_up("mbpp", 601) | {"prompt": made_up("apps", 5)["question"]}])
    assert len(overlap(load(f"apps?file={one}", "train"), load(f"mbpp?file={other}", "train"))) == 1


def test_a_set_with_itself_and_with_an_endless_one() -> None:
    tasks = load(GSM8K, "train")
    assert len(overlap(tasks, tasks)) == 300
    with pytest.raises(TaskError, match="gym:gcd is endless"):
        overlap(tasks, load("gym:gcd", "train"))


def test_what_looks_alike_is_still_two_tasks(tmp_path: Path) -> None:
    """Finding leaks is generous, telling tasks apart is not."""
    rows = [{"question": f"Solve on {interval}.", "answer": "#### 1"} for interval in ("[0,1)", "(0,1]")]
    tasks = load(f"gsm8k?file={write(tmp_path / 'rows.jsonl', rows)}", "train")
    assert len(tasks) == 2 and tasks.heads[0].fingerprint == tasks.heads[1].fingerprint
