"""Linear layers that peft may have wrapped, as the tensors of one LoRA, whichever adapter is active in peft."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LoraLinear(NamedTuple):
    """The tensors of a linear layer and of its LoRA, if it has one."""

    weight: Tensor
    bias: Tensor | None
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    scaling: float = 1.0


def lora_linear(module: Any, adapter: str | None) -> LoraLinear:
    base = module if type(module) is nn.Linear else module.base_layer
    if base is module or adapter not in module.lora_A:
        return LoraLinear(base.weight, base.bias)
    lora_a, lora_b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    return LoraLinear(base.weight, base.bias, lora_a, lora_b, module.scaling[adapter])


def merged_weight(layer: LoraLinear) -> Tensor:
    """Return the weights of a layer with its LoRA added."""
    if layer.lora_a is None or layer.lora_b is None:
        return layer.weight
    return torch.addmm(layer.weight, layer.lora_b, layer.lora_a, alpha=layer.scaling)


def apply_linears(layers: Sequence[LoraLinear], x_N_in: Tensor) -> Tensor:
    """Return the concatenated outputs of the layers, bit for bit what peft computes for those with a LoRA."""
    outputs = []
    for layer in layers:
        output = F.linear(x_N_in, layer.weight, layer.bias)
        if layer.lora_a is not None and layer.lora_b is not None:
            update = F.linear(F.linear(x_N_in.to(layer.lora_a.dtype), layer.lora_a), layer.lora_b)
            output = (output + update * layer.scaling).to(output.dtype)
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
