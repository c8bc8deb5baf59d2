"""One whole GRPO step against TRL's GRPOTrainer: python -m benchmarks.update [--json].

The step is 16 samples of 64 tokens on one prompt, their rewards, and the update, with the 4M preset in fp32, at prompts
of 69 and of 1,095 tokens. `ratio_trl_*` is TRL's seconds by ours, each the best of three steps in each of two rounds;
each side runs in processes of its own, and `peak_mb_*` is the most memory such a process had. TRL is in the bench
extra.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import metaagentx.backends.local.threads  # noqa: F401  before torch
from benchmarks.report import Demand, report
from metaagentx.backends.local.presets import new_model

PROMPTS = (69, 1095)
ROUNDS = 2
DEMANDS = {"ratio_trl_69": Demand(1.5, at_least=True), "ratio_trl_1095": Demand(4, at_least=True)}


def run_side(side: str, prompt_tokens: int, model: Path) -> dict[str, float]:
    """Seconds and peak memory of one side, in a process of its own."""
    print(f"measuring {side} at {prompt_tokens} tokens ...", file=sys.stderr)
    command = [sys.executable, "-m", "benchmarks.update_step", side, str(prompt_tokens), str(model)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure() -> dict[str, float]:
    """Every figure."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        new_model(model, "4m")
        for prompt_tokens in PROMPTS:
            rounds = [{side: run_side(side, prompt_tokens, model) for side in ("ours", "trl")} for _ in range(ROUNDS)]
            best = {side: min(found[side]["seconds"] for found in rounds) for side in ("ours", "trl")}
            figures[f"ratio_trl_{prompt_tokens}"] = best["trl"] / best["ours"]
            for side in ("ours", "trl"):
                figures[f"seconds_{side}_{prompt_tokens}"] = best[side]
                figures[f"peak_mb_{side}_{prompt_tokens}"] = max(found[side]["peak_mb"] for found in rounds)
    return figures


if __name__ == "__main__":
    report(measure(), DEMANDS, __doc__)
