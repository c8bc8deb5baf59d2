"""`metaagentx tasks` as a user types it."""

import os
import subprocess
import sys
from pathlib import Path

from metaagentx.tasks import SOURCES
from tests.tasks.files import CODECONTESTS, GSM8K, MBPP, made_up, write


def command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).parent / "metaagentx"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = [str(path), "tasks", *words]
    return subprocess.run(done, capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment)


def test_list_names_every_source() -> None:
    result = command("list")
    assert result.returncode == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows[1:]] == [*SOURCES, "gym:<generator>", "jsonl:<path>"]
    assert all(len(row) == 5 and all(row) for row in rows)


def test_show_prints_tasks_readably() -> None:
    result = command("show", CODECONTESTS, "-n", "2")
    assert result.returncode == 0 and not result.stderr
    assert result.stdout.startswith("codecontests (train): 40 tasks\n")
    assert result.stdout.count("\ncodecontests/train/") == 2 and result.stdout.count("5 tests, 4 s each") == 2
    assert command("show", CODECONTESTS, "-n", "2").stdout == result.stdout
    assert command("show", CODECONTESTS, "-n", "2", "--seed", "1").stdout != result.stdout


def test_show_names_bad_rows_and_keeps_terminal_codes_out(tmp_path: Path) -> None:
    rows = [{"question": "\x1b[31mred\u202e [bold]what[/bold]\x07?", "answer": "#### 1,000"}, {"question": "q"}]
    result = command("show", "gsm8k", "--data-dir", str(write(tmp_path / "gsm8k" / "train.jsonl", rows).parents[1]))
    assert result.returncode == 0
    assert "1 tasks, 1 rows left out" in result.stdout and "[31mred [bold]what[/bold]?" in result.stdout
    assert "answer: 1000" in result.stdout and "\x1b" not in result.stdout and "\u202e" not in result.stdout
    assert f"{tmp_path}/gsm8k/train.jsonl:2: no field answer" in result.stderr


def test_overlap() -> None:
    result = command("overlap", GSM8K, MBPP, "--fail")
    assert result.returncode == 0
    assert result.stdout == "0 questions are in both gsm8k (train, 300 tasks) and mbpp (train, 120 tasks)\n"
    assert command("overlap", MBPP, MBPP).returncode == 0
    same = command("overlap", MBPP, MBPP, "--fail")
    assert same.returncode == 1 and "mbpp/train/602  =  mbpp/train/602" in same.stdout


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [made_up("aime24", 1)])
    for words, message in (
        (("show", "aime24"), "put data/aime24/test.jsonl (or .parquet) there, with problem, answer"),
        (("show", f"aime24?file={file}", "--split", "train"), "aime24 has no split 'train': it is for testing only"),
        (("overlap", "gsm", "math"), "no source 'gsm': did you mean gsm8k?"),
    ):
        result = command(*words, cwd=tmp_path)
        assert result.returncode == 2 and message in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
