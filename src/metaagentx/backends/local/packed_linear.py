"""Linear layers for sampling on a CPU: a copy of a matrix, packed once for the kernels of oneDNN.

torch's own product of fp32 matrices is MKL's, which takes up to 2.4 times as long on some CPUs. A copy can also be in
bf16 beside weights in fp32: matrix and input are rounded, sums are fp32, and the output is rounded. Inputs and outputs
are fp32 in either case. What a row gives depends on the others in its batch by rounding alone: for matrices of some
shapes, a single row is summed in another order than several.

Shapes: N rows, `in` and `out` features of the layer.
"""

from typing import Literal

import torch
from torch import Tensor

SamplingDtype = Literal["auto", "bfloat16"]
"""The type of the copies that are sampled from; "auto" is that of the weights."""

_ROWS = 16
"""The rows that matrices are packed for. The layout serves any other number as well."""


class PackedLinear:
    """A linear layer with a packed matrix. It has none before `pack`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def pack(self, weight_out_in: Tensor, bias_out: Tensor | None) -> None:
        """Copy these weights."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_out_in.to(self._dtype).contiguous(), _ROWS)
        self._bias_out = bias_out if bias_out is None else bias_out.to(self._dtype)

    def __call__(self, x_N_in: Tensor) -> Tensor:
        """Return the layer's output [N, out]."""
        output_N_out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_N_in.to(self._dtype), self._weight, self._bias_out, "none", [], ""
        )
        return output_N_out.to(x_N_in.dtype)


def packing_available() -> bool:
    """Return whether this build of torch has oneDNN."""
    return bool(torch.backends.mkldnn.is_available())


def bf16_available() -> bool:
    """Return whether oneDNN packs and multiplies bf16 matrices on this processor."""
    return packing_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
