"""The KV cache: `KVSlots` for sequences that are being decoded, `PrefixCache` for prefixes that may occur again.

`KVSlots` holds sequences of similar length, one slot each, without gaps, so that a decode step attends to no more than
the longest of them. Its slots grow by pages with the sequences: a step reads one dense tensor, which is what a CPU and
plain torch operations are fastest with, and copying it once in a page's worth of steps costs little beside that.
`PrefixCache` keeps prefixes in blocks of a few tokens, each prefix once, and evicts the least recently used. Slots copy
from cached blocks: copying is far cheaper than computing.

Shapes: L layers, S slots, K key heads, T positions, D head width; 2 stands for keys and values.
"""

import math
import mmap
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAGE = 64
"""By how many positions slots grow."""
MIN_SIZE_CLASS = 128
MAPPED_BYTES = 4 << 20


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

    def allocate(self, slots: int, positions: int) -> Tensor:
        """Return zeros [S, K, T, D], for the keys or values of slots in a layer or of a sequence in all of them.

        Masked positions are still multiplied, so they must be finite. A large tensor on a CPU is memory of its own: the
        heap would be left with holes that are too small for tensors that grow.
        """
        shape = (slots, self.key_heads, positions, self.head_width)
        size = math.prod(shape) * self.dtype.itemsize
        if self.device.type != "cpu" or size < MAPPED_BYTES:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return torch.frombuffer(mmap.mmap(-1, size), dtype=self.dtype).view(shape)


def size_class(tokens: int) -> int:
    """Return the size class of a sequence of this length: a power of two. Those of one class are decoded together."""
    return max(MIN_SIZE_CLASS, 1 << (tokens - 1).bit_length())


def whole_pages(tokens: int) -> int:
    """Return the positions of the pages that hold a sequence of this length."""
    return -(-tokens // PAGE) * PAGE


class KVSlots:
    """Keys and values of sequences, one in each slot; slots are in use from the first on."""

    def __init__(self, layout: KVLayout, slots: int = 0, capacity: int = 0) -> None:
        self.capacity = capacity
        # One tensor for each layer: a compiled step would copy all of a tensor of which it changes a part in place.
        self.keys_S_K_T_D = [layout.allocate(slots, capacity) for _ in range(layout.layers)]
        self.values_S_K_T_D = [layout.allocate(slots, capacity) for _ in range(layout.layers)]
        self._layout = layout

    @property
    def count(self) -> int:
        """The number of slots, in use or not."""
        return len(self.keys_S_K_T_D[0])

    @property
    def positions(self) -> int:
        """The number of positions that are allocated."""
        return self.count * self.capacity

    def resize(self, slots: int, capacity: int) -> None:
        """Change the number of slots and their capacity. What fits into both is kept."""
        if (slots, capacity) != (self.count, self.capacity):
            self._rebuild(slots, capacity, [(self, min(slots, self.count))])

    def append(self, own: int, other: "KVSlots", count: int, capacity: int) -> None:
        """Keep the first `own` slots, and move the first `count` of another behind them, which has none then."""
        self._rebuild(own + count, capacity, [(self, own), (other, count)])

    def _rebuild(self, slots: int, capacity: int, sources: "Sequence[tuple[KVSlots, int]]") -> None:
        """Take the first slots of each source, one layer after the other: two copies of it exist for a moment."""
        for layer in range(len(self.keys_S_K_T_D)):
            for kind in ("keys_S_K_T_D", "values_S_K_T_D"):
                new_S_K_T_D, start = self._layout.allocate(slots, capacity), 0
                for source, count in sources:
                    tensors, stop = getattr(source, kind), min(capacity, source.capacity)
                    new_S_K_T_D[start : start + count, :, :stop] = tensors[layer][:count, :, :stop]
                    tensors[layer] = self._layout.allocate(0, 0)
                    start += count
                getattr(self, kind)[layer] = new_S_K_T_D
        self.capacity = capacity

    def write(self, slot: int, kv_L_2_K_T_D: Tensor) -> None:
        """Write keys and values to the first positions of a slot."""
        stop = kv_L_2_K_T_D.shape[3]
        for layer, (keys_K_T_D, values_K_T_D) in enumerate(kv_L_2_K_T_D):
            self.keys_S_K_T_D[layer][slot, :, :stop] = keys_K_T_D
            self.values_S_K_T_D[layer][slot, :, :stop] = values_K_T_D

    def read(self, slot: int, stop: int) -> Tensor:
        """Return a copy of the first positions of a slot, [L, 2, K, T, D]."""
        pairs = zip(self.keys_S_K_T_D, self.values_S_K_T_D, strict=True)
        kv_L2_K_T_D = self._layout.allocate(2 * self._layout.layers, stop)
        torch.stack([tensor[slot, :, :stop] for pair in pairs for tensor in pair], out=kv_L2_K_T_D)
        kv_L_2_K_T_D: Tensor = kv_L2_K_T_D.unflatten(0, (-1, 2))
        return kv_L_2_K_T_D

    def move(self, source: int, target: int, stop: int) -> None:
        """Copy the first positions of a slot to another."""
        if source != target:
            for tensor in (*self.keys_S_K_T_D, *self.values_S_K_T_D):
                tensor[target, :, :stop] = tensor[source, :, :stop]


class PrefixCache:
    """Prefixes in blocks of `block_size` tokens. A block is identified by its tokens and by the block before it.

    With `keep_tails`, the tokens after the last full block are cached too; they match an identical sequence only.
    """

    def __init__(self, block_size: int, keep_tails: bool = False) -> None:
        self.block_size = block_size
        self.keep_tails = keep_tails
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], tuple[int, Tensor]] = OrderedDict()
        self._last_id = 0
        self._max_tokens: float = math.inf

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
        self.limit(self._max_tokens)

    def block_hashes(self, tokens: Sequence[int]) -> list[int]:
        """Return one number for each block of a sequence, which stands for all tokens up to the block's end."""
        hashes, parent = [], 0
        for _, block_tokens in self._split(tokens):
            parent = hash((parent, *block_tokens))
            hashes.append(parent)
        return hashes

    def limit(self, max_tokens: float) -> None:
        """Evict the least recently used blocks while there are more positions than this, now and from now on."""
        self._max_tokens = max_tokens
        while self._blocks and self.tokens > max_tokens:
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
