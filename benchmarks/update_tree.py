"""One side of benchmarks.update --model, in a process of its own: python -m benchmarks.update_tree ours|trl MODEL.

The update is that of 4 tasks with 3 designs of 3 executions each: 36 sequences with a prompt of 200 tokens and a reply
of 64. The executions of a design have the same prompt; those of different designs share nothing, as if each design
began with words of its own. Tokens and advantages are random, the same on both sides.

Both sides train a LoRA of rank 16 on all linear layers in fp32, with 2 threads, in micro-batches of at most 1,584
tokens: gradients of the clipped GRPO loss at given log-probabilities of the sampling policy, entropies for the
metrics, clipping, and one step of AdamW.

- ours: `forward_backward` and `optim_step` of the policy, as the trainer calls them. The executions of a design are
  packed into a tree, so its prompt is computed once.
- trl: one step of GRPOTrainer, forward, backward and optimizer. It has no notion of a tree: it gets the same 36
  sequences as prompts and completions, six to a micro-batch. Its sampling and rewards are left out. No sequence is
  padded on either side.

Prints a JSON line: wall-clock and processor seconds of the best update, each by itself, and the process's peak memory
in MB. The first update, which warms up, is not counted. Each update is a line on stderr.
"""

import asyncio
import json
import random
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch

TASKS, DESIGNS, EXECUTIONS = 4, 3, 3
PROMPT_TOKENS, REPLY_TOKENS = 200, 64
ROWS_PER_BATCH = 6
RANK, RATE, STEPS, THREADS = 16, 1e-5, 2, 2


def make_rows() -> list[tuple[list[int], list[int], list[float], float]]:
    """Prompt, reply, its log-probabilities when it was sampled, and advantage of each sequence."""
    draw = random.Random(0)
    rows = []
    for _ in range(TASKS * DESIGNS):
        prompt = [draw.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)]
        for _ in range(EXECUTIONS):
            reply = [draw.randrange(1000, 40000) for _ in range(REPLY_TOKENS)]
            logprobs = [draw.uniform(-12, -9) for _ in range(REPLY_TOKENS)]
            rows.append((prompt, reply, logprobs, draw.uniform(-1, 1)))
    return rows


def best(measured: list[tuple[float, float]]) -> dict[str, float]:
    """The best wall-clock and processor seconds after the first update."""
    walls, processors = zip(*measured[1:], strict=True)
    return {"seconds": min(walls), "processor_seconds": min(processors)}


def note(side: str, measured: list[tuple[float, float]]) -> None:
    """Print the last update."""
    wall, processor = measured[-1]
    spent = f"{wall:.1f} s, {processor:.1f} of processor time"
    print(f"{side}, update {len(measured)} of {STEPS + 1}: {spent}", file=sys.stderr)


def clocks() -> tuple[float, float]:
    """Wall-clock and processor seconds."""
    return time.perf_counter(), time.process_time()


def measure_ours(path: Path) -> dict[str, float]:
    """Through the policy's verbs."""
    from metaagentx.backends.local.build import build_policies
    from metaagentx.options import ModelConfig, OptimizerConfig
    from metaagentx.policy import Datum
    from metaagentx.types import Role

    zeros = (0.0,) * PROMPT_TOKENS
    data = [
        Datum((*prompt, *reply), (*zeros, *(1.0 for _ in reply)), advantage, (*zeros, *logprobs))
        for prompt, reply, logprobs, advantage in make_rows()
    ]
    model = ModelConfig(path=str(path), lora_rank=RANK, threads=THREADS, compiled=False)
    optimizer = OptimizerConfig(token_budget=ROWS_PER_BATCH * (PROMPT_TOKENS + REPLY_TOKENS))
    policy = build_policies(model, path, 0, optimizer, for_training=True).policies[Role.EXECUTOR]

    async def updates() -> dict[str, float]:
        measured = []
        for _ in range(STEPS + 1):
            wall, processor = clocks()
            await policy.forward_backward(data, "ppo")
            await policy.optim_step(RATE)
            ends = clocks()
            measured.append((ends[0] - wall, ends[1] - processor))
            note("ours", measured)
        return best(measured)

    return asyncio.run(updates())


def measure_trl(path: Path) -> dict[str, float]:
    """GRPOTrainer as it is, without what would only slow it on a CPU: gradient checkpointing, logging, saving."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(THREADS)
    begins: list[tuple[float, float]] = []
    measured: list[tuple[float, float]] = []
    rows = make_rows()
    prompts, replies, logprobs = (torch.tensor([row[part] for row in rows]) for part in range(3))

    class Clock(TrainerCallback):  # type: ignore[misc]  # its types are not read
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            begins.append(clocks())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends = clocks()
            measured.append((ends[0] - begins[-1][0], ends[1] - begins[-1][1]))
            note("trl", measured)

    class Update(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, _inputs: Any) -> dict[str, Any]:
            return {
                "prompt_ids": prompts,
                "prompt_mask": torch.ones_like(prompts),
                "completion_ids": replies,
                "completion_mask": torch.ones_like(replies),
                "advantages": torch.tensor([row[3] for row in rows]),
                "old_per_token_logps": logprobs,
                "num_items_in_batch": torch.tensor(replies.numel()),
            }

    model: Any = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa", dtype=torch.float32)
    config = GRPOConfig(
        output_dir=str(path / "trl"), max_steps=STEPS + 1, learning_rate=RATE, use_cpu=True, bf16=False,
        per_device_train_batch_size=ROWS_PER_BATCH, gradient_accumulation_steps=len(rows) // ROWS_PER_BATCH,
        num_generations=EXECUTIONS, max_completion_length=REPLY_TOKENS, gradient_checkpointing=False,
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer: Any = Update(
        model=model, reward_funcs=lambda completions, **_: [0.0 for _ in completions], args=config,
        train_dataset=Dataset.from_list([{"prompt": "7"}] * len(rows)), callbacks=[Clock()],
        processing_class=AutoTokenizer.from_pretrained(path),
        peft_config=LoraConfig(
            r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )  # fmt: skip
    trainer.train()
    return best(measured)


if __name__ == "__main__":
    side, model = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    figures = (measure_ours if side == "ours" else measure_trl)(model)
    print(json.dumps(figures | {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
