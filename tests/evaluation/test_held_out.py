"""Training and the eval command measure held-out tasks with one evaluator."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from metaagentx.backends.local.build import build_policies
from metaagentx.cli.eval import evaluate_command
from metaagentx.cli.evaluation_request import RunRequest, evaluate_run
from metaagentx.config import load_config
from metaagentx.evaluation.figures import by_task, mean_over_tasks
from metaagentx.evaluation.held_out import seed_positions, training_subset
from metaagentx.rewards.graders import Graders
from metaagentx.sandbox import Sandbox
from tests.rollout_helpers import Actor, resources
from tests.tiny_model import school_once, write_recipe
from tests.training_runs import train

HELD_OUT = 9


@pytest.mark.parametrize(
    ("measured", "temperatures"),
    [
        (HELD_OUT, []),
        (4, ["rollout.designer_temperature=0.9", "evaluation.temperature=1.3", "evaluation.designer_temperature=0"]),
    ],
)
def test_the_eval_command_gives_the_figure_that_training_recorded(
    measured: int,
    temperatures: list[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    runner: asyncio.Runner,
    sandbox: Sandbox,
    graders: Graders,
) -> None:
    model = school_once(tmp_path_factory)
    recipe = write_recipe(tmp_path, model, steps=3, stages="{ steps = 1, executor = 1e-3, designer = 1e-3 }", tasks=16)
    other = tmp_path / "other.jsonl"
    rows = [{"question": f"How many squares has board {n}?", "grader": "math", "answer": "14"} for n in range(16)]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f'tasks.train="2*jsonl:{tmp_path}/tasks.jsonl + jsonl:{other}"', f"tasks.held_out={HELD_OUT}"]
    settings += ["evaluation.every=3", f"evaluation.tasks={measured}", "evaluation.samples=3", "rollout.designs=2"]
    config = load_config(recipe, settings + temperatures)
    policies = build_policies(config.model, tmp_path, config.seed, config.optimizer).policies
    shared = resources(Actor(""), Actor(""), sandbox, graders)
    run = runner.run(train(config, policies, shared, tmp_path / "run"))
    recorded = run.metrics()[-1]["evaluation/solved"]
    assert 0 < float(str(recorded)) < 1, "an extreme figure would show nothing"
    assert run.best is not None and run.best.score == recorded

    app = typer.Typer()
    app.command()(evaluate_command)
    command = [str(run.directory), "--methods", "metaagentx", "--samples", "3", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert [summary["rows"][0]["tasks"] for summary in written["sets"].values()] == [6, 3]
    if measured == HELD_OUT:
        assert written["overall"]["rows"][0]["average"] == recorded
    # The tasks that training measured have the same outcomes, whatever else is measured.
    request = RunRequest(run.directory, methods=("metaagentx",), samples=3, out=tmp_path / "out")
    outcomes = [outcome for part in runner.run(evaluate_run(request)).evaluation.outcomes.values() for outcome in part]
    held_out = config.load_tasks().held_out
    chosen = {held_out[index].id for index in training_subset(HELD_OUT, measured)}
    assert len(chosen) == measured
    tasks = {task: samples for task, samples in by_task(outcomes).items() if task in chosen}
    assert mean_over_tasks([tasks], lambda outcome: outcome.solved) == recorded
    sampled = {role: {"max_tokens": 32, "temperature": 1.0} for role in ("designer", "executor")}
    if temperatures:
        sampled["designer"]["temperature"], sampled["executor"]["temperature"] = 0.0, 1.3
    assert [header_of(tmp_path / "out")[role] for role in sampled] == [*sampled.values()]

    # An option of the command outweighs the run's temperatures.
    command[4:] = ["1", "--out", str(tmp_path / "greedy"), "--temperature", "0"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    greedy = header_of(tmp_path / "greedy")
    assert [greedy[role]["temperature"] for role in sampled] == [0.0, 0.0]


def header_of(directory: Path) -> dict[str, dict[str, float]]:
    """The settings of the outcomes of an evaluation."""
    file = sorted((directory / "outcomes").iterdir())[0]
    header: dict[str, dict[str, float]] = json.loads(file.read_text().splitlines()[0])
    return header


def test_the_tasks_that_training_measures_come_first() -> None:
    assert training_subset(9, 4) == [0, 2, 4, 6]
    assert seed_positions(9, 4) == [0, 4, 1, 5, 2, 6, 3, 7, 8]
    assert seed_positions(3, 64) == [0, 1, 2]
