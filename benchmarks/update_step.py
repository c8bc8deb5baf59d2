"""One side of benchmarks.update, in a process of its own: python -m benchmarks.update_step ours|trl TOKENS MODEL.

Prints a JSON line: seconds of the best whole step, and the process's peak memory in MB. A step is 16 samples of 64
tokens on one prompt, their rewards, and the update; the first step, which warms up, is not counted.
"""

import asyncio
import itertools
import json
import resource
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import metaagentx.backends.local.threads  # noqa: F401  before torch

SAMPLES, NEW_TOKENS, STEPS = 16, 64, 3
RATE = 1e-5


def step_seconds_ours(path: Path, prompt_tokens: int) -> float:
    """Through the policy's verbs, as the trainer goes."""
    from metaagentx.backends.local.model import load_model
    from metaagentx.backends.local.policy import LocalPolicy
    from metaagentx.policy import Datum, SamplingParams

    policy = LocalPolicy(load_model(path), "executor")
    prompt = policy.tokenizer.hf.encode("7" * prompt_tokens)
    assert len(prompt) == prompt_tokens

    async def step(number: int) -> float:
        started = time.perf_counter()
        requests = [SamplingParams(NEW_TOKENS, seed=1000 * number + index) for index in range(SAMPLES)]
        replies = await asyncio.gather(*(policy.sample(prompt, request) for request in requests))
        rewards = [float(sum(reply.tokens) % 97) for reply in replies]
        mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
        given = (0.0,) * len(prompt)
        data = [
            Datum(
                (*prompt, *reply.tokens),
                (*given, *(1.0 for _ in reply.tokens)),
                (reward - mean) / (spread + 1e-4),
                (*given, *reply.logprobs),
            )
            for reply, reward in zip(replies, rewards, strict=True)
        ]
        await policy.forward_backward(data, "ppo")
        await policy.optim_step(RATE)
        return time.perf_counter() - started

    async def steps() -> float:
        return min([await step(number) for number in range(STEPS + 1)][1:])

    return asyncio.run(steps())


def step_seconds_trl(path: Path, prompt_tokens: int) -> float:
    """GRPOTrainer as it is, without what would only slow it on a CPU: gradient checkpointing, logging, saving."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]  # its types are not read
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [float(sum(tokens) % 97) for tokens in completion_ids]

    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    prompt = "7" * prompt_tokens
    assert len(tokenizer.encode(prompt)) == prompt_tokens
    model: Any = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa")
    config = GRPOConfig(
        output_dir=str(path / "trl"), max_steps=STEPS + 1, learning_rate=RATE, use_cpu=True, bf16=False,
        per_device_train_batch_size=SAMPLES, num_generations=SAMPLES, max_completion_length=NEW_TOKENS,
        gradient_checkpointing=False, report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": prompt}] * 8)
    trainer: Any = GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=rows, processing_class=tokenizer,
        callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    return min(later - earlier for earlier, later in itertools.pairwise(ends))


if __name__ == "__main__":
    side, prompt_tokens, model = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("ignore")
    measure = step_seconds_ours if side == "ours" else step_seconds_trl
    seconds = measure(model, prompt_tokens)
    print(json.dumps({"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
