"""The RL part of the quickstart: python -m benchmarks.training STUDENT [--json].

STUDENT is the directory of a model after its cold start, such as runs/quickstart/student. The recipe `tiny` is run from
it in processes of its own, for 4 and for 12 steps, each the best of 2, and the figures are differences between the two,
so that loading and the first steps do not count:
- cpu_ms: processor time (user and system, all processes) for an execution, updates and writing included;
- executions_per_s: by the wall clock.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.executions import own_and_reaped

RECIPE = Path(__file__).parents[1] / "recipes/tiny.toml"
COMMAND = [sys.executable, "-c", "from metaagentx.cli.main import main; main()", "train", str(RECIPE)]
ROUNDS, SHORT, LONG = 2, 4, 12
POLL_SECONDS = 0.05
STAGES = "stages=[{steps=2,designer=1e-4,epochs=3},{steps=2,executor=1.2e-4,epochs=3}]"


def below(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(descendant for child in children for descendant in below(child))]


def seconds(student: Path, steps: int, run: Path) -> tuple[float, float, float]:
    """Run this many steps; return processor and wall-clock seconds and the number of executions.

    The jails of the sandbox are not waited for by their parents, so the processes are read while they live. What runs
    have used is with their fork server by then.
    """
    settings = [f'model.path="{student}"', f"steps={steps}", "evaluation.every=0", STAGES]
    command = [*COMMAND, "--run", str(run), *(word for setting in settings for word in ("--set", setting))]
    used: dict[int, float] = {}
    started = time.perf_counter()
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while training.poll() is None:
        used |= {pid: sum(own_and_reaped(pid)) for pid in below(training.pid)}
        time.sleep(POLL_SECONDS)
    wall = time.perf_counter() - started
    assert training.returncode == 0, training.returncode
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return sum(used.values()), wall, sum(json.loads(line)["executions/count"] for line in lines)


def measure(student: Path) -> dict[str, float]:
    """Both figures."""
    best: dict[int, tuple[float, float, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(ROUNDS):
            for steps in (SHORT, LONG):
                used, wall, count = seconds(student, steps, Path(directory) / f"{number}-{steps}")
                known = best.get(steps, (used, wall, count))
                best[steps] = min(used, known[0]), min(wall, known[1]), count
    cpu, wall, count = (long - short for short, long in zip(best[SHORT], best[LONG], strict=True))
    return {"cpu_ms": 1000 * cpu / count, "executions_per_s": count / wall}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("student", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    arguments = parser.parse_args()
    print("training ...", file=sys.stderr)
    figures = {name: round(value, 3) for name, value in measure(arguments.student.absolute()).items()}
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name:22} {value}" for name, value in figures.items()))
