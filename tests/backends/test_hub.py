"""Models by their name on the Hugging Face hub, from a cache as the hub lays it out, without a network."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
from metaagentx.backends.local.presets import new_model
from metaagentx.config import load_config
from metaagentx.options import is_hub_name
from metaagentx.runs import Run
from metaagentx.system.models import load_run_recipe
from tests.tiny_model import write_recipe
from tests.trainers import Mother

NAME = "acme/Nano-1.5_b"
FEW = ["rollout.designs=2", "rollout.executions=2", "tasks.per_step=1", "rollout.designer_tokens=8"]
FEW += ["run.stop_after_failed_steps=0"]
WORDS = [word for setting in FEW for word in ("--set", setting)]


def lay_out(cache: Path, model: Path, name: str = NAME) -> Path:
    """Put a model into a cache like the hub's: files are links to blobs."""
    repository = cache / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("1" * 40)
    for directory in (repository / "blobs", repository / "refs", snapshot):
        directory.mkdir(parents=True)
    (repository / "refs" / "main").write_text("1" * 40)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copyfile(file, repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    return snapshot


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("nano") / "nano"
    new_model(path, "nano")
    return path


@pytest.fixture(scope="module")
def offline(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Mother]]:
    """A cache with one model, and commands that look there."""
    cache = tmp_path_factory.mktemp("cache")
    lay_out(cache, nano)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(cache))
        patch.setenv("HF_HUB_OFFLINE", "1")
        mother = Mother(cache / "command")
    yield cache, mother
    mother.close()


def test_a_cached_model_is_trained_by_its_name(offline: tuple[Path, Mother], tmp_path: Path) -> None:
    mother = offline[1]
    recipe = write_recipe(tmp_path, NAME, steps=1, stages="{ steps = 1, executor = 1e-3 }")
    ended = mother.run(recipe, "--run", tmp_path / "run", *WORDS)
    assert ended.code == 0, ended.err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["model"]["path"] == NAME
    assert load_run_recipe(Run.open(tmp_path / "run")).config.model.path == NAME
    ended = mother.run(tmp_path / "run", "--limit", 1, "--split", "train", command="eval")
    assert ended.code == 0, ended.err
    assert "old designs" in ended.out, "the initial model is found, too"


def test_a_local_directory_wins(offline: tuple[Path, Mother], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path, NAME, steps=1, stages="{ steps = 1, executor = 1e-3 }")
    assert load_config(recipe).model.path == NAME
    (tmp_path / NAME).mkdir(parents=True)
    assert load_config(recipe).model.path == str(tmp_path / NAME)
    (tmp_path / NAME).rmdir()
    assert load_config(recipe).model.path == str(tmp_path / NAME), "a missing one beside others is a typing error"
    ended = offline[1].run(recipe, "--run", tmp_path / "run")
    assert ended.code == 2 and f"no model at {tmp_path / NAME}" in ended.err


def test_a_model_that_is_not_cached_is_told_after_all_other_errors(
    offline: tuple[Path, Mother], tmp_path: Path
) -> None:
    cache, mother = offline
    recipe = write_recipe(tmp_path, "acme/other", steps=1, stages="{ steps = 1, executor = 1e-3 }")
    ended = mother.run(recipe, "--run", tmp_path / "run", "--set", "tasks.train=gsm9k")
    assert ended.code == 2 and "no source 'gsm9k'" in ended.err
    ended = mother.run(recipe, "--run", tmp_path / "run")
    assert ended.code == 2 and ended.err == (
        f"metaagentx: no directory acme/other, it is not in the Hugging Face cache {cache}/hub, and the hub cannot be "
        "reached (HF_HUB_OFFLINE is set): with a network, run `hf download acme/other --local-dir models/other`, then "
        "set model.path to that directory\n"
    )
    assert not (tmp_path / "run").exists()


def test_an_incomplete_download_is_told(offline: tuple[Path, Mother], nano: Path, tmp_path: Path) -> None:
    (lay_out(offline[0], nano, "acme/part") / "model.safetensors").unlink()
    recipe = write_recipe(tmp_path, "acme/part", steps=1, stages="{ steps = 1, executor = 1e-3 }")
    ended = offline[1].run(recipe, "--run", tmp_path / "run")
    assert ended.code == 2
    assert "has no weights" in ended.err and "complete the download with `hf download acme/part`" in ended.err


@pytest.mark.parametrize(
    ("path", "expected"),
    [("Qwen/Qwen3-0.6B", True), ("a/b", True), ("tiny", False), ("./a/b", False), ("a/b/c", False), ("a/..", False),
     ("/a/b", False), ("a /b", False), ("a/", False), ("preset:tiny", False)],
)  # fmt: skip
def test_the_form_of_names(path: str, expected: bool) -> None:
    assert is_hub_name(path) is expected
