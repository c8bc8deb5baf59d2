"""Work is resumed with the settings that it was started with, or not at all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaagentx.errors import MetaAgentXError
from metaagentx.runs.work import check_same_settings


@dataclass
class Size:
    tasks: int


def begin(directory: Path, settings: Mapping[str, object]) -> Path:
    """A directory with some work in it."""
    file = directory / "made" / "settings.json"
    check_same_settings(file, settings, "--out", [])
    (file.parent / "work").touch()
    return file


def refusal(file: Path, settings: Mapping[str, object]) -> str:
    with pytest.raises(MetaAgentXError) as caught:
        check_same_settings(file, settings, "--out", [file.parent / "nothing", file.parent / "work"])
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{file.parent} was made ")


LONG = "6*gym:products?min_digits=2&max_digits=2 + 6*gym:lcm?min_value=10&max_value={} + gym:spell_backward"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({"seed": 0}, {"seed": 1}, "with seed = 0, now 1: use the same or another --out"),
        ({"teacher": "a"}, {"teacher": None}, 'with teacher = "a", now null: use'),
        ({"rollout": {"calls": 1, "x": 2}}, {"rollout": {"calls": 3, "x": 2}}, "with rollout.calls = 1, now 3: use"),
        ({"stages": [{"steps": 1}]}, {"stages": [{"steps": 2}]}, "with stages.0.steps = 1, now 2: use"),
        ({"loggers": []}, {"loggers": ["wandb"]}, 'with loggers = [], now ["wandb"]: use'),
        ({"size": Size(1)}, {"size": Size(2)}, "with size.tasks = 1, now 2: use"),
        ({"body": {}}, {"body": {"top_p": 0.9}}, "without body.top_p, now 0.9 (and 1 more): use"),
        ({"a": 1, "b": 2}, {"b": 3}, "with b = 2, now 3 (and 1 more): use"),
        ({"a": 1, "b": 2}, {"b": 2}, "with a = 1, now without: use"),
        ({"rate": 1e-5}, {"rate": 3e-5}, "with rate = 1e-05, now 3e-05: use"),
        (
            {"tasks": LONG.format(99)},
            {"tasks": LONG.format(98)},
            'with tasks = ...value=10&max_value=99 + gym:spell_backward", now ...value=10&max_value=98 + gym:spell_bac',
        ),
    ],
)
def test_what_differs_is_named_with_both_values(
    old: Mapping[str, object], new: Mapping[str, object], words: str, tmp_path: Path
) -> None:
    file = begin(tmp_path, old)
    before = file.read_bytes()
    assert refusal(file, new).startswith(words)
    assert file.read_bytes() == before
    check_same_settings(file, old, "--out", [file.parent / "work"])


def test_settings_may_change_until_there_is_work(tmp_path: Path) -> None:
    """A wrong address or key is corrected in the same directory."""
    file = tmp_path / "settings.json"
    for seed in (0, 1):
        check_same_settings(file, {"seed": seed}, "--out", [tmp_path / "work"])
    assert json.loads(file.read_text()) == {"seed": 1}


def test_work_that_nothing_is_known_of_is_refused(tmp_path: Path) -> None:
    file = begin(tmp_path, {"seed": 0})
    file.unlink()
    assert refusal(file, {"seed": 0}) == (
        f"{file.parent} holds work, and nothing says which settings it was made with: use another --out, or remove it"
    )


@pytest.mark.parametrize("lie", ["", "[", "[]", "[" * 100_000, "\udcff"])
def test_damaged_settings_are_one_line(lie: str, tmp_path: Path) -> None:
    file = begin(tmp_path, {"seed": 0})
    file.write_bytes(lie.encode(errors="surrogateescape"))
    assert refusal(file, {"seed": 0}) == f"{file} is damaged: remove {file.parent}, or use another --out"
