"""The KV cache: `KVSlots` for sequences that are being decoded, `PrefixCache` for prefixes that may occur again.

`KVSlots` holds sequences of similar length, one slot each, without gaps, so that a decode step attends to no more than
the longest of them. `PrefixCache` keeps prefixes in blocks of a few tokens, each prefix once, and evicts the least
recently used. Slots copy from cached blocks: copying is far cheaper than computing.

Shapes: L layers, S slots, K key heads, T positions, D head width; 2 stands for keys and values.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_CAPACITY = 128


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of the keys and values of one position of one sequence."""

    layers: int
    key_heads: int
    head_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """The size of the keys and values of all layers."""
        return 2 * self.layers * self.key_heads * self.head_width * self.dtype.itemsize

    def allocate(self, slots: int, positions: int) -> list[Tensor]:
        """Return zeros [S, K, T, D] for each layer. Masked positions are still multiplied, so they must be finite."""
        shape = (slots, self.key_heads, positions, self.head_width)
        return [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.layers)]


def capacity_for(tokens: int) -> int:
    """Return the capacity of the slots that hold a sequence of this length: a power of two."""
    return max(MIN_CAPACITY, 1 << (tokens - 1).bit_length())


class KVSlots:
    """Keys and values of sequences of one capacity; the first `used` slots are in use."""

    def __init__(self, layout: KVLayout, capacity: int, expected_slots: int = 1) -> None:
        self.capacity = capacity
        self.used = 0
        # One tensor for each layer: a compiled step would copy all of a tensor of which it changes a part in place.
        self.keys_S_K_T_D = layout.allocate(expected_slots, capacity)
        self.values_S_K_T_D = layout.allocate(expected_slots, capacity)
        self._layout = layout

    def reserve(self, slots: int) -> None:
        """Make room for at least this many slots."""
        if slots > len(self.keys_S_K_T_D[0]):
            self.keys_S_K_T_D = self._enlarge(self.keys_S_K_T_D, slots)
            self.values_S_K_T_D = self._enlarge(self.values_S_K_T_D, slots)

    def add(self) -> int:
        """Take the next free slot and return its index."""
        self.reserve(self.used + 1)
        self.used += 1
        return self.used - 1

    def write(self, slot: int, kv_L_2_K_T_D: Tensor) -> None:
        """Write keys and values to the first positions of a slot."""
        stop = kv_L_2_K_T_D.shape[3]
        for layer, (keys_K_T_D, values_K_T_D) in enumerate(kv_L_2_K_T_D):
            self.keys_S_K_T_D[layer][slot, :, :stop] = keys_K_T_D
            self.values_S_K_T_D[layer][slot, :, :stop] = values_K_T_D

    def read(self, slot: int, stop: int) -> Tensor:
        """Return a copy of the first positions of a slot, [L, 2, K, T, D]."""
        pairs = zip(self.keys_S_K_T_D, self.values_S_K_T_D, strict=True)
        kv_L2_K_T_D = torch.stack([tensor[slot, :, :stop] for pair in pairs for tensor in pair])
        kv_L_2_K_T_D: Tensor = kv_L2_K_T_D.unflatten(0, (-1, 2))
        return kv_L_2_K_T_D

    def free(self, slot: int, length_of_last: int) -> None:
        """Free a slot; the last one, of this length, is moved into it."""
        self.used -= 1
        if slot != self.used:
            for tensor in (*self.keys_S_K_T_D, *self.values_S_K_T_D):
                tensor[slot, :, :length_of_last] = tensor[self.used, :, :length_of_last]

    def _enlarge(self, tensors: list[Tensor], slots: int) -> list[Tensor]:
        larger = self._layout.allocate(1 << (slots - 1).bit_length(), self.capacity)
        for new, old in zip(larger, tensors, strict=True):
            new[: self.used] = old[: self.used]
        return larger


class PrefixCache:
    """Prefixes in blocks of `block_size` tokens. A block is identified by its tokens and by the block before it.

    With `keep_tails`, the tokens after the last full block are cached too; they match an identical sequence only.
    """

    def __init__(self, block_size: int, keep_tails: bool = False) -> None:
        self.block_size = block_size
        self.keep_tails = keep_tails
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], tuple[int, Tensor]] = OrderedDict()
        self._last_id = 0

    @property
    def tokens(self) -> int:
        """How many positions are cached; a tail counts as a full block."""
        return len(self._blocks) * self.block_size

    def lookup(self, tokens: Sequence[int]) -> list[Tensor]:
        """Return the cached blocks that these tokens start with, each [L, 2, K, T, D]."""
        blocks, keys, parent = [], [], 0
        for _, block_tokens in self._split(tokens):
            key = (parent, block_tokens)
            if key not in self._blocks:
                break
            parent, block_L_2_K_T_D = self._blocks[key]
            blocks.append(block_L_2_K_T_D)
            keys.append(key)
        self._touch(keys)
        return blocks

    def add(self, tokens: Sequence[int], kv_L_2_K_T_D: Tensor) -> None:
        """Cache the blocks of a sequence."""
        parent, keys = 0, []
        for start, block_tokens in self._split(tokens):
            key = (parent, block_tokens)
            if key not in self._blocks:
                self._last_id += 1
                self._blocks[key] = (self._last_id, kv_L_2_K_T_D[..., start : start + self.block_size, :].clone())
            parent = self._blocks[key][0]
            keys.append(key)
        self._touch(keys)

    def block_hashes(self, tokens: Sequence[int]) -> list[int]:
        """Return one number for each block of a sequence, which stands for all tokens up to the block's end."""
        hashes, parent = [], 0
        for _, block_tokens in self._split(tokens):
            parent = hash((parent, *block_tokens))
            hashes.append(parent)
        return hashes

    def evict(self, tokens: int) -> None:
        """Evict the least recently used blocks until at most this many positions are cached."""
        while self._blocks and self.tokens > tokens:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Evict everything."""
        self._blocks.clear()

    def _split(self, tokens: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the start and the tokens of each block of a sequence."""
        stop = len(tokens) if self.keep_tails else len(tokens) - self.block_size + 1
        for start in range(0, stop, self.block_size):
            yield start, tuple(tokens[start : start + self.block_size])

    def _touch(self, keys: list[tuple[int, tuple[int, ...]]]) -> None:
        for key in reversed(keys):  # a block stays more recent than those that follow it
            self._blocks.move_to_end(key)
