"""Keys and values of what has been read: lanes for sequences that are being decoded, blocks for what may come again.

A lane is a batch: sequences of about one length, one row each, without holes, so that a step attends over no more than
the longest of them. `Blocks` keeps prefixes in pieces of a few tokens, found by the tokens before and in them, each
prefix once; the least recently used go first. Rows copy from blocks: copying is far cheaper than computing.

Shapes: L layers, R rows, K key heads, T positions, D width of a head; 2 stands for keys and values.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """What one position of one sequence takes."""

    layers: int
    key_heads: int
    head_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.key_heads * self.head_width * self.dtype.itemsize

    def empty(self, rows: int, positions: int) -> list[Tensor]:
        """For each layer [R, K, T, D]. Zeros, because what is masked out is still multiplied: it must be finite."""
        shape = (rows, self.key_heads, positions, self.head_width)
        return [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.layers)]


def capacity_for(tokens: int) -> int:
    """The capacity of the lane that holds a sequence of this length: a power of two."""
    return max(SMALLEST, 1 << (tokens - 1).bit_length())


class Lane:
    """Rows of one capacity, the first `rows` of them in use."""

    def __init__(self, layout: Layout, capacity: int, expected_rows: int = 1) -> None:
        self.capacity = capacity
        self.rows = 0
        # Apart for each layer, because a compiled step would copy all of a tensor of which it changes a part in place.
        self.keys_R_K_T_D = layout.empty(expected_rows, capacity)
        self.values_R_K_T_D = layout.empty(expected_rows, capacity)
        self._layout = layout

    def reserve(self, rows: int) -> None:
        """Room for at least so many rows."""
        if rows > len(self.keys_R_K_T_D[0]):
            self.keys_R_K_T_D = self._wider(self.keys_R_K_T_D, rows)
            self.values_R_K_T_D = self._wider(self.values_R_K_T_D, rows)

    def add(self) -> int:
        """A new row, the last one."""
        self.reserve(self.rows + 1)
        self.rows += 1
        return self.rows - 1

    def write(self, row: int, kv_L_2_K_T_D: Tensor) -> None:
        """Put these at the row's beginning."""
        stop = kv_L_2_K_T_D.shape[3]
        for layer, (keys_K_T_D, values_K_T_D) in enumerate(kv_L_2_K_T_D):
            self.keys_R_K_T_D[layer][row, :, :stop] = keys_K_T_D
            self.values_R_K_T_D[layer][row, :, :stop] = values_K_T_D

    def read(self, row: int, stop: int) -> Tensor:
        """A copy of a row's beginning, [L, 2, K, T, D]."""
        pairs = zip(self.keys_R_K_T_D, self.values_R_K_T_D, strict=True)
        parts = [tensor[row, :, :stop] for pair in pairs for tensor in pair]
        kv_L_2_K_T_D: Tensor = torch.stack(parts).unflatten(0, (-1, 2))
        return kv_L_2_K_T_D

    def remove(self, row: int, length_of_last: int) -> None:
        """Give a row up; the last one, of this length, takes its place."""
        self.rows -= 1
        if row != self.rows:
            for tensor in (*self.keys_R_K_T_D, *self.values_R_K_T_D):
                tensor[row, :, :length_of_last] = tensor[self.rows, :, :length_of_last]

    def _wider(self, tensors: list[Tensor], rows: int) -> list[Tensor]:
        wider = self._layout.empty(1 << (rows - 1).bit_length(), self.capacity)
        for new, old in zip(wider, tensors, strict=True):
            new[: self.rows] = old[: self.rows]
        return wider


class Blocks:
    """Prefixes in blocks of `size` tokens. A block is known by its tokens and by the block before it.

    With `tails`, what is left of a sequence after its whole blocks is kept too, for the very same sequence.
    """

    def __init__(self, size: int, tails: bool = False) -> None:
        self.size = size
        self.tails = tails
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], tuple[int, Tensor]] = OrderedDict()
        self._made = 0

    @property
    def tokens(self) -> int:
        """How many positions are kept, a tail as a whole block."""
        return len(self._blocks) * self.size

    def places(self, tokens: int) -> range:
        """Where the blocks of a sequence of this length begin."""
        return range(0, tokens if self.tails else tokens - self.size + 1, self.size)

    def longest(self, tokens: Sequence[int]) -> list[Tensor]:
        """The blocks that these tokens begin with."""
        found, keys, before = [], [], 0
        for start in self.places(len(tokens)):
            key = (before, tuple(tokens[start : start + self.size]))
            if key not in self._blocks:
                break
            before, block = self._blocks[key]
            found.append(block)
            keys.append(key)
        for key in reversed(keys):  # so that a beginning is always more recent than what follows it
            self._blocks.move_to_end(key)
        return found

    def add(self, tokens: Sequence[int], kv_L_2_K_T_D: Tensor) -> None:
        """Keep the blocks of a sequence."""
        before, keys = 0, []
        for start in self.places(len(tokens)):
            key = (before, tuple(tokens[start : start + self.size]))
            if key not in self._blocks:
                self._made += 1
                self._blocks[key] = (self._made, kv_L_2_K_T_D[..., start : start + self.size, :].clone())
            before = self._blocks[key][0]
            keys.append(key)
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def shrink(self, tokens: int) -> None:
        """Forget until no more than so many positions are kept."""
        while self._blocks and self.tokens > tokens:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
