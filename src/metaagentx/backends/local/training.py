"""Trains one role: gradients accumulated over packed micro-batches, then a step of the role's own AdamW.

Gradient and optimizer state belong to the learner, not to the weights, so two roles can be trained on the same weights,
and a role that is not trained has no state. Both are fp32 at least; the fp32 masters of narrower weights belong to the
model, so that each role continues where the other one left them.

Gradients are accumulated in place: in the backward pass each weight's gradient is added as soon as it is known, and
freed. When memory runs out in the middle, the names of the weights that have theirs are kept. The data of that
micro-batch are packed again, smaller, and add what the other weights lack. So every datum counts once for every weight.
A call that fails leaves no gradient.

Moments of a learner that does not learn now move to main memory when another one needs room on their device, and return
for its next step.

Call everything here in the model's thread.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from weakref import WeakSet

import torch
from torch import Tensor

from ...errors import MetaAgentXError
from ...options import LossConfig, OptimizerConfig
from ...policy import DEFAULT_LOSS, Datum, LossName, Metrics
from ..checks import check_data
from ..losses import Normalization, compute_loss, loss_metrics, normalization_of
from .forward import PackedModel, gather_terms
from .memory import is_out_of_memory
from .model import LocalModel
from .optimizer import build_optimizer, is_complete, set_learning_rate
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
        self.parameters: dict[str, torch.nn.Parameter] = trained_weights(model)
        self.gradients: dict[str, Tensor] = {}
        recompute = self.options.activation_checkpointing is True
        self._packed_model = PackedModel(model.module, recompute=recompute, adapter=model.adapter)
        self._break_even = self._packed_model.break_even
        self._stepping = Lock()
        _LEARNERS.add(self)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """What the optimizer moves: the parameters, or for those narrower than fp32 the masters, created at first."""
        for name, parameter in self.parameters.items():
            if _at_least_fp32(parameter.dtype) != parameter.dtype and name not in self.model.masters:
                self.model.masters[name] = parameter.detach().float()
        return {name: self.model.masters.get(name, parameter) for name, parameter in self.parameters.items()}

    @cached_property
    def optimizer(self) -> torch.optim.AdamW:
        """The optimizer, created for the first step: a reference model never has one."""
        return build_optimizer(self.weights, self.options)

    @property
    def moments(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer's tensors of each weight; none before the first step."""
        if "optimizer" not in self.__dict__:
            return {}
        state = self.optimizer.state
        return {name: state[weight] for name, weight in self.weights.items() if weight in state}

    def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig, temperature: float = 1.0
    ) -> Metrics:
        """Add the gradient of the loss on these data to the accumulated gradient."""
        self._check(data, loss, options, temperature)
        normalization = normalization_of(data, options)
        sums: dict[str, float] = {"loss": 0.0, "packed_tokens": 0.0}

        def add_gradient(batch: MicroBatch, added: set[str]) -> None:
            dtype = self._packed_model.loss_dtype
            targets, terms = gather_terms(batch, data, normalization, self.model.device, dtype)
            scored = self._packed_model.token_logprobs(batch, targets, temperature)
            value, parts = compute_loss(loss, options, scored.logprobs_K, terms)
            self._accumulate(value, added)
            parts |= {"loss": value.detach(), "entropy": scored.entropies_K.sum()}
            for name, number in parts.items():
                sums[name] = sums.get(name, 0.0) + float(number)
            sums["packed_tokens"] += batch.used

        try:
            self._by_micro_batches({index: data[index].tokens for index in normalization.per_datum}, add_gradient)
        except BaseException:
            self.gradients = {}
            raise
        return loss_metrics(sums, len(normalization.per_datum), normalization.tokens)

    def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probability of each token with a weight, for each datum; 0 for the others."""
        self._check(data, "cross_entropy", DEFAULT_LOSS, temperature)
        logprobs = [[0.0] * len(datum.tokens) for datum in data]
        sequences = {index: datum.tokens for index, datum in enumerate(data) if any(datum.weights)}
        normalization = Normalization(dict.fromkeys(sequences, 1.0), 0)

        def look_up(batch: MicroBatch, _: set[str]) -> None:
            targets, _terms = gather_terms(batch, data, normalization, self.model.device, torch.float32)
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
        # In the order of the weights: the backward pass adds them in another, and a sum depends on the order.
        gradients = {name: self.gradients[name] for name in self.parameters if name in self.gradients}
        self.gradients = {}
        norm = float(torch.nn.utils.get_total_norm(gradients.values()))
        if not math.isfinite(norm):
            raise MetaAgentXError(
                f"the gradient of step {self.state.steps + 1} is not finite, and the weights were not changed: "
                "lower the learning rate, and check the losses of the steps before"
            )
        clip = min(1.0, self.options.gradient_clip / (norm + 1e-6))
        if clip < 1:
            for gradient in gradients.values():
                gradient.mul_(clip)
        try:
            self._step(gradients, learning_rate)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or not self._offload_others():
                raise
            self._step(gradients, learning_rate)
        self.state.steps += 1
        self.state.learning_rate = learning_rate
        self.model.weights_changed()
        return {"grad_norm": norm, "learning_rate": learning_rate}

    def _step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        """Move the weights. Where memory runs out, nothing has changed."""
        with self._stepping:
            optimizer = self.optimizer
            try:
                for name, gradient in gradients.items():
                    self.weights[name].grad = gradient
                set_learning_rate(optimizer, learning_rate)
                _move_moments(self.moments, next(iter(self.weights.values())).device)
                optimizer.step()
            finally:
                optimizer.zero_grad(set_to_none=True)
                for weight in [weight for weight, state in optimizer.state.items() if not is_complete(state)]:
                    del optimizer.state[weight]  # memory ran out while these were created
            with torch.no_grad():
                for name, master in self.model.masters.items():
                    self.parameters[name].copy_(master)

    def offload_moments(self, device: torch.device) -> bool:
        """Move the moments to this device, where they wait for the next step; return whether there were any to move."""
        if not self._stepping.acquire(blocking=False):  # in its own thread, this learner takes a step
            return False
        try:
            return _move_moments(self.moments, device)
        finally:
            self._stepping.release()

    def _offload_others(self) -> bool:
        """Move the moments of all other learners from this device to main memory; return whether there were any."""
        others = [other for other in _LEARNERS if other is not self and other.model.device == self.model.device]
        moved = [other.offload_moments(_MAIN_MEMORY) for other in others]
        return any(moved)

    def gradient_cosine(self, other: "Learner") -> float | None:
        """Return the cosine between two accumulated gradients on the same weights; None where one of them is zero."""
        # In the order of the weights, which no process and no backward pass changes: a sum depends on the order.
        sides = [[side.gradients.get(name) for name in self.parameters] for side in (self, other)]
        product = sum(float((a * b).sum()) for a, b in zip(*sides, strict=True) if a is not None and b is not None)
        norms = [math.sqrt(sum(float(g.square().sum()) for g in side if g is not None)) for side in sides]
        return product / (norms[0] * norms[1]) if all(norms) else None

    def _check(self, data: Sequence[Datum], loss: LossName, options: LossConfig, temperature: float) -> None:
        if not 0 < temperature < math.inf:
            raise MetaAgentXError(f"temperature must be finite and > 0, got {temperature}")
        check_data(data, loss, options, self.model.context_length, self._packed_model.vocabulary)

    def _by_micro_batches(
        self,
        sequences: dict[int, tuple[int, ...]],
        work: Callable[[MicroBatch, set[str]], None],
        added: frozenset[str] = frozenset(),
    ) -> None:
        """Run the work on all sequences. A micro-batch that does not fit into memory is packed again, then the rest is.

        `added`: the weights that already have the gradient of these sequences.
        """
        while sequences:
            for batch in pack(sequences, self.state.token_budget, self._break_even):
                added_now = set(added)
                fits = _fits_into_memory(partial(work, batch, added_now))
                batch_sequences = {index: sequences.pop(index) for index in batch.paths}
                if not fits:
                    self._make_room(batch)
                    self._by_micro_batches(batch_sequences, work, frozenset(added_now))
                    break

    def _make_room(self, batch: MicroBatch) -> None:
        """Free memory for a micro-batch that did not fit, or make it smaller; raise where nothing is left to do."""
        tokens = batch.rows * batch.length
        if self._offload_others():
            _log.warning("out of memory on a micro-batch of %d tokens: moved optimizer state to main memory", tokens)
        elif len(batch.paths) > 1:
            self.state.token_budget = max(1, min(self.state.token_budget, tokens) // 2)
            _log.warning(
                "out of memory on a micro-batch of %d tokens: continuing with at most %d; optimizer.token_budget sets "
                "the first limit",
                tokens,
                self.state.token_budget,
            )
        elif self.options.activation_checkpointing == "auto" and self._can_recompute_more:
            self._packed_model.recompute = True
            _log.warning(
                "out of memory on a single sequence of %d tokens: continuing with activation checkpointing; "
                "optimizer.activation_checkpointing = true uses it from the start",
                tokens,
            )
        else:
            hint = "set optimizer.activation_checkpointing to true, " if self._can_recompute_more else ""
            raise MetaAgentXError(
                f"out of memory on a single sequence of {tokens} tokens, which no optimizer.token_budget (now "
                f"{self.state.token_budget}) makes smaller: {hint}lower rollout.designer_tokens and "
                "rollout.executor_tokens, or use a LoRA (model.lora_rank) or a smaller model"
            )

    @property
    def _can_recompute_more(self) -> bool:
        return self._packed_model.can_recompute and not self._packed_model.recompute

    def _accumulate(self, loss: Tensor, added: set[str]) -> None:
        """Add the gradient of a loss to all weights but those in `added`, which receives their names one by one."""

        def add(name: str, parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            if name in self.gradients:
                self.gradients[name].add_(gradient)
            else:
                self.gradients[name] = gradient.to(_at_least_fp32(gradient.dtype))
            added.add(name)

        parameters = {name: parameter for name, parameter in self.parameters.items() if name not in added}
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(add, name)) for name, parameter in parameters.items()
        ]
        try:
            if parameters:
                torch.autograd.backward(loss, inputs=list(parameters.values()))
        finally:
            for hook, parameter in zip(hooks, parameters.values(), strict=True):
                hook.remove()
                parameter.grad = None


_LEARNERS: WeakSet[Learner] = WeakSet()
_MAIN_MEMORY = torch.device("cpu")


def _move_moments(moments: Mapping[str, dict[str, Tensor]], device: torch.device) -> bool:
    """Move the moments to a device; return whether any were elsewhere."""
    elsewhere = [
        (state, kind) for state in moments.values() for kind, tensor in state.items() if tensor.device != device
    ]
    for state, kind in elsewhere:
        state[kind] = state[kind].to(device)
    return bool(elsewhere)


def _at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _fits_into_memory(work: Callable[[], None]) -> bool:
    """Run the work and return whether there was enough memory."""
    try:
        work()
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
