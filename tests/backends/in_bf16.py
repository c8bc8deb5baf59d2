"""What holds for bf16 weights. `test_bf16.py` runs this file in a process of its own, see there."""

import json
import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tests.backends.learners as learners

# isort: split
import torch
from safetensors.torch import load_file, save_file

from metaagentx.backends.local.checkpoint import load_checkpoint, save_checkpoint
from metaagentx.backends.local.forward import PackedModel
from metaagentx.backends.local.model import LocalModel, LoraOptions, load_model
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.local.training import Learner
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig, OptimizerConfig
from metaagentx.policy import Datum

torch.set_num_threads(1)

USUAL = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "initializer_range": 0.02}
"""Weights as large as those of an LLM."""


def batch(vocabulary: int = 200) -> list[Datum]:
    draw = random.Random(0)
    return [learners.datum((1, 2, 3), tuple(draw.randrange(vocabulary) for _ in range(12))) for _ in range(8)]


def learn(learner: Learner, steps: int, rate: float = 5e-6) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(learner.forward_backward(batch(), "cross_entropy", LossConfig())["loss"])
        learner.optim_step(rate)
    return losses


def as_type(dtype: torch.dtype, **shape: Any) -> LocalModel:
    """The same numbers in each type: all can be written in bf16."""
    model = learners.random_model(dtype=torch.bfloat16, **(USUAL | shape))
    model.module.to(dtype)
    model.dtype = dtype
    return model


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    changed = sum(int((before[name] != after[name]).sum()) for name in before)
    return changed / sum(tensor.numel() for tensor in before.values())


def test_small_updates_add_up_and_the_loss_follows_that_of_fp32() -> None:
    models = {dtype: as_type(dtype) for dtype in (torch.float32, torch.bfloat16)}
    single, half = (Learner(model) for model in models.values())
    before = {name: weight.detach().float() for name, weight in half.parameters.items()}
    expected, losses = learn(single, 20), learn(half, 20)
    fall = expected[0] - expected[-1]
    # Not closer in between: weights start on a number of bf16 and leave it when half of the way to the next is done.
    assert max(abs(left - right) for left, right in zip(expected, losses, strict=True)) < 0.35 * fall
    assert losses[0] - losses[-1] == pytest.approx(fall, rel=0.1)
    assert moved(before, half.weights) > 0.999
    assert {tensor.dtype for state in half.moments.values() for tensor in state.values()} == {torch.float32}
    assert all(torch.equal(half.parameters[name], master.bfloat16()) for name, master in half.weights.items())
    assert not models[torch.float32].masters, "fp32 weights have no copy"
    apart = learners.relative_difference(
        {name: master - before[name] for name, master in half.weights.items()},
        {name: weight.detach() - before[name] for name, weight in single.weights.items()},
    )
    assert apart < 0.35, "and they move the same way"

    lost = Learner(as_type(torch.bfloat16))  # without masters, as a comparison
    lost.weights = dict(lost.parameters)
    losses = []
    for _ in range(20):
        losses.append(lost.forward_backward(batch(), "cross_entropy", LossConfig())["loss"])
        lost.gradients = {name: gradient.bfloat16() for name, gradient in lost.gradients.items()}
        lost.optim_step(5e-6)
    assert moved(before, {name: weight.detach().float() for name, weight in lost.parameters.items()}) < 0.1
    assert losses[0] - losses[-1] < 0.2 * fall


def test_gradients_of_micro_batches_add_up_in_fp32() -> None:
    """The sum of many bf16 gradients is as exact as one of them: in bf16 the last ones would be lost."""
    learner, data = Learner(as_type(torch.bfloat16)), batch() * 16
    exact = Learner(as_type(torch.float32))
    exact.forward_backward(data, "cross_entropy", LossConfig())
    learner.state.token_budget = 15
    learner.forward_backward(data, "cross_entropy", LossConfig())
    assert {gradient.dtype for gradient in learner.gradients.values()} == {torch.float32}
    assert learners.relative_difference(learner.gradients, exact.gradients) < 0.02


def test_two_roles_move_the_same_masters() -> None:
    model = as_type(torch.bfloat16)
    first, second = Learner(model), Learner(model)
    learn(first, 2)
    after = {name: master.clone() for name, master in model.masters.items()}
    assert all(first.weights[name] is second.weights[name] for name in model.masters)
    learn(second, 1, rate=0.0)
    assert all(torch.equal(master, after[name]) for name, master in model.masters.items())
    reference = Learner(as_type(torch.bfloat16))
    reference.logprobs(batch())
    assert not reference.model.masters, "a model that only looks has none"


def test_a_lora_is_fp32_on_a_bf16_base() -> None:
    losses = {}
    for dtype in (torch.float32, torch.bfloat16):
        base = as_type(dtype)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            models = [base.with_adapter(name, LoraOptions(rank=4)) for name in ("designer", "executor")]
        for model in models:
            assert {weight.dtype for weight in Learner(model).parameters.values()} == {torch.float32}
        learner = Learner(models[0])
        losses[dtype] = models[0].submit(partial(learn, learner, 20, 1e-3)).result()
        assert not models[0].masters and {weight.dtype for weight in learner.gradients.values()} <= {torch.float32}
    single, half = losses.values()
    assert abs(single[-1] - half[-1]) < 0.05 * (single[0] - single[-1])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / "nano"
    new_model(path, "nano")
    return path


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_stopped_run_goes_on_to_the_same_bits(directory: Path, tmp_path: Path, in_the_middle: bool) -> None:
    """Both roles on shared weights; the weights themselves would lose what the masters know."""

    def roles() -> list[Learner]:
        model = load_model(directory, dtype="bfloat16")
        return [Learner(model), Learner(model)]

    def state(learners_: list[Learner]) -> list[bytes]:
        model = learners_[0].model
        tensors = [model.masters[name] for name in sorted(model.masters)] + [*model.module.parameters()]
        for learner in learners_:
            tensors += [moments[kind] for moments in learner.moments.values() for kind in sorted(moments)]
        return [tensor.detach().float().numpy().tobytes() for tensor in tensors]

    whole = roles()
    learn(whole[1], 2)
    learn(whole[0], 3)
    if in_the_middle:
        whole[1].forward_backward(batch(), "cross_entropy", LossConfig())
    for learner, role in zip(whole, ("designer", "executor"), strict=True):
        save_checkpoint(learner, role, tmp_path / "5" / role)
    assert len([*(tmp_path / "5").rglob("masters.safetensors")]) == 1
    stopped = roles()
    for learner, role in zip(stopped, ("designer", "executor"), strict=True):
        load_checkpoint(learner, tmp_path / "5" / role)
    for learners_ in (whole, stopped):
        learn(learners_[1], 2)
    assert state(stopped) == state(whole)
    exact = Learner(load_model(directory))  # as if model.dtype had been changed to float32
    load_checkpoint(exact, tmp_path / "5" / "executor")
    saved = Learner(load_model(directory, dtype="bfloat16"))
    load_checkpoint(saved, tmp_path / "5" / "designer")
    assert all(torch.equal(exact.parameters[name], master) for name, master in saved.model.masters.items())


def test_a_run_of_an_earlier_version_goes_on(directory: Path, tmp_path: Path) -> None:
    """There were no masters, and the moments were bf16."""
    learner = Learner(load_model(directory, dtype="bfloat16"))
    learn(learner, 1)
    save_checkpoint(learner, "designer", tmp_path / "old")
    training = tmp_path / "old" / "training"
    moments = load_file(training / "optimizer.safetensors")
    old = {name: tensor if "step/" in name else tensor.bfloat16() for name, tensor in moments.items()}
    save_file(old, training / "optimizer.safetensors")
    (training / "masters.safetensors").unlink()
    resumed = Learner(load_model(directory, dtype="bfloat16"))
    load_checkpoint(resumed, tmp_path / "old")
    learn(resumed, 1)
    assert resumed.state.steps == 2
    assert {tensor.dtype for state in resumed.moments.values() for tensor in state.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("lora", [False, True])
def test_plain_transformers_and_peft_load_a_checkpoint(directory: Path, tmp_path: Path, dtype: str, lora: bool) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = load_model(directory, dtype=dtype, lora=LoraOptions(rank=4) if lora else None)
    learner = Learner(model)
    learn(learner, 2, 1e-3)
    for role in ("designer", "executor"):
        save_checkpoint(learner, role, tmp_path / role)
    if lora:
        base = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
        plain: Any = PeftModel.from_pretrained(base, tmp_path / "designer")
    else:
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "designer", dtype="auto")
        assert json.loads((tmp_path / "designer" / "config.json").read_text())["dtype"] == dtype
    assert plain.dtype == getattr(torch, dtype)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(plain(input_ids=tokens).logits, model.module(input_ids=tokens).logits)


def test_activation_checkpointing_gives_the_same_gradient() -> None:
    learners_ = [Learner(as_type(torch.bfloat16), OptimizerConfig(activation_checkpointing=on)) for on in (False, True)]
    for learner in learners_:
        learner.forward_backward(batch(), "cross_entropy", LossConfig())
    left, right = (learner.gradients for learner in learners_)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_logits_in_chunks_are_as_exact_as_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, whole, chunks = (Learner(as_type(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.bfloat16))
    exact.forward_backward(batch(), "ppo", LossConfig(), 0.7)
    whole.forward_backward(batch(), "ppo", LossConfig(), 0.7)
    monkeypatch.setattr("metaagentx.backends.local.forward.MAX_LOGITS", 3 * 512)
    chunks.forward_backward(batch(), "ppo", LossConfig(), 0.7)
    errors = [learners.relative_difference(learner.gradients, exact.gradients) for learner in (whole, chunks)]
    assert errors[1] < 1.2 * errors[0] < 0.1


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 30.0])
def test_healthy_models_of_any_depth_and_scale_can_be_trained(kind: str, scale: float) -> None:
    for layers in (1, 12):
        model = learners.random_model(kind, torch.float32, initializer_range=min(1.0, scale), num_hidden_layers=layers)
        with torch.no_grad():
            for seed in range(2):
                torch.manual_seed(seed)
                for name, weight in model.module.named_parameters():
                    if "norm" not in name:
                        weight.normal_(0, scale)
                PackedModel(model.module.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("broken", learners.BROKEN)
def test_models_that_would_train_wrongly_are_refused(dtype: torch.dtype, broken: str) -> None:
    for scale in (0.01, 0.3, 1.0):
        with pytest.raises(MetaAgentXError, match="gives other logits in a packed tree than alone"):
            PackedModel(learners.broken_model(broken, scale).to(dtype))


def test_where_rounding_hides_the_answer_fp32_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are in fp32 for the second look, and are the same tensors as before afterwards."""
    healthy = learners.random_model(dtype=torch.bfloat16).module
    before = {name: (weight.data_ptr(), weight.dtype) for name, weight in healthy.named_parameters()}
    errors = PackedModel._packing_error
    seen = []

    def noisy(self: PackedModel) -> tuple[float, float, float]:
        error, effect, size = errors(self)
        seen.append(self.head.weight.dtype)
        return (error if seen[-1] == torch.float32 else math.inf), effect, size

    monkeypatch.setattr(PackedModel, "_packing_error", noisy)
    PackedModel(healthy)
    assert seen == [torch.bfloat16, torch.float32]
    assert before == {name: (weight.data_ptr(), weight.dtype) for name, weight in healthy.named_parameters()}
