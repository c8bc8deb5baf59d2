"""Memory plans against measured peaks: python -m benchmarks.memory_plan [--json] [--device cuda] [NAME ...].

Each case is a process of its own that loads a random model, samples until the KV cache is full, and trains both roles
on micro-batches that fill the token budget. Its peaks while it samples and while it updates are compared with the plan:
of resident memory (VmHWM) on a CPU, of what torch has allocated on a GPU. Fails if a plan is off by more than 15 %.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TOLERANCE = 0.15
SHAPES: dict[str, dict[str, Any]] = {
    "llama-23m": {"kind": "llama", "width": 512, "layers": 6, "heads": 8, "hidden": 1536, "vocab": 8192},
    "qwen3-62m": {"kind": "qwen3", "width": 640, "layers": 10, "heads": 10, "hidden": 1792, "vocab": 24576},
    "llama-135m": {"kind": "llama", "width": 576, "layers": 30, "heads": 9, "hidden": 1536, "vocab": 49152},
}
BOTH = "stages=[{steps=1, executor=1e-5}, {steps=1, designer=1e-5}]"
CASES: dict[str, tuple[str, list[str]]] = {
    "full weights": ("qwen3-62m", []),
    "full weights, larger model": ("llama-135m", ["optimizer.token_budget=512"]),
    "one role learns": ("qwen3-62m", ["stages=[{steps=1, executor=1e-5}]"]),
    "both roles at once": ("llama-23m", ["stages=[{steps=1, executor=1e-5, designer=1e-5}]"]),
    "larger micro-batches": ("llama-23m", ["optimizer.token_budget=3072"]),
    "activation checkpointing": (
        "llama-23m",
        ["optimizer.token_budget=3072", "optimizer.activation_checkpointing=true"],
    ),
    "LoRA": ("qwen3-62m", ["model.lora_rank=16"]),
    "a LoRA for each role": ("llama-23m", ["model.lora_rank=32", "model.sharing=lora"]),
    "separate": ("llama-23m", ["model.sharing=separate"]),
    "KL reference": ("qwen3-62m", ["loss.kl=0.01"]),
    "large KV cache": ("llama-23m", ["optimizer.token_budget=256", "model.kv_budget_tokens=24576"]),
}
SETTINGS = [
    "steps=1", BOTH, "tasks.train=gym:gcd", "model.compiled=false", "model.kv_budget_tokens=8192", "model.threads=1",
    "rollout.executor_tokens=8", "rollout.designer_tokens=8", "rollout.in_flight=256", "model.max_batch=256",
    "optimizer.token_budget=1024",
]  # fmt: skip
PROMPT = 248


@dataclass(frozen=True)
class Row:
    """One case: planned and measured MB of each phase."""

    case: str
    model: str
    planned_sampling: float
    sampling: float
    planned_update: float
    update: float

    @property
    def error(self) -> float:
        """How far the planned peak is from the measured one."""
        return max(self.planned_sampling, self.planned_update) / max(self.sampling, self.update) - 1


def main() -> int:
    """Measure the chosen cases and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        directory, settings = options.measure
        print(json.dumps(asyncio.run(measure(Path(directory), json.loads(settings)))))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.names:
            rows.append(run_case(name, Path(temporary), options.device))
            if not options.json:
                row = rows[-1]
                print(
                    f"{row.case:26} {row.model:12} sampling {row.planned_sampling:6.0f} planned {row.sampling:6.0f} MB"
                    f"   update {row.planned_update:6.0f} planned {row.update:6.0f} MB   {row.error:+.1%}",
                    flush=True,
                )
    if options.json:
        print(json.dumps([asdict(row) | {"error": round(row.error, 4)} for row in rows], indent=1))
    return int(any(abs(row.error) > TOLERANCE for row in rows))


def run_case(name: str, temporary: Path, device: str = "cpu") -> Row:
    """Plan a case, then measure it in its own process."""
    shape, settings = CASES[name]
    directory = temporary / shape
    if not directory.exists():
        code = f"from benchmarks.memory_plan import write_model; write_model({str(directory)!r}, {shape!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
    from metaagentx.backends.memory_plan import GPU_CONTEXT_BYTES, RUNNING
    from metaagentx.backends.model_shape import read_shape
    from metaagentx.cli.memory_check import plan_recipe
    from metaagentx.config import load_config

    settings = [*SETTINGS, f"model.device={device}", f"model.path={json.dumps(str(directory))}", *settings]
    model = read_shape(directory)
    assert model is not None
    plan = plan_recipe(load_config(None, settings), model, {})
    command = [sys.executable, "-m", "benchmarks.memory_plan", "--measure", str(directory), json.dumps(settings)]
    measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=540).stdout)
    context = 0 if device == "cpu" else GPU_CONTEXT_BYTES  # torch does not count it
    sampling, update = ((plan.total(plan.device, phase) - context) / 1e6 for phase in RUNNING)
    return Row(name, shape, sampling, measured["sampling"], update, measured["update"])


def write_model(directory: str, shape: str) -> None:
    """Write a random model with our tokenizer."""
    import metaagentx.backends.local.threads  # noqa: F401  before torch

    # isort: split
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    from metaagentx.backends.local.vocabulary import train_tokenizer

    s = SHAPES[shape]
    kinds: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaForCausalLM, LlamaConfig),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    }
    model, config = kinds[s["kind"]]
    model(
        config(
            hidden_size=s["width"],
            num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"],
            num_key_value_heads=s["heads"] // 2 if s["heads"] % 2 == 0 else s["heads"] // 3,
            head_dim=64,
            intermediate_size=s["hidden"],
            vocab_size=s["vocab"],
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    ).save_pretrained(directory)
    train_tokenizer(1024, []).save_pretrained(directory)


def peak_mb(device: str | None) -> float:
    """Return the peak of memory since the last call, and start a new one."""
    if device != "cpu":
        import torch

        allocated = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return allocated / 1e6
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak * 1024 / 1e6


async def measure(directory: Path, settings: list[str]) -> dict[str, float]:
    """Sample and train with these settings; return the peaks in MB."""
    import random

    from metaagentx.backends.local.build import build_policies
    from metaagentx.config import load_config
    from metaagentx.policy import Datum, SamplingParams
    from metaagentx.types import Role

    config = load_config(None, settings)
    built = build_policies(
        config.model,
        directory,
        0,
        config.optimizer,
        with_reference=config.loss.kl > 0,
        for_training=True,
    )
    vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
    draw = random.Random(0)
    reply = config.rollout.executor_tokens
    budget = config.model.kv_budget_tokens or 0
    rates = [stage.learning_rates for stage in config.stages]

    def make_data(count: int, prompt: int) -> list[Datum]:
        data = []
        for _ in range(count):
            tokens = tuple(draw.randrange(vocabulary) for _ in range(prompt + reply))
            weights = (0.0,) * 8 + (1.0,) * (len(tokens) - 8)
            data.append(Datum(tokens, weights, draw.choice([-1.0, 1.0]), (-9.0,) * len(tokens)))
        return data

    async def update(stage: Mapping[Role, float], data: list[Datum]) -> float:
        for role in stage:
            if built.references is not None:
                await built.references[role].logprobs(data)
            await built.policies[role].forward_backward(data, "ppo")
        for role, rate in stage.items():
            await built.policies[role].optim_step(rate)
        return peak_mb(config.model.device)

    for stage in rates:  # from here on all moments are there
        await update(stage, make_data(1, 8))
    for policy in {id(policy.engine): policy for policy in built.policies.values()}.values():
        prompts = [[draw.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(budget // (PROMPT + reply))]
        await asyncio.gather(*(policy.sample(prompt, SamplingParams(reply, seed=1)) for prompt in prompts))
    sampling = peak_mb(config.model.device)
    updating = await update(rates[0], make_data(2 * config.optimizer.token_budget // (PROMPT + reply), PROMPT))
    return {"sampling": sampling, "update": updating}


if __name__ == "__main__":
    sys.exit(main())
