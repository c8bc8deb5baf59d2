"""Learning: losses fall, rewards rise, runs repeat to the bit, roles leave no trace on each other."""

import asyncio
import logging
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.backends.learners as learners

# isort: split
import torch

from metaagentx.backends.local import training
from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.forward import PackedModel
from metaagentx.backends.local.model import LocalModel, LoraOptions, load_model
from metaagentx.backends.local.policy import LocalPolicy
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.local.training import Learner
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig, OptimizerConfig
from metaagentx.policy import Completion, Datum, Metrics, SamplingParams

PROMPT = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / "tiny"
    new_model(path, "tiny")
    return path


def bits(model: LocalModel) -> dict[str, bytes]:
    return {name: weight.detach().numpy().tobytes() for name, weight in model.module.state_dict().items()}


def learner_of(policy: LocalPolicy) -> Learner:
    return policy.model.submit(policy._get_learner).result()


async def supervise(policy: LocalPolicy, steps: int) -> list[float]:
    """Reversing a word, shown over and over."""
    draw, losses = random.Random(0), []
    for _ in range(steps):
        data = []
        for _ in range(8):
            word = "".join(draw.choices("abcdefgh", k=5))
            prompt = policy.tokenizer.encode_chat([{"role": "user", "content": f"reverse {word}"}])
            reply = policy.tokenizer.hf.encode(word[::-1] + "<|end|>", add_special_tokens=False)
            data.append(Datum((*prompt, *reply), (0.0,) * len(prompt) + (1.0,) * len(reply)))
        metrics = await policy.forward_backward(data, "cross_entropy")
        await policy.optim_step(3e-3)
        losses.append(metrics["loss"])
    return losses


async def reinforce(policy: LocalPolicy, steps: int, start: int = 0) -> list[float]:
    """The reward is the share of sampled tokens that are even."""
    prompt, means = policy.tokenizer.encode_chat(PROMPT), []
    for step in range(start, start + steps):
        requests = [SamplingParams(max_tokens=12, seed=100 * step + index) for index in range(16)]
        replies = await asyncio.gather(*(policy.sample(prompt, request) for request in requests))
        rewards = [statistics.mean(token % 2 == 0 for token in reply.tokens) for reply in replies]
        mean, spread = statistics.mean(rewards), statistics.pstdev(rewards)
        data = [
            learn_from(prompt, reply, (reward - mean) / (spread + 1e-6))
            for reply, reward in zip(replies, rewards, strict=True)
        ]
        await policy.forward_backward(data, "ppo")
        await policy.optim_step(5e-3)
        means.append(mean)
    return means


def learn_from(prompt: list[int], reply: Completion, advantage: float) -> Datum:
    given = len(prompt)
    weights = (0.0,) * given + (1.0,) * len(reply.tokens)
    return Datum((*prompt, *reply.tokens), weights, advantage, (0.0,) * given + reply.logprobs)


def test_supervised_loss_falls_and_reward_rises(tiny: Path, runner: asyncio.Runner) -> None:
    policy = LocalPolicy(load_model(tiny), "executor")
    losses = runner.run(supervise(policy, 50))
    assert losses[0] == pytest.approx(math.log(1024), rel=0.1)
    assert statistics.mean(losses[-5:]) < 0.5 * losses[0]
    policy = LocalPolicy(load_model(tiny), "executor")
    rewards = runner.run(reinforce(policy, 30))
    assert statistics.mean(rewards[-5:]) > statistics.mean(rewards[:5]) + 0.3


def deterministic(tiny: Path) -> LocalPolicy:
    model = load_model(tiny)
    return LocalPolicy(model, "executor", Engine(model, deterministic=True))


def test_two_runs_give_the_same_bits_and_so_does_one_that_was_stopped(
    tiny: Path, tmp_path: Path, runner: asyncio.Runner
) -> None:
    async def run(stops: bool) -> dict[str, bytes]:
        policy = deterministic(tiny)
        await supervise(policy, 3)
        await reinforce(policy, 3)
        if stops:
            await policy.save(tmp_path / "3")
            policy = deterministic(tiny)
            await policy.load(tmp_path / "3")
        await reinforce(policy, 3, start=3)
        return bits(policy.model)

    first = runner.run(run(False))
    assert runner.run(run(False)) == first
    assert runner.run(run(True)) == first


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_sampled_logprobs_equal_the_training_pass(tiny: Path, runner: asyncio.Runner, temperature: float) -> None:
    """At any temperature, so that before the first update every ratio is 1."""
    policy = LocalPolicy(load_model(tiny), "executor")
    prompt = policy.tokenizer.encode_chat(PROMPT)

    async def compare() -> tuple[float, Metrics]:
        await supervise(policy, 3)
        requests = [SamplingParams(4 + index, temperature, seed=index) for index in range(12)]
        replies = await asyncio.gather(*(policy.sample(prompt, request) for request in requests))
        data = [learn_from(prompt, reply, 1.0) for reply in replies]
        found = await policy.logprobs(data, temperature)
        furthest = max(
            abs(left - right)
            for reply, values in zip(replies, found, strict=True)
            for left, right in zip(reply.logprobs, values[len(prompt) :], strict=True)
        )
        return furthest, await policy.forward_backward(data, "ppo", LossConfig(), temperature)

    furthest, metrics = runner.run(compare())
    assert furthest <= 1e-4
    assert metrics["ratio"] == pytest.approx(1, abs=1e-4)
    assert metrics["clip_share"] == 0


def test_a_role_that_does_not_learn_leaves_no_trace_on_shared_weights(tiny: Path, runner: asyncio.Runner) -> None:
    """What the executor becomes does not depend on whether the designer ever looked at data."""

    async def run(designer_looks: bool) -> tuple[dict[str, bytes], LocalPolicy]:
        model = load_model(tiny)
        executor, designer = LocalPolicy(model, "executor"), LocalPolicy(model, "designer")
        await supervise(executor, 2)
        if designer_looks:
            await designer.forward_backward([Datum((1, 2, 3), (0, 1, 1))], "cross_entropy")
        await supervise(executor, 2)
        return bits(model), designer

    alone, _ = runner.run(run(False))
    beside, designer = runner.run(run(True))
    assert alone == beside
    assert not learner_of(designer).optimizer.state
    assert learner_of(designer).state.steps == 0


def test_loras_of_two_roles_do_not_touch_each_other_or_the_base(tiny: Path, runner: asyncio.Runner) -> None:
    base = load_model(tiny)
    models = {role: base.with_adapter(role, LoraOptions(rank=4)) for role in ("designer", "executor")}
    policies = {role: LocalPolicy(model, role) for role, model in models.items()}
    before = bits(base)
    prompt = base.tokenizer.encode_chat(PROMPT)
    greedy = SamplingParams(max_tokens=6, temperature=0.0)

    async def learn() -> tuple[Completion, Completion]:
        unlearnt = await policies["executor"].sample(prompt, greedy)
        await supervise(policies["designer"], 3)
        return unlearnt, await policies["executor"].sample(prompt, greedy)

    unlearnt, still = runner.run(learn())
    after = bits(base)
    changed = {name for name in before if before[name] != after[name]}
    assert changed
    assert all("lora_" in name and ".designer." in name for name in changed)
    assert not learner_of(policies["executor"]).optimizer.state
    assert models["executor"].version == 0
    assert unlearnt == still


def test_gradients_gather_over_calls_until_the_step() -> None:
    learner = Learner(learners.random_model())
    one, two = learners.datum((1, 2), (3, 4)), learners.datum((1, 2), (5, 6, 7))
    learner.forward_backward([one], "cross_entropy", LossConfig(normalize="constant", constant=5))
    learner.forward_backward([two], "cross_entropy", LossConfig(normalize="constant", constant=5))
    gathered, learner.gradients = learner.gradients, {}
    learner.forward_backward([one, two], "cross_entropy", LossConfig())
    assert learners.relative_difference(gathered, learner.gradients) <= 1e-5
    learner.optim_step(1e-3)
    assert not learner.gradients
    assert learner.model.version == 1


def test_the_cosine_of_two_gradients_does_not_depend_on_their_order() -> None:
    """Sets of names have another order in each process, and the backward pass has its own."""
    model = learners.random_model()
    sides = [Learner(model), Learner(model)]
    for learner in sides:
        learner.gradients = {name: torch.ones(1, dtype=torch.float64) for name in learner.parameters}
        learner.gradients[next(iter(learner.parameters))] *= 1e8
    cosine = sides[0].gradient_cosine(sides[1])
    for learner in sides:
        learner.gradients = dict(reversed(learner.gradients.items()))
        assert sides[0].gradient_cosine(sides[1]) == cosine


def test_the_gradient_is_clipped_and_its_norm_told() -> None:
    learner = Learner(learners.random_model(), OptimizerConfig(gradient_clip=0.01, beta1=0.0, beta2=0.0))
    learner.forward_backward([learners.datum((1, 2), (3, 4))], "cross_entropy", LossConfig())
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in learner.gradients.values()))
    metrics = learner.optim_step(1e-3)
    assert metrics["grad_norm"] == pytest.approx(norm)
    moments = [state["exp_avg_sq"].sum() for state in learner.optimizer.state.values()]
    assert math.sqrt(sum(map(float, moments))) == pytest.approx(0.01, rel=1e-3)


def test_a_step_without_a_gradient_moves_nothing() -> None:
    learner = Learner(learners.random_model())
    before = bits(learner.model)
    assert learner.optim_step(1e-3)["grad_norm"] == 0
    assert bits(learner.model) == before
    assert learner.model.version == 0


def test_bad_steps_say_so_and_change_nothing() -> None:
    learner = Learner(learners.random_model())
    before = bits(learner.model)
    with pytest.raises(MetaAgentXError, match="learning rate must be finite and >= 0, got -1"):
        learner.optim_step(-1)
    learner.gradients["model.norm.weight"] = torch.full((16,), math.nan, dtype=torch.float64)
    with pytest.raises(MetaAgentXError, match="gradient of step 1 is not finite"):
        learner.optim_step(1e-3)
    assert bits(learner.model) == before
    assert learner.optim_step(1e-3)["grad_norm"] == 0


def test_a_model_that_cannot_be_trained_is_sampled_and_refused_when_it_is_to_learn(
    tmp_path: Path, runner: asyncio.Runner
) -> None:
    policy = LocalPolicy(load_model(learners.write_untrainable(tmp_path / "cohere")), "executor")
    prompt = policy.tokenizer.encode_chat(PROMPT)
    drawn = runner.run(policy.sample(prompt, SamplingParams(8, seed=1)))
    tokens = torch.tensor([[*prompt, *drawn.tokens]])
    with torch.inference_mode():
        logprobs = policy.model.module(input_ids=tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(1, torch.tensor(drawn.tokens)[:, None])[:, 0].tolist()
    assert drawn.logprobs == pytest.approx(expected, abs=1e-4)
    refused = "^CohereForCausalLM gives other logits in a packed tree than alone, and cannot be trained here"
    with pytest.raises(MetaAgentXError, match=refused):
        runner.run(policy.forward_backward([Datum((1, 2, 3), (0, 1, 1))], "cross_entropy"))
    with pytest.raises(MetaAgentXError, match=refused):
        policy.ensure_trainable()


def test_the_log_is_quiet_when_memory_suffices(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Learner(learners.random_model()).forward_backward([learners.datum((1,), (2,))], "cross_entropy", LossConfig())
    assert not caplog.records


def runs_out(parameter: torch.nn.Parameter, times: int) -> Callable[[], int]:
    """Let memory run out where the gradient of this weight is computed, so many times; how often it did."""
    raised: list[int] = []

    def fail(_: torch.Tensor) -> None:
        if len(raised) < times:
            raised.append(1)
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    parameter.register_hook(fail)
    return lambda: len(raised)


FORK = [learners.datum((1, 2, 3), (4 + index, 5, index), index + 1.0) for index in range(8)]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("where", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_every_datum_counts_once_for_every_weight_wherever_memory_runs_out(where: str, times: int) -> None:
    """In the middle of a backward pass, when some weights have their gradient already, also of a call before."""
    gradients = []
    for failures in (0, times):
        learner = Learner(learners.random_model("llama"))
        learner.forward_backward(FORK[:1], "ppo", LossConfig())
        failed = runs_out(learner.parameters[where], failures)
        metrics = learner.forward_backward(FORK, "ppo", LossConfig())
        assert (metrics["sequences"], failed()) == (8, failures)
        assert all(parameter.grad is None for parameter in learner.parameters.values())
        gradients.append(learner.gradients)
    assert learner.state.token_budget < 8192
    assert learners.relative_difference(gradients[1], gradients[0]) <= 1e-6


def test_a_call_that_fails_leaves_no_gradient() -> None:
    learner = Learner(learners.random_model("llama"))
    runs_out(learner.parameters["model.embed_tokens.weight"], 10**6)
    with pytest.raises(MetaAgentXError, match="out of memory on a single sequence of 6 tokens"):
        learner.forward_backward(FORK, "ppo", LossConfig())
    assert not learner.gradients


@pytest.mark.parametrize(("setting", "then"), [("auto", True), (False, False), (True, True)])
def test_activation_checkpointing_is_used_when_a_sequence_does_not_fit_or_suggested(
    setting: Any, then: bool, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner(learners.random_model("llama"), OptimizerConfig(activation_checkpointing=setting))
    failed = runs_out(learner.parameters["model.norm.weight"], 1)
    if setting == "auto":
        learner.forward_backward(FORK[:1], "ppo", LossConfig())
        assert failed() == 1
        assert "continuing with activation checkpointing" in caplog.text
    else:
        with pytest.raises(MetaAgentXError, match="out of memory on a single sequence") as caught:
            learner.forward_backward(FORK[:1], "ppo", LossConfig())
        assert ("set optimizer.activation_checkpointing to true" in str(caught.value)) == (setting is False)
    assert learner._packed_model.recompute == then
    assert learner.state.token_budget == 8192


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("lora", [False, True])
def test_activation_checkpointing_changes_no_bit(kind: str, lora: bool) -> None:
    """On packed trees; and the module is afterwards as it was."""
    gradients = []
    for recompute in (False, True):
        model = learners.random_model(kind, torch.float32)
        if lora:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = model.with_adapter("default", LoraOptions(rank=4))
        learner = Learner(model, OptimizerConfig(activation_checkpointing=recompute))
        learner._break_even = math.inf
        learner._packed_model._lora_pass = None  # which has a test of its own
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        learner._packed_model.decoder.layers[0].mlp.register_forward_pre_hook(count)
        for _ in range(2):  # the second time, the B of a LoRA is no longer zero
            calls = 0
            learner.forward_backward(FORK, "ppo", LossConfig())
            gradients.append(learner.gradients)
            learner.optim_step(1e-2)
        assert calls == 1 + recompute, "the layer is computed again in the backward pass"
        assert all("forward" not in layer.__dict__ for layer in learner._packed_model.decoder.layers)
    for left, right in zip(gradients[:2], gradients[2:], strict=True):
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_moments_of_a_role_that_does_not_learn_make_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is one device here: the one without memory stands for the other."""
    model = learners.random_model("llama", torch.float32)
    resting, learner = Learner(model), Learner(model)

    def places() -> set[str]:
        return {tensor.device.type for state in resting.moments.values() for tensor in state.values()}

    resting.forward_backward(FORK, "ppo", LossConfig())
    resting.optim_step(1e-3)
    runs_out(learner.parameters["model.norm.weight"], 1)
    learner.forward_backward(FORK, "ppo", LossConfig())
    assert places() == {"cpu"} and learner.state.token_budget < 8192, "in main memory already: no room to make"

    monkeypatch.setattr(training, "_MAIN_MEMORY", torch.device("meta"))
    runs_out(learner.parameters["model.norm.weight"], 1)
    budget = learner.state.token_budget
    learner.forward_backward(FORK, "ppo", LossConfig())
    learner.optim_step(1e-3)
    assert places() == {"meta"} and learner.state.token_budget == budget
    assert "moved optimizer state to main memory" in caplog.text
    resting.forward_backward(FORK, "ppo", LossConfig())
    with pytest.raises(NotImplementedError, match="meta"):  # it is taken back for the next step: there is nothing there
        resting.optim_step(1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_moments_return_from_main_memory_unchanged(tiny: Path) -> None:
    ends = []
    for offloads in (False, True):
        learner = Learner(load_model(tiny, device="cuda"))
        for _ in range(3):
            learner.forward_backward(FORK, "ppo", LossConfig())
            learner.optim_step(1e-3)
            assert not offloads or learner.offload_moments(torch.device("cpu"))
        ends.append({name: master.cpu() for name, master in learner.model.masters.items()})
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("broken", learners.BROKEN)
def test_models_that_would_train_wrongly_are_refused(broken: str) -> None:
    for scale in (0.01, 1.0):
        with pytest.raises(MetaAgentXError, match="gives other logits in a packed tree than alone"):
            PackedModel(learners.broken_model(broken, scale))
