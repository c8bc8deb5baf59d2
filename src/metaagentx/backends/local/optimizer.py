"""The optimizers of a learner: AdamW, or Muon for the hidden matrices with AdamW for all other weights.

Muon replaces the update of a matrix by its nearest orthogonal one, so that all directions move equally fast. The
Newton-Schulz iteration runs in fp32: in bf16, as in `torch.optim.Muon`, it is several times slower on a CPU.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ...options import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""The tensors that AdamW keeps for a weight."""
MOMENTUM = "momentum"
"""The tensor that Muon keeps for a matrix."""
MUON_RATE = 3.0
"""The learning rate of the matrices, as a multiple of that of the other weights."""
_ITERATIONS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that drives all singular values towards 1; see Jordan et al., 2024."""


class Muon(torch.optim.AdamW):
    """AdamW for the first group of weights, Muon for the second."""

    def __init__(self, others: list[Tensor], matrices: list[Tensor], **options: Any) -> None:
        super().__init__([{"params": others}, {"params": matrices}], **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients of all weights."""
        group = self.param_groups[1]
        moved = [weight for weight in group["params"] if weight.grad is not None]
        directions = {shape: [weight for weight in moved if weight.shape == shape] for shape in _shapes(moved)}
        for shape, weights in directions.items():
            updates = orthogonalized(torch.stack([self._direction(weight) for weight in weights]))
            rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
            for weight, update in zip(weights, updates, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)
        self.param_groups.pop()
        try:
            super().step()
        finally:
            self.param_groups.append(group)

    def _direction(self, weight: Tensor) -> Tensor:
        """Add the gradient to the momentum, and return the gradient after one more such step (Nesterov)."""
        assert weight.grad is not None
        beta = self.defaults["betas"][0]
        state = self.state[weight]
        if MOMENTUM not in state:
            state[MOMENTUM] = torch.zeros_like(weight)
        momentum: Tensor = state[MOMENTUM].lerp_(weight.grad, 1 - beta)
        return weight.grad.lerp(momentum, beta)


def build_optimizer(weights: Mapping[str, Tensor], options: OptimizerConfig) -> torch.optim.AdamW:
    """Return the optimizer of these weights."""
    settings: dict[str, Any] = {
        "betas": (options.beta1, options.beta2),
        "weight_decay": options.weight_decay,
        "fused": True,
    }
    matrices = [weight for name, weight in weights.items() if options.method == "muon" and is_hidden(name, weight)]
    if not matrices:
        return torch.optim.AdamW(weights.values(), **settings)
    hidden = {id(weight) for weight in matrices}
    return Muon([weight for weight in weights.values() if id(weight) not in hidden], matrices, **settings)


def set_learning_rate(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    for group, factor in zip(optimizer.param_groups, (1.0, MUON_RATE), strict=False):
        group["lr"] = learning_rate * factor


def is_complete(state: Mapping[str, Tensor]) -> bool:
    """Return whether a weight's state was created whole: memory may run out in between."""
    return MOMENTUM in state or len(state) == len(MOMENTS)


def is_hidden(name: str, weight: Tensor) -> bool:
    """Return whether a weight is a matrix within the layers: neither embedding nor output layer."""
    return weight.ndim == 2 and not any(part in name for part in ("embed", "lm_head", "wte", "wpe"))


def orthogonalized(matrices_B_R_C: Tensor) -> Tensor:
    """Return the matrices with all singular values near 1."""
    a, b, c = _COEFFICIENTS
    wide = matrices_B_R_C.shape[1] <= matrices_B_R_C.shape[2]
    x = matrices_B_R_C if wide else matrices_B_R_C.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x if wide else x.mT
    return result


def _shapes(weights: list[Tensor]) -> list[tuple[int, int]]:
    return list(dict.fromkeys(cast(tuple[int, int], tuple(weight.shape)) for weight in weights))
