"""Our sampling against generate of transformers: python -m benchmarks.sampling [--json].

The 4M preset, fp32, 2 threads, every figure the best of 3 rounds in which all sides take turns. `tokens_*` are new
tokens a second, `ratio_hf_*` ours by theirs:
- 1, 16, 128: a batch of that many prompts of 16 tokens each, 64 new tokens; `_compiled` with the compiled engine, whose
  compiling is not counted (`compile_seconds` is all of it);
- shared_prompt: 16 samples of one prompt of 1,000 tokens, 64 new tokens;
- ragged: 256 requests, prompts of 8 to 64 tokens, 8 to 128 new tokens, arriving at random within half a second. Their
  side gathers what has come into a padded batch of up to 128, as long as its longest request, while the next gathers.
`share_of_peak`: multiplications with weights at batch 128, compiled, by the fastest product of two matrices of 1,024.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch

from benchmarks.report import Demand, report
from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.model import LocalModel, load_model
from metaagentx.backends.local.presets import new_model
from metaagentx.policy import SamplingParams

ROUNDS = 3
NEW, PROMPT, LONG_PROMPT = 64, 16, 1000
BATCHES = (1, 16, 128)
Prompts = list[list[int]]

DEMANDS = {
    "ratio_hf_16": Demand(1.3, at_least=True),
    "ratio_hf_128": Demand(1.3, at_least=True),
    "ratio_hf_16_compiled": Demand(2.0, at_least=True),
    "ratio_hf_128_compiled": Demand(2.0, at_least=True),
    "ratio_hf_shared_prompt": Demand(4.0, at_least=True),
    "ratio_hf_ragged": Demand(2.0, at_least=True),
    "share_of_peak": Demand(0.5, at_least=True),
}


def random_prompts(count: int, tokens: int) -> Prompts:
    """Prompts that have nothing in common."""
    return torch.randint(6, 2000, (count, tokens)).tolist()


def generate(model: LocalModel, prompts: Prompts, new: int = NEW, samples: int = 1) -> None:
    """Theirs, padded on the left."""
    from transformers import GenerationConfig

    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=new, num_return_sequences=samples, pad_token_id=0)
    module: Any = model.module
    drawn = module.generate(tokens, attention_mask=mask, generation_config=config)
    assert drawn.shape == (len(prompts) * samples, longest + new)


async def sample(engine: Engine, prompts: Prompts) -> None:
    """Ours."""
    completions = await asyncio.gather(*(engine.sample(prompt, SamplingParams(NEW)) for prompt in prompts))
    assert all(len(completion.tokens) == NEW for completion in completions)


class Ragged:
    """Requests of many lengths that arrive at random."""

    def __init__(self) -> None:
        chance = random.Random(0)
        self.prompts = [random_prompts(1, chance.randrange(8, 65))[0] for _ in range(256)]
        self.new = [chance.randrange(8, 129) for _ in self.prompts]
        self.arrivals = sorted(chance.random() / 2 for _ in self.prompts)

    @property
    def tokens(self) -> int:
        """That are asked for in all."""
        return sum(self.new)

    async def ours(self, engine: Engine) -> None:
        """Each is asked for when it arrives."""

        async def one(prompt: list[int], new: int, arrival: float) -> None:
            await asyncio.sleep(arrival)
            assert len((await engine.sample(prompt, SamplingParams(new))).tokens) == new

        await asyncio.gather(*map(one, self.prompts, self.new, self.arrivals))

    def theirs(self, model: LocalModel) -> None:
        """Batches of what has arrived."""
        started, at = time.perf_counter(), 0
        while at < len(self.prompts):
            passed = time.perf_counter() - started
            ready = sum(arrival <= passed for arrival in self.arrivals)
            if ready == at:
                time.sleep(0.001)
                continue
            stop = min(ready, at + 128)
            generate(model, self.prompts[at:stop], max(self.new[at:stop]))
            at = stop


def seconds(function: Callable[[], object]) -> float:
    """How long it takes once."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def cases(model: LocalModel) -> dict[str, tuple[int, Callable[[], object]]]:
    """What is measured: how many new tokens, and what draws them."""
    plain, compiled = Engine(model, compiled=False), Engine(model, compiled=True)
    found: dict[str, tuple[int, Callable[[], object]]] = {}
    for batch in BATCHES:
        new = batch * NEW
        found[f"hf_{batch}"] = (new, partial(lambda b: generate(model, random_prompts(b, PROMPT)), batch))
        for name, engine in (("ours", plain), ("compiled", compiled)):
            found[f"{name}_{batch}"] = (
                new,
                partial(lambda b, e: asyncio.run(sample(e, random_prompts(b, PROMPT))), batch, engine),
            )
    long = 16 * NEW
    found["hf_shared_prompt"] = (long, lambda: generate(model, random_prompts(1, LONG_PROMPT), samples=16))
    found["ours_shared_prompt"] = (long, lambda: asyncio.run(sample(plain, random_prompts(1, LONG_PROMPT) * 16)))
    ragged = Ragged()
    found["hf_ragged"] = (ragged.tokens, lambda: ragged.theirs(model))
    found["ours_ragged"] = (ragged.tokens, lambda: asyncio.run(ragged.ours(Engine(model, compiled=False))))
    return found


def peak_flops() -> float:
    """Of a large matrix product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / min(seconds(lambda: a @ b) for _ in range(20))


def measure() -> dict[str, float]:
    """Every figure."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as directory:
        parameters = new_model(Path(directory) / "model", "4m")
        model = load_model(Path(directory) / "model", device="cpu")
    # Nothing ends before its time, on either side.
    model.tokenizer.end_tokens = frozenset()
    model.module.generation_config.eos_token_id = None
    work = cases(model)
    figures = {"compile_seconds": sum(seconds(work[f"compiled_{batch}"][1]) for batch in BATCHES)}
    best: dict[str, float] = {}
    peak = 0.0
    for _ in range(ROUNDS):
        peak = max(peak, peak_flops())
        for name, (_, draw) in work.items():
            best[name] = min(best.get(name, float("inf")), seconds(draw))
    for name, (tokens, _) in work.items():
        figures[f"tokens_{name}"] = tokens / best[name]
    for name in ("1", "16", "128", "shared_prompt", "ragged"):
        figures[f"ratio_hf_{name}"] = best[f"hf_{name}"] / best[f"ours_{name}"]
    for batch in BATCHES:
        figures[f"ratio_hf_{batch}_compiled"] = best[f"hf_{batch}"] / best[f"compiled_{batch}"]
    read_flops = 2 * (parameters - model.module.get_input_embeddings().weight.numel()) * 128 * (PROMPT - 1)
    figures["peak_gflops"] = peak / 1e9
    figures["share_of_peak"] = (2 * parameters * 128 * NEW + read_flops) / best["compiled_128"] / peak
    return figures


if __name__ == "__main__":
    report(measure(), DEMANDS, __doc__)
