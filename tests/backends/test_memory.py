"""Memory that runs out, in a process whose memory is really limited: no caller waits forever, and work continues."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory by Linux's means")

LIMIT = """
import asyncio, logging, random, resource, sys
import tests.backends.learners as learners
import torch
from metaagentx.backends.local import Engine, LocalPolicy
from metaagentx.backends.local.training import Learner
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig
from metaagentx.policy import BackendError, SamplingParams

def limit(megabytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + megabytes * 2**20 if megabytes else -1
    resource.setrlimit(resource.RLIMIT_AS, (most, -1))

torch.set_num_threads(2)
logging.basicConfig(stream=sys.stdout, format="%(message)s")
draw = random.Random(0)
"""

TRAINING = """
def replies(count, length):
    return [learners.datum((1, 2), tuple(draw.choices(range(24), k=length))) for _ in range(count)]

torch.set_num_threads(1)
wide = learners.random_model(dtype=torch.float32, hidden_size=64, intermediate_size=512, max_position_embeddings=2**14)
learner, data = Learner(wide), replies(240, 100)
learner.state.token_budget = 512
learner.forward_backward(data, "cross_entropy", LossConfig())
expected, learner.gradients = learner.gradients, {}
alone = learner.logprobs(data)
limit(150)
learner.state.token_budget = 10**6
metrics = learner.forward_backward(data, "cross_entropy", LossConfig())
print(metrics["sequences"], learners.relative_difference(learner.gradients, expected) <= 1e-5)
learner.state.token_budget = 10**6
limit(30)
differences = [abs(a - b) for x, y in zip(learner.logprobs(data), alone, strict=True) for a, b in zip(x, y)]
print(max(differences) < 1e-4, learner.state.token_budget < 10**6)
words = learners.random_model(dtype=torch.float32, vocab_size=100_000)
learner = Learner(words)
learner.forward_backward(replies(1, 10), "cross_entropy", LossConfig())
limit(350)
learner.forward_backward(replies(8, 100), "cross_entropy", LossConfig())
print(learner.state.token_budget)
learner = Learner(wide)
limit(1)
try:
    learner.forward_backward(replies(1, 16000), "cross_entropy", LossConfig())
except MetaAgentXError as error:
    print(error)
limit(0)
"""

STEP = """
large = learners.random_model(dtype=torch.float32, hidden_size=512, intermediate_size=4096)
policy = LocalPolicy(large, "executor")

async def learn():
    await policy.forward_backward([learners.datum((1, 2), (3, 4))], "cross_entropy")
    before = large.module.lm_head.weight.clone()
    limit(8)
    try:
        await policy.optim_step(1e-3)
    except MetaAgentXError as error:
        print(error)
    limit(0)
    print(bool((large.module.lm_head.weight == before).all()))

asyncio.run(learn())
"""

SAMPLING = """
shape = dict(num_attention_heads=8, num_key_value_heads=8, head_dim=128, max_position_embeddings=2048)
model = learners.random_model(dtype=torch.float32, **shape)
model.tokenizer.end_tokens = frozenset()
engine = Engine(model, compiled=False, max_batch=32)

async def ask(count, length, tokens):
    asked = [engine.sample([3 + n % 20] * length, SamplingParams(tokens, seed=n)) for n in range(count)]
    return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), timeout=60)

async def sample():
    expected = [completion.tokens for completion in await ask(2, 20, 5)]
    limit(100)
    for count, length, tokens in ((32, 200, 50), (12, 120, 1900)):  # while prompts are read; while rows grow longer
        failures = await ask(count, length, tokens)
        print({type(failure).__name__ for failure in failures}, len({id(failure) for failure in failures}))
        print(failures[0])
        after = [completion.tokens for completion in await ask(2, 20, 5)]
        await model.run(lambda: None)  # after the turn in which they were finished
        print(after == expected, len(engine._batches))
    limit(0)
    print({len(completion.tokens) for completion in await ask(8, 200, 50)})

asyncio.run(sample())
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What is said of it all, in one process: starting one takes far longer than everything in it."""
    script = LIMIT + SAMPLING + TRAINING + STEP
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_sampling_fails_with_one_line_for_all_who_wait_and_goes_on(said: list[str]) -> None:
    for count, (kinds, line, after) in ((32, said[:3]), (12, said[3:6])):
        assert kinds == f"{{'BackendError'}} {count}", "each has an error of its own"
        assert line == (
            f"out of memory while sampling, with {count} requests at once: lower model.max_batch (now 32) or "
            "model.kv_budget_tokens (now 65536), or use a smaller model"
        )
        assert after == "True 0"
    assert said[6] == "{50}", "and with more memory it succeeds"


def test_a_micro_batch_is_halved_until_it_fits_and_a_sequence_that_does_not_is_one_line(said: list[str]) -> None:
    warnings = [line for line in said[7:-2] if line.startswith("out of memory on a micro-batch of ")]
    assert warnings and all("continuing with at most" in line and "optimizer.token_budget" in line for line in warnings)
    gradient, logprobs, budget, checkpointing, refusal = [line for line in said[7:-2] if line not in warnings]
    assert (gradient, logprobs) == ("240.0 True", "True True")
    assert budget == "8192", "800 tokens of a vocabulary of 100,000 fit: in fp32 their logits alone are 320 MB"
    assert checkpointing.startswith("out of memory on a single sequence of 16002 tokens: continuing with activation ")
    assert refusal.startswith(
        "out of memory on a single sequence of 16002 tokens, which no optimizer.token_budget (now "
    )


def test_an_optimizer_step_that_does_not_fit_is_one_line_and_moves_nothing(said: list[str]) -> None:
    assert said[-2:] == [
        "out of memory while taking the optimizer step of the executor: use a LoRA (model.lora_rank) or a smaller "
        "model, or lower optimizer.token_budget (now 8192) where gradients take the memory",
        "True",
    ]
