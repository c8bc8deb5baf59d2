"""From nothing to a trained system on a laptop: cold start, stagewise RL, evaluation, report.

Every part is finished whole before the next begins and is not done again when it is there, so the same command goes
on where it was stopped. The same seed gives the same numbers.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from .coldstart import read_rows, write_rows
from .config import Config, load_config, to_toml
from .runs import Run
from .session import Lesson, ask_teacher, teach_model, train
from .sft import SftOptions
from .teacher import ProgrammedTeacher

TASKS = 3000
"""That the teacher solves, with one design each."""
SFT = SftOptions(steps=800, rows_per_step=32, learning_rate=3e-3, warmup_steps=10, checkpoint_every=200)
PRESET = "micro"


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts are."""

    root: Path

    @property
    def rows(self) -> Path:
        """What the teacher taught."""
        return self.root / "coldstart.jsonl"

    @property
    def student(self) -> Path:
        """The model after its cold start, in Hugging Face format."""
        return self.root / "student"

    @property
    def run(self) -> Path:
        """The training run."""
        return self.root / "run"


async def cold_start(config: Config, places: Places) -> None:
    """A teacher's solved tasks, and a small new model that has learnt from them."""
    if not places.rows.exists():
        once = config.model_copy(update={"rollout": config.rollout.model_copy(update={"designs": 1, "executions": 1})})
        lesson = Lesson(TASKS, "programmed", manual=False)
        rows, _ = await ask_teacher(once, ProgrammedTeacher(), lesson, places.root / "teacher")
        write_rows(places.rows, rows)
    if not places.student.exists():
        options = replace(SFT, seed=config.seed)
        await teach_model(read_rows(places.rows), f"preset:{PRESET}", places.student, options, places.root)


async def reinforce(config: Config, places: Places) -> Run:
    """Train by the recipe, from where the run stands."""
    if (places.run / "run.json").exists():
        run = Run.resume(places.run)
        config = load_config(places.run / "config.toml")
    else:
        run = Run.create(places.run, to_toml(config))
    await train(run, config)
    return run
