"""reasoning-gym: golds score, garbage and programs do not, and only full marks are solved."""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from metaagentx.rewards import gym
from metaagentx.rewards.errors import GraderUnavailable
from metaagentx.rewards.graders import Graders
from metaagentx.tasks.gym_library import import_reasoning_gym
from metaagentx.types import FinalAnswer, Grade, GymEntry

DATA = Path(__file__).parent.parent / "data"
ROWS = [json.loads(line) for line in (DATA / "reasoning_gym_24x10_seed1234.jsonl").read_text().splitlines()]
GARBAGE = (
    "x",
    "I do not know.",
    "[]",
    "{}",
    "nan",
    "nan+nanj",
    "inf",
    "1e999",
    "None",
    "6+6+6+6",
    "?" * 200,
    "0 " * 99,
)


@pytest.fixture(scope="module")
def pool(runner: asyncio.Runner) -> Iterator[Graders]:
    pool = Graders(workers=2)
    yield pool
    runner.run(pool.__aexit__())


def entry(row: dict[str, Any]) -> GymEntry:
    return GymEntry(row["dataset"], {}, {key: row[key] for key in ("question", "answer", "metadata")})


def grade_all(runner: asyncio.Runner, pool: Graders, work: list[tuple[str, GymEntry]]) -> list[Grade]:
    async def grade_all_answers() -> list[Grade]:
        return await asyncio.gather(*(pool.grade_gym(FinalAnswer.parse(answer), task) for answer, task in work))

    return runner.run(grade_all_answers())


def of(generator: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in ROWS if row["dataset"] == generator)
    return row


def test_generators_that_compare_text_are_those_with_the_default_scorer(runner: asyncio.Runner) -> None:
    import_reasoning_gym()
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS

    scorers = {name: dataset.score_answer for name, (dataset, _) in DATASETS.items()}
    default = {name for name, scorer in scorers.items() if scorer is ProceduralDataset.score_answer}
    assert default == gym.COMPARES_TEXT
    pool = Graders(workers=2)
    golds = [entry(row) for row in ROWS if row["dataset"] in default]
    assert len(golds) > 50
    grades = grade_all(runner, pool, [(str(gold.entry["answer"]), gold) for gold in golds])
    assert set(grades) == {Grade(1.0, True)} and pool.worker_pids("gym") == []
    runner.run(pool.__aexit__())


def test_golds_score_1(runner: asyncio.Runner, pool: Graders) -> None:
    grades = grade_all(runner, pool, [(row["answer"], entry(row)) for row in ROWS])
    assert len(grades) == 240 and all(grade == Grade(1.0, True) for grade in grades)


def test_golds_as_agents_write_them(runner: asyncio.Runner, pool: Graders) -> None:
    forms = (r"Thus \boxed{%s}.", "<delivery>\n%s\n</delivery>", "<solution>%s</solution>", "<think>7</think>%s")
    rows = [row for row in ROWS if "{" not in row["answer"]][::10]
    grades = grade_all(runner, pool, [(form % row["answer"], entry(row)) for row in rows for form in forms])
    assert all(grade.solved for grade in grades)


def test_garbage_is_never_solved(runner: asyncio.Runner, pool: Graders) -> None:
    work = [(text, entry(row)) for row in ROWS[::10] for text in GARBAGE if text != row["answer"]]
    grades = grade_all(runner, pool, work)
    assert all(grade.score == 0 and not grade.solved and grade.reason for grade in grades)


def test_another_tasks_gold_is_not_solved(runner: asyncio.Runner, pool: Graders) -> None:
    other = [(after["answer"], row) for row, after in pairwise(ROWS) if row["dataset"] == after["dataset"]]
    grades = grade_all(runner, pool, [(answer, entry(row)) for answer, row in other if answer != row["answer"]])
    assert not any(grade.solved for grade in grades)


def test_puzzle24_wants_the_given_numbers(runner: asyncio.Runner, pool: Graders) -> None:
    row = of("puzzle24")
    numbers = row["metadata"]["numbers"]
    assert sorted(numbers) != [6, 6, 6, 6]
    (grade,) = grade_all(runner, pool, [("6+6+6+6", entry(row))])
    assert not grade.solved and "given numbers" in grade.reason


def test_sorted_numbers_must_be_the_given_ones(runner: asyncio.Runner, pool: Graders) -> None:
    metadata: dict[str, Any] = {"direction": "ascending", "original_numbers": ["3", "-1", "2"]}
    task = GymEntry("number_sorting", {}, {"question": "", "answer": "['-1', '2', '3']", "metadata": metadata})
    grades = grade_all(runner, pool, [(text, task) for text in ("['-1', '2', '3']", "[-1, 2, 3]", "[-1, 2, 4]")])
    assert [grade.solved for grade in grades] == [True, True, False]


def test_nan_is_no_number(runner: asyncio.Runner, pool: Graders) -> None:
    task = GymEntry(
        "complex_arithmetic", {}, {"question": "", "answer": "3.0 + 4.0i", "metadata": {"result": [3.0, 4.0]}}
    )
    grades = grade_all(
        runner, pool, [(text, task) for text in ("nan", "nan + nani", "NaN", "-inf", "3.0 + 4.0i", "3+5i")]
    )
    assert [grade.solved for grade in grades] == [False, False, False, False, True, False]


def test_an_integral_left_standing_is_no_answer(runner: asyncio.Runner, pool: Graders) -> None:
    row = of("simple_integration")
    asked = f"Integral({row['metadata']['integrand']}, {row['metadata']['variable']})"
    (grade,) = grade_all(runner, pool, [(asked, entry(row))])
    assert not grade.solved


def test_an_answer_that_is_a_program_does_nothing(runner: asyncio.Runner, pool: Graders, tmp_path: Path) -> None:
    target = tmp_path / "written"
    programs = (
        f"__import__('pathlib').Path({str(target)!r}).touch()",
        f"open({str(target)!r}, 'w')",
        f"[x for x in [open({str(target)!r}, 'w')]]",
        "(lambda: 1)()",
        "().__class__.__base__.__subclasses__()",
        f"S('open({str(target)!r}, chr(119))')",
        f"exec('open({str(target)!r}, chr(119))')",
    )
    spiral = GymEntry("spiral_matrix", {}, {"question": "", "answer": "1 2 3", "metadata": {}})
    tasks = [spiral, entry(of("simple_integration")), entry(of("countdown")), entry(of("puzzle24"))]
    grades = grade_all(runner, pool, [(program, task) for program in programs for task in tasks])
    assert not any(grade.solved for grade in grades)
    assert not target.exists()


def test_an_endless_answer_is_wrong(runner: asyncio.Runner, pool: Graders) -> None:
    grades = grade_all(runner, pool, [("9**9**9**9", entry(of("countdown")))])
    assert not grades[0].solved


def test_generators_that_pay_anything_are_refused(runner: asyncio.Runner, pool: Graders) -> None:
    task = GymEntry("game_of_life_halting", {}, {"question": "", "answer": "True", "metadata": {}})
    with pytest.raises(GraderUnavailable, match="full marks to any text"):
        runner.run(pool.grade_gym(FinalAnswer.parse("True"), task))
