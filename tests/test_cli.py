"""The command line as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import metaagentx


def command(*words: str) -> subprocess.CompletedProcess[str]:
    path = Path(sys.executable).parent / "metaagentx"
    return subprocess.run([str(path), *words], capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    result = command("--help")
    assert result.returncode == 0
    assert "doctor" in result.stdout
    heavy = ("torch", "asyncio", "metaagentx.sandbox")
    probe = f"import sys, metaagentx.cli; print(*(m for m in {heavy} if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.split() == []


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
    for word in ("Python", "cores", "memory", "sandbox", "Landlock"):
        assert word in result.stdout


def test_an_unknown_command_is_one_clear_message() -> None:
    result = command("docter")
    assert result.returncode == 2
    assert "docter" in result.stderr and "Traceback" not in result.stderr
