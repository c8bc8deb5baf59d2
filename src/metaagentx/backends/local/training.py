"""Trains one role: gradients accumulated over packed micro-batches, then a step of the role's own AdamW.

Gradient and optimizer state belong to the learner, not to the weights, so two roles can be trained on the same weights,
and a role that is not trained has no state. A micro-batch adds its whole gradient or nothing: when memory runs out, the
token budget is halved and the remaining data are packed again.

Call everything here in the model's thread.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import MetaAgentXError
from ...options import LossConfig, OptimizerConfig
from ...policy import DEFAULT_LOSS, Datum, LossName, Metrics
from .checks import check_data
from .forward import PackedModel, gather_terms
from .losses import Normalization, compute_loss, normalization_of
from .memory import is_out_of_memory
from .model import LocalModel
from .prefix_tree import MicroBatch, pack

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearnerState:
    """The state of a learner besides tensors."""

    steps: int = 0
    learning_rate: float = 0.0
    """Of the last step."""
    token_budget: int = 0


class Learner:
    """The accumulated gradient and the optimizer of one role on one model."""

    def __init__(self, model: LocalModel, options: OptimizerConfig | None = None) -> None:
        self.model = model
        self.options = options or OptimizerConfig()
        self.state = LearnerState(token_budget=self.options.token_budget)
        self.weights: dict[str, torch.nn.Parameter] = trained_weights(model)
        self.gradients: dict[str, Tensor] = {}
        self.optimizer = torch.optim.AdamW(
            self.weights.values(),
            betas=(self.options.beta1, self.options.beta2),
            weight_decay=self.options.weight_decay,
            fused=True,
        )
        self._packed_model = PackedModel(model.module)
        self._break_even = self._packed_model.break_even

    def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig, temperature: float = 1.0
    ) -> Metrics:
        """Add the gradient of the loss on these data to the accumulated gradient."""
        self._check(data, loss, options, temperature)
        normalization = normalization_of(data, options)
        sums: dict[str, float] = {"loss": 0.0, "packed_tokens": 0.0}

        def add_gradient(batch: MicroBatch) -> None:
            for name, value in self._micro_batch(batch, data, loss, options, normalization, temperature).items():
                sums[name] = sums.get(name, 0.0) + value

        self._by_micro_batches({index: data[index].tokens for index in normalization.per_datum}, add_gradient)
        return _metrics(sums, len(normalization.per_datum), normalization.tokens)

    def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probability of each token with a weight, for each datum; 0 for the others."""
        self._check(data, "cross_entropy", DEFAULT_LOSS, temperature)
        logprobs = [[0.0] * len(datum.tokens) for datum in data]
        sequences = {index: datum.tokens for index, datum in enumerate(data) if any(datum.weights)}
        normalization = Normalization(dict.fromkeys(sequences, 1.0), 0)

        def look_up(batch: MicroBatch) -> None:
            targets, _ = gather_terms(batch, data, normalization, self.model.device, torch.float32)
            with torch.no_grad():
                values = iter(self._packed_model.token_logprobs(batch, targets, temperature).logprobs_K.tolist())
            for index in batch.paths:
                logprobs[index] = [next(values) if weight else 0.0 for weight in data[index].weights]

        self._by_micro_batches(sequences, look_up)
        return logprobs

    def optim_step(self, learning_rate: float) -> Metrics:
        """Take one step with the accumulated gradient and clear it. Without a gradient nothing changes."""
        if not (math.isfinite(learning_rate) and learning_rate >= 0):
            raise MetaAgentXError(f"learning rate must be finite and >= 0, got {learning_rate}")
        if not self.gradients:
            return {"grad_norm": 0.0, "learning_rate": learning_rate}
        gradients, self.gradients = self.gradients, {}
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        if not math.isfinite(norm):
            raise MetaAgentXError(
                f"the gradient of step {self.state.steps + 1} is not finite, and the weights were not changed: "
                "lower the learning rate, and check the losses of the steps before"
            )
        clip = min(1.0, self.options.gradient_clip / (norm + 1e-6))
        for name, gradient in gradients.items():
            self.weights[name].grad = gradient.mul_(clip) if clip < 1 else gradient
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.steps += 1
        self.state.learning_rate = learning_rate
        self.model.weights_changed()
        return {"grad_norm": norm, "learning_rate": learning_rate}

    def gradient_cosine(self, other: "Learner") -> float | None:
        """Return the cosine between two accumulated gradients on the same weights; None where one of them is zero."""
        shared = self.gradients.keys() & other.gradients.keys()
        pairs = [(self.gradients[name], other.gradients[name]) for name in shared]
        product = sum(float((a * b).sum()) for a, b in pairs)
        norms = [math.sqrt(sum(float(g.square().sum()) for g in side.gradients.values())) for side in (self, other)]
        return product / (norms[0] * norms[1]) if all(norms) else None

    def _check(self, data: Sequence[Datum], loss: LossName, options: LossConfig, temperature: float) -> None:
        if not 0 < temperature < math.inf:
            raise MetaAgentXError(f"temperature must be finite and > 0, got {temperature}")
        check_data(data, loss, options, self.model.context_length, self._packed_model.vocabulary)

    def _by_micro_batches(self, sequences: dict[int, tuple[int, ...]], work: Callable[[MicroBatch], None]) -> None:
        """Run the work on all sequences. Where a micro-batch does not fit into memory, the rest is packed again."""
        while sequences:
            for batch in pack(sequences, self.state.token_budget, self._break_even):
                if not _fits_into_memory(batch, work):
                    self._reduce_budget(batch)
                    break
                for index in batch.paths:
                    del sequences[index]

    def _reduce_budget(self, batch: MicroBatch) -> None:
        """Halve the token budget after a micro-batch that did not fit; raise where that cannot help."""
        tokens = batch.rows * batch.length
        if len(batch.paths) == 1:
            raise MetaAgentXError(
                f"out of memory on a single sequence of {tokens} tokens, which no optimizer.token_budget (now "
                f"{self.state.token_budget}) makes smaller: lower rollout.designer_tokens and "
                "rollout.executor_tokens, or use a LoRA (model.lora_rank) or a smaller model"
            )
        self.state.token_budget = max(1, min(self.state.token_budget, tokens) // 2)
        _log.warning(
            "out of memory on a micro-batch of %d tokens: continuing with at most %d; optimizer.token_budget sets the "
            "first limit",
            tokens,
            self.state.token_budget,
        )

    def _micro_batch(
        self,
        batch: MicroBatch,
        data: Sequence[Datum],
        loss: LossName,
        options: LossConfig,
        normalization: Normalization,
        temperature: float,
    ) -> Mapping[str, float]:
        dtype = self._packed_model.loss_dtype
        targets, terms = gather_terms(batch, data, normalization, self.model.device, dtype)
        scored = self._packed_model.token_logprobs(batch, targets, temperature)
        value, sums = compute_loss(loss, options, scored.logprobs_K, terms)
        gradients = torch.autograd.grad(value, list(self.weights.values()), allow_unused=True)
        for name, gradient in zip(self.weights, gradients, strict=True):
            if gradient is None:
                continue
            if name in self.gradients:
                self.gradients[name] += gradient
            else:
                self.gradients[name] = gradient
        sums |= {"loss": value.detach(), "entropy": scored.entropies_K.sum()}
        return {name: float(number) for name, number in sums.items()} | {"packed_tokens": float(batch.used)}


def _fits_into_memory(batch: MicroBatch, work: Callable[[MicroBatch], None]) -> bool:
    """Run the work on a micro-batch and return whether there was enough memory."""
    try:
        work(batch)
    except (RuntimeError, MemoryError) as error:  # torch raises a RuntimeError, on a CPU without a type of its own
        if not is_out_of_memory(error):
            raise
        return False
    return True


def trained_weights(model: LocalModel) -> dict[str, torch.nn.Parameter]:
    """Return the weights that are trained: those of the model's LoRA if it has one, otherwise all but frozen ones."""
    named = model.module.named_parameters()
    if model.adapter is not None:
        return {name: weight for name, weight in named if "lora_" in name and f".{model.adapter}." in f"{name}."}
    weights = {name: weight for name, weight in named if weight.requires_grad and "lora_" not in name}
    if not weights:
        raise MetaAgentXError("the model has no weights to train: its base is frozen, train one of its adapters")
    return weights


def _metrics(sums: Mapping[str, float], sequences: int, tokens: int) -> Metrics:
    totals = ("loss", "packed_tokens")
    metrics = {name: value if name in totals else value / tokens for name, value in sums.items()}
    if "advantage_square" in metrics:
        variance = metrics.pop("advantage_square") - metrics["advantage_mean"] ** 2
        metrics["advantage_std"] = math.sqrt(max(0.0, variance))
    return metrics | {"tokens": float(tokens), "sequences": float(sequences)}
