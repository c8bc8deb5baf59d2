"""The parts of the quickstart, from nothing to a trained system: cold start, stagewise RL, evaluation, report.

Each part is complete before the next one starts, and a part that is complete is not repeated, so the same command
resumes where it stopped. The same seed gives the same numbers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from ..atomic import exclusive_lock, friendly_io_errors
from ..backends.model_files import SMOLLM2, find_smollm2
from ..backends.presets import PRESETS
from ..coldstart.collect import TEACHER_ROLLOUT, CollectOptions
from ..coldstart.demonstrations import read_rows, write_rows
from ..coldstart.programmed_teacher import ERROR_RATE, READING_ERROR_RATE, TOOL_SKIP_RATE
from ..coldstart.sft import SftOptions, run_sft, sft_hyperparameters
from ..coldstart.teachers import PROGRAMMED, VARIED, Teacher
from ..coldstart.varied_teacher import RATES
from ..config import Config, Recipe, load_recipe, portable, to_toml
from ..config.bundled import is_bundled
from ..config.toml import quote
from ..evaluation.designs import FIXED_DESIGNS, LIBRARY
from ..evaluation.figures import design_figures, interval
from ..evaluation.result import Evaluation
from ..evaluation.routers import HINDSIGHT, ROUTER, route
from ..options import PRESET
from ..runs import Run, command, evaluation_directory
from ..runs.work import check_same_settings
from ..system.models import load_run_recipe
from ..viewer import write_report
from .assembly import collect_from_teacher, train_run
from .evaluation_request import RunRequest, evaluate_run
from .preflight import RESUME_HINT, check_output_directory, prepare_tasks

TEACHER_MIXTURE = (
    "gym:products?min_digits=2&max_digits=2"
    " + gym:lcm?min_value=10&max_value=99"
    " + gym:chain_sum?min_terms=3&max_terms=3&min_digits=2&max_digits=2"
    " + 2*gym:rotate_matrix?min_n=2&max_n=2&min_rotations=1&max_rotations=2"
    " + gym:aiw"
)
"""What the teacher solves: the recipe's families, with more tasks of the harder ones."""
STUDENT_PRESET = "micro"
TINY = "tiny"
"""The recipe of the quickstart with a new small model."""


@dataclass(frozen=True, slots=True)
class QuickstartSize:
    """How much of everything."""

    teacher_tasks: int
    test_tasks: int
    """Tasks of each family from the test split, which no part has seen."""
    sft: SftOptions
    model: str = f"{PRESET}{STUDENT_PRESET}"
    """What the student is made from: a preset of a new model, or SmolLM2."""
    teacher: str = PROGRAMMED
    mixture: str = TEACHER_MIXTURE
    """What the teacher solves; empty: the recipe's training tasks."""
    designs: Mapping[str, str] = field(default_factory=lambda: LIBRARY)
    """The fixed designs that the trained system is measured against."""


FULL_SIZE = QuickstartSize(
    teacher_tasks=7000,
    test_tasks=40,
    sft=SftOptions(
        steps=1500,
        rows_per_step=32,
        designer_share=0.15,
        learning_rate=3e-3,
        method="muon",
        warmup_steps=10,
        checkpoint_every=200,
    ),
)
SMALL = QuickstartSize(
    teacher_tasks=24, test_tasks=2, sft=SftOptions(steps=6, rows_per_step=8, learning_rate=3e-3, warmup_steps=2)
)
"""Every part in half a minute: shows that everything works here, and learns nothing."""
SMALL_OVERRIDES = (
    *("steps=2", "tasks.per_step=2", "tasks.held_out=4", "evaluation.tasks=4", "evaluation.every=2"),
    "stages=[{steps=1, designer=1e-4, epochs=2}, {steps=1, executor=1e-4, epochs=2}]",
)
"""Overrides of the recipe for `SMALL`."""
SMOLLM2_SIZE = QuickstartSize(
    teacher_tasks=1500,
    test_tasks=40,
    sft=SftOptions(
        steps=120,
        rows_per_step=8,
        designer_share=0.45,
        learning_rate=1e-3,
        warmup_steps=5,
        checkpoint_every=10,
        lora_rank=16,
        join_turns=True,
    ),
    model=SMOLLM2,
    teacher=VARIED,
    mixture="",
    designs={name: FIXED_DESIGNS[name] for name in ("single", "tool")},
)
SMOLLM2_SMALL = replace(
    SMOLLM2_SIZE, teacher_tasks=24, test_tasks=2, sft=replace(SMOLLM2_SIZE.sft, steps=2, rows_per_step=4)
)
"""As `SMALL`, with the pretrained model: a few minutes."""


def quickstart_size(recipe: Path, small: bool) -> QuickstartSize:
    """Return the sizes of the quickstart with a recipe; one of another name has those of `tiny`."""
    if recipe.stem == SMOLLM2:
        return SMOLLM2_SMALL if small else SMOLLM2_SIZE
    return SMALL if small else FULL_SIZE


def size_notes(recipe: Path, size: QuickstartSize) -> list[str]:
    """Return which sizes and model a recipe has that is not one of the two that come with sizes."""
    if is_bundled(recipe) and recipe.stem in (TINY, SMOLLM2):
        return []
    like, model, other = TINY, f"a new model {size.model}", f"SmolLM2-135M-Instruct is for a recipe {SMOLLM2}.toml"
    if size.model == SMOLLM2:
        like, model, other = SMOLLM2, "SmolLM2-135M-Instruct", "a new small model is for a recipe of any other name"
    return [f"{recipe.name}: cold start and evaluation as for {like}, from {model}; {other}"]


class QuickstartPaths:
    """The files and directories of the parts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = root / "settings.json"
        self.batches = root / "teacher"
        self.rows = root / "coldstart.jsonl"
        self.student = root / "student"
        """The model after its cold start, in Hugging Face format."""
        self.run = root / "run"
        self.model = root / "model"
        """The model before its cold start, if it is a pretrained one."""


def cold_start_settings(size: QuickstartSize) -> dict[str, object]:
    """Return what a cold start depends on, besides the recipe."""
    made_from: dict[str, object] = {"model": size.model, "teacher": size.teacher, "rates": RATES}
    if size.model.startswith(PRESET):
        preset = PRESETS[size.model.removeprefix(PRESET)]
        made_from = {"slips": ERROR_RATE, "misreads": READING_ERROR_RATE, "forgets": TOOL_SKIP_RATE, "preset": preset}
    return {
        "tasks": size.mixture,
        **made_from,
        "size": {"taught": size.teacher_tasks, "sft": sft_hyperparameters(size.sft), "tested": size.test_tasks},
    }


async def cold_start(config: Config, paths: QuickstartPaths, size: QuickstartSize) -> None:
    """Collect demonstrations of a programmed teacher, and fine-tune a new small model or SmolLM2 on them."""
    with friendly_io_errors(str(paths.root), RESUME_HINT):
        if not paths.rows.exists():
            mixture = size.mixture or config.tasks.train
            options = CollectOptions(
                tasks=mixture, seed=config.seed, count=size.teacher_tasks, teacher=size.teacher, manual=False
            )
            tasks = config.tasks.model_copy(update={"train": mixture})
            rollout = config.rollout.model_copy(update=TEACHER_ROLLOUT)
            teacher_config = config.model_copy(update={"tasks": tasks, "rollout": rollout})
            async with Teacher(size.teacher).open() as teacher:
                rows, _ = await collect_from_teacher(teacher_config, teacher, options, paths.batches)
            write_rows(paths.rows, rows)
        if not paths.student.exists():
            model = config.model
            sft = replace(size.sft, seed=config.seed, threads=model.threads, dtype=model.dtype)
            origin = size.model
            if origin == SMOLLM2:
                from ..backends.local.gguf import get_smollm2

                get_smollm2(paths.model)
                origin = str(paths.model)
            await run_sft(read_rows(paths.rows), origin, paths.student, sft, paths.root)


async def reinforce(config: Config, paths: QuickstartPaths, recipe: str) -> Run:
    """Train with the recipe of this name, from where the run stands."""
    if (paths.run / "run.json").exists():
        run = Run.resume(paths.run)
        config = load_run_recipe(run, [f"model.path={quote(config.model.path)}"]).config
    else:
        run = Run.create(paths.run, to_toml(portable(config, paths.run)), recipe)
    await train_run(run, config)
    return run


async def evaluate_quickstart(paths: QuickstartPaths, size: QuickstartSize) -> Evaluation:
    """Evaluate the run, the cold start, fixed designs and single agents on tasks that no part has seen."""
    request = RunRequest(
        paths.run,
        initial_model=paths.student,
        designs=size.designs,
        split="test",
        limit=size.test_tasks,
        checkpoint="last",
    )
    return (await evaluate_run(request)).evaluation


async def run_quickstart(
    recipe: Path, root: Path, overrides: Sequence[str], echo: Callable[[str], None], size: QuickstartSize = FULL_SIZE
) -> Evaluation:
    """Run all parts and return the evaluation; `echo` prints a line."""
    paths = QuickstartPaths(root)
    loaded = load_recipe(recipe, [*overrides, f"model.path={quote(str(paths.student))}"])
    check_output_directory(root, "choose another directory with --dir")
    if size.model == SMOLLM2 and not paths.student.exists():
        find_smollm2()  # an error now, if its package is not installed
    await prepare_tasks(loaded.config)
    with exclusive_lock(root):
        return await _run_parts(loaded, paths, echo, size)


async def _run_parts(
    loaded: Recipe, paths: QuickstartPaths, echo: Callable[[str], None], size: QuickstartSize
) -> Evaluation:
    recipe, config = loaded.file, loaded.config
    # The model's path is left out: the directory may be moved, or given by another path.
    written = loaded.written.model_dump(mode="json", exclude={"model": {"path"}})
    done = [*paths.batches.glob("*.jsonl"), paths.rows, paths.student, paths.run]
    check_same_settings(paths.settings, {**written, "cold start": cold_start_settings(size)}, "--dir", done)
    start = time.monotonic()
    for line in size_notes(recipe, size):
        echo(line)
    student = "a new small model" if size.model.startswith(PRESET) else size.model
    echo(f"1 of 4  cold start: a programmed teacher solves tasks, and {student} is fine-tuned on them")
    await cold_start(config, paths, size)
    echo("2 of 4  reinforcement learning: Designer and Executor learn in turn from their own rollouts")
    run = await reinforce(config, paths, recipe.stem)
    echo("3 of 4  evaluation: every method on the same unseen tasks with the same seeds")
    evaluation = await evaluate_quickstart(paths, size)
    echo("4 of 4  report")
    report = write_report(run.directory)
    echo("")
    for line in summarize(evaluation, size.test_tasks):
        echo(line)
    echo(f"Report: {report}")
    echo(f"Done in {(time.monotonic() - start) / 60:.1f} minutes. Try next:")
    rates = ", ".join(f"{role}={rate:g}" for stage in config.stages for role, rate in stage.learning_rates.items())
    more = evaluation_directory(run.directory, run.next_step).with_name("more")
    echo(f"  {command('eval', run.directory, '--split', 'test', '--limit', 100, '--samples', 4, '--out', more)}")
    overrides = (f"model.path={quote(str(paths.student))}", f"stages=[{{steps=1, {rates}, epochs=3}}]")
    name = recipe.stem if is_bundled(recipe) else recipe
    sets = [word for override in overrides for word in ("--set", override)]
    echo(f"  {command('train', name, '--run', 'runs/joint', *sets)}")
    echo("  write a recipe for your own tasks: docs/tasks.md, docs/config.md")
    return evaluation


def summarize(evaluation: Evaluation, test_tasks: int) -> list[str]:
    """Return the results in a few lines: what each method solves, what each role gained, which designs are written."""
    lines = [f"Share of {len(evaluation.sets)} x {test_tasks} unseen tasks solved, with 95 % intervals:"]
    for row in evaluation.overall.rows:
        lines.append(_share_line(row.method, row.average, row.low, row.high))
    lines += _router_lines(evaluation)
    if grid := evaluation.overall.grid:
        start = grid["old designs"]["old executor"].average
        for role, cell, other in (
            ("Designer", grid["new designs"]["old executor"], "Executor"),
            ("Executor", grid["old designs"]["new executor"], "Designer"),
        ):
            points = f"{100 * (cell.average - start):+z.1f} points"
            lines.append(f"What the {role} has learned is worth {points} with the initial {other}.")
    lines.append("The designs it writes now:")
    for name, part in evaluation.sets.items():
        shares = next(row.patterns for row in part.rows if row.method == evaluation.against)
        kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in sorted(shares.items(), key=lambda kind: -kind[1]))
        lines.append(f"  {name:26} {kinds}")
    trained = [outcome for name in evaluation.sets for outcome in evaluation.outcomes[evaluation.against, name]]
    if figures := design_figures(trained):
        invalid, scripts = f"{figures.invalid:.1%}", f"{figures.scripts} different scripts"
        lines.append(f"Of these {figures.designs} designs {invalid} cannot run; the others are {scripts}.")
    return lines


def _router_lines(evaluation: Evaluation) -> list[str]:
    """Return what the routers over the fixed designs solve."""
    routed = [
        route({method: evaluation.outcomes[method, name] for method in evaluation.methods}) for name in evaluation.sets
    ]
    if not all(routed):
        return []
    lines = []
    for router in (ROUTER, HINDSIGHT):
        strata = [by_router[router] for by_router in routed]
        lines.append(_share_line(router, fmean(map(fmean, strata)), *interval(strata)))
    lines.append(f"{ROUTER}: the fixed design that is best on one half of the tasks of a family, on the other half.")
    lines.append("In hindsight: the one that is best on these same tasks, an upper bound.")
    return lines


def _share_line(name: str, average: float, low: float, high: float) -> str:
    return f"  {name:26} {average:6.1%}  ({low:.0%} to {high:.0%})"
