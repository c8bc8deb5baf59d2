"""The evidence for the paper's claims on a laptop: python -m benchmarks.compare [--help].

For each seed one cold start (the quickstart's), and from it recipes/tiny.toml as it stands, with all methods of the
quickstart's evaluation; from the first seeds also the variants of `benchmarks.variants`. Their last checkpoints solve
the same unseen tasks. `benchmarks.claims` judges the claims one by one; its docstring has the rule of the verdicts.

Every training is a process of its own with one thread, two at a time. The same command resumes after a stop, and
finished parts are not repeated: `--recipe-only`, `--only NAME` and larger numbers of seeds add to what there is. Writes
results.md and curves.svg into its directory. `--write docs` (`make compare` does) regenerates the tables of
docs/results.md and README.md, and docs/results.svg.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.claim_pages import draw, results_page, write_docs
from benchmarks.claims import Evidence, Result
from benchmarks.drawing import Series
from benchmarks.variants import COLD, RECIPE, WHOLE, Plan, Variant, variants
from metaagentx.atomic import atomic_write, exclusive_lock
from metaagentx.cli.quickstart_parts import cold_start_settings
from metaagentx.config import load_config, load_recipe
from metaagentx.errors import MetaAgentXError
from metaagentx.evaluation.designs import LIBRARY
from metaagentx.evaluation.figures import design_figures
from metaagentx.evaluation.routers import HINDSIGHT, ROUTER, cross_fit, hindsight, is_fixed
from metaagentx.runs.work import check_same_settings

COLD_SHARE, EVALUATION_SHARE = 1.0, 0.35
"""Cost of a cold start, and of the evaluation of all methods, as parts of the recipe's training: for the time left."""


@dataclass(frozen=True, slots=True)
class Job:
    """One process: the cold start of a seed, or a variant from it."""

    name: str
    seed: int
    product: Path
    """Exists once the job is done."""
    cost: float
    """Relative to the training of the recipe."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Where everything goes."""

    root: Path
    plan: Plan
    variants: dict[str, Variant] = field(default_factory=dict)

    def slug(self, name: str) -> str:
        """Return the name of the files of a variant; other steps have other files."""
        words = name.replace(",", "").replace(":", "").replace(" ", "-")
        return words if name == COLD else f"{words}-{self.variants[name].config.steps}"

    def seed(self, seed: int) -> Path:
        """Return the directory of a seed."""
        return self.root / f"seed-{seed}"

    def result(self, name: str, seed: int) -> Path:
        """Return the file with the results of a variant."""
        return self.root / "results" / f"{seed}-{self.slug(name)}.json"

    def log(self, name: str, seed: int) -> Path:
        """Return the file with the output of a job."""
        return self.root / "logs" / f"{seed}-{self.slug(name)}.txt"

    @property
    def times(self) -> Path:
        """Return the file with the seconds of every process."""
        return self.root / "times.jsonl"

    def job(self, name: str, seed: int) -> Job:
        """Return the job of a variant, or of the cold start."""
        if name == COLD:
            return Job(name, seed, self.seed(seed) / "student", COLD_SHARE)
        share = self.variants[name].config.steps / self.variants[WHOLE].config.steps
        return Job(name, seed, self.result(name, seed), share + (EVALUATION_SHARE if name == WHOLE else 0.0))


async def one(name: str, seed: int, directory: Directory) -> None:
    """Train and evaluate one variant, or only make the cold start."""
    from metaagentx.cli.assembly import train_run
    from metaagentx.cli.evaluation_request import RunRequest, evaluate_run
    from metaagentx.cli.quickstart_parts import QuickstartPaths, cold_start
    from metaagentx.config import portable, to_toml
    from metaagentx.runs import Run

    plan, paths = directory.plan, QuickstartPaths(directory.seed(seed))
    overrides = () if name == COLD else directory.variants[name].overrides
    config = load_config(RECIPE, [*plan.base, *overrides, f"seed={seed}", f'model.path="{paths.student}"'])
    if name == COLD:
        await cold_start(config, paths, plan.size)
        return
    run_directory = paths.root / directory.slug(name)
    if (run_directory / "run.json").exists():
        run = Run.resume(run_directory)
    else:
        run = Run.create(run_directory, to_toml(portable(config, run_directory)))
    await train_run(run, config)
    request = RunRequest(
        run_directory,
        paths.student,
        designs=LIBRARY,
        split="test",
        limit=plan.size.test_tasks,
        methods=() if name == WHOLE else ("metaagentx",),
        out=run_directory / "test",
        checkpoint="last",
    )
    found = (await evaluate_run(request)).evaluation

    def solved(method: str, part: str) -> list[float]:
        outcomes = sorted(found.outcomes[method, part], key=lambda outcome: outcome.task)
        if not all(outcome.judged for outcome in outcomes):
            raise MetaAgentXError(f"infrastructure faults hit {method} on {part}: run the same command to retry them")
        return [float(outcome.solved) for outcome in outcomes]

    results = []
    for method in found.methods:
        figures = design_figures([outcome for part in found.sets for outcome in found.outcomes[method, part]])
        by_set = {part: solved(method, part) for part in found.sets}
        scripts, invalid = (figures.scripts, figures.invalid) if figures else (None, None)
        results.append(asdict(Result(name, seed, method, by_set, scripts, invalid)))
    _write(directory.result(name, seed), json.dumps({"overrides": overrides, "results": results}))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


async def run_jobs(jobs: Sequence[Job], directory: Directory, at_once: int) -> list[str]:
    """Run what is not done yet, a few at a time. Return what failed."""
    left = [job for job in jobs if not job.product.exists()]
    places, started, failed = asyncio.Semaphore(at_once), time.monotonic(), list[str]()
    cold = {job.seed: asyncio.Event() for job in left if job.name == COLD}
    done: list[Job] = []
    directory.log(COLD, 0).parent.mkdir(parents=True, exist_ok=True)

    async def run(job: Job) -> None:
        if job.name != COLD and job.seed in cold:
            await cold[job.seed].wait()
        async with places:
            if job.name != COLD and not directory.job(COLD, job.seed).product.exists():
                return  # its cold start failed
            begin = time.monotonic()
            log = directory.log(job.name, job.seed)
            error = await _process(job, directory, log)
            seconds = time.monotonic() - begin
            with directory.times.open("a") as file:
                file.write(json.dumps({"name": job.name, "seed": job.seed, "seconds": round(seconds, 1)}) + "\n")
        if job.name == COLD:
            cold[job.seed].set()
        if error or not job.product.exists():
            failed.append(f"seed {job.seed}: {job.name} failed, see {log}")
        done.append(job)
        part = sum(other.cost for other in done) / sum(other.cost for other in left)
        remaining = (time.monotonic() - started) * (1 - part) / part
        outcome = "failed" if error else f"{seconds:.0f} s"
        time_left = f", about {remaining / 60:.0f} min left" if len(done) < len(left) else ""
        print(f"{len(done)}/{len(left)}  seed {job.seed}: {job.name}, {outcome}{time_left}", flush=True)

    if left:
        print(f"{len(left)} of {len(jobs)} parts to do, {at_once} at a time; output goes to {log_directory(directory)}")
    await asyncio.gather(*map(run, left))
    return failed


def log_directory(directory: Directory) -> Path:
    """Return where the output of all jobs goes."""
    return directory.log(COLD, 0).parent


async def _process(job: Job, directory: Directory, log: Path) -> int:
    """Run a job in a process of its own; a canceled one is ended and can be resumed."""
    options = ["--dir", str(directory.root), *directory.plan.arguments, "--one", job.name, str(job.seed)]
    with log.open("a") as file:
        command = [sys.executable, "-m", "benchmarks.compare", *options]
        process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=subprocess.STDOUT)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


def read_evidence(directory: Directory) -> Evidence:
    """Return all results of the plan, of any seed, with the routers over the fixed designs."""
    results: list[Result] = []
    for name, variant in directory.variants.items():
        for file in sorted((directory.root / "results").glob(f"*-{directory.slug(name)}.json")):
            if file != directory.result(name, int(file.name.partition("-")[0])):
                continue  # of a variant whose name ends alike
            content = json.loads(file.read_text())
            if content["overrides"] != list(variant.overrides):
                raise MetaAgentXError(
                    f"{file} was made with {content['overrides']}, now {list(variant.overrides)}: remove it"
                )
            rows = [Result(**row) for row in content["results"]]
            results += [*rows, *routed(rows)]
    return Evidence(results, directory.variants)


def routed(rows: Sequence[Result]) -> list[Result]:
    """Return what the routers over the fixed designs of one seed solve; nothing if a family has one task only."""
    fixed = {row.method: row.solved for row in rows if is_fixed(row.method)}
    families = list(next(iter(fixed.values()))) if fixed else []
    if not families or any(len(tasks) < 2 for solved in fixed.values() for tasks in solved.values()):
        return []
    return [
        Result(
            rows[0].variant,
            rows[0].seed,
            name,
            {family: router({design: solved[family] for design, solved in fixed.items()}) for family in families},
        )
        for name, router in ((ROUTER, cross_fit), (HINDSIGHT, hindsight))
    ]


def curves(directory: Directory) -> dict[str, Series]:
    """Return what is solved in training of each variant that is done, mean over seeds; without executions, nothing."""
    from metaagentx.runs import Run

    series: dict[str, Series] = {}
    for name, variant in directory.variants.items():
        files = sorted(directory.root.glob(f"seed-*/{directory.slug(name)}/run.json"))
        runs: list[list[Any]] = [list(Run.open(file.parent).metrics()) for file in files]
        if runs := [rows for rows in runs if len(rows) == variant.config.steps]:
            series[name] = [
                (float(step), fmean(row.get("solved", 0.0) for row in rows))
                for step, rows in enumerate(zip(*runs, strict=True))
            ]
    return series


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the recipe as it stands, from 0 on (5)")
    parser.add_argument("--variant-seeds", type=int, default=3, help="seeds of the variants, from 0 on (3)")
    parser.add_argument("--steps", type=int, help="steps of a variant (36, or what the recipe's stages need)")
    parser.add_argument("--tasks", type=int, help="unseen tasks of each family (40, as in the quickstart)")
    parser.add_argument("--recipe-only", action="store_true", help="only the recipe as it stands")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this variant; may be repeated")
    parser.add_argument("--tables-only", action="store_true", help="train nothing: only tables of what there is")
    parser.add_argument("--jobs", type=int, default=2, help="how many trainings at once (2)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that everything works; learns nothing")
    parser.add_argument("--dir", type=Path, help="where everything goes (runs/compare; runs/compare-small)")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="the directory with results.md, beside README.md")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _open_directory(given: argparse.Namespace) -> Directory:
    """Return the directory, which holds work of one recipe and one cold start."""
    plan = Plan(given.small, given.steps, given.tasks)
    if any(number is not None and number < 1 for number in (given.steps, given.tasks)):
        raise MetaAgentXError("--steps and --tasks: expected integers >= 1")
    root = given.dir or Path("runs", "compare-small" if plan.small else "compare")
    directory = Directory(root, plan, variants(plan))
    settings = {
        "recipe": load_recipe(RECIPE, plan.base).written.model_dump(mode="json"),
        "cold start": cold_start_settings(plan.size),
    }
    check_same_settings(root / "settings.json", settings, "--dir", root.glob("seed-*"))
    return directory


def _jobs(given: argparse.Namespace, directory: Directory) -> list[Job]:
    """Return the jobs that are asked for: cold starts, the recipe, then the variants seed by seed."""
    for name in given.only or ():
        if name not in directory.variants:
            raise MetaAgentXError(f"there is no variant {name!r}; there are: {'; '.join(directory.variants)}")
    if min(given.seeds, given.variant_seeds, given.jobs) < 1:
        raise MetaAgentXError("--seeds, --variant-seeds and --jobs: expected integers >= 1")
    names = given.only or ([WHOLE] if given.recipe_only else [*directory.variants])
    work = [(WHOLE, seed) for seed in range(given.seeds) if WHOLE in names]
    work += [(name, seed) for seed in range(given.variant_seeds) for name in names if name != WHOLE]
    cold = [directory.job(COLD, seed) for seed in sorted({seed for _, seed in work})]
    return cold + [directory.job(name, seed) for name, seed in work]


def _main(given: argparse.Namespace) -> None:
    directory, start = _open_directory(given), time.monotonic()
    if given.one:
        asyncio.run(one(given.one[0], int(given.one[1]), directory))
        return
    jobs = [] if given.tables_only else _jobs(given, directory)
    with exclusive_lock(directory.root):
        for job in jobs:  # from now on the processes only read the settings, which they would write at once otherwise
            job.product.parent.mkdir(parents=True, exist_ok=True)
        failed = asyncio.run(run_jobs(jobs, directory, given.jobs))
        evidence = read_evidence(directory)
        text, picture = results_page(evidence), draw(drawn) if (drawn := curves(directory)) else None
        _write(directory.root / "results.md", text)
        if picture:
            _write(directory.root / "curves.svg", picture)
        if failed:
            raise MetaAgentXError("\n".join([*failed, "fix this, then run the same command to do what is missing"]))
        if given.write:
            write_docs(given.write, evidence, picture)
    print(text)
    lines = directory.times.read_text().splitlines() if directory.times.exists() else []
    minutes = sum(json.loads(line)["seconds"] for line in lines) / 60
    print(
        f"Done in {(time.monotonic() - start) / 60:.1f} min. All parts so far, one after the other: {minutes:.1f} min."
    )


def main() -> None:
    """The command line."""
    given = _parse()
    try:
        _main(given)
    except MetaAgentXError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
