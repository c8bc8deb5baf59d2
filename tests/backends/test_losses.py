"""The loss by hand, its variants, its independence of micro-batches, and against TRL's GRPO on the same batch."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import tests.backends.learners as learners

# isort: split
import torch

from metaagentx.backends.local.training import Learner
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig
from metaagentx.policy import Datum, LossName

PROMPT = (1, 2, 3)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(learners.random_model())


def logprob(learner: Learner, datum: Datum) -> list[float]:
    return [value for value, weight in zip(learner.logprobs([datum])[0], datum.weights, strict=True) if weight]


def at_ratio(learner: Learner, reply: tuple[int, ...], advantage: float, ratio: float) -> Datum:
    """A datum whose tokens are `ratio` times as likely now as when they were sampled."""
    plain = learners.datum(PROMPT, reply, advantage)
    now = learner.logprobs([plain])[0]
    return Datum(plain.tokens, plain.weights, advantage, tuple(value - math.log(ratio) for value in now))


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "clipped"),
    [
        (1.0, 1.1, -1.1, 0),
        (1.0, 1.5, -1.2, 1),
        (1.0, 0.5, -0.5, 0),
        (-1.0, 0.5, 0.8, 1),
        (-1.0, 1.5, 1.5, 0),
        (-1.0, 5.0, 3.0, 1),
        (2.0, 5.0, -2.4, 1),
    ],
)
def test_the_clipped_ratio(learner: Learner, advantage: float, ratio: float, loss: float, clipped: float) -> None:
    datum = at_ratio(learner, (4, 5, 6), advantage, ratio)
    metrics = learner.forward_backward([datum], "ppo", LossConfig())
    assert metrics["loss"] == pytest.approx(loss)
    assert metrics["clip_share"] == clipped
    assert metrics["ratio"] == pytest.approx(ratio)
    assert metrics["approx_kl"] == pytest.approx(ratio - 1 - math.log(ratio))
    assert (metrics["tokens"], metrics["sequences"], metrics["advantage_mean"]) == (3, 1, advantage)


def test_clip_higher(learner: Learner) -> None:
    datum = at_ratio(learner, (4, 5), 1.0, 1.5)
    assert learner.forward_backward([datum], "ppo", LossConfig(clip_high=0.28))["loss"] == (pytest.approx(-1.28))


def test_normalisers(learner: Learner) -> None:
    data = [at_ratio(learner, (4, 5, 6), 1.0, 1.0), at_ratio(learner, (7,), 3.0, 1.0)]

    def loss(options: LossConfig) -> float:
        return learner.forward_backward(data, "ppo", options)["loss"]

    assert loss(LossConfig(normalize="token")) == pytest.approx(-(3 * 1.0 + 3.0) / 4)
    assert loss(LossConfig(normalize="sequence")) == pytest.approx(-(1.0 + 3.0) / 2)
    assert loss(LossConfig(normalize="constant", constant=12)) == pytest.approx(-6 / 12)


def test_one_ratio_for_a_sequence_is_the_geometric_mean(learner: Learner) -> None:
    plain = learners.datum(PROMPT, (4, 5, 6), 1.0)
    now = logprob(learner, plain)
    assert plain.logprobs is not None
    ratio = math.exp(sum(new - old for new, old in zip(now, plain.logprobs[3:], strict=True)) / 3)
    options = LossConfig(sequence_ratio=True, clip_low=0.99, clip_high=100)
    metrics = learner.forward_backward([plain], "ppo", options)
    assert metrics["loss"] == pytest.approx(-ratio)


def test_kl_to_the_reference(learner: Learner) -> None:
    plain = at_ratio(learner, (4, 5), 0.0, 1.0)
    assert plain.logprobs is not None
    datum = Datum(plain.tokens, plain.weights, 0.0, plain.logprobs, tuple(value - 0.5 for value in plain.logprobs))
    metrics = learner.forward_backward([datum], "ppo", LossConfig(kl=0.1))
    expected = math.exp(-0.5) + 0.5 - 1
    assert metrics["kl"] == pytest.approx(expected)
    assert metrics["loss"] == pytest.approx(0.1 * expected)


def test_truncated_importance_sampling_weighs_tokens_without_clipping_them(learner: Learner) -> None:
    options = LossConfig(truncate_ratio=2.0)
    for ratio, weight in ((0.5, 0.5), (1.5, 1.5), (7.0, 2.0)):
        datum = at_ratio(learner, (4, 5), 1.0, ratio)
        learner.gradients = {}
        metrics = learner.forward_backward([datum], "ppo", options)
        assert metrics["loss"] == pytest.approx(-weight)
        assert metrics["clip_share"] == 0
        weighted = {name: gradient / weight for name, gradient in learner.gradients.items()}
        learner.gradients = {}
        learner.forward_backward([datum], "cross_entropy", LossConfig())
        assert learners.relative_difference(weighted, learner.gradients) <= 1e-5


def test_cross_entropy_is_the_mean_of_weighted_tokens(learner: Learner) -> None:
    datum = Datum((1, 2, 3, 4), (0, 1, 0, 0.5))
    now = learner.logprobs([datum])[0]
    metrics = learner.forward_backward([datum], "cross_entropy", LossConfig())
    assert metrics["loss"] == pytest.approx(-(now[1] + 0.5 * now[3]) / 1.5)
    assert 0 < metrics["entropy"] <= math.log(learners.VOCABULARY)


LOSSES: list[tuple[LossName, LossConfig]] = [
    ("cross_entropy", LossConfig()),
    ("cross_entropy", LossConfig(normalize="sequence")),
    ("ppo", LossConfig()),
    ("ppo", LossConfig(normalize="sequence", sequence_ratio=True, kl=0.1)),
    ("ppo", LossConfig(normalize="constant", constant=50, truncate_ratio=2.0)),
]


@pytest.mark.parametrize(("loss", "options"), LOSSES)
def test_micro_batches_add_up_to_one_batch(learner: Learner, loss: LossName, options: LossConfig) -> None:
    data = [
        learners.datum((1, 2, 3), tuple((5 * index + step) % 20 for step in range(1 + index)), index - 3.5)
        for index in range(8)
    ]
    gradients, metrics = [], []
    for budget in (10**6, 9):
        learner.gradients, learner.state.token_budget = {}, budget
        metrics.append(learner.forward_backward(data, loss, options))
        gradients.append(learner.gradients)
    learner.state.token_budget = 8192
    assert metrics[0]["packed_tokens"] < metrics[1]["packed_tokens"]
    for name, value in metrics[0].items():
        assert name == "packed_tokens" or metrics[1][name] == pytest.approx(value, rel=1e-5), name
    assert learners.relative_difference(gradients[0], gradients[1]) <= 1e-5


def test_an_impossible_ratio_gives_no_infinite_gradient(learner: Learner) -> None:
    plain = learners.datum(PROMPT, (4,), 1.0)
    learner.gradients = {}
    learner.forward_backward([Datum(plain.tokens, plain.weights, 1.0, (-2000.0,) * 4)], "ppo", LossConfig())
    assert all(bool(gradient.isfinite().all()) for gradient in learner.gradients.values())


def test_nothing_to_learn_gathers_nothing(learner: Learner) -> None:
    learner.gradients = {}
    metrics = learner.forward_backward([Datum((1, 2), (0, 0))], "cross_entropy", LossConfig())
    assert metrics == {"loss": 0, "packed_tokens": 0, "tokens": 0, "sequences": 0}
    assert not learner.gradients
    assert learner.forward_backward([], "cross_entropy", LossConfig())["tokens"] == 0


GOOD = learners.datum(PROMPT, (4, 5))


@pytest.mark.parametrize(
    ("datum", "options", "line"),
    [
        (Datum((1, 2), (0, 1, 1)), LossConfig(), "it has 2 tokens and 3 weights"),
        (Datum((1, 2), (1, 1)), LossConfig(), "its first token has a weight"),
        (Datum((1, 99), (0, 1)), LossConfig(), "its tokens are 1 to 99, expected 0 to 23"),
        (Datum((1,) * 257, (0.0,) * 257), LossConfig(), "its 257 tokens exceed the model's context of 256"),
        (Datum((1, 2), (0, -1)), LossConfig(), "a weight is negative or not finite"),
        (Datum((1, 2), (0, 1)), LossConfig(), "it has no behavior log-probabilities"),
        (Datum((1, 2), (0, 1), 1.0, (0.0,)), LossConfig(), "2 tokens and 1 behavior log-prob"),
        (Datum((1, 2), (0, 1), 1.0, (0.0, math.nan)), LossConfig(), "not finite"),
        (Datum((1, 2), (0, 1), math.inf, (0.0, 0.0)), LossConfig(), "its advantage is inf"),
        (Datum((1, 2), (0, 1), 1.0, (0.0, 0.0)), LossConfig(kl=0.1), "it has no reference log-probabilities"),
    ],
)
def test_bad_data_are_refused_in_one_line(learner: Learner, datum: Datum, options: LossConfig, line: str) -> None:
    with pytest.raises(MetaAgentXError, match=line) as caught:
        learner.forward_backward([GOOD, datum], "ppo", options)
    assert str(caught.value).startswith("invalid datum 1 of 2: ")
    assert "\n" not in str(caught.value)


def test_behavior_where_nothing_is_trained_is_not_looked_at(learner: Learner) -> None:
    datum = Datum((1, 2, 3), (0, 0, 1), 1.0, (math.nan, -math.inf, -1.0))
    assert math.isfinite(learner.forward_backward([datum], "ppo", LossConfig())["loss"])


# Ours on the left, TRL's name for the same on the right.
TRL_VARIANTS: list[tuple[LossConfig, dict[str, Any]]] = [
    (LossConfig(dual_clip=False), {"loss_type": "bnpo"}),
    (LossConfig(normalize="sequence", dual_clip=False), {"loss_type": "grpo"}),
    (LossConfig(normalize="constant", constant=4 * 6, dual_clip=False), {"loss_type": "dr_grpo"}),
    (LossConfig(clip_high=0.28), {"loss_type": "bnpo", "epsilon_high": 0.28, "delta": 3.0}),
    (LossConfig(kl=0.1, dual_clip=False), {"loss_type": "bnpo", "beta": 0.1, "use_bias_correction_kl": False}),
    (
        LossConfig(normalize="sequence", sequence_ratio=True, dual_clip=False),
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
]


@pytest.mark.parametrize(("options", "theirs"), TRL_VARIANTS)
def test_the_loss_and_its_gradient_are_trls(options: LossConfig, theirs: dict[str, Any], tmp_path: Path) -> None:
    """Its own GRPOTrainer computes the loss, on its own forward pass of the same model."""
    pytest.importorskip("trl", reason="TRL is in the bench extra only")
    model = learners.random_model(dtype=torch.float32)
    learner = Learner(model)
    data = [
        learners.datum((1, 2, 3), tuple((7 * index + 3 * step) % 23 for step in range(3 + index)), index - 1.5, gap=0.3)
        for index in range(4)
    ]
    metrics = learner.forward_backward(data, "ppo", options)
    loss, gradients = trl_loss(model.module, data, theirs, tmp_path)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert learners.relative_difference(learner.gradients, gradients) <= 1e-5


def no_reward(**_: Any) -> list[float | None]:
    return [0.0]


def trl_loss(
    module: Any, data: list[Datum], theirs: dict[str, Any], directory: Path
) -> tuple[float, dict[str, torch.Tensor]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        config = GRPOConfig(
            output_dir=str(directory), report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=4, num_generations=4, max_completion_length=6, **(theirs | {"beta": 0.0}),
        )  # fmt: skip
        trainer: Any = GRPOTrainer(
            model=module,
            reward_funcs=no_reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "x"}]),
            processing_class=learners.chat_tokenizer().hf,
        )
        trainer.beta = theirs.get("beta", 0.0)  # afterwards: with one, it would fetch a reference model of its own
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer._compute_loss(trainer.model, trl_inputs(data))
    names = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss, list(names.values()))
    return float(loss.detach()), dict(zip(names, gradients, strict=True))


def trl_inputs(data: list[Datum]) -> dict[str, torch.Tensor]:
    """Prompts of three tokens, and replies padded to the longest."""
    longest = max(len(datum.tokens) for datum in data) - 3

    def padded(values: tuple[float, ...] | None) -> torch.Tensor:
        assert values is not None
        return torch.tensor([*values[3:], *[0] * (longest - len(values) + 3)])

    return {
        "prompt_ids": torch.tensor([datum.tokens[:3] for datum in data]),
        "prompt_mask": torch.ones(len(data), 3, dtype=torch.long),
        "completion_ids": torch.stack([padded(datum.tokens) for datum in data]),
        "completion_mask": torch.stack([padded(datum.weights).long() for datum in data]),
        "advantages": torch.tensor([datum.advantage for datum in data]),
        "old_per_token_logps": torch.stack([padded(datum.logprobs) for datum in data]),
        "ref_per_token_logps": torch.stack([padded(datum.reference_logprobs) for datum in data]),
    }
