"""The training pass of a LoRA: the gradients and log-probabilities of the plain pass, and no others."""

import math
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.backends.learners as learners

# isort: split
import torch
from torch.utils.flop_counter import FlopCounterMode

from metaagentx.backends.local.lora_pass import has_lora_pass
from metaagentx.backends.local.model import LocalModel, LoraOptions
from metaagentx.backends.local.prefix_tree import attention_spans, compact, pack
from metaagentx.backends.local.training import Learner
from metaagentx.options import LossConfig, OptimizerConfig
from metaagentx.policy import Datum

SHARED = math.inf
TOLERANCE = 3e-6
"""Norms and rotary positions of transformers are computed in fp32, also in a model in fp64."""
TREES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=12)
SHAPE: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 40}


def lora_learner(kind: str, dtype: torch.dtype = torch.float64, **options: Any) -> Learner:
    """A learner of a LoRA that changes what the model says: a new one starts with zeros."""
    base = learners.random_model(kind, dtype, **SHAPE)
    model = base.with_adapter("executor", LoraOptions(rank=3, alpha=6, **options))
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.module.named_parameters():
        if "lora_" in name:
            weight.data = torch.randn(weight.shape, generator=generator, dtype=dtype) / 4
        elif "norm" in name:
            weight.data = 1 + torch.randn(weight.shape, generator=generator, dtype=dtype) / 4
    return Learner(model)


def tree_data(seed: int = 0, tasks: int = 2, designs: int = 3, executions: int = 3) -> list[Datum]:
    """Executions share the prompt of their design, and designs that of their task."""
    draw = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(learners.VOCABULARY), k=count))

    data = []
    for _ in range(tasks):
        task = tokens(12)
        for _ in range(designs):
            prompt = task + tokens(draw.randint(1, 8))
            for _ in range(executions):
                data.append(learners.datum(prompt, tokens(draw.randint(1, 40)), draw.uniform(-2, 2)))
    return data


def both(learner: Learner, data: list[Datum], loss: Any, options: LossConfig, temperature: float) -> list[Any]:
    """Gradients and metrics, through our pass and through the module."""
    packed, results = learner._packed_model, []
    ours = packed._lora_pass
    assert ours is not None
    for each in (ours, None):
        packed._lora_pass, learner.gradients = each, {}
        metrics = learner.forward_backward(data, loss, options, temperature)
        results.append((learner.gradients, metrics))
    packed._lora_pass, learner.gradients = ours, {}
    return results


LOSSES = {
    "cross_entropy": ("cross_entropy", LossConfig()),
    "ppo": ("ppo", LossConfig()),
    "sequence": ("ppo", LossConfig(sequence_ratio=True, normalize="sequence")),
    "kl": ("ppo", LossConfig(kl=0.1, normalize="constant", constant=7)),
    "truncated": ("ppo", LossConfig(truncate_ratio=2.0)),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_on_a_tree_are_those_of_the_module(kind: str, loss: str, recompute: bool) -> None:
    learner = lora_learner(kind)
    learner._packed_model.recompute = recompute
    name, options = LOSSES[loss]
    for budget, temperature in ((10**6, 1.0), (90, 0.7)):
        learner.state.token_budget = budget
        (ours, metrics), (plain, expected) = both(learner, tree_data(), name, options, temperature)
        assert learners.relative_difference(ours, plain) <= TOLERANCE
        assert all("lora_" in name for name in ours) and len(ours) == 28
        assert metrics == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@given(TREES, st.sampled_from([24, 60, 4000]), st.sampled_from([1, 5, 64]))
@settings(max_examples=25, deadline=None)
def test_gradients_of_any_tree_are_those_of_the_module(
    shared: dict[str, Learner], kind: str, sequences: list[list[int]], budget: int, block: int
) -> None:
    learner = shared[kind]
    learner.state.token_budget, learner._break_even = budget, SHARED
    assert learner._packed_model._lora_pass is not None
    learner._packed_model._lora_pass._block = block
    data = [learners.datum((0,), tuple(sequence)) for sequence in sequences]
    (ours, _), (plain, _) = both(learner, data, "cross_entropy", LossConfig(), 1.0)
    assert learners.relative_difference(ours, plain) <= TOLERANCE


@pytest.fixture(scope="module")
def shared() -> dict[str, Learner]:
    return {kind: lora_learner(kind) for kind in ("qwen3", "llama")}


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "v_proj"), ("down_proj",)])
def test_single_precision_and_a_lora_on_some_layers(targets: Any) -> None:
    """In fp32, products are oneDNN's."""
    learner = lora_learner("llama", torch.float32, targets=targets)
    (ours, _), (plain, _) = both(learner, tree_data(), "ppo", LossConfig(), 1.0)
    assert learners.relative_difference(ours, plain) <= 1e-4


def test_logprobs_are_those_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaagentx.backends.local.lora_kernels.LORA_PASS_HEAD_ROWS", 7)
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.float32, 1e-4)):
        learner, data = lora_learner("qwen3", dtype), tree_data()
        found = learner.logprobs(data, 0.7)
        learner._packed_model._lora_pass = None
        for ours, plain in zip(found, learner.logprobs(data, 0.7), strict=True):
            assert ours == pytest.approx(plain, abs=tolerance)


def test_nothing_frozen_gets_a_gradient() -> None:
    """Not even one that is thrown away: the backward pass would take twice the products of the forward pass."""
    learner = lora_learner("llama")
    data = tree_data()
    with FlopCounterMode(display=False) as forward:
        learner.logprobs(data)
    with FlopCounterMode(display=False) as whole:
        learner.forward_backward(data, "cross_entropy", LossConfig())
    products = [
        sum(counts for op, counts in counter.get_flop_counts()["Global"].items() if "mm" in str(op))
        for counter in (forward, whole)
    ]
    rank, layers = 3, [part for part in learner.model.module.modules() if hasattr(part, "base_layer")]
    lora_share = sum(rank * (p.in_features + p.out_features) for p in layers) / sum(
        p.in_features * p.out_features for p in layers
    )
    assert products[0] > 0
    assert products[1] <= (2.1 + 3 * lora_share) * products[0]
    trained = set(learner.parameters)
    for name, weight in learner.model.module.named_parameters():
        assert weight.grad is None
        assert weight.requires_grad == (name in trained)


def test_layers_keep_nothing_but_their_inputs_when_recomputing() -> None:
    learner = lora_learner("llama", torch.float32)
    lora_pass = learner._packed_model._lora_pass
    assert lora_pass is not None
    (batch,) = pack({0: [index % 20 for index in range(200)]}, 10**4, SHARED)

    def layers_that_keep(recompute: bool) -> list[bool]:
        node, kept = lora_pass.hidden(batch, torch.arange(200), recompute=recompute).grad_fn, []
        while node is not None:
            if hasattr(node, "kept"):
                kept.append(node.kept is not None)
            node = node.next_functions[0][0] if node.next_functions else None
        return kept

    assert layers_that_keep(True) == [False, False]
    assert layers_that_keep(False) == [True, True]
    gradients = []
    for recompute in (False, True):
        learner._packed_model.recompute, learner.gradients = recompute, {}
        learner.forward_backward(tree_data(), "ppo", LossConfig())
        gradients.append(learner.gradients)
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


@given(TREES, st.sampled_from([24, 4000]), st.sampled_from([3, 8]), st.sampled_from([1, 2, 6]))
@settings(max_examples=100, deadline=None)
def test_spans_attend_to_ancestors_and_nothing_else(
    sequences: list[list[int]], budget: int, longest: int, shortest: int
) -> None:
    for batch in pack(dict(enumerate(sequences)), budget, SHARED):
        nodes = compact(batch)
        assert len(nodes.tokens) == batch.used
        for index, path in batch.paths.items():
            places = [nodes.places[node] for node in path]
            assert [nodes.tokens[place] for place in places] == sequences[index]
            assert [nodes.depths[place] for place in places] == list(range(len(path)))
        spans = attention_spans(nodes, longest, shortest)
        assert [node for span in spans for node in range(span.start, span.stop)] == list(range(batch.used))
        expected: dict[int, set[int]] = {}
        for path in batch.paths.values():
            places = [nodes.places[node] for node in path]
            expected |= {place: set(places[: depth + 1]) for depth, place in enumerate(places)}
        for span in spans:
            assert span.stop - span.start <= longest
            for query in range(span.start, span.stop):
                pairs = zip(span.keys, span.ends, strict=True)
                assert {key for key, end in pairs if key <= query < end} == expected[query]


def test_without_onednn_the_module_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = learners.random_model("llama", torch.float32, **SHAPE).with_adapter("executor", LoraOptions(rank=3))
    assert has_lora_pass(model.module, "executor")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_lora_pass(model.module, "executor")


def test_models_that_the_pass_does_not_cover_use_the_module() -> None:
    assert not has_lora_pass(learners.random_model().module, None)
    for bias, targets in (
        (True, "all-linear"),
        (False, ("q_proj", "embed_tokens")),
        (False, ("q_proj", "lm_head")),
    ):
        base = learners.random_model("llama", torch.float32, **SHAPE, attention_bias=bias)
        model = base.with_adapter("executor", LoraOptions(rank=3, targets=targets))
        assert not has_lora_pass(model.module, "executor")
        learner = Learner(model, OptimizerConfig())
        learner.forward_backward(tree_data(tasks=1), "ppo", LossConfig())
        assert learner.gradients.keys() == learner.parameters.keys()
    half = learners.random_model("llama", torch.bfloat16, **SHAPE).with_adapter("executor", LoraOptions(rank=3))
    assert not has_lora_pass(half.module, "executor")


def test_each_role_learns_with_its_own_lora() -> None:
    base = learners.random_model("qwen3", **SHAPE)
    sides = [base.with_adapter(role, LoraOptions(rank=2)) for role in ("designer", "executor")]

    def gradients(model: LocalModel) -> dict[str, torch.Tensor]:
        learner = Learner(model)
        assert learner._packed_model._lora_pass is not None
        learner.forward_backward(tree_data(tasks=1), "ppo", LossConfig())
        return learner.gradients

    for model in sides:
        names = model.submit(partial(gradients, model)).result()
        assert len(names) == 28 and all(f".{model.adapter}." in name for name in names)
