"""Variants of the algorithm from the same cold starts: python -m benchmarks.compare [--seeds 3] [--jobs 2] [--dir DIR].

For each seed one cold start (the quickstart's), then every variant of recipes/tiny.toml from it, with the same number
of steps and of executions a step, then the share of unseen tasks (test split) that the last checkpoint solves, 60 of
each family, one design and one execution each. Stopped, the same command goes on. Writes results.json and results.md.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

VARIANTS: dict[str, list[str]] = {
    "stagewise": [],
    "joint": ["stages=[{steps=1, executor=2e-4, designer=2e-4}]"],
    "one-step alternation": ["stages=[{steps=1, executor=2e-4}, {steps=1, designer=2e-4}]"],
    "executor only": ["stages=[{steps=1, executor=2e-4}]"],
    "designer only": ["stages=[{steps=1, designer=2e-4}]"],
    "6 designs x 2": ["rollout.designs=6", "rollout.executions=2"],
    "12 designs x 1": ["rollout.designs=12", "rollout.executions=1", 'credit.executor_peers="task"'],
    "executor peers: task": ['credit.executor_peers="task"'],
    "separate weights": ['model.sharing="separate"'],
}
RECIPE = Path("recipes/tiny.toml")
TASKS = 60


async def one(name: str, seed: int, root: Path) -> None:
    """Train and test one variant, or only the cold start."""
    from metaagentx.config import load_config, to_toml
    from metaagentx.evaluate import solve_rate
    from metaagentx.evaluation.request import Request, task_sets, trained_policies
    from metaagentx.quickstart import WHOLE, Places, cold_start
    from metaagentx.runs import Run
    from metaagentx.session import open_resources, train
    from metaagentx.settings import rollout_options

    places = Places(root / f"seed-{seed}")
    overrides = [*VARIANTS.get(name, []), f"seed={seed}", f'model.path="{places.student}"', "evaluation.every=0"]
    config = load_config(RECIPE, overrides)
    if name == "cold start":
        await cold_start(config, places, WHOLE)
        checkpoint = None
    else:
        directory = places.root / name.replace(" ", "-").replace(":", "")
        run = Run.resume(directory) if (directory / "run.json").exists() else Run.create(directory, to_toml(config))
        await train(run, config)
        checkpoint = run.checkpoint
    from metaagentx.backends.local.build import build_policies

    if checkpoint is None:
        policies = build_policies(config, places.root).policies
    else:
        policies = await trained_policies(config, checkpoint.parent.parent, checkpoint)  # type: ignore[assignment]
    solved: dict[str, float] = {}
    async with open_resources(config, policies) as resources:
        for family, tasks in task_sets(config, Request(places.run, split="test", limit=TASKS)).items():
            solved[family] = await solve_rate(tasks, resources, rollout_options(config), 1)
    result = {"variant": name, "seed": seed, "solved": solved, "mean": fmean(solved.values())}
    out = root / "results" / f"{seed}-{name.replace(' ', '-').replace(':', '')}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result))
    unfinished.rename(out)


async def every(seeds: int, jobs: int, root: Path) -> None:
    """All of them, a few at a time, each in a process of its own."""
    places = asyncio.Semaphore(jobs)

    async def run(name: str, seed: int) -> None:
        if (root / "results" / f"{seed}-{name.replace(' ', '-').replace(':', '')}.json").exists():
            return
        async with places:
            print(f"seed {seed}: {name}", flush=True)
            command = [sys.executable, "-m", "benchmarks.compare", "--dir", str(root), "--one", name, str(seed)]
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
            if await process.wait():
                print(f"seed {seed}: {name} failed: run {' '.join(command)!r} to see why", flush=True)

    await asyncio.gather(*(run("cold start", seed) for seed in range(seeds)))
    await asyncio.gather(*(run(name, seed) for name in VARIANTS for seed in range(seeds)))


def write_results(root: Path) -> str:
    """A table of what there is."""
    found = [json.loads(file.read_text()) for file in sorted((root / "results").glob("*.json"))]
    (root / "results.json").write_text(json.dumps(found, indent=1))
    families = sorted({family for result in found for family in result["solved"]})
    short = [family.removeprefix("gym:") for family in families]
    lines = [f"| variant | seeds | mean | spread of seeds | {' | '.join(short)} |", "|---" * (4 + len(families)) + "|"]
    for name in ("cold start", *VARIANTS):
        means = [result["mean"] for result in found if result["variant"] == name]
        if means:
            spread = f"{min(means):.1%} to {max(means):.1%}" + (f", sd {stdev(means):.1%}" if len(means) > 1 else "")
            parts = [fmean(r["solved"][family] for r in found if r["variant"] == name) for family in families]
            shares = " | ".join(f"{part:.0%}" for part in parts)
            lines.append(f"| {name} | {len(means)} | {fmean(means):.1%} | {spread} | {shares} |")
    text = "\n".join(lines) + "\n"
    (root / "results.md").write_text(text)
    return text


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=Path("runs/compare"))
    parser.add_argument("--one", nargs=2, metavar=("VARIANT", "SEED"))
    given = parser.parse_args()
    if given.one:
        asyncio.run(one(given.one[0], int(given.one[1]), given.dir))
        return
    asyncio.run(every(given.seeds, given.jobs, given.dir))
    print(write_results(given.dir))


if __name__ == "__main__":
    main()
