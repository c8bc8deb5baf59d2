"""How one role learns: gradients gathered over packed micro-batches, then a step of the role's own AdamW.

Gradient and optimizer state belong to the learner, not to the weights, so two roles may learn on the same weights and
a role that does not learn leaves no trace. A micro-batch gives its gradient as a whole or not at all: when memory runs
out in the middle of one, the token budget is halved and the data that are left are planned anew.

Call everything here in the model's thread.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import MetaAgentXError
from ...policy import Datum, LossName, LossOptions, Metrics
from .checks import check_data
from .forward import Network, gather_terms
from .losses import Scale, compute_loss, scale
from .memory import is_out_of_memory
from .model import LocalModel
from .tree import MicroBatch, plan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What does not change from step to step."""

    token_budget: int = 8192
    """The most tokens in a micro-batch."""
    gradient_clip: float = 1.0
    """The largest norm of a step's gradient."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0


@dataclass(slots=True)
class Progress:
    """What a learner remembers besides tensors."""

    steps: int = 0
    learning_rate: float = 0.0
    """Of the last step."""
    token_budget: int = 0


class Learner:
    """The gathered gradient and the optimizer of one role on one model."""

    def __init__(self, model: LocalModel, options: TrainingOptions | None = None) -> None:
        self.model = model
        self.options = options or TrainingOptions()
        self.progress = Progress(token_budget=self.options.token_budget)
        self.weights: dict[str, torch.nn.Parameter] = trained_weights(model)
        self.gradients: dict[str, Tensor] = {}
        self.optimizer = torch.optim.AdamW(
            self.weights.values(),
            betas=self.options.betas,
            eps=self.options.epsilon,
            weight_decay=self.options.weight_decay,
            fused=True,
        )
        self._network = Network(model.module)
        self._span = self._network.span

    def forward_backward(self, data: Sequence[Datum], loss: LossName, options: LossOptions) -> Metrics:
        """Add the gradient of the loss on these data to what has been gathered."""
        self._check(data, loss, options)
        scaling = scale(data, options)
        sums: dict[str, float] = {"loss": 0.0, "packed_tokens": 0.0}

        def learn(batch: MicroBatch) -> None:
            for name, value in self._micro_batch(batch, data, loss, options, scaling).items():
                sums[name] = sums.get(name, 0.0) + value

        self._by_micro_batches({index: data[index].tokens for index in scaling.per_datum}, learn)
        return _metrics(sums, len(scaling.per_datum), scaling.tokens)

    def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """The log-probability of each token with a weight, for each datum; 0 for the others."""
        self._check(data, "cross_entropy", LossOptions(temperature=temperature))
        found = [[0.0] * len(datum.tokens) for datum in data]
        waiting = {index: datum.tokens for index, datum in enumerate(data) if any(datum.weights)}
        scaling = Scale(dict.fromkeys(waiting, 1.0), 0)

        def look_up(batch: MicroBatch) -> None:
            targets, _ = gather_terms(batch, data, scaling, self.model.device, torch.float32)
            with torch.no_grad():
                values = iter(self._network.token_logprobs(batch, targets, temperature).logprobs_K.tolist())
            for index in batch.paths:
                found[index] = [next(values) if weight else 0.0 for weight in data[index].weights]

        self._by_micro_batches(waiting, look_up)
        return found

    def optim_step(self, learning_rate: float) -> Metrics:
        """Take one step with the gathered gradient and forget it. Without one nothing moves."""
        if not (math.isfinite(learning_rate) and learning_rate >= 0):
            raise MetaAgentXError(f"a learning rate of {learning_rate} is no learning rate")
        if not self.gradients:
            return {"grad_norm": 0.0, "learning_rate": learning_rate}
        gradients, self.gradients = self.gradients, {}
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        if not math.isfinite(norm):
            raise MetaAgentXError(
                f"the gradient of step {self.progress.steps + 1} is not finite: the weights stay as they were; lower "
                "the learning rate, and look at the losses of the steps before"
            )
        share = min(1.0, self.options.gradient_clip / (norm + 1e-6))
        for name, gradient in gradients.items():
            self.weights[name].grad = gradient.mul_(share) if share < 1 else gradient
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.steps += 1
        self.progress.learning_rate = learning_rate
        self.model.weights_changed()
        return {"grad_norm": norm, "learning_rate": learning_rate}

    def gradient_cosine(self, other: "Learner") -> float | None:
        """The cosine between two gathered gradients on the same weights; None where one of them is nothing."""
        shared = self.gradients.keys() & other.gradients.keys()
        pairs = [(self.gradients[name], other.gradients[name]) for name in shared]
        product = sum(float((a * b).sum()) for a, b in pairs)
        norms = [math.sqrt(sum(float(g.square().sum()) for g in side.gradients.values())) for side in (self, other)]
        return product / (norms[0] * norms[1]) if all(norms) else None

    def _check(self, data: Sequence[Datum], loss: LossName, options: LossOptions) -> None:
        check_data(data, loss, options, self.model.context_length, self._network.vocabulary)

    def _by_micro_batches(self, waiting: dict[int, tuple[int, ...]], work: Callable[[MicroBatch], None]) -> None:
        """Do the work on all of these sequences. Where one micro-batch does not fit, the rest is planned anew."""
        while waiting:
            for batch in plan(waiting, self.progress.token_budget, self._span):
                if not self._within_memory(batch, work):
                    break
                for index in batch.paths:
                    del waiting[index]

    def _within_memory(self, batch: MicroBatch, work: Callable[[MicroBatch], None]) -> bool:
        """Whether the micro-batch fitted; if not, the budget is smaller now."""
        try:
            work(batch)
            return True
        except (RuntimeError, MemoryError) as error:  # torch's own is a RuntimeError; on a CPU it has no type at all
            if not is_out_of_memory(error):
                raise
        places = batch.rows * batch.length
        if len(batch.paths) == 1:
            raise MetaAgentXError(
                f"out of memory on a single sequence of {places} tokens, which no optimizer.token_budget (now "
                f"{self.progress.token_budget}) makes smaller: lower rollout.designer_tokens and "
                "rollout.executor_tokens, or use a LoRA (model.lora_rank) or a smaller model"
            )
        self.progress.token_budget = max(1, min(self.progress.token_budget, places) // 2)
        _log.warning(
            "out of memory on a micro-batch of %d tokens: going on with at most %d; optimizer.token_budget says how "
            "many to begin with",
            places,
            self.progress.token_budget,
        )
        return False

    def _micro_batch(
        self, batch: MicroBatch, data: Sequence[Datum], loss: LossName, options: LossOptions, scaling: Scale
    ) -> Mapping[str, float]:
        dtype = self._network.number_type
        targets, terms = gather_terms(batch, data, scaling, self.model.device, dtype)
        found = self._network.token_logprobs(batch, targets, options.temperature)
        value, sums = compute_loss(loss, options, found.logprobs_K, terms)
        gradients = torch.autograd.grad(value, list(self.weights.values()), allow_unused=True)
        for name, gradient in zip(self.weights, gradients, strict=True):
            if gradient is None:
                continue
            if name in self.gradients:
                self.gradients[name] += gradient
            else:
                self.gradients[name] = gradient
        sums |= {"loss": value.detach(), "entropy": found.entropies_K.sum()}
        return {name: float(number) for name, number in sums.items()} | {"packed_tokens": float(batch.used)}


def trained_weights(model: LocalModel) -> dict[str, torch.nn.Parameter]:
    """The weights that learn: those of the model's LoRA if it has one, otherwise all that are not frozen."""
    named = model.module.named_parameters()
    if model.adapter is not None:
        return {name: weight for name, weight in named if "lora_" in name and f".{model.adapter}." in f"{name}."}
    found = {name: weight for name, weight in named if weight.requires_grad and "lora_" not in name}
    if not found:
        raise MetaAgentXError("the model has no weights to train: those under adapters are frozen, train an adapter")
    return found


def _metrics(sums: Mapping[str, float], sequences: int, tokens: int) -> Metrics:
    totals = ("loss", "packed_tokens")
    metrics = {name: value if name in totals else value / tokens for name, value in sums.items()}
    if "advantage_square" in metrics:
        variance = metrics.pop("advantage_square") - metrics["advantage_mean"] ** 2
        metrics["advantage_std"] = math.sqrt(max(0.0, variance))
    return metrics | {"tokens": float(tokens), "sequences": float(sequences)}
