"""Files: bad rows are named and lose nothing else; Parquet and shards; what is said when nothing is there."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.tasks import SOURCES, TaskError, load
from metaagentx.tasks.own import own_draft
from metaagentx.tasks.rows import JsonlRows, RowError, parse_object
from tests.tasks.files import GSM8K, made_up, write

BAD_LINES = [
    b"{",
    b"[1, 2]",
    b'"text"',
    b"\xff\xfe",
    b'{"question": "half a pair \\ud800", "answer": "#### 1"}',
    b'{"question": 5, "answer": "#### 1"}',
    b'{"question": "  ", "answer": "#### 1"}',
    b'{"answer": "#### 1"}',
    b"[" * 100_000,
    b'{"question": ' + b"9" * 5000 + b"}",
]


def test_bad_rows_are_named_by_file_and_line_and_lose_nothing_else(tmp_path: Path, caplog: Any) -> None:
    good = [json.dumps(made_up("gsm8k", number)).encode() for number in range(len(BAD_LINES) + 1)]
    lines = [line for pair in zip(good, [*BAD_LINES, b""], strict=True) for line in pair]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join(lines))
    with caplog.at_level(logging.WARNING):
        tasks = load(f"gsm8k?file={file}", "train")
    assert [task.question for task in tasks] == [made_up("gsm8k", number)["question"] for number in range(len(good))]
    assert [problem.split(": ")[0] for problem in tasks.problems] == [
        f"{file}:{2 * n + 2}" for n in range(len(BAD_LINES))
    ]
    assert f"{file}:2: not JSON" in caplog.messages[0]
    assert caplog.messages[-1] == f"left out: {len(BAD_LINES) - 5} more rows of gsm8k"


def test_blank_lines_windows_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    rows = [json.dumps(made_up("gsm8k", number)).encode() for number in (1, 2)]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + rows[0] + b"\r\n\r\n  \r\n" + rows[1])
    found = JsonlRows(tmp_path / "a.jsonl")
    assert len(found) == 2 and found.where(1).endswith("a.jsonl:4")
    assert [found[0], found[1]] == [made_up("gsm8k", 1), made_up("gsm8k", 2)]


def test_when_every_row_is_bad_it_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"question": "q"}, {"answer": "a"}])
    with pytest.raises(TaskError, match=r"none of 2 rows can be used, the first: .*rows\.jsonl:1: no field answer"):
        load(f"gsm8k?file={file}", "train")
    with pytest.raises(TaskError, match="the file is empty"):
        load(f"gsm8k?file={write(tmp_path / 'empty.jsonl', [])}", "train")


def test_the_same_question_or_id_twice_is_a_problem(tmp_path: Path) -> None:
    row = made_up("gsm8k", 1)
    file = write(tmp_path / "rows.jsonl", [row, {**row, "question": row["question"].replace(" ", "  ")}])
    assert load(f"gsm8k?file={file}", "train").problems == (f"{file}:2: the same question as {file}:1",)
    named = write(tmp_path / "named.jsonl", [made_up("codecontests", 1), made_up("codecontests", 1)])
    assert load(f"codecontests?file={named}", "train").problems == (f"{named}:2: the same id as {named}:1",)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(st.data())
@pytest.mark.parametrize("source", sorted(SOURCES))
def test_any_json_in_a_row_is_a_task_or_a_problem(source: str, data: st.DataObject) -> None:
    row = made_up(source, 700)
    known = [*SOURCES[source].fields, *SOURCES[source].optional_fields]
    changed = data.draw(st.dictionaries(st.sampled_from(known), JSON_VALUES | JSON_VALUES.map(json.dumps), max_size=3))
    try:
        draft = SOURCES[source].draft({**row, **changed})
        SOURCES[source].row_split({**row, **changed})
    except RowError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert draft.question.strip()


OWN_FIELDS = ["question", "grader", "answer", "tolerance", "unit", "tests", "entry_point", "data", "entry", "settings"]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["math", "code", "gym", "mine:grade"]),
    st.dictionaries(st.sampled_from([*OWN_FIELDS, "id", "difficulty", "license", "generator", "prompt"]), JSON_VALUES),
)
def test_any_json_in_an_own_row_is_a_task_or_a_problem(grader: str, row: dict[str, Any]) -> None:
    try:
        draft = own_draft({"question": "q", "grader": grader, **row})
    except RowError as error:
        assert str(error)
    else:
        assert draft.question.strip()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_an_object_or_a_problem(line: bytes) -> None:
    try:
        assert isinstance(parse_object(line), dict)
    except RowError as error:
        assert str(error)


def test_parquet_reads_as_json_lines_do(tmp_path: Path) -> None:
    rows = [{**made_up("codecontests", number), "time_limit": {"seconds": 9, "nanos": 0}} for number in range(5)]
    rows = [{**row, "solutions": {"language": [3], "solution": ["x"]}} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    write(tmp_path / "rows.jsonl", rows)
    parquet = load(f"codecontests?file={tmp_path / 'rows.parquet'}", "test")
    assert list(parquet) == list(load(f"codecontests?file={tmp_path / 'rows.jsonl'}", "test"))
    broken = [{**rows[0], "name": "other", "description": ""}, rows[0]]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(broken), tmp_path / "bad.parquet")
    problems = load(f"codecontests?file={tmp_path / 'bad.parquet'}", "test").problems
    assert problems == (f"{tmp_path / 'bad.parquet'}:1: description is empty",)


def test_data_directory_with_shards_and_installments(tmp_path: Path) -> None:
    for shard in range(2):
        rows = [made_up("gsm8k", 10 * shard + number) for number in range(3)]
        (tmp_path / "gsm8k").mkdir(exist_ok=True)
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, tmp_path / "gsm8k" / f"test-0000{shard}-of-00002.parquet")
    assert len(load("gsm8k", "test", tmp_path)) == 6
    write(tmp_path / "gsm8k" / "test.jsonl", [made_up("gsm8k", 1)])
    assert len(load("gsm8k", "test", tmp_path)) == 1
    for number in range(1, 7):
        stem = f"test{number}" if number > 1 else "test"
        write(tmp_path / "livecodebench" / f"{stem}.jsonl", [made_up("livecodebench", number)])
    assert len(load("livecodebench", "test", tmp_path)) == 6
    assert [task.id for task in load("livecodebench?part=v6", "test", tmp_path)] == ["livecodebench/test/p6"]
    assert len(load("livecodebench?part=v2,v3", "test", tmp_path)) == 2


def test_parquet_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text("no")
    with pytest.raises(TaskError, match="not a Parquet file"):
        load(f"gsm8k?file={tmp_path / 'rows.parquet'}", "train")
    (tmp_path / "rows.csv").write_text("no")
    with pytest.raises(TaskError, match=r"neither \.jsonl nor \.parquet"):
        load(f"gsm8k?file={tmp_path / 'rows.csv'}", "train")


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("gsm8", "train", "no source 'gsm8': did you mean gsm8k?"),
        ("gsm8k?fil=x", "train", "gsm8k has no setting 'fil': did you mean file?"),
        ("gsm8k?file", "train", "'file' is not key=value"),
        ("gsm8k?file=nowhere.jsonl", "train", "no file nowhere.jsonl"),
        ("gsm8k", "dev", "gsm8k has no split 'dev': it has train, test"),
        ("livecodebench?part=v7", "test", "livecodebench has no part 'v7'"),
        (f"{GSM8K}&max_chars=many", "train", "max_chars=many is not a number"),
        (f"{GSM8K}&special_judge=maybe", "train", "special_judge is yes or no"),
        (f"{GSM8K}&max_chars=3", "train", "none of 300 tasks is left"),
    ],
)
def test_what_cannot_be_had_is_one_clear_line(source: str, split: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(source, split)
    assert message in str(caught.value) and "\n" not in str(caught.value)


WITHOUT = "import sys; sys.modules['datasets'] = None; sys.modules['pyarrow'] = None; "
ATTEMPT = "from metaagentx.tasks import load\ntry: load('codecontests', 'train')\nexcept Exception as e: print(e)"


@pytest.mark.parametrize(("before", "hint"), [("", "the hub did not give"), (WITHOUT, "pip install 'metaagentx[hub]'")])
def test_without_network_or_datasets_the_message_says_what_to_put_where(before: str, hint: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    words = [sys.executable, "-c", f"{before}\n{ATTEMPT}"]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    (line,) = done.stdout.splitlines()
    assert "put data/codecontests/train.jsonl (or .parquet) there, with name, description, public_tests" in line
    assert hint in line
    assert not done.stderr


HUB = """
import dataclasses, sys
from metaagentx.tasks import SOURCES
from metaagentx.tasks.hub import hub_rows
from metaagentx.tasks.source import Hub
source = dataclasses.replace(SOURCES["codecontests"], hub={"train": (Hub(sys.argv[1], "", "train"),)})
(rows,) = hub_rows(source, "train", (), "")
print(len(rows), sorted(rows[1]), rows.where(1), source.draft(rows[1]).statement, sep="\\n")
"""


def test_rows_through_datasets(tmp_path: Path) -> None:
    """`datasets` takes a directory for a repository, which is the nearest to the hub that has no network."""
    rows = [{**made_up("codecontests", number), "solutions": {"language": [3]}} for number in range(3)]
    write(tmp_path / "repository" / "train.jsonl", rows)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-c", HUB, str(tmp_path / "repository")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "3",
        "['description', 'name', 'public_tests']",
        f"{tmp_path / 'repository'}/train:2",
        made_up("codecontests", 1)["description"],
    ]


def test_loading_imports_nothing_heavy() -> None:
    code = f"import sys\nfrom metaagentx.tasks import load\nload({GSM8K!r}, 'train')\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"reasoning_gym", "datasets", "pyarrow", "numpy", "sympy"} & set(done.stdout.split())
