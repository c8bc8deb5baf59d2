"""Packing: every datum once and whole, what is shared once, and the packed gradient equals the flat one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.backends.learners as learners

# isort: split
import torch

from metaagentx.backends.local.forward import PackedModel, Targets
from metaagentx.backends.local.prefix_tree import MicroBatch, build_trees, common_prefix, pack
from metaagentx.backends.local.training import Learner
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig, OptimizerConfig
from metaagentx.policy import Datum

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)
SEQUENCES = st.lists(TOKENS, min_size=1, max_size=12)
SHARED = 1e9  # a span at which sharing always pays


def ancestors(batch: MicroBatch, place: int) -> list[int]:
    """The places a place attends to, from the definition that the mask uses."""
    row, column = divmod(place, batch.length)
    start = row * batch.length
    return [start + above for above in range(column + 1) if column < batch.ends[start + above]]


@given(SEQUENCES, st.integers(1, 60), st.sampled_from([1.0, 20.0, SHARED]))
def test_each_datum_is_once_and_whole_in_a_pack(sequences: list[list[int]], budget: int, span: float) -> None:
    batches = pack(dict(enumerate(sequences)), budget, span)
    assert sorted(index for batch in batches for index in batch.paths) == list(range(len(sequences)))
    for batch in batches:
        assert len(batch.tokens) == len(batch.depths) == len(batch.ends) == batch.rows * batch.length
        longest = max(len(sequences[index]) for index in batch.paths)
        assert batch.rows * batch.length <= max(budget, longest)
        for index, path in batch.paths.items():
            assert [batch.tokens[node] for node in path] == sequences[index]
            assert [batch.depths[node] for node in path] == list(range(len(path)))
            for depth, node in enumerate(path):
                assert ancestors(batch, node) == path[: depth + 1]


@given(SEQUENCES)
def test_a_tree_has_each_prefix_once(sequences: list[list[int]]) -> None:
    trees = build_trees(dict(enumerate(sequences)), 10**6, SHARED)
    prefixes = {tuple(sequence[: end + 1]) for sequence in sequences for end in range(len(sequence))}
    assert sum(len(tree.tokens) for tree in trees) == len(prefixes)


@given(TOKENS, TOKENS)
def test_common_prefix(left: list[int], right: list[int]) -> None:
    shared = common_prefix(left, right)
    assert left[:shared] == right[:shared]
    assert left[shared : shared + 1] != right[shared : shared + 1] or shared in (len(left), len(right))


def test_sharing_stops_where_attention_costs_more() -> None:
    long = {index: [0] * 100 + [index] * 10 for index in range(16)}
    assert len(build_trees(long, 10**6, break_even=1000)) < 4
    short = {index: [0] + [index + 1] * 100 for index in range(16)}
    assert len(build_trees(short, 10**6, break_even=1000)) == 16


def test_a_tree_over_the_budget_is_cut_and_repeats_its_path() -> None:
    sequences = {index: [9] * 20 + [index] * 5 for index in range(8)}
    trees = build_trees(sequences, 40, SHARED)
    assert [len(tree.tokens) for tree in trees] == [40, 40]
    assert [len(tree.paths) for tree in trees] == [4, 4]


def test_unshared_sequences_need_no_mask() -> None:
    (batch,) = pack({0: [1, 2, 3], 1: [2, 3]}, 100, SHARED)
    assert batch.chains
    assert batch.depths == [0, 1, 2, 0, 1, 2]


def flat_gradient(learner: Learner, data: list[Datum], options: LossConfig) -> dict[str, torch.Tensor]:
    """The same loss from one plain forward pass for each datum, with nothing of ours but the loss's definition."""
    tokens = sum(sum(datum.weights) for datum in data)
    total = torch.zeros((), dtype=torch.float64)
    for datum in data:
        logits = learner.model.module(input_ids=torch.tensor([datum.tokens])).logits[0, :-1]
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(datum.tokens[1:])[:, None])[:, 0]
        assert datum.logprobs is not None
        ratio = (logprobs - torch.tensor(datum.logprobs[1:])).exp()
        clipped = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
        loss = -torch.minimum(ratio * datum.advantage, clipped * datum.advantage)
        total = total + (torch.tensor(datum.weights[1:]) * loss).sum() / tokens
    names = list(learner.weights)
    gradients = torch.autograd.grad(total, [learner.weights[name] for name in names])
    return dict(zip(names, gradients, strict=True))


# Advantages of one sign: where branches cancel out, a relative difference says nothing.
DATA = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=2, max_size=16),
        st.floats(0.1, 2),
        st.integers(0, 2**16 - 2),
    ),
    min_size=1,
    max_size=10,
)


def to_data(drawn: list[tuple[list[int], float, int]]) -> list[Datum]:
    """Any subset of tokens but the first is trained on, the same token in one datum and not in another."""
    data = []
    for tokens, advantage, bits in drawn:
        plain = learners.datum((), tuple(tokens), advantage)
        weights = (0.0, *(float(bits >> index & 1) for index in range(len(tokens) - 2)), 1.0)
        data.append(Datum(plain.tokens, weights, advantage, plain.logprobs))
    return data


@pytest.fixture(scope="module")
def models() -> dict[str, Learner]:
    return {
        "qwen3": Learner(learners.random_model()),
        "llama": Learner(learners.random_model("llama")),
        "single": Learner(learners.random_model(dtype=torch.float32)),
    }


@pytest.mark.parametrize("name", ["qwen3", "llama", "single"])
@given(DATA, st.sampled_from([12, 40, 4000]), st.sampled_from([5.0, SHARED]))
@settings(max_examples=25, deadline=None)
def test_packed_gradients_equal_flat_ones(
    models: dict[str, Learner], name: str, drawn: list[tuple[list[int], float, int]], budget: int, span: float
) -> None:
    learner, data, options = models[name], to_data(drawn), LossConfig(dual_clip=False, clip_low=1.0, clip_high=1e6)
    learner.state.token_budget, learner._break_even, learner.gradients = budget, span, {}
    learner.forward_backward(data, "ppo", options)
    assert learners.relative_difference(learner.gradients, flat_gradient(learner, data, options)) <= 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@given(SEQUENCES, st.sampled_from([12, 4000]))
@settings(max_examples=15, deadline=None)
def test_packed_logprobs_equal_flat_ones(
    models: dict[str, Learner], attention: str, sequences: list[list[int]], budget: int
) -> None:
    learner = models["single"]
    learner.model.module.set_attn_implementation(attention)
    learner.state.token_budget, learner._break_even = budget, SHARED
    data = [learners.datum((0,), tuple(sequence)) for sequence in sequences]
    for datum, found in zip(data, learner.logprobs(data), strict=True):
        with torch.no_grad():
            logits = learner.model.module(input_ids=torch.tensor([datum.tokens])).logits[0, :-1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(datum.tokens[1:])[:, None])[:, 0]
        assert (torch.tensor(found[1:]) - expected).norm() / expected.norm() <= 1e-5


def test_logits_in_pieces_are_the_same(models: dict[str, Learner], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the vocabulary is large, logits are made in pieces, and again for the gradient."""
    packed_model: PackedModel = models["qwen3"]._packed_model
    (batch,) = pack({0: [1, 2, 3, 4, 5, 6]}, 100, SHARED)
    targets = Targets(torch.tensor([0, 2, 3, 4]), torch.tensor([3, 0, 1, 1, 2, 0]), torch.tensor([1, 2, 3, 4, 5, 6]))
    gradients, values = [], []
    for most in (10**6, 2 * learners.VOCABULARY, 3 * learners.VOCABULARY):
        monkeypatch.setattr("metaagentx.backends.local.forward.MAX_LOGITS", most)
        found = packed_model.token_logprobs(batch, targets, temperature=0.7)
        values.append(found)
        gradients.append(torch.autograd.grad(found.logprobs_K.prod(), packed_model.head.weight)[0])
        with torch.no_grad():
            assert torch.equal(packed_model.token_logprobs(batch, targets, 0.7).logprobs_K, found.logprobs_K)
    for index in (1, 2):
        assert torch.allclose(values[0].logprobs_K, values[index].logprobs_K, rtol=1e-12)
        assert torch.allclose(values[0].entropies_K, values[index].entropies_K, rtol=1e-12)
        assert torch.allclose(gradients[0], gradients[index], rtol=1e-10)


def test_the_window_of_a_model_is_respected() -> None:
    model = learners.random_model(use_sliding_window=True, sliding_window=4, max_window_layers=0)
    learner = Learner(model, OptimizerConfig())
    fork = [learners.datum((1, 2), (3, 4, 5)), learners.datum((1, 2), (4, 4, 5))]
    learner._break_even = SHARED
    with pytest.raises(MetaAgentXError, match="attention window of 4"):
        learner.forward_backward(fork, "cross_entropy", LossConfig())
