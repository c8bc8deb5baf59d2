"""The command line as a user types it."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import metaagentx
from tests.commands import command


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    result = command("--help")
    assert result.returncode == 0
    assert "doctor" in result.stdout
    heavy = ("torch", "asyncio", "metaagentx.sandbox", "metaagentx.workflow", "pydantic", "importlib.metadata")
    probe = f"import sys, metaagentx.cli.main; print(*(m for m in {heavy} if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.split() == []


def test_help_takes_less_than_300_ms_of_processor_time() -> None:
    command("--help")  # from here on the files are cached

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The least of several: what a busy machine adds is not ours.
    assert min(seconds() for _ in range(5)) < 0.3


@pytest.mark.parametrize(("name", "page"), [("eval", "evaluation"), ("coldstart", "coldstart"), ("sft", "coldstart")])
def test_the_documentation_has_every_option(name: str, page: str) -> None:
    options = set(re.findall(r"(--[a-z-]+)", command(name, "--help").stdout)) - {"--help"}
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text("utf-8")
    assert options and options <= set(re.findall(r"`(--[a-z-]+)`", text))


def test_version() -> None:
    assert command("version").stdout.strip() == metaagentx.__version__


def test_doctor_for_machines() -> None:
    result = command("doctor", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["healthy"] is True
    assert report["sandbox"]["tier"] in ("T1", "T2")
    assert report["cores"] >= 1 and report["memory_gib"] > 0
    assert report["versions"]["metaagentx"] == metaagentx.__version__


def test_doctor_for_people() -> None:
    result = command("doctor")
    assert result.returncode == 0
    for word in (
        "Python",
        "cores",
        "memory",
        "sandbox",
        "Landlock",
        "device",
        "torch",
        "transformers",
        "reasoning-gym",
    ):
        assert word in result.stdout


def test_an_unknown_command_is_one_clear_message() -> None:
    result = command("docter")
    assert result.returncode == 2
    assert "docter" in result.stderr and "Traceback" not in result.stderr


def test_grade_says_why(tmp_path: Path) -> None:
    right = command("grade", "--kind", "math", "--gold", r"\frac{1}{2}", "--answer", "0.5")
    assert (right.returncode, right.stdout) == (0, "right, score 1\n")
    wrong = command("grade", "--kind", "math", "--gold", "336", "--answer", r"so \boxed{337}")
    assert (wrong.returncode, wrong.stdout) == (1, "wrong, score 0\n337 is not 336\n")
    (tmp_path / "solution.py").write_text("def double(n): return 2 * n\n")
    (tmp_path / "tests.json").write_text('{"entry_point": "double", "tests": [{"arguments": [21], "expected": 43}]}')
    files = ("--program", str(tmp_path / "solution.py"), "--tests", str(tmp_path / "tests.json"))
    code = command("grade", "--kind", "code", *files)
    assert (code.returncode, code.stdout) == (1, "wrong, score 0\ntest 1 of 1: returned 42, expected 43\n")


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ("[", "is not JSON"),
        ("[]", "tests is empty"),
        ("[{}]", "test 1: a test is {input, output}"),
        ('[{"arguments": [], "expected": 1}]', 'need "entry_point"'),
        ('[{"input": "", "output": ""}, {"assert": "f()"}]', "one kind"),
        ('[{"assert": ""}]', "test 1: assert is empty"),
        ('{"entrypoint": "f", "tests": [{"assert": ""}]}', "unknown field 'entrypoint': did you mean entry_point?"),
    ],
)
def test_a_bad_test_file_is_one_clear_line(tmp_path: Path, tests: str, complaint: str) -> None:
    (tmp_path / "solution.py").write_text("x = 1")
    (tmp_path / "tests.json").write_text(tests)
    files = ("--program", str(tmp_path / "solution.py"), "--tests", str(tmp_path / "tests.json"))
    result = command("grade", "--kind", "code", *files)
    assert result.returncode == 2
    assert complaint in result.stderr and "Traceback" not in result.stderr and result.stderr.count("\n") == 1
