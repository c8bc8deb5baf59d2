"""Generated tasks: reproducible, disjoint splits, clear words for wrong settings, scorers that survive JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from metaagentx.tasks import TaskError, load
from metaagentx.tasks.gym import SLOW_TO_MAKE, generators, split_of
from metaagentx.tasks.gym_library import NOT_GRADED, REFUSED, has_pycosat, import_reasoning_gym
from metaagentx.tasks.taskset import TaskSet
from metaagentx.types import JSON, GymEntry, Task

FACTORY = import_reasoning_gym().factory
DATASETS, create_dataset = FACTORY.DATASETS, FACTORY.create_dataset
QUICK = [
    "chain_sum",
    "gcd",
    "modulo_grid",
    "pool_matrix",
    "gsm_symbolic",
    "acre",
    "knights_knaves",
    "mini_sudoku",
    "shortest_path",
    "word_sorting",
]
PRINT = (
    "import json, sys, warnings; from metaagentx.tasks import load\n"
    "warnings.simplefilter('ignore')\n"
    "for name in sys.argv[2:]:\n"
    "    tasks = load(f'gym:{name}?seed=3', 'train')\n"
    "    print(json.dumps([[tasks[i].question, tasks[i].grading.entry['answer']] for i in range(int(sys.argv[1]))]))"
)


def questions(tasks: TaskSet, count: int) -> set[str]:
    return {tasks[index].question for index in range(count)}


def gold(task: Task) -> JSON:
    assert isinstance(task.grading, GymEntry)
    return task.grading.entry["answer"]


def printed(names: Sequence[str], count: int, hash_seed: str) -> list[str]:
    words = [sys.executable, "-c", PRINT, str(count), *names]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True, env=environment)
    return done.stdout.splitlines()


def scores_of_golds(names: Sequence[str], count: int) -> dict[str, list[float]]:
    """Golds scored as a grader does: from JSON, by a scorer that never saw the task."""
    scores: dict[str, list[float]] = {}
    for name in names:
        tasks = load(f"gym:{name}", "train")
        for index in range(count):
            grading = tasks[index].grading
            assert isinstance(grading, GymEntry)
            entry = json.loads(json.dumps(grading.entry))
            if entry["answer"] is not None:  # some generators have a scorer and no gold
                scorer = create_dataset(grading.generator, **json.loads(json.dumps(grading.config)))
                scores.setdefault(name, []).append(scorer.score_answer(entry["answer"], entry))
    return scores


CONSTANTS = ["0", "1", "7", "garbage", "True", "4*3*2*1", "[]", "A", "x", "0 1 2 3 4 5 6 7 8 9"]


def always_paid(name: str, count: int) -> list[str]:
    """Constant answers that get full marks for every one of many tasks with different golds."""
    dataset = create_dataset(name, seed=11, size=count)
    entries = [dataset[index] for index in range(count)]
    paid = []
    for constant in CONSTANTS:
        try:
            if all(dataset.score_answer(constant, entry) >= 1 for entry in entries):
                paid.append(constant)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue  # some scorers raise on garbage, which graders count as wrong
    return paid


def test_the_scorers_that_pay_for_nothing_are_refused() -> None:
    assert always_paid("puzzle24", 6) == ["4*3*2*1"] and "garbage" in always_paid("game_of_life_halting", 6)
    dataset = create_dataset("coin_flip", seed=3, size=4)
    assert [dataset.score_answer("0", dataset[index]) for index in (0, 2, 3)] == [1.0] * 3
    assert {"puzzle24", "game_of_life_halting", "coin_flip"} <= set(REFUSED)
    assert {"game_of_life_halting", "coin_flip"} <= set(NOT_GRADED) < set(REFUSED)


def test_the_same_in_every_process() -> None:
    sets = [load(f"gym:{name}?seed=3", "train") for name in QUICK]
    here = [[[tasks[index].question, gold(tasks[index])] for index in range(3)] for tasks in sets]
    assert [json.loads(line) for line in printed(QUICK, 3, "2")] == here


def test_any_index_and_any_order_and_no_end() -> None:
    tasks, again = load("gym:gcd", "train"), load("gym:gcd", "train")
    assert tasks.endless
    far = tasks[10**9]
    assert [tasks[index] for index in range(130)] == [again[index] for index in reversed(range(130))][::-1]
    assert again[10**9] == far and len(questions(tasks, 130)) > 120
    with pytest.raises(TypeError):
        len(tasks)
    with pytest.raises(IndexError):
        tasks[-1]


@pytest.mark.parametrize("generator", sorted(SLOW_TO_MAKE))
def test_made_once_for_all_blocks_the_tasks_are_the_same(generator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = (0, 5, 200, 70, 10**6)
    once = load(f"gym:{generator}", "train")
    found = [(once[place].question, gold(once[place])) for place in places]
    monkeypatch.setattr("metaagentx.tasks.gym.SLOW_TO_MAKE", frozenset())
    each = load(f"gym:{generator}", "train")
    assert found == [(each[place].question, gold(each[place])) for place in places]


def test_another_seed_gives_other_tasks() -> None:
    # reasoning-gym itself gives task i+1 of seed s and task i of seed s+1 the same numbers.
    assert len(questions(load("gym:gcd?seed=1", "train"), 40) & questions(load("gym:gcd?seed=2", "train"), 40)) <= 1


def test_splits_share_no_question_even_in_a_small_world() -> None:
    small = "gym:gcd?min_numbers=2&max_numbers=2&min_value=1&max_value=6"
    found = {split: questions(load(small, split), 60) for split in ("train", "validation", "test")}
    assert found["train"] and found["test"] and not found["train"] & (found["test"] | found["validation"])
    assert len(found["test"]) < 60, "the world is small enough that tasks repeat"


def test_settings_reach_the_generator() -> None:
    tasks = load("gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1&allow_negation=true", "train")
    for index in range(20):
        grading = tasks[index].grading
        assert isinstance(grading, GymEntry)
        metadata = grading.entry["metadata"]
        assert isinstance(metadata, dict) and metadata["num_terms"] == 2 and metadata["num_digits"] == 1
        assert grading.config["allow_negation"] is True
    assert load("gym:chain_sum?level=10", "train")[0].difficulty == 1.0
    assert load("gym:chain_sum?level=0", "train")[0].difficulty == 0.0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gym:chainsum", "no generator 'chainsum': did you mean chain_sum?"),
        ("gym:chain_sum?max_term=2", "has no setting 'max_term': did you mean max_terms?"),
        ("gym:chain_sum?size=2", "has no setting 'size'"),
        ("gym:chain_sum?max_terms=two", "max_terms=two is not int"),
        ("gym:chain_sum?allow_negation=2", "allow_negation=2 is not bool"),
        ("gym:chain_sum?max_terms=1", "max_terms must be >= min_terms"),
        ("gym:chain_sum?level=99", "gym:chain_sum has levels 0 to 10"),
        ("gym:chain_sum?seed=-1", "seed=-1 is not an integer >= 0"),
        ("gym:gsm_symbolic?level=1", "gym:gsm_symbolic has no levels"),
        ("gym:word_ladder", "is not offered: the same seed gives other tasks"),
        ("gym:coin_flip", 'full marks to "0"'),
        ("gym:composite", "it mixes other generators"),
    ],
)
def test_wrong_words_are_one_clear_line(source: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(source, "train")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_there_are_three_splits() -> None:
    with pytest.raises(TaskError, match="has no split 'dev': it has train, validation, test"):
        load("gym:chain_sum", "dev")


def test_the_refused_ones_exist_and_the_others_are_offered() -> None:
    assert set(REFUSED) < set(DATASETS) and len(generators()) == len(DATASETS) - len(REFUSED) - (not has_pycosat())
    assert len(DATASETS) - len(REFUSED) == 93


def test_golds_score_full_marks() -> None:
    scores = scores_of_golds(QUICK, 5)
    assert set(scores) == set(QUICK) and all(set(found) == {1.0} for found in scores.values())


def test_split_of_is_fixed() -> None:
    """A change here would move questions between train and test of everybody's earlier runs."""
    assert [split_of(mark) for mark in ("0" * 16, "2" * 16, "c" * 16)] == ["train", "test", "test"]


@pytest.mark.slow
def test_every_generator_is_reproducible_and_scores_its_golds() -> None:
    names = generators()
    one, other = printed(names, 3, "1"), printed(names, 3, "2")
    assert [name for name, left, right in zip(names, one, other, strict=True) if left != right] == []
    assert {name: found for name, found in scores_of_golds(names, 2).items() if set(found) != {1.0}} == {}
    assert {name: paid for name in names if (paid := always_paid(name, 6))} == {}
