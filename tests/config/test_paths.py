"""Paths in recipes: from where they are written, whatever the working directory, and in a run that can be moved."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
from metaagentx.backends.local.presets import new_model
from metaagentx.config import load_config, load_recipe, portable, to_toml
from metaagentx.config.bundled import BUNDLED
from metaagentx.errors import MetaAgentXError
from metaagentx.runs import Run
from metaagentx.system.models import load_run_recipe
from tests.trainers import Mother

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
    with pytest.raises(MetaAgentXError, match=r"a mixture cannot contain the path .*: rename it without \+ \? "):
        load_config(odd / "my.toml")
    monkeypatch.chdir(odd)
    config = load_config(odd / "my.toml")
    assert config.tasks.train == "2*jsonl:own/tasks.jsonl?max_chars=9 + gsm8k?file=g.jsonl&max_chars=9 + gym:gcd"
    assert portable(config, odd / "run").tasks.train.startswith("2*jsonl:../own/tasks.jsonl?")


# Commands


SMALL = """
steps = 1
stages = [{ steps = 1, executor = 1e-3 }]
model = { path = "student", compiled = false }
tasks = { train = "jsonl:tasks/own.jsonl", held_out = 2, per_step = 1 }
rollout = { designs = 2, executions = 1, designer_tokens = 6, executor_tokens = 6, calls = 4 }
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with all that it names beside it: model, tasks and their grader."""
    home = tmp_path_factory.mktemp("home") / "project"
    (home / "tasks").mkdir(parents=True)
    new_model(home / "student", "nano")
    (home / "recipe.toml").write_text(SMALL)
    rows = [{"question": f"Rain {n}?", "grader": "rain:check", "data": n} for n in range(6)]
    (home / "tasks" / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "tasks" / "rain.py").write_text("def check(answer, data):\n    return 0.5\n")
    return home


def test_a_run_is_trained_moved_forked_resumed_evaluated_and_reported_from_anywhere(home: Path, mother: Mother) -> None:
    def do(command: str, *words: object) -> None:
        ended = mother.run(*words, command=command, cwd=elsewhere)
        assert ended.code == 0, ended.err

    elsewhere = home.with_name("elsewhere")
    elsewhere.mkdir()
    do("train", "../project/recipe.toml", "--run", "../project/run")
    moved = home.rename(home.with_name("moved"))
    do("train", "--fork", "../moved/run@1", "--run", "fork", "--set", "steps=2")
    assert f'path = "{moved / "student"}"' in (elsewhere / "fork" / "config.toml").read_text()
    shutil.rmtree(elsewhere / "fork" / "checkpoints" / "000002")
    do("train", "--resume", "fork")
    assert Run.open(elsewhere / "fork").next_step == 2
    for _ in range(2):
        do("eval", moved / "run", "--methods", "metaagentx,cold-start")
        measured = json.loads((moved / "run" / "evaluation" / "000001" / "evaluation.json").read_text())
        assert list(measured["sets"]) == ["jsonl:own.jsonl"]
        moved = moved.rename(moved.with_name("again"))  # what was measured stays valid
    do("report", moved / "run")
    shutil.move(moved / "run", elsewhere / "alone")
    (moved / "student").rename(moved / "gone")
    ended = mother.run("alone", "--methods", "cold-start", command="eval", cwd=elsewhere)
    assert "cold start needs the initial model: name its directory with --initial-model" in ended.err
    fork = mother.run("--fork", "alone@1", "--run", "new", "--set", "steps=2", cwd=elsewhere)
    assert re.search(
        rf'no model at {elsewhere}/student \(model\.path = "\.\./student" in alone/config\.toml\): ', fork.err
    )
    assert not (elsewhere / "new").exists()


def test_a_run_of_an_older_version_is_found_from_its_working_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = home.with_name("older")
    (place / "models" / "student").mkdir(parents=True)
    monkeypatch.chdir(place)
    run = Run.create(Path("runs/old"), SMALL.replace('"student"', '"models/student"'))
    assert load_run_recipe(run).config.model.path == str(place / "models/student")
    run = Run.create(Path("runs/one"), SMALL.replace('"student"', '"../student"'))
    (place / "runs" / "student").mkdir()
    alone = (place / "runs" / "one").rename(place / "archived")
    assert load_run_recipe(Run.open(alone)).config.model.path == str(place / "runs/student"), "from where it was made"


def test_a_run_that_is_moved_while_the_model_loads_is_one_line(home: Path, mother: Mother) -> None:
    place = home.with_name("vanishing")
    place.mkdir()
    words = ["--set", "model.path='preset:nano'", "--set", "tasks.train='gym:gcd'", "--set", "steps=1000"]
    (place / "recipe.toml").write_text(SMALL)
    trainer = mother.start("recipe.toml", "--run", "run", *words, cwd=place)
    end = time.monotonic() + 60
    while not any((place / "run").glob(".model.*")) and not (place / "run" / "model").exists():
        assert time.monotonic() < end, "it never began"
        time.sleep(0.001)
    (place / "run").rename(place / "moved")
    ended = mother.wait()
    assert trainer and ended.code == 2
    assert re.fullmatch(
        r"metaagentx: run was moved or removed while it was in use: put it back and resume with: "
        r"\S*metaagentx train --resume run, or resume it where it is now",
        ended.err.splitlines()[-1],
    )
    assert "Traceback" not in ended.err and not (place / "run").exists()
