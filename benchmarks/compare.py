"""Variants of the algorithm from the same cold starts: python -m benchmarks.compare [--help].

For each seed one cold start (the quickstart's), and from it recipes/tiny.toml as it stands, with all methods of the
quickstart's evaluation; then the variants, all with the same number of steps and of executions a step, and what their
last checkpoints solve of the same unseen tasks, 40 of each family. The same command resumes after a stop. Writes
results.md and curves.svg; `--write docs` puts the tables into docs/results.md and the curves into docs/results.svg.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.drawing import share_charts
from metaagentx.atomic import atomic_write
from metaagentx.cli.quickstart_parts import FULL_SIZE, cold_start_settings
from metaagentx.config import load_config, load_recipe
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation.designs import LIBRARY
from metaagentx.runs.work import check_same_settings

RECIPE = Path("recipes/tiny.toml")
TASKS = 40
DRAWS = 1000
STEPS = 36
"""Of a variant. The recipe has more."""
WHOLE_RECIPE, COLD = "the recipe", "cold start"
MARKS = ("<!-- compared -->\n", "<!-- end -->")


def variants() -> dict[str, list[str]]:
    """What each changes in the recipe, at the recipe's own rates and epochs; joint, at the Executor's epochs."""
    stages = load_config(RECIPE).stages
    executor = next(stage for stage in stages if stage.executor is not None)
    designer = next(stage for stage in stages if stage.designer is not None)
    executors, designers = f"executor={executor.executor}", f"designer={designer.designer}"
    executor_stage = f"{{steps=1, {executors}, epochs={executor.epochs}}}"
    designer_stage = f"{{steps=1, {designers}, epochs={designer.epochs}}}"
    changed = {
        "stagewise": [],
        "joint": [f"stages=[{{steps=1, {executors}, {designers}, epochs={executor.epochs}}}]"],
        "one-step alternation": [f"stages=[{designer_stage}, {executor_stage}]"],
        "executor only": [f"stages=[{executor_stage}]"],
        "designer only": [f"stages=[{designer_stage}]"],
        "6 designs x 2": ["rollout.designs=6", "rollout.executions=2"],
        "12 designs x 1": ["rollout.designs=12", "rollout.executions=1", 'credit.executor_peers="task"'],
        "executor peers: task": ['credit.executor_peers="task"'],
        "separate weights": ['model.sharing="separate"'],
    }
    return {WHOLE_RECIPE: []} | {name: [*changes, f"steps={STEPS}"] for name, changes in changed.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """What one method solved, from one seed."""

    variant: str
    seed: int
    method: str
    solved: Mapping[str, Sequence[float]]
    """By family and task, in one order of the tasks for all."""

    @property
    def mean(self) -> float:
        """Over families."""
        return fmean(map(fmean, self.solved.values()))


async def one(name: str, seed: int, root: Path) -> None:
    """Train and test one variant, or only make the cold start."""
    from metaagentx.cli.assembly import train_run
    from metaagentx.cli.evaluation_request import RunRequest, evaluate_run
    from metaagentx.cli.quickstart_parts import QuickstartPaths, cold_start
    from metaagentx.config import portable, to_toml
    from metaagentx.runs import Run

    paths = QuickstartPaths(root / f"seed-{seed}")
    changes = [] if name == COLD else variants()[name]
    config = load_config(RECIPE, [*changes, f"seed={seed}", f'model.path="{paths.student}"', "evaluation.every=0"])
    if name == COLD:
        await cold_start(config, paths, FULL_SIZE)
        return
    directory = paths.root / _file(name)
    text = to_toml(portable(config, directory))
    run = Run.resume(directory) if (directory / "run.json").exists() else Run.create(directory, text)
    await train_run(run, config)
    methods = () if name == WHOLE_RECIPE else ("metaagentx",)
    request = RunRequest(
        directory,
        paths.student,
        designs=LIBRARY,
        split="test",
        limit=TASKS,
        methods=methods,
        out=directory,
        checkpoint="last",
    )
    found = (await evaluate_run(request)).evaluation

    def solved(method: str, part: str) -> list[float]:
        outcomes = sorted(found.outcomes[method, part], key=lambda outcome: outcome.task)
        if not all(outcome.judged for outcome in outcomes):
            raise MetaAgentXError(f"infrastructure faults hit {method} on {part}: run the same command to retry them")
        return [float(outcome.solved) for outcome in outcomes]

    results = [
        {"variant": name, "seed": seed, "method": method, "solved": {p: solved(method, p) for p in found.sets}}
        for method in found.methods
    ]
    _write(_result_file(root, name, seed), json.dumps(results))


def _file(name: str) -> str:
    return name.replace(" ", "-").replace(":", "")


def _result_file(root: Path, name: str, seed: int) -> Path:
    return root / "results" / f"{seed}-{_file(name)}.json"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


async def every(names: Sequence[str], seeds: int, jobs: int, root: Path) -> list[str]:
    """All of them, a few at a time, each in a process of its own. What failed."""
    at_once = asyncio.Semaphore(jobs)
    failed: list[str] = []
    (root / "logs").mkdir(parents=True, exist_ok=True)

    async def run(name: str, seed: int, made: Path) -> None:
        if made.exists():
            return
        async with at_once:
            print(f"seed {seed}: {name}", flush=True)
            command = [sys.executable, "-m", "benchmarks.compare", "--dir", str(root), "--one", name, str(seed)]
            log = root / "logs" / f"{seed}-{_file(name)}.txt"
            with log.open("a") as file:
                process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=subprocess.STDOUT)
                if await process.wait():
                    failed.append(f"seed {seed}: {name} failed, see {log}")

    await asyncio.gather(*(run(COLD, seed, root / f"seed-{seed}" / "student") for seed in range(seeds)))
    if not failed:
        kinds = [(name, seed) for name in names for seed in range(seeds)]
        await asyncio.gather(*(run(name, seed, _result_file(root, name, seed)) for name, seed in kinds))
    return failed


def read_results(root: Path, seeds: int) -> list[Result]:
    """What there is of these seeds."""
    files = [_result_file(root, name, seed) for name in variants() for seed in range(seeds)]
    return [Result(**row) for file in files if file.exists() for row in json.loads(file.read_text())]


def tables(found: Sequence[Result]) -> str:
    """The methods of the recipe as it stands, then the variants."""
    whole = [result for result in found if result.variant == WHOLE_RECIPE]
    names = dict.fromkeys(result.method for result in whole)
    methods = {name: [result for result in whole if result.method == name] for name in names}
    trained = {name: [r for r in found if r.variant == name and r.method == "metaagentx"] for name in variants()}
    trained.pop(WHOLE_RECIPE)
    text = f"The recipe as it stands, by method:\n\n{_table('method', methods)}\n{_above('cold start', methods)}"
    if any(trained.values()):
        text += f"\nVariants after {STEPS} steps, by what the trained system solves:\n\n{_table('variant', trained)}"
    return text


def _table(heading: str, groups: Mapping[str, Sequence[Result]]) -> str:
    families = sorted({family for group in groups.values() for result in group for family in result.solved})
    short = [family.removeprefix("gym:") for family in families]
    lines = [
        f"| {heading} | solved % (95 % interval) | by seed | {' | '.join(short)} |",
        "| --- | ---: |" + " ---: |" * (1 + len(families)),
    ]
    for name, group in groups.items():
        if group:
            low, high = interval(group)
            seeds = ", ".join(f"{100 * result.mean:.1f}" for result in sorted(group, key=lambda r: r.seed))
            parts = " | ".join(f"{100 * fmean(fmean(r.solved[family]) for r in group):.0f}" for family in families)
            mean = 100 * fmean(result.mean for result in group)
            lines.append(f"| {name} | {mean:.1f} ({low:.0f} to {high:.0f}) | {seeds} | {parts} |")
    return "\n".join(lines) + "\n"


def _above(other: str, methods: Mapping[str, Sequence[Result]]) -> str:
    """How much more the trained system solves than another method, pair by pair."""
    theirs = {result.seed: result.solved for result in methods[other]}

    def difference(mine: Result) -> Result:
        pairs = {part: zip(tasks, theirs[mine.seed][part], strict=True) for part, tasks in mine.solved.items()}
        return replace(mine, solved={part: [ours - old for ours, old in pair] for part, pair in pairs.items()})

    gained = [difference(result) for result in sorted(methods["metaagentx"], key=lambda result: result.seed)]
    low, high = interval(gained)
    seeds = ", ".join(f"{100 * result.mean:+.1f}" for result in gained)
    mean = 100 * fmean(result.mean for result in gained)
    return f"metaagentx above {other}: {mean:+.1f} points ({low:+.0f} to {high:+.0f}), by seed {seeds}.\n"


def interval(group: Sequence[Result]) -> tuple[float, float]:
    """Of the mean, in per cent: seeds are drawn again, and for all of them the same tasks of every family."""
    chance = random.Random(0)
    counts = {family: len(tasks) for family, tasks in group[0].solved.items()}

    def again() -> float:
        drawn = {family: chance.choices(range(count), k=count) for family, count in counts.items()}
        seeds = chance.choices(group, k=len(group))
        return fmean(fmean(result.solved[p][task] for task in tasks) for result in seeds for p, tasks in drawn.items())

    means = sorted(again() for _ in range(DRAWS))
    return 100 * means[DRAWS // 40], 100 * means[-DRAWS // 40]


def curves(root: Path) -> str:
    """What is solved in training, mean over seeds, as one picture of two charts."""
    series = {name: _solved(root, name) for name in variants() if name != WHOLE_RECIPE}
    steps = max(len(points) for points in series.values())
    names = list(series)
    halves = [names[:5], [names[0], *names[5:]]]
    headings = [
        "Share of training executions that solve their task: who learns when",
        "What is compared, and with whom",
    ]
    charts = [(heading, {name: series[name] for name in half}) for heading, half in zip(headings, halves, strict=True)]
    return share_charts(charts, 2 * max(3, steps // 12 | 1) + 1)


def _solved(root: Path, name: str) -> list[tuple[float, float]]:
    from metaagentx.runs import Run

    runs: list[list[Any]] = [
        list(Run.open(file.parent).metrics()) for file in sorted(root.glob(f"seed-*/{_file(name)}/run.json"))
    ]
    return [(float(rows[0]["step"]), fmean(row["solved"] for row in rows)) for rows in zip(*runs, strict=True)]


def write_docs(docs: Path, text: str, picture: str | None) -> None:
    """The tables between the marks of docs/results.md, the curves of the variants beside it."""
    page = docs / "results.md"
    before, rest = page.read_text().split(MARKS[0], 1)
    _write(page, f"{before}{MARKS[0]}{text}{MARKS[1]}{rest.split(MARKS[1], 1)[1]}")
    if picture:
        _write(docs / "results.svg", picture)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on (3)")
    parser.add_argument("--recipe-only", action="store_true", help="the recipe as it stands, without variants")
    parser.add_argument("--jobs", type=int, default=2, help="how many trainings at once (2)")
    parser.add_argument("--dir", type=Path, default=Path("runs/compare"), help="where everything goes (runs/compare)")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="where results.md stands, such as docs")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=f"only {COLD}, {', '.join(variants())}")
    given = parser.parse_args()
    try:
        settings = {
            "recipe": load_recipe(RECIPE).written.model_dump(mode="json"),
            "cold start": cold_start_settings(FULL_SIZE),
            "variants": variants(),
        }
        work = given.dir.glob("seed-*")
        check_same_settings(given.dir / "settings.json", {**settings, "tasks": TASKS}, "--dir", work)
    except MetaAgentXError as error:
        sys.exit(str(error))
    if given.one:
        if given.one[0] not in (COLD, *variants()):
            parser.error(f"there is no {given.one[0]}")
        asyncio.run(one(given.one[0], int(given.one[1]), given.dir))
        return
    names = [WHOLE_RECIPE] if given.recipe_only else [*variants()]
    failed = asyncio.run(every(names, given.seeds, given.jobs, given.dir))
    if failed:
        sys.exit("\n".join([*failed, "fix this, then run the same command to do what is missing"]))
    text = tables(read_results(given.dir, given.seeds))
    picture = None if given.recipe_only else curves(given.dir)
    _write(given.dir / "results.md", text)
    if picture:
        _write(given.dir / "curves.svg", picture)
    if given.write:
        write_docs(given.write, text, picture)
    print(text)


if __name__ == "__main__":
    main()
