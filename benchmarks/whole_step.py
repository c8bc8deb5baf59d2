"""A whole step of RL with the recipe `smollm2`, for benchmarks.update --student: 4 tasks x 3 designs x 3 executions.

`metaagentx train` runs three steps of the recipe's first stage, which trains the Executor, with sandbox, graders and
the recipe's epochs, and without evaluation or checkpoints between the steps. The first step warms up. `step_seconds` is
the faster of the others, `seconds/step` in metrics.jsonl; `step_processor_seconds` is the least processor time of all
processes of the run from the end of one step to that of the next. `step_executions` is the least number of executions
of these two steps: a design that cannot run has none.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.executions import own_and_reaped
from benchmarks.training import below

RECIPE = Path(__file__).parents[1] / "recipes/smollm2.toml"
COMMAND = [sys.executable, "-c", "from metaagentx.cli.main import main; main()", "train", str(RECIPE)]
STEPS = 3
TASKS, DESIGNS, EXECUTIONS = 4, 3, 3
POLL_SECONDS = 0.05


def measure_whole_step(student: Path) -> dict[str, float]:
    """The figures of the steps after the first."""
    settings = [
        f"model.path={json.dumps(str(student))}", f"steps={STEPS}", f"tasks.per_step={TASKS}",
        f"rollout.designs={DESIGNS}", f"rollout.executions={EXECUTIONS}",
        "evaluation.every=0", f"run.checkpoint_every={STEPS}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        command = [*COMMAND, "--run", str(run), *(word for setting in settings for word in ("--set", setting))]
        metrics, used = follow(command, run / "metrics.jsonl")
    timed = metrics[1:]
    return {
        "step_seconds": min(step["seconds/step"] for step in timed),
        "step_processor_seconds": min(later - earlier for earlier, later in itertools.pairwise(used)),
        "step_executions": min(step["executions/count"] for step in timed),
    }


def follow(command: list[str], file: Path) -> tuple[list[dict[str, float]], list[float]]:
    """Train; return the metrics of each step, and the processor seconds of all processes at its end."""
    used: list[float] = []
    with subprocess.Popen(command, stdout=sys.stderr) as training:
        while training.poll() is None:
            done = file.read_text().count("\n") if file.exists() else 0
            if done > len(used):
                used.append(sum(sum(own_and_reaped(pid)) for pid in below(training.pid)))
                print(f"whole step {done} of {STEPS} done", file=sys.stderr)
            time.sleep(POLL_SECONDS)
    if training.returncode:
        raise SystemExit(f"`metaagentx train` failed with exit code {training.returncode}: see above")
    metrics = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(metrics) == len(used) == STEPS, (len(metrics), len(used))
    return metrics, used
