"""Memory that runs out, in a process whose memory is really limited: no caller waits forever, and work continues.

And how much memory there is, as far as that can be told without running out of it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from metaagentx.backends import memory_budget
from metaagentx.backends.memory_budget import available_host_bytes, default_kv_budget, kv_bytes_per_token

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory by Linux's means")

QWEN3_8B = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


def test_the_default_budget_is_half_of_what_is_free_or_one_full_context() -> None:
    assert (kv_bytes_per_token(QWEN3_8B, 2), kv_bytes_per_token(SMOLLM2, 4)) == (147456, 46080)
    assert kv_bytes_per_token({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}, 4) == 512
    assert default_kv_budget(8 << 30, 46080, 8192) == (4 << 30) // 46080
    assert default_kv_budget(10**6, 100, 8192) == 8192
    assert default_kv_budget(10**5, 100, 8192) == 1000, "what there is, if a full context does not fit"


def test_memory_is_limited_by_the_machine_and_by_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < available_host_bytes() < total
    monkeypatch.setattr(memory_budget, "_CGROUPS", tmp_path)
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        root = tmp_path / "memory" if controllers else tmp_path
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        group = root / path.lstrip("/")
        group.mkdir(parents=True, exist_ok=True)
        group.joinpath("memory.stat").write_text("inactive_file 100\ntotal_inactive_file 100\n")
        for name, text in zip(names, ("5000", "3000"), strict=True):
            group.joinpath(name).write_text(text)
        assert available_host_bytes() == 2100
        group.joinpath(names[0]).write_text(str(2**63))
        assert available_host_bytes() > 2100


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
shape = dict(num_attention_heads=8, num_key_value_heads=8, head_dim=128, max_position_embeddings=2**14)
model = learners.random_model(dtype=torch.float32, **shape)
model.tokenizer.end_tokens = frozenset()

async def ask(engine, count, length, tokens):
    asked = [engine.sample([3 + n % 20] * length, SamplingParams(tokens, seed=n)) for n in range(count)]
    return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), timeout=60)

async def sample():
    engine = Engine(model, compiled=False)
    for megabytes, *case in ((60, 32, 200, 20), (40, 12, 120, 100)):  # while prompts are read; while rows grow longer
        expected = [reply.tokens for reply in await ask(Engine(model, compiled=False), *case)]
        engine = Engine(model, compiled=False)
        limit(megabytes)
        print([reply.tokens for reply in await ask(engine, *case)] == expected)
        limit(0)
    limit(1)
    print(*await ask(engine, 1, 10_000, 50))
    limit(0)
    print({len(reply.tokens) for reply in await ask(engine, 4, 100, 20)})

asyncio.run(sample())
print("sampled")
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What is said of it all, in one process: starting one takes far longer than everything in it."""
    script = LIMIT + SAMPLING + TRAINING + STEP
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def test_sampling_goes_on_with_fewer_requests_at_once_and_one_that_does_not_fit_is_one_line(said: list[str]) -> None:
    lines = said[: said.index("sampled")]
    warnings = [line for line in lines if line.startswith("out of memory while sampling, with ")]
    assert warnings and all("requests of" in line and "model.kv_budget_tokens" in line for line in warnings)
    *replies, refusal, after = [line for line in lines if line not in warnings]
    assert replies == ["True", "True"], "what they would be with more memory"
    assert refusal == (
        "out of memory while sampling a single request, at 10000 tokens: use a smaller model, fewer tokens "
        "(rollout.designer_tokens, rollout.executor_tokens) or a machine with more memory"
    )
    assert after == "{20}", "and with more memory it succeeds"


def test_a_micro_batch_is_halved_until_it_fits_and_a_sequence_that_does_not_is_one_line(said: list[str]) -> None:
    lines = said[said.index("sampled") + 1 : -2]
    warnings = [line for line in lines if line.startswith("out of memory on a micro-batch of ")]
    assert warnings and all("continuing with at most" in line and "optimizer.token_budget" in line for line in warnings)
    gradient, logprobs, budget, checkpointing, refusal = [line for line in lines if line not in warnings]
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
