"""docs/paper.md against the recipes, the benchmarks and the published figures that it describes."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from metaagentx.config import load_config, load_recipe
from metaagentx.config.bundled import bundled_recipe, bundled_recipes
from metaagentx.evaluation.published import PUBLISHED, published_rows
from metaagentx.tasks.mixture import cycle_counts, parse_mixture
from metaagentx.tasks.paper import PAPER_SETS
from metaagentx.types import CodeTests
from tests.tasks.files import made_up, write

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text("utf-8")


def table(heading: str) -> list[list[str]]:
    """The last table of a section: its cells, with the head first."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[-1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def settings(name: str) -> dict[str, Any]:
    """All keys of a bundled recipe, as it is written; keys that are not set are None."""

    def flat(section: dict[str, Any], above: str = "") -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for key, value in section.items():
            nested = isinstance(value, dict) and f"{above}{key}" != "model.chat_template"
            keys |= flat(value, f"{above}{key}.") if nested else {f"{above}{key}": value}
        return keys

    return flat(load_recipe(bundled_recipe(name)).written.model_dump())


def same(cell: str, value: Any) -> bool:
    """Whether a cell of the page says what a recipe has."""
    if not cell.startswith("`"):
        return value is None if cell == "not set" else cell != ""  # words in place of a long value
    written = tomllib.loads(f"value = {cell.strip('`')}")["value"]
    if isinstance(value, list):
        unset = {"executor": None, "designer": None, "epochs": 1, "anchor": 0.0}
        return bool(value == [{**unset, **stage} for stage in written])
    return bool(written == value) and isinstance(written, type(value))


def differing(one: str, other: str) -> set[str]:
    first, second = settings(one), settings(other)
    return {key for key in first if first[key] != second[key]}


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_bundled_recipe_is_on_the_page_and_loads(name: str) -> None:
    assert f"`{name}`" in PAGE
    load_config(bundled_recipe(name))


def test_the_common_setting() -> None:
    for key, value, source in table("The common setting")[1:]:
        assert source in ("scripts", "paper and scripts")
        for recipe in ("paper_8b", "paper_4b", "paper_exact_8b", "paper_exact_4b"):
            assert same(value, settings(recipe)[key.strip("`")]), (recipe, key)
    assert differing("paper_8b", "paper_4b") == differing("paper_exact_8b", "paper_exact_4b") == {"model.path"}


@pytest.mark.parametrize("heading", ["The paper and its scripts", "The tiny recipe"])
def test_the_page_lists_exactly_the_keys_in_which_two_recipes_differ(heading: str) -> None:
    (_, first, second, _), *rows = table(heading)
    first, second = first.strip("`"), second.strip("`")
    assert {row[0].strip("`") for row in rows} == differing(first, second)
    for key, one, other, why in rows:
        assert why
        assert same(one, settings(first)[key.strip("`")]), (first, key)
        assert same(other, settings(second)[key.strip("`")]), (second, key)


def test_the_switches_exist_and_change_something() -> None:
    head, *rows = table("What no recipe reproduces")
    assert head[-1] == "switch" and len(rows) > 15
    switches = [re.match(r"`([\w.]+) = (.+?)`", row[-1]) for row in rows if row[-1] != "none"]
    assert len(switches) >= 5
    for switch in switches:
        assert switch is not None
        key, value = switch.groups()
        plain, changed = (
            load_config(bundled_recipe("paper_8b")),
            load_config(bundled_recipe("paper_8b"), [f"{key}={value}"]),
        )
        assert plain != changed, switch
        assert cycle_counts([weight for _, weight in parse_mixture(changed.tasks.train)])


def test_the_published_schedule() -> None:
    """An optimizer step per 16 samples, stages of ten steps, half of the code tasks of a step from APPS."""
    config = load_config(bundled_recipe("paper_exact_8b"))
    assert (config.optimizer.minibatch, config.optimizer.weight_decay, config.optimizer.updates_per_step) == (
        16,
        0.01,
        1,
    )
    assert [(stage.steps, stage.executor, stage.designer) for stage in config.stages] == [
        (10, 5e-6, 1e-9),
        (10, 1e-9, 5e-6),
    ]
    assert cycle_counts([weight for _, weight in parse_mixture(config.tasks.train)]) == [2, 1, 1]


@pytest.mark.parametrize(
    ("name", "shares", "tests"), [("paper_8b", [20, 14, 6], 6), ("paper_exact_8b", [20, 10, 10], 4)]
)
def test_the_training_tasks_of_five_steps(name: str, shares: list[int], tests: int, tmp_path: Path) -> None:
    """Of files with the published fields."""
    many = {"input": [f"{number}\n" for number in range(6)], "output": ["x\n"] * 6}
    cases: dict[str, dict[str, Any]] = {
        "apps": {"input_output": json.dumps({"inputs": many["input"], "outputs": many["output"]})},
        "codecontests": {"public_tests": None, "private_tests": many},
    }
    for source in ("polaris", "apps", "codecontests"):
        rows = [{**made_up(source, number), **cases.get(source, {})} for number in range(90)]
        rows.append({**made_up(source, 91), "special_judge": True})
        write(tmp_path / source / "train.jsonl", rows)
    tasks = load_config(bundled_recipe(name), [f"tasks.data_dir={tmp_path}"]).load_tasks()
    drawn = [task for step in range(5) for task in tasks.batch(step, 8)]
    found = Counter(task.source for task in drawn)
    assert [found[source] for source in ("polaris", "apps", "codecontests")] == shares
    gradings = [task.grading for task in drawn if isinstance(task.grading, CodeTests)]
    assert {len(grading.tests) for grading in gradings if not grading.special_judge} == {tests}
    if name == "paper_8b":
        assert not any(head.special_judge for part in tasks.sets for head in part.heads)


def test_the_benchmarks_and_the_published_figures_are_those_of_the_code() -> None:
    sources = re.findall(r"^\| [\w ]+ \| `([^`]+)` \|", PAGE.split("## The benchmarks")[1], re.MULTILINE)
    assert sources == list(PAPER_SETS.values())
    head, *rows = table("The benchmarks")
    assert head == ["method", *PAPER_SETS, "mean"]
    assert rows == [[row[0].removesuffix(" (published)"), *row[1:]] for row in published_rows()]
    assert [row[0] for row in rows] == list(PUBLISHED)
