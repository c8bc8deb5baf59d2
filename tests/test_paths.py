"""Paths in recipes: from where they are written, whatever the working directory, and in a run that can be moved."""

from pathlib import Path

import pytest

from metaagentx.config import load_config, load_recipe, portable, to_toml
from metaagentx.config.bundled import BUNDLED
from metaagentx.errors import MetaAgentXError

RECIPE = """
steps = 1
stages = [{ steps = 1, executor = 1e-4 }]
model.path = "student"
tasks = { train = "2*jsonl:own/tasks.jsonl?max_chars=9 + gsm8k?file=g.jsonl&max_chars=9 + gym:gcd", data_dir = "files" }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe in a directory that is not the working directory."""
    for name in ("project/student", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "my.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def test_paths_are_relative_to_the_file_they_are_written_in(project: Path) -> None:
    config = load_config(Path("../project/my.toml"))
    assert config.model.path == str(project / "student")
    assert config.tasks.data_dir == project / "files"
    assert config.tasks.train == (
        f"2*jsonl:{project}/own/tasks.jsonl?max_chars=9 + gsm8k?file={project}/g.jsonl&max_chars=9 + gym:gcd"
    )
    link = project.with_name("link.toml")
    link.symlink_to(project / "my.toml")
    assert load_config(link).model.path == str(project / "student"), "a recipe may be a link to another place"


def test_overrides_and_bundled_recipes_are_relative_to_the_working_directory(project: Path) -> None:
    here = project.with_name("elsewhere")
    settings = ["model.path=mine", 'tasks={train="jsonl:t.jsonl", data_dir="d"}']
    recipe = load_recipe(project / "my.toml", settings)
    assert recipe.config.model.path == str(here / "mine")
    assert recipe.config.tasks.train == f"jsonl:{here}/t.jsonl" and recipe.config.tasks.data_dir == here / "d"
    assert recipe.origin("model.path") == ' (model.path = "mine" in --set, from the working directory)'
    assert load_recipe(project / "my.toml").origin("model.path") == f' (model.path = "student" in {project}/my.toml)'
    assert load_config(BUNDLED / "tiny.toml").model.path == str(here / "runs/quickstart/student")
    for absolute in ("/models/x", "preset:nano"):
        kept = load_recipe(project / "my.toml", [f"model.path={absolute}"])
        assert kept.config.model.path == absolute and not kept.origin("model.path")


def test_a_run_can_be_moved_with_what_is_around_it(project: Path) -> None:
    run = project / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(portable(load_config(project / "my.toml"), Path("../project/run"))))
    written = load_recipe(run / "config.toml").written
    assert (written.model.path, written.tasks.data_dir) == ("../student", Path("../files"))
    assert written.tasks.train == "2*jsonl:../own/tasks.jsonl?max_chars=9 + gsm8k?file=../g.jsonl&max_chars=9 + gym:gcd"
    moved = project.rename(project.with_name("moved"))
    assert load_config(moved / "run" / "config.toml").model.path == str(moved / "student")
    far = portable(load_config(moved / "my.toml"), Path("runs/deep/run"))
    assert far.model.path == str(moved / "student"), "what is not around the run is absolute"
    preset = portable(load_config(moved / "my.toml", ["model.path=preset:nano"]), moved / "run")
    assert preset.model.path == "preset:nano"


def test_a_directory_that_a_mixture_cannot_hold(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = project.rename(project.with_name("a + b?"))
    with pytest.raises(MetaAgentXError, match=r"tasks\.train cannot name .*: rename the directory, without \+ \? "):
        load_config(odd / "my.toml")
    monkeypatch.chdir(odd)
    config = load_config(odd / "my.toml")
    assert config.tasks.train == "2*jsonl:own/tasks.jsonl?max_chars=9 + gsm8k?file=g.jsonl&max_chars=9 + gym:gcd"
    assert portable(config, odd / "run").tasks.train.startswith("2*jsonl:../own/tasks.jsonl?")
