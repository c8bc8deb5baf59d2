"""The same for every other architecture: through the module of transformers and its own cache. Right, and slower.

The rows of a lane become a cache of transformers with padding on the right, which the mask hides. Models whose layers
look back over a window only count places, not positions: there padding would matter, and rows are read one by one.
Shapes as in `decoder.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ...errors import MetaAgentXError
from .decoder import Part
from .kv import Lane, Layout
from .model import LocalModel


class GenericDecoder:
    """Any causal LM whose layers keep keys and values."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        with torch.inference_mode():
            first = torch.zeros(1, 1, dtype=torch.long, device=model.device)
            cache = model.module(input_ids=first, use_cache=True).past_key_values
        shapes = {tuple(keys.shape) for keys, _ in _layers(cache, type(model.module).__name__)}
        if len(shapes) != 1:
            raise MetaAgentXError(
                f"{type(model.module).__name__} has layers of several kinds, which cannot be sampled yet"
            )
        _, heads, _, width = shapes.pop()
        self.weights = sum(parameter.numel() for parameter in model.module.parameters())
        self.layout = Layout(len(cache.layers), heads, width, model.dtype, model.device)
        kinds = model.module.config.to_dict().get("layer_types") or []
        window = model.module.config.to_dict().get("sliding_window")
        self._one_by_one = bool(window) or any(kind != "full_attention" for kind in kinds)

    def refresh(self) -> None:
        """The module itself computes: nothing is kept."""

    def extend(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Read tokens into rows, one row after the other."""
        for part in parts:
            stop = part.start + len(part.tokens)
            tokens = torch.tensor([part.tokens], device=self.layout.device)
            positions = torch.arange(part.start, stop, device=self.layout.device)[None]
            here = slice(part.row, part.row + 1)
            self._forward(_Place(lane, here, part.start), tokens, positions, None)

    def logits(self, lane: Lane, tokens_B: Tensor, positions_B: Tensor, span: int, shared: int = 0) -> Tensor:
        """Read a token in each of the first B rows, and say what may come next."""
        batch = len(tokens_B)
        if self._one_by_one and batch > 1:
            rows = [self._row(lane, row, tokens_B, positions_B) for row in range(batch)]
            return torch.cat(rows)
        before = span - 1  # the place that the new token takes among the others
        mask_B_T = torch.arange(before, device=self.layout.device) < positions_B[:, None]
        mask_B_T = torch.cat([mask_B_T, mask_B_T.new_ones(batch, 1)], dim=1).long()
        place = _Place(lane, slice(0, batch), before)
        return self._forward(place, tokens_B[:, None], positions_B[:, None], mask_B_T)

    def _row(self, lane: Lane, row: int, tokens_B: Tensor, positions_B: Tensor) -> Tensor:
        position = int(positions_B[row])
        here = slice(row, row + 1)
        return self._forward(_Place(lane, here, position), tokens_B[here, None], positions_B[here, None], None)

    def _forward(self, place: "_Place", tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Logits after the last token; keys and values of the tokens go to their positions in the lane."""
        past, before = DynamicCache(), place.before
        pairs = list(zip(place.lane.keys_R_K_T_D, place.lane.values_R_K_T_D, strict=True))
        if before:
            for layer, (keys, values) in enumerate(pairs):
                past.update(keys[place.rows, :, :before], values[place.rows, :, :before], layer)
        result: Any = self._model.module(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        grown = _layers(result.past_key_values, type(self._model.module).__name__)
        rows_B_1 = torch.arange(place.rows.start, place.rows.stop, device=self.layout.device)[:, None]
        for pair, new in zip(pairs, grown, strict=True):
            for mine, theirs in zip(pair, new, strict=True):
                mine[rows_B_1, :, positions] = theirs[:, :, before:].transpose(1, 2)
        logits: Tensor = result.logits[:, -1]
        return logits


class _Place(NamedTuple):
    """Rows of a lane, and how many of their positions come before the tokens that are read."""

    lane: Lane
    rows: slice
    before: int


def _layers(cache: Any, name: str) -> list[tuple[Tensor, Tensor]]:
    layers: list[Any] = list(cache.layers) if isinstance(cache, DynamicCache) else []
    if not layers or not all(isinstance(layer, DynamicLayer) for layer in layers):
        raise MetaAgentXError(f"{name} keeps something else than keys and values, and cannot be sampled here yet")
    return [(layer.keys, layer.values) for layer in layers]
