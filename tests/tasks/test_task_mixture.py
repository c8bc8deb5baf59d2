"""Sets and mixtures: filters, order, resuming, held-out tasks."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.tasks import Mixture, TaskError, load
from metaagentx.tasks.mixture import cycle_counts, parse_mixture
from metaagentx.types import CustomGrader
from tests.tasks.files import CODECONTESTS, GSM8K, MBPP, made_up, write

HALF = f"0.5*{GSM8K} + 0.25*{MBPP} + 0.25*{CODECONTESTS}"


def test_every_batch_has_exact_shares() -> None:
    mixture = Mixture(HALF, seed=1)
    for step in range(20):
        kinds = Counter(task.source for task in mixture.batch(step, 8))
        assert kinds == {"gsm8k": 4, "mbpp": 2, "codecontests": 2}


def test_nothing_comes_twice_before_all_came_once() -> None:
    mixture = Mixture([(load(CODECONTESTS, "train"), 1)], seed=5)
    ids = [task.id for step in range(25) for task in mixture.batch(step, 8)]
    epochs = [ids[start : start + 40] for start in range(0, 200, 40)]
    assert all(len(set(epoch)) == 40 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5


def test_a_batch_is_a_function_of_seed_and_step_in_any_process() -> None:
    mixture = Mixture(HALF, seed=7, held_out=12)
    ids = [[task.id for task in mixture.batch(step, 6)] for step in range(30)]
    # Resumed: asked for the last step first, in another process with another hash seed.
    code = (
        "import sys; from metaagentx.tasks import Mixture; m = Mixture(sys.argv[1], seed=7, held_out=12)\n"
        "print(*(t.id for t in m.batch(29, 6))); print(*(t.id for t in m.batch(3, 6)))\n"
        "print(*(t.id for t in m.held_out))"
    )
    words = [sys.executable, "-c", code, HALF]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONHASHSEED": "99"})
    assert [line.split() for line in done.stdout.splitlines()] == [ids[29], ids[3], [t.id for t in mixture.held_out]]
    assert [task.id for task in Mixture(HALF, seed=8, held_out=12).batch(0, 6)] != ids[0]


def test_the_order_does_not_depend_on_where_rows_stand(tmp_path: Path) -> None:
    rows = [made_up("gsm8k", number) for number in range(20)]
    one, other = (write(tmp_path / name, rows[::way]) for name, way in (("a.jsonl", 1), ("b.jsonl", -1)))
    drawn = [[load(f"gsm8k?file={file}", "train").drawn(3, n).id for n in range(20)] for file in (one, other)]
    assert drawn[0] == drawn[1]


def test_questions_that_differ_in_brackets_only_are_not_the_same(tmp_path: Path) -> None:
    rows = [
        {"question": f"Is {n} in {a}6, 15{b}?", "grader": "math", "answer": "1"}
        for n in range(8)
        for a in "[("
        for b in "])"
    ]
    orders = []
    for name, way in (("a", 1), ("b", -1)):
        tasks = load(
            f"jsonl:{write(tmp_path / f'{name}.jsonl', [{**row, 'id': str(i)} for i, row in enumerate(rows)][::way])}",
            "train",
        )
        orders.append([tasks.drawn(3, n).question for n in range(len(rows))])
    assert orders[0] == orders[1]
    assert sum(one[:8] == other[:8] for one, other in zip(orders[0], orders[0][1:], strict=False)) < 12


def test_the_order_does_not_depend_on_where_the_file_is(tmp_path: Path) -> None:
    rows = [{"question": f"What is {number} + 1?", "grader": "math", "answer": str(number + 1)} for number in range(20)]
    drawn = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        mixture = Mixture(f"jsonl:{write(tmp_path / name / f'{name}.jsonl', rows)}", seed=3, held_out=4)
        drawn.append([task.question for task in (*mixture.batch(0, 16), *mixture.held_out)])
    assert drawn[0] == drawn[1]


def test_a_task_is_the_same_wherever_its_file_is(tmp_path: Path) -> None:
    row = {"question": "Rain?", "grader": "rain:check", "data": 1}
    found = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        file = write(tmp_path / place / "own.jsonl", [row])
        (task,) = load(f"jsonl:{file}", "train")
        assert isinstance(task.grading, CustomGrader) and task.grading.file == str(file)
        found.append(task)
    assert found[0] == found[1] and repr(found[0]) == repr(found[1])
    assert found[0].id.startswith("jsonl:own.jsonl/train/") and found[0].source == "jsonl:own.jsonl"
    both = Mixture(f"jsonl:{tmp_path}/one/own.jsonl + jsonl:{tmp_path}/two/own.jsonl", seed=0)
    assert [tasks.name for tasks in both.sets] == ["jsonl:one/own.jsonl", "jsonl:two/own.jsonl"]
    assert [grader.file for grader in both.graders] == [f"{tmp_path}/{place}/own.jsonl" for place in ("one", "two")]


def test_held_out_tasks_are_never_trained_on_even_under_another_id(tmp_path: Path) -> None:
    rows = [made_up("gsm8k", number) for number in range(30)]
    one = write(tmp_path / "one.jsonl", rows)
    questions = [{"question": row["question"].upper(), "grader": "math", "answer": "1"} for row in rows]
    other = write(tmp_path / "other.jsonl", questions)
    mixture = Mixture(f"gsm8k?file={one} + jsonl:{other}", seed=0, held_out=10)
    assert Counter(task.source for task in mixture.held_out) == {"gsm8k": 5, f"jsonl:{other.name}": 5}
    held = {task.question.casefold() for task in mixture.held_out}
    trained = {task.question.casefold() for step in range(20) for task in mixture.batch(step, 6)}
    assert not held & trained and held | trained == {row["question"].casefold() for row in rows}


def test_held_out_of_an_endless_source() -> None:
    mixture = Mixture("gym:gcd + gym:lcm", seed=0, held_out=9)
    held = {task.question for task in mixture.held_out}
    assert len(held) == 9
    assert not held & {task.question for step in range(10) for task in mixture.batch(step, 8)}


def test_too_many_held_out_is_an_error() -> None:
    with pytest.raises(TaskError, match="cannot hold out 40 of 40"):
        Mixture(CODECONTESTS, seed=0, held_out=40)


def test_filters(tmp_path: Path) -> None:
    tasks = load(GSM8K, "train")
    short = tasks.filtered(chars=(0, 200))
    assert 0 < len(short) < 300 and all(len(task.question) <= 200 for task in short)
    assert [task.id for task in load(f"{GSM8K}&max_chars=200", "train")] == [task.id for task in short]
    rows = [{**made_up("polaris", n), "difficulty": f"{n}/8"} for n in range(9)] + [made_up("gsm8k", 50)]
    rows[-1] = {"problem": "without", "answer": "1"}
    polaris = f"polaris?file={write(tmp_path / 'p.jsonl', rows)}"
    assert [task.difficulty for task in load(polaris, "train").filtered(difficulty=(0.3, 0.6))] == [0.5, 0.375]
    assert len(load(f"{polaris}&min_difficulty=0", "train")) == 9
    contests = load(CODECONTESTS, "train")
    assert len(contests.filtered(special_judge=False)) == 39 and len(contests.filtered(special_judge=True)) == 1
    assert len(load(f"{CODECONTESTS}&special_judge=no&max_chars=1500", "train")) < 39
    with pytest.raises(TaskError, match="none of 300 tasks is left by the filter"):
        tasks.filtered(difficulty=(0, 1))


def test_filters_of_an_endless_set() -> None:
    tasks = load("gym:chain_sum", "train").filtered(chars=(0, 68))
    assert all(len(tasks[index].question) <= 68 for index in range(20))
    with pytest.raises(TaskError, match="no task passes the filters in 1000 attempts"):
        _ = load("gym:chain_sum", "train").filtered(chars=(0, 3))[0]


def test_the_string_syntax() -> None:
    assert parse_mixture("0.5*gsm8k + .25 * gym:gcd?a=1&b=2 + jsonl:a+b.jsonl") == [
        ("gsm8k", 0.5),
        ("gym:gcd?a=1&b=2", 0.25),
        ("jsonl:a+b.jsonl", 1.0),
    ]
    for wrong in ("", "0.5*", "1.2.3*gsm8k", "gsm8k +  + math"):
        with pytest.raises(TaskError, match="is not a part of a mixture"):
            parse_mixture(wrong)
    for weights in ([], [0.0], [1.0, -1.0], [float("nan")], [float("inf")]):
        with pytest.raises(TaskError, match="weight above 0"):
            cycle_counts(weights)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=6))
def test_cycles_are_short_and_keep_the_shares(weights: list[float]) -> None:
    counts = cycle_counts(weights)
    assert min(counts) >= 1 and sum(counts) <= 1000 + len(counts)
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / sum(counts) - weight / sum(weights)) <= 0.005 * len(weights)
    assert cycle_counts([0.5, 0.25, 0.25]) == [2, 1, 1]
