"""Training never sees a row of a benchmark's test split, whatever the files are called and hold."""

from pathlib import Path

import pytest

from metaagentx.tasks import SOURCES, Mixture, TaskError, load
from tests.tasks.files import CODECONTESTS, GSM8K, HUMANEVAL, MBPP, made_up, write

TEST_ONLY = [source.name for source in SOURCES.values() if source.splits == ("test",)]
SEVERAL = [source.name for source in SOURCES.values() if len(source.splits) > 1]


def test_the_splits_are_the_published_ones() -> None:
    assert set(TEST_ONLY) == {"math500", "aime24", "aime25", "olympiadbench", "humaneval", "livecodebench"}
    assert SOURCES["mbpp"].splits == ("train", "validation", "test", "prompt")
    assert SOURCES["codecontests"].splits == ("train", "valid", "test")
    assert SOURCES["polaris"].splits == ("train",)
    assert all(SOURCES[name].splits == ("train", "test") for name in ("gsm8k", "math", "apps"))


@pytest.mark.parametrize("source", TEST_ONLY)
def test_a_test_set_cannot_be_trained_on(source: str, tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", [made_up(source, 1)])
    for address in (source, f"{source}?file={file}"):
        with pytest.raises(TaskError, match=f"{source} has no split 'train': it is for testing only"):
            load(address, "train")
        with pytest.raises(TaskError, match="for testing only"):
            Mixture(address, seed=0)


@pytest.mark.parametrize("source", SEVERAL)
def test_defect_16_training_yields_no_row_of_another_split(source: str, tmp_path: Path) -> None:
    """From the data directory: each split has its file, and rows of another one that got into it are left out."""
    start = {"train": 601, "validation": 511, "valid": 511, "test": 11, "prompt": 1}
    for split in SOURCES[source].splits:
        rows = [{**made_up(source, start[split] + number), "split": split} for number in range(5)]
        strays = [{**made_up(source, start[other] + 9), "split": other} for other in SOURCES[source].splits]
        write(tmp_path / source / f"{split}.jsonl", rows + [row for row in strays if row["split"] != split])
    questions = {split: {task.question for task in load(source, split, tmp_path)} for split in SOURCES[source].splits}
    assert all(len(found) == 5 for found in questions.values())
    assert not questions["train"].intersection(*(found for split, found in questions.items() if split != "train"))
    mixture = Mixture(source, seed=0, held_out=2, data_dir=tmp_path)
    trained = {task.question for step in range(4) for task in mixture.batch(step, 5)}
    assert trained | {task.question for task in mixture.held_out} == questions["train"]


def test_mbpp_splits_one_file_by_task_id(tmp_path: Path) -> None:
    file = write(tmp_path / "sanitized.jsonl", [made_up("mbpp", number) for number in range(1, 975)])
    found = {split: load(f"mbpp?file={file}", split) for split in SOURCES["mbpp"].splits}
    assert {split: len(tasks) for split, tasks in found.items()} == {
        "train": 374,
        "validation": 90,
        "test": 500,
        "prompt": 10,
    }
    assert {head.id for head in found["train"].heads} == {f"mbpp/train/{number}" for number in range(601, 975)}
    with pytest.raises(TaskError, match="mbpp has no row of split test: all rows are of split train"):
        load(MBPP, "test")


def test_math_rows_say_their_split_in_unique_id(tmp_path: Path) -> None:
    rows = [{**made_up("math", n), "unique_id": f"{'test' if n % 2 else 'train'}/algebra/{n}.json"} for n in range(6)]
    file = write(tmp_path / "rows.jsonl", rows)
    assert [task.id for task in load(f"math?file={file}", "train")] == [f"math/train/algebra/{n}" for n in (0, 2, 4)]


@pytest.mark.parametrize(
    ("name", "split", "fits"),
    [
        ("gsm8k_test.jsonl", "train", False),
        ("gsm8k.valid.jsonl", "train", False),
        ("test-00000-of-00001.jsonl", "train", False),
        ("gsm8k_train_300.jsonl", "test", False),
        ("TEST.jsonl", "train", False),
        ("gsm8k_train_300.jsonl", "train", True),
        ("latest.jsonl", "train", True),
        ("mine.jsonl", "test", True),
        ("train_and_test.jsonl", "train", True),
    ],
)
def test_a_file_named_for_another_split_is_refused(name: str, split: str, fits: bool, tmp_path: Path) -> None:
    file = write(tmp_path / name, [made_up("gsm8k", 1)])
    own = write(tmp_path / "own" / name, [{"question": "q", "grader": "math", "answer": "1"}])
    for address in (f"gsm8k?file={file}", f"jsonl:{own}"):
        if fits:
            assert load(address, split)[0].split == split
        else:
            with pytest.raises(TaskError, match="was requested"):
                load(address, split)


def test_a_mixture_takes_no_set_of_another_split() -> None:
    with pytest.raises(TaskError, match="humaneval is of split test, but the mixture is of split train"):
        Mixture([(load(HUMANEVAL, "test"), 1)], seed=0)


def test_the_real_training_extracts_share_no_question_with_the_real_test_set() -> None:
    tested = {head.fingerprint for head in load(HUMANEVAL, "test").heads}
    for source in (GSM8K, MBPP, CODECONTESTS):
        assert not tested & {head.fingerprint for head in load(source, "train").heads}


def test_a_set_with_a_train_split_only_is_checked_too(tmp_path: Path) -> None:
    rows = [{**made_up("polaris", 1), "split": "test"}, made_up("polaris", 2)]
    assert [t.question for t in load(f"polaris?file={write(tmp_path / 'p.jsonl', rows)}", "train")] == [
        made_up("polaris", 2)["problem"]
    ]
    with pytest.raises(TaskError, match="was requested"):
        load(f"polaris?file={write(tmp_path / 'test.jsonl', rows)}", "train")
