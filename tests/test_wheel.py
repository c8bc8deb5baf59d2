"""The wheel, outside the clone: an environment of its own, an empty directory, the small quickstart."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dev.install import CONSTRAINTS, OVERRIDES, cache_settings, uv_settings

ROOT = Path(__file__).parent.parent
UV = [sys.executable, "-m", "uv"]


def run(*words: object, directory: Path, variables: dict[str, str] | None = None) -> str:
    environment = os.environ | (variables or {})
    done = subprocess.run(
        [*map(str, words)], cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def install_wheel(directory: Path, *options: object, extras: str = "") -> Path:
    """Build the wheel and install it into a new environment: the environment's bin directory."""
    settings, variables = uv_settings(Path(sys.executable))
    variables |= cache_settings(directory)
    run(*UV, "build", "--wheel", *settings, "--out-dir", directory, ROOT, directory=directory, variables=variables)
    (wheel,) = directory.glob("*.whl")
    run(*UV, "venv", "--python", sys.executable, directory / "environment", directory=directory)
    into = ("--python", directory / "environment" / "bin" / "python")
    packages = (*UV, "pip", "install", *into, *settings, *options, f"{wheel}{extras}")
    run(*packages, directory=directory, variables=variables)
    return directory / "environment" / "bin"


def check_quickstart(binaries: Path, empty: Path) -> None:
    """The quickstart from an empty directory, by the code and with the recipes of the wheel."""
    empty.mkdir()
    where = run(binaries / "python", "-c", "import metaagentx; print(metaagentx.__file__)", directory=empty)
    assert Path(where.strip()).is_relative_to(binaries.parent)
    said = run(binaries / "metaagentx", "quickstart", "--small", directory=empty)
    assert "Report: " in said
    assert (empty / "runs" / "quickstart-small" / "run" / "report.html").is_file()
    assert Path(where.strip()).with_name("py.typed").is_file()
    words = ("solve", "What is 3 + 4?", "--run", "runs/quickstart-small/run", "--attempts", "1", "--json")
    asked = subprocess.run([binaries / "metaagentx", *words], cwd=empty, capture_output=True, text=True, check=False)
    assert asked.returncode in (0, 1), asked.stderr  # after so little training it may have no answer
    assert json.loads(asked.stdout)["usage"]["calls"] >= 1


def test_the_wheel_runs_outside_the_clone(tmp_path: Path) -> None:
    binaries = install_wheel(tmp_path, "--no-deps")
    # What it depends on comes from the environment of the tests; without the editable install, which is a .pth file.
    purelib = sysconfig.get_path("purelib", vars={"base": str(binaries.parent)})
    Path(purelib, "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    empty = tmp_path / "an empty directory"
    check_quickstart(binaries, empty)
    names = [line.split()[0] for line in run(binaries / "metaagentx", "recipes", "list", directory=empty).splitlines()]
    assert names == sorted(path.stem for path in (ROOT / "recipes").glob("*.toml"))
    run(binaries / "metaagentx", "recipes", "copy", "tiny", directory=empty)
    assert (empty / "tiny.toml").read_text() == (ROOT / "recipes" / "tiny.toml").read_text()
    words = ("recipes", "copy", "tiny")
    again = subprocess.run([binaries / "metaagentx", *words], cwd=empty, capture_output=True, check=False)
    assert again.returncode == 2 and b"tiny.toml exists already" in again.stderr


def test_the_core_alone_is_light_and_the_doctor_says_what_is_missing(tmp_path: Path) -> None:
    binaries = install_wheel(tmp_path, "--constraints", CONSTRAINTS)
    said = run(binaries / "metaagentx", "doctor", directory=tmp_path)
    for missing in ("torch is missing", "transformers is missing", "reasoning-gym is missing", "metaagentx[local]"):
        assert missing in said
    assert "needs is installed" not in said
    refused = subprocess.run(
        [binaries / "metaagentx", "quickstart", "--small"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2 and "pip install 'metaagentx[" in refused.stderr, refused.stderr
    assert refused.stderr.count("\n") == 1 and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_wheel_brings_all_it_needs(tmp_path: Path) -> None:
    (tmp_path / "overrides.txt").write_text(OVERRIDES)
    options = ("--constraints", CONSTRAINTS, "--overrides", tmp_path / "overrides.txt")
    check_quickstart(install_wheel(tmp_path, *options, extras="[local,tasks]"), tmp_path / "empty")
