"""What `make` does to set up the environment, and what holds on a slim machine: no compiler, no bytecode."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev.install import ROOT, cache_settings, translate, uv_settings
from tests.commands import command


def test_pip_settings_reach_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From pip's own files and variables, read by pip itself; the more particular one wins."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "ALL_PROXY", "UV_HTTP_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a.invalid/simple\ntimeout = 33\n"
        "extra-index-url = https://b.invalid/simple\n    https://c.invalid/simple\n"
        "[install]\ntrusted-host = b.invalid\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path}/one {tmp_path}/two")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mine.invalid/simple")
    monkeypatch.setenv("PIP_CERT", f"{tmp_path}/ca.pem")
    options, variables = uv_settings(Path(sys.executable))
    pairs = set(itertools.pairwise(options))
    assert {
        ("--default-index", "https://mine.invalid/simple"),
        ("--index", "https://b.invalid/simple"),
        ("--index", "https://c.invalid/simple"),
        ("--index-strategy", "unsafe-best-match"),
        ("--find-links", f"{tmp_path}/one"),
        ("--find-links", f"{tmp_path}/two"),
        ("--allow-insecure-host", "b.invalid"),
    } <= pairs
    assert "https://a.invalid/simple" not in options
    assert variables == {"SSL_CERT_FILE": f"{tmp_path}/ca.pem", "UV_HTTP_TIMEOUT": "33"}


def test_no_pip_settings_are_no_options() -> None:
    assert translate("") == ([], {})
    assert translate("global.disable-pip-version-check='1'\n") == ([], {})


def test_without_a_writable_home_nothing_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("UV_CACHE_DIR", "UV_NO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_settings(tmp_path) == {"UV_NO_CACHE": "1"}


def test_make_finds_no_python_that_is_too_old(tmp_path: Path) -> None:
    """One line, exit code 2, and no environment."""
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "install.py").touch()
    (tmp_path / "old").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old").chmod(0o755)
    made = subprocess.run(
        ["make", "-C", tmp_path, "quickstart", "PYTHON=./old"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 2 and "needs Python 3.11 or newer" in made.stdout
    assert not (tmp_path / ".venv").exists()


WITHOUT_PYCOSAT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "pycosat":
            raise ModuleNotFoundError(name)

import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "pycosat" else real(name, package)
sys.meta_path.insert(0, Absent())
from metaagentx.cli.main import main
sys.argv = ["metaagentx", "tasks", "show", sys.argv[1], "-n", "1"]
main()
"""


def show_without_pycosat(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PYCOSAT, source], capture_output=True, text=True, timeout=60, check=False
    )


def test_generated_tasks_need_no_compiler() -> None:
    """pycosat has no wheel: without it one generator says what it lacks, and all others work."""
    done = show_without_pycosat("gym:chain_sum")
    assert done.returncode == 0, done.stderr
    lacking = show_without_pycosat("gym:zebra_puzzles")
    assert (lacking.returncode, lacking.stderr.count("\n")) == (2, 1)
    assert "gym:zebra_puzzles needs pycosat" in lacking.stderr and "C compiler" in lacking.stderr


def test_warnings_of_libraries_do_not_end_the_tests(tmp_path: Path) -> None:
    """A dependency that is compiled anew warns about its own syntax; only warnings of our own code are errors."""
    (tmp_path / "library.py").write_text('PATTERN = "\\d"\n')
    (tmp_path / "test_it.py").write_text("import library\ndef test_it(): assert library.PATTERN\n")
    words = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", ".", "."]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_version_is_an_option() -> None:
    import metaagentx

    assert command("--version").stdout.strip() == metaagentx.__version__
