"""One whole GRPO step against TRL: python -m benchmarks.update [--model smollm2 [--student DIR]] [--json].

The step is 16 samples of 64 tokens on one prompt, their rewards, and the update, with the 4M preset in fp32, at prompts
of 69 and of 1,095 tokens. `ratio_trl_*` is the seconds of TRL's GRPOTrainer by ours, each the best of three steps in
each of two rounds; each side runs in processes of its own, and `peak_mb_*` is the most memory such a process had. TRL
is in the bench extra.

With `--model smollm2`, the update alone, of a LoRA on SmolLM2-135M-Instruct and on data in the shape of a tree; what
each side computes is in benchmarks/update_tree.py. `ratio_trl` is by the wall clock and `ratio_trl_processor` by
processor time, `peak_ratio` is our peak memory by TRL's. The model comes with the extra `small`.

With `--student DIR` too, whole steps of RL from SmolLM2 after its cold start, such as runs/smollm2/student; see
benchmarks/whole_step.py.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import metaagentx.backends.local.threads  # noqa: F401  before torch
from benchmarks.report import Demand, argument_parser, show
from benchmarks.whole_step import measure_whole_step
from metaagentx.backends.local.gguf import convert_gguf
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.model_files import check_model, find_smollm2
from metaagentx.errors import MetaAgentXError

PROMPTS = (69, 1095)
ROUNDS = 2
DEMANDS = {"ratio_trl_69": Demand(1.5, at_least=True), "ratio_trl_1095": Demand(4, at_least=True)}
TREE_DEMANDS = {
    "ratio_trl": Demand(3, at_least=True),
    "ratio_trl_processor": Demand(3, at_least=True),
    "peak_ratio": Demand(1),
    "step_seconds": Demand(90),
    "step_executions": Demand(30, at_least=True),  # of 36: a step whose designs cannot run is no step
}


def run_side(module: str, side: str, *words: object) -> dict[str, float]:
    """Seconds and peak memory of one side, in a process of its own."""
    print(f"measuring {side} ...", file=sys.stderr)
    command = [sys.executable, "-m", f"benchmarks.{module}", side, *map(str, words)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: see above")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure() -> dict[str, float]:
    """Every figure."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        new_model(model, "4m")
        for prompt_tokens in PROMPTS:
            rounds = [
                {side: run_side("update_step", side, prompt_tokens, model) for side in ("ours", "trl")}
                for _ in range(ROUNDS)
            ]
            best = {side: min(found[side]["seconds"] for found in rounds) for side in ("ours", "trl")}
            figures[f"ratio_trl_{prompt_tokens}"] = best["trl"] / best["ours"]
            for side in ("ours", "trl"):
                figures[f"seconds_{side}_{prompt_tokens}"] = best[side]
                figures[f"peak_mb_{side}_{prompt_tokens}"] = max(found[side]["peak_mb"] for found in rounds)
    return figures


def measure_tree() -> dict[str, float]:
    """Every figure of the update of SmolLM2."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        convert_gguf(*find_smollm2(), model)
        sides = {side: run_side("update_tree", side, model) for side in ("ours", "trl")}
    figures = {f"{name}_{side}": value for side, values in sides.items() for name, value in values.items()}
    return {
        "ratio_trl": figures["seconds_trl"] / figures["seconds_ours"],
        "ratio_trl_processor": figures["processor_seconds_trl"] / figures["processor_seconds_ours"],
        "peak_ratio": figures["peak_mb_ours"] / figures["peak_mb_trl"],
    } | figures


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.add_argument("--model", choices=["smollm2"], help="the update of this model in place of the 4M preset")
    parser.add_argument("--student", type=Path, help="with --model: this model after its cold start, for whole steps")
    arguments = parser.parse_args()
    if arguments.model is None:
        if arguments.student is not None:
            parser.error("--student needs --model smollm2")
        show(measure(), DEMANDS, as_json=arguments.json)
        sys.exit()
    try:
        if arguments.student is not None:
            check_model(arguments.student)
        figures = measure_tree()
    except MetaAgentXError as error:
        parser.error(str(error))
    if arguments.student is None:
        print("step_seconds is left out: it needs --student DIR, SmolLM2 after its cold start", file=sys.stderr)
    else:
        figures |= measure_whole_step(arguments.student.absolute())
    show(figures, TREE_DEMANDS, as_json=arguments.json)
