"""Variants of the algorithm from the same cold starts: python -m benchmarks.compare [--seeds 3] [--jobs 2] [--dir DIR].

For each seed one cold start (the quickstart's), and from it recipes/tiny.toml as it stands, with all methods of the
quickstart's evaluation; then the variants, all with the same number of steps and of executions a step, and what their
last checkpoints solve of the same unseen tasks, 40 of each family. Stopped, the same command goes on. Writes results.md
and curves.svg; `--write docs` puts tables and curves into docs/results.md and docs/results.svg.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from metaagentx.config import load_config

RECIPE = Path("recipes/tiny.toml")
TASKS = 40
DRAWS = 1000
STEPS = 36
"""Of a variant. The recipe has more."""
WHOLE_RECIPE, COLD = "the recipe", "cold start"
MARKS = ("<!-- compared -->\n", "<!-- end -->")


def variants() -> dict[str, list[str]]:
    """What each changes in the recipe, at the recipe's own rates and epochs."""
    designer, executor = load_config(RECIPE).stages
    e, d = f"executor={executor.executor}", f"designer={designer.designer}"
    e_epochs, d_epochs = f"epochs={executor.epochs}", f"epochs={designer.epochs}"
    changed = {
        "stagewise": [],
        "joint": [f"stages=[{{steps=1, {e}, {d}, {e_epochs}}}]"],
        "one-step alternation": [f"stages=[{{steps=1, {d}, {d_epochs}}}, {{steps=1, {e}, {e_epochs}}}]"],
        "executor only": [f"stages=[{{steps=1, {e}, {e_epochs}}}]"],
        "designer only": [f"stages=[{{steps=1, {d}, {d_epochs}}}]"],
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
    solved: Mapping[str, float]
    """By family."""

    @property
    def mean(self) -> float:
        """Over families."""
        return fmean(self.solved.values())


async def one(name: str, seed: int, root: Path) -> None:
    """Train and test one variant, or only make the cold start."""
    from metaagentx.config import to_toml
    from metaagentx.evaluation.request import Request, evaluate_run
    from metaagentx.quickstart import WHOLE, Places, cold_start
    from metaagentx.runs import Run
    from metaagentx.session import train

    places = Places(root / f"seed-{seed}")
    changes = [] if name == COLD else variants()[name]
    config = load_config(RECIPE, [*changes, f"seed={seed}", f'model.path="{places.student}"', "evaluation.every=0"])
    if name == COLD:
        await cold_start(config, places, WHOLE)
        return
    directory = places.root / _file(name)
    run = Run.resume(directory) if (directory / "run.json").exists() else Run.create(directory, to_toml(config))
    await train(run, config)
    methods = () if name == WHOLE_RECIPE else ("metaagentx",)
    request = Request(
        directory, places.student, split="test", limit=TASKS, methods=methods, out=directory, checkpoint="last"
    )
    found = (await evaluate_run(request)).found
    rows = {part: {row.method: row.average for row in found.summaries[part].rows} for part in found.sets}
    results = [
        {"variant": name, "seed": seed, "method": m, "solved": {part: rows[part][m] for part in found.sets}}
        for m in found.methods
    ]
    _write(root / "results" / f"{seed}-{_file(name)}.json", json.dumps(results))


def _file(name: str) -> str:
    return name.replace(" ", "-").replace(":", "")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


async def every(seeds: int, jobs: int, root: Path) -> None:
    """All of them, a few at a time, each in a process of its own."""
    places = asyncio.Semaphore(jobs)
    (root / "logs").mkdir(parents=True, exist_ok=True)

    async def run(name: str, seed: int) -> None:
        if (root / "results" / f"{seed}-{_file(name)}.json").exists():
            return
        async with places:
            print(f"seed {seed}: {name}", flush=True)
            command = [sys.executable, "-m", "benchmarks.compare", "--dir", str(root), "--one", name, str(seed)]
            log = root / "logs" / f"{seed}-{_file(name)}.txt"
            with log.open("a") as file:
                process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=subprocess.STDOUT)
                if await process.wait():
                    print(f"seed {seed}: {name} failed, see {log}", flush=True)

    await asyncio.gather(*(run(COLD, seed) for seed in range(seeds)))
    missing = [seed for seed in range(seeds) if not (root / f"seed-{seed}" / "student").exists()]
    if missing:
        sys.exit(f"no cold start for seeds {missing}: see {root / 'logs'}, mend it, and run the same command again")
    await asyncio.gather(*(run(name, seed) for name in variants() for seed in range(seeds)))


def read_results(root: Path) -> list[Result]:
    """What there is so far."""
    files = sorted((root / "results").glob("*.json"))
    return [Result(**row) for file in files for row in json.loads(file.read_text())]


def tables(found: Sequence[Result]) -> str:
    """The methods of the recipe as it stands, then the variants."""
    whole = [result for result in found if result.variant == WHOLE_RECIPE]
    names = dict.fromkeys(result.method for result in whole)
    methods = {name: [result for result in whole if result.method == name] for name in names}
    trained = {name: [r for r in found if r.variant == name and r.method == "metaagentx"] for name in variants()}
    trained.pop(WHOLE_RECIPE)
    return (
        f"The recipe as it stands, by method:\n\n{_table('method', methods)}\n"
        f"Variants after {STEPS} steps, by what the trained system solves:\n\n{_table('variant', trained)}"
    )


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
            parts = " | ".join(f"{100 * fmean(r.solved[family] for r in group):.0f}" for family in families)
            mean = 100 * fmean(result.mean for result in group)
            lines.append(f"| {name} | {mean:.1f} ({low:.0f} to {high:.0f}) | {seeds} | {parts} |")
    return "\n".join(lines) + "\n"


def interval(group: Sequence[Result]) -> tuple[float, float]:
    """Of the mean, in per cent: seeds are drawn again, and of each of them the tasks of every family."""
    chance = random.Random(0)

    def again(share: float) -> float:
        return sum(chance.random() < share for _ in range(TASKS)) / TASKS

    means = sorted(
        fmean(again(share) for result in chance.choices(group, k=len(group)) for share in result.solved.values())
        for _ in range(DRAWS)
    )
    return 100 * means[DRAWS // 40], 100 * means[-DRAWS // 40]


def curves(root: Path) -> str:
    """What is solved in training, mean over seeds, as one picture of two charts."""
    from metaagentx.report.charts import View, line_chart, lines_of, stacked
    from metaagentx.report.history import window_of
    from metaagentx.report.svg import alone

    series = {name: _solved(root, name) for name in variants() if name != WHOLE_RECIPE}
    steps = max(len(points) for points in series.values())
    view = View((0, steps - 1), (), 2 * window_of(steps) + 1, width=720)
    names = list(series)
    halves = [names[:5], [names[0], *names[5:]]]
    headings = [
        "Share of training executions that solve their task: who learns when",
        "What is compared, and with whom",
    ]
    parts = [
        (heading, lambda view, half=half: line_chart(lines_of({n: series[n] for n in half}), view, "share"))
        for heading, half in zip(headings, halves, strict=True)
    ]
    return alone(stacked(parts, [320, 320], view))


def _solved(root: Path, name: str) -> list[tuple[float, float]]:
    runs: list[list[dict[str, Any]]] = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(root.glob(f"seed-*/{_file(name)}/metrics.jsonl"))
    ]
    return [(float(rows[0]["step"]), fmean(row["solved"] for row in rows)) for rows in zip(*runs, strict=False)]


def write_docs(docs: Path, text: str, picture: str) -> None:
    """Table and curves between the marks of docs/results.md."""
    page = docs / "results.md"
    before, rest = page.read_text().split(MARKS[0], 1)
    _write(page, f"{before}{MARKS[0]}{text}{MARKS[1]}{rest.split(MARKS[1], 1)[1]}")
    _write(docs / "results.svg", picture)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=Path("runs/compare"))
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"), help="only this one")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="where results.md stands")
    given = parser.parse_args()
    if given.one:
        asyncio.run(one(given.one[0], int(given.one[1]), given.dir))
        return
    asyncio.run(every(given.seeds, given.jobs, given.dir))
    text, picture = tables(read_results(given.dir)), curves(given.dir)
    _write(given.dir / "results.md", text)
    _write(given.dir / "curves.svg", picture)
    if given.write:
        write_docs(given.write, text, picture)
    print(text)


if __name__ == "__main__":
    main()
