"""From nothing to a trained system on a laptop: cold start, stagewise RL, evaluation, report.

Every part is finished whole before the next begins and is not done again when it is there, so the same command goes
on where it was stopped. The same seed gives the same numbers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .backends.presets import PRESETS
from .coldstart import read_rows, write_rows
from .config import Config, Recipe, load_recipe, portable, to_toml
from .config.bundled import is_bundled
from .config.toml import quote
from .evaluation.request import Request, evaluate_run
from .evaluation.result import Evaluation
from .preflight import check_place, prepare_tasks
from .report import write_report
from .runs import Run, command, evaluation_directory
from .runs.files import explained, held
from .runs.work import same_settings
from .session import TEACHER_ROLLOUT, Lesson, ask_teacher, run_recipe, teach_model, train
from .settings import stages_of
from .sft import SftOptions
from .teacher import FORGETS, SLIPS, ProgrammedTeacher

TAUGHT = (
    "6*gym:products?min_digits=2&max_digits=2"
    " + 6*gym:lcm?min_value=10&max_value=99"
    " + 4*gym:spell_backward?min_word_len=3&max_word_len=4"
    " + gym:number_sorting?min_numbers=3&max_numbers=3&min_decimals=0&max_decimals=0&min_value=0&max_value=9"
)
"""What the teacher solves: the recipe's families, most of those that need most to be learnt."""
PRESET = "micro"
LEARNING = SftOptions(
    steps=2000, rows_per_step=32, designer_share=0.15, learning_rate=3e-3, warmup_steps=10, checkpoint_every=200
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    taught: int = 5000
    """Tasks for the teacher."""
    sft: SftOptions = LEARNING
    tested: int = 40
    """Tasks of each family, from the test split, that nothing has seen."""


WHOLE = Size()
SMALL = Size(taught=24, sft=SftOptions(steps=6, rows_per_step=8, learning_rate=3e-3, warmup_steps=2), tested=2)
"""Every part in half a minute: shows that all of it works here, and learns nothing."""
SMALL_OVERRIDES = (
    *("steps=2", "tasks.per_step=2", "tasks.held_out=4", "evaluation.tasks=4", "evaluation.every=2"),
    "stages=[{steps=1, designer=1e-4, epochs=2}, {steps=1, executor=1e-4, epochs=2}]",
)
"""The recipe's settings at that size."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts are."""

    root: Path

    @property
    def settings(self) -> Path:
        """What all of it is made with."""
        return self.root / "settings.json"

    @property
    def rows(self) -> Path:
        """What the teacher taught."""
        return self.root / "coldstart.jsonl"

    @property
    def batches(self) -> Path:
        """The teacher's work."""
        return self.root / "teacher"

    @property
    def student(self) -> Path:
        """The model after its cold start, in Hugging Face format."""
        return self.root / "student"

    @property
    def run(self) -> Path:
        """The training run."""
        return self.root / "run"


def cold_settings(size: Size) -> dict[str, object]:
    """What a cold start is made with, besides the recipe."""
    return {"tasks": TAUGHT, "slips": SLIPS, "forgets": FORGETS, "preset": PRESETS[PRESET], "size": size}


def _settings(config: Config) -> dict[str, object]:
    """The recipe but for where the model is: the directory may be moved, and named in another way."""
    found = config.model_dump(mode="json")
    return {**found, "model": {key: value for key, value in found["model"].items() if key != "path"}}


async def cold_start(config: Config, places: Places, size: Size) -> None:
    """A teacher's solved tasks, and a small new model that has learnt from them."""
    with explained(str(places.root), "make room, and the same command goes on"):
        if not places.rows.exists():
            lesson = Lesson(size.taught, "programmed", manual=False)
            tasks = config.tasks.model_copy(update={"train": TAUGHT})
            rollout = config.rollout.model_copy(update=TEACHER_ROLLOUT)
            taught = config.model_copy(update={"tasks": tasks, "rollout": rollout})
            rows, _ = await ask_teacher(taught, ProgrammedTeacher(), lesson, places.batches)
            write_rows(places.rows, rows)
        if not places.student.exists():
            options = replace(size.sft, seed=config.seed, threads=config.model.threads)
            await teach_model(read_rows(places.rows), f"preset:{PRESET}", places.student, options, places.root)


async def reinforce(config: Config, places: Places, recipe: str) -> Run:
    """Train by the recipe of this name, from where the run stands."""
    if (places.run / "run.json").exists():
        run = Run.resume(places.run)
        config = run_recipe(run, [f"model.path={quote(config.model.path)}"]).config
    else:
        run = Run.create(places.run, to_toml(portable(config, places.run)), recipe)
    await train(run, config)
    return run


async def measure(places: Places, tested: int) -> Evaluation:
    """The run against its own beginning, fixed designs and single agents, on tasks that nothing has seen."""
    request = Request(places.run, against=places.student, split="test", limit=tested, checkpoint="last")
    return (await evaluate_run(request)).found


async def everything(
    recipe: Path, root: Path, overrides: Sequence[str], say: Callable[[str], None], size: Size = WHOLE
) -> Evaluation:
    """All parts, one after the other, and what came of them."""
    loaded = load_recipe(recipe, [*overrides, f"model.path={quote(str(Places(root).student))}"])
    check_place(root, "choose another directory with --dir")
    await prepare_tasks(loaded.config)
    with held(root):
        return await _parts(loaded, Places(root), say, size)


async def _parts(loaded: Recipe, places: Places, say: Callable[[str], None], size: Size) -> Evaluation:
    recipe, config = loaded.file, loaded.config
    settings = {**_settings(loaded.written), "cold start": cold_settings(size)}
    work = [*places.batches.glob("*.jsonl"), places.rows, places.student, places.run]
    same_settings(places.settings, settings, "--dir", work)
    began = time.monotonic()
    say("1 of 4  cold start: a programmed teacher solves tasks, and a new small model learns from it")
    await cold_start(config, places, size)
    say("2 of 4  reinforcement learning: Designer and Executor learn in turn from their own rollouts")
    run = await reinforce(config, places, recipe.stem)
    say("3 of 4  evaluation: the same unseen tasks and the same seeds for every method")
    found = await measure(places, size.tested)
    say("4 of 4  report")
    page = write_report(run.directory)
    say("")
    for line in summary(found, size.tested):
        say(line)
    say(f"Report: {page}")
    say(f"Done in {(time.monotonic() - began) / 60:.1f} minutes. Try next:")
    rates = ", ".join(f"{role}={rate:g}" for stage in stages_of(config) for role, rate in stage.learning_rates.items())
    more = evaluation_directory(run.directory, run.next_step).with_name("more")
    evaluation = ["eval", run.directory, "--split", "test", "--limit", 100, "--samples", 4, "--out", more]
    model = f"model.path={quote(str(places.student))}"
    stages = f"stages=[{{steps=1, {rates}, epochs=3}}]"
    joint = [
        "train",
        recipe.stem if is_bundled(recipe) else recipe,
        "--run",
        "runs/joint",
        "--set",
        model,
        "--set",
        stages,
    ]
    for words in (evaluation, joint):
        say(f"  {command(*words)}")
    say("  write a recipe for your own tasks: docs/tasks.md, docs/config.md")
    return found


def summary(found: Evaluation, tested: int) -> list[str]:
    """What was learnt, in a few lines."""
    lines = [f"Solved of {len(found.sets)} x {tested} unseen tasks, with 95 % intervals:"]
    for row in found.overall.rows:
        lines.append(f"  {row.method:26} {row.average:6.1%}  ({row.low:.0%} to {row.high:.0%})")
    if grid := found.overall.grid:
        start = grid["old", "old"].average
        for role, place in (("Designer", ("new", "old")), ("Executor", ("old", "new"))):
            points = f"{100 * (grid[place].average - start):+z.1f} points"
            lines.append(f"What the {role} has learnt is worth {points} with the other role as it was.")
    lines.append("The designs it writes now:")
    for name, part in found.summaries.items():
        shares = next(row.patterns for row in part.rows if row.method == found.against)
        kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in sorted(shares.items(), key=lambda kind: -kind[1]))
        lines.append(f"  {name:26} {kinds}")
    return lines
