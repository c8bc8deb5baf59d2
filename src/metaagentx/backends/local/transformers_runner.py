"""Runs every other architecture through its transformers module and its cache. Correct, and slower than `NativeRunner`.

The slots become a transformers cache with padding on the right, which the mask hides. Models with sliding-window layers
count cache entries, not positions: there padding would matter, and slots are decoded one by one. Shapes as in
`model_runner.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ...errors import MetaAgentXError
from .kv_cache import KVLayout, KVSlots
from .model import LocalModel
from .model_runner import PrefillChunk


class TransformersRunner:
    """Runs any causal LM whose layers cache keys and values."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._name = type(model.module).__name__
        with torch.inference_mode():
            first_token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
            cache = model.module(input_ids=first_token, use_cache=True).past_key_values
        shapes = {tuple(keys.shape) for keys, _ in self._cached_layers(cache)}
        if len(shapes) != 1:
            raise MetaAgentXError(
                f"{self._name} has layers with different key heads or head widths, which cannot be "
                "sampled here: use a model of another architecture"
            )
        _, heads, _, width = shapes.pop()
        self.weight_count = sum(parameter.numel() for parameter in self._model.module.parameters())
        self.layout = KVLayout(len(cache.layers), heads, width, model.dtype, model.device)
        config = self._model.module.config.to_dict()
        kinds = config.get("layer_types") or []
        self._one_by_one = bool(config.get("sliding_window")) or any(kind != "full_attention" for kind in kinds)

    def refresh_weights(self) -> None:
        """Do nothing: the module computes with its weights themselves."""

    def prefill(self, slots: KVSlots, chunks: Sequence[PrefillChunk]) -> None:
        """Compute keys and values of the chunks, one after the other."""
        for chunk in chunks:
            tokens_1_T = torch.tensor([chunk.tokens], device=self.layout.device)
            stop = chunk.start + len(chunk.tokens)
            positions_1_T = torch.arange(chunk.start, stop, device=self.layout.device)[None]
            self._forward(slots, chunk.slot, chunk.start, tokens_1_T, positions_1_T)

    def decode(self, slots: KVSlots, tokens_B: Tensor, positions_B: Tensor, length: int, shared: int = 0) -> Tensor:
        """Read a token in each of the first B slots and return logits [B, V]."""
        batch = len(tokens_B)
        tokens_B_1, positions_B_1 = tokens_B[:, None], positions_B[:, None]
        if self._one_by_one and batch > 1:
            logits = [
                self._forward(slots, slot, int(positions_B[slot]), tokens_B_1[[slot]], positions_B_1[[slot]])
                for slot in range(batch)
            ]
            return torch.cat(logits)
        cached = length - 1  # the new token is the last entry
        mask_B_T = torch.arange(cached, device=self.layout.device) < positions_B_1
        mask_B_T = torch.cat([mask_B_T, mask_B_T.new_ones(batch, 1)], dim=1).long()
        return self._forward(slots, 0, cached, tokens_B_1, positions_B_1, mask_B_T)

    def _forward(
        self,
        slots: KVSlots,
        first_slot: int,
        cached: int,
        tokens_B_T: Tensor,
        positions_B_T: Tensor,
        mask_B_T: Tensor | None = None,
    ) -> Tensor:
        """Return the logits after the last tokens [B, V]. The new keys and values are written to their positions.

        The B slots from `first_slot` on attend to their first `cached` positions and to the new tokens.
        """
        rows = slice(first_slot, first_slot + len(tokens_B_T))
        pairs = list(zip(slots.keys_S_K_T_D, slots.values_S_K_T_D, strict=True))
        past = DynamicCache()
        if cached:
            for layer, (keys_S_K_T_D, values_S_K_T_D) in enumerate(pairs):
                past.update(keys_S_K_T_D[rows, :, :cached], values_S_K_T_D[rows, :, :cached], layer)
        result: Any = self._model.module(
            input_ids=tokens_B_T,
            position_ids=positions_B_T,
            attention_mask=mask_B_T,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        rows_B_1 = torch.arange(rows.start, rows.stop, device=self.layout.device)[:, None]
        for pair, new_pair in zip(pairs, self._cached_layers(result.past_key_values), strict=True):
            for tensor_S_K_T_D, new_B_K_T_D in zip(pair, new_pair, strict=True):
                tensor_S_K_T_D[rows_B_1, :, positions_B_T] = new_B_K_T_D[:, :, cached:].transpose(1, 2)
        logits_B_V: Tensor = result.logits[:, -1]
        return logits_B_V

    def _cached_layers(self, cache: Any) -> list[tuple[Tensor, Tensor]]:
        layers: list[Any] = list(cache.layers) if isinstance(cache, DynamicCache) else []
        if not layers or not all(isinstance(layer, DynamicLayer) for layer in layers):
            raise MetaAgentXError(
                f"{self._name} caches something other than keys and values, and cannot be sampled "
                "here: use a model of another architecture"
            )
        return [(layer.keys, layer.values) for layer in layers]
