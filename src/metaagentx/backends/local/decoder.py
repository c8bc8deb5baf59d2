"""A forward pass of Qwen3 and Llama models over our own cache, made of plain torch operations on the module's weights.

`extend` reads tokens into rows of a lane, `logits` reads one token in each row and says what may come next. Both see
the weights that the module has now. Layers that peft has wrapped are called as they are. Shapes as in `kv.py`, and:
B rows of a step, N tokens of any rows one after the other, C width, H query heads, G = H / K, V tokens in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kv import Lane, Layout
from .model import LocalModel

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens to be read into a row from position `start` on; what is before them is there already."""

    row: int
    start: int
    tokens: Sequence[int]


class Decoder(Protocol):
    """What the engine needs of a model."""

    @property
    def layout(self) -> Layout:
        """Of its keys and values."""

    def refresh(self) -> None:
        """Look at the weights again: they have changed."""

    def extend(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Read tokens into rows."""

    def logits(self, lane: Lane, tokens_B: Tensor, positions_B: Tensor, span: int) -> Tensor:
        """Read a token in each of the first B rows, and give logits [B, V]. No position is `span` or more."""


class Layer(NamedTuple):
    """What a layer computes with."""

    before_attention: Tensor
    query: Linear
    key: Linear
    value: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    before_mlp: Tensor
    gate: Linear
    up: Linear
    down: Linear


class PlainDecoder:
    """Qwen3 and Llama."""

    def __init__(self, model: LocalModel) -> None:
        config = model.module.config
        self._model = model
        self._head_width: int = config.head_dim
        self._scale = self._head_width**-0.5
        self._epsilon: float = config.rms_norm_eps
        self.layout = Layout(
            config.num_hidden_layers, config.num_key_value_heads, self._head_width, model.dtype, model.device
        )
        self.refresh()

    def refresh(self) -> None:
        """Look up the module's tensors; they are used, not copied."""
        causal_lm: Any = _causal_lm(self._model.module)
        body = causal_lm.model
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._head = _linear(causal_lm.lm_head)
        self._norm: Tensor = body.norm.weight.detach()
        self._layers = [_layer(layer) for layer in body.layers]
        self._rotary = body.rotary_emb
        self._know_positions(2048)

    def _know_positions(self, positions: int) -> None:
        """Cosines and sines up to there; a long context does not pay for all of them at once."""
        count = min(1 << (positions - 1).bit_length(), self._model.context_length)
        cos, sin = self._rotary(self._embedding, torch.arange(count, device=self._model.device)[None])
        half = self._head_width // 2
        self._cos_T_D: Tensor = cos[0].clone()
        self._sin_T_D = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)

    def extend(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Read tokens into rows, all of them in one pass through the linear layers."""
        device = self.layout.device
        tokens_N = torch.tensor([token for part in parts for token in part.tokens], device=device)
        positions_N = torch.cat([torch.arange(p.start, p.start + len(p.tokens), device=device) for p in parts])
        stretches = _stretches(parts)
        if (span := max(stretch.stop for stretch in stretches)) > len(self._cos_T_D):
            self._know_positions(span)

        def attend(layer: int, q_N_H_D: Tensor, k_N_K_D: Tensor, v_N_K_D: Tensor) -> Tensor:
            keys_R_K_T_D, values_R_K_T_D = lane.keys_R_K_T_D[layer], lane.values_R_K_T_D[layer]
            outputs = []
            for stretch in stretches:
                rows, span, tokens = stretch.rows, stretch.stop, stretch.tokens
                shape = (rows.stop - rows.start, stretch.stop - stretch.start)
                keys_R_K_T_D[rows, :, stretch.start : span] = k_N_K_D[tokens].unflatten(0, shape).transpose(1, 2)
                values_R_K_T_D[rows, :, stretch.start : span] = v_N_K_D[tokens].unflatten(0, shape).transpose(1, 2)
                attended = F.scaled_dot_product_attention(
                    q_N_H_D[tokens].unflatten(0, shape).transpose(1, 2),
                    keys_R_K_T_D[rows, :, :span],
                    values_R_K_T_D[rows, :, :span],
                    attn_mask=_later(stretch, device),
                    is_causal=stretch.start == 0,
                    enable_gqa=True,
                )
                outputs.append(attended.transpose(1, 2).flatten(2).flatten(0, 1))
            return torch.cat(outputs)

        self._hidden(tokens_N, positions_N, attend)

    def logits(self, lane: Lane, tokens_B: Tensor, positions_B: Tensor, span: int) -> Tensor:
        """Read a token in each of the first B rows, and say what may come next."""
        batch = len(tokens_B)
        keys_B_K_T_D = [keys[:batch] for keys in lane.keys_R_K_T_D]
        values_B_K_T_D = [values[:batch] for values in lane.values_R_K_T_D]
        return self.step(keys_B_K_T_D, values_B_K_T_D, tokens_B, positions_B, self.mask(positions_B, span))

    def mask(self, positions_B: Tensor, span: int) -> Tensor:
        """What is added to the scores of a step, [B, T]: minus infinity where a row has not come to yet."""
        if span > len(self._cos_T_D):
            self._know_positions(span)
        later_B_T = torch.arange(span, device=self.layout.device) > positions_B[:, None]
        return torch.zeros(later_B_T.shape, dtype=self.layout.dtype, device=self.layout.device).masked_fill_(
            later_B_T, float("-inf")
        )

    def step(
        self, keys: list[Tensor], values: list[Tensor], tokens_B: Tensor, positions_B: Tensor, mask_B_T: Tensor
    ) -> Tensor:
        """The tensor part of `logits`, which may be compiled. Keys and values are [B, K, T, D] for each layer."""
        batch, span = mask_B_T.shape
        rows_B = torch.arange(batch, device=self.layout.device)

        def attend(layer: int, q_B_H_D: Tensor, k_B_K_D: Tensor, v_B_K_D: Tensor) -> Tensor:
            keys[layer][rows_B, :, positions_B] = k_B_K_D
            values[layer][rows_B, :, positions_B] = v_B_K_D
            # The G query heads of a key head stand where a sequence's positions usually do: nothing is repeated.
            q_B_K_G_D = q_B_H_D.unflatten(1, (self.layout.key_heads, -1))
            scores_B_K_G_T = q_B_K_G_D @ keys[layer][:, :, :span].transpose(2, 3) * self._scale
            weights_B_K_G_T = (scores_B_K_G_T + mask_B_T[:, None, None]).softmax(-1)
            mixed_B_HD: Tensor = (weights_B_K_G_T @ values[layer][:, :, :span]).flatten(1)
            return mixed_B_HD

        return self._head(self._hidden(tokens_B, positions_B, attend))

    def _hidden(
        self, tokens_N: Tensor, positions_N: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        width = (-1, self._head_width)
        hidden_N_C = F.embedding(tokens_N, self._embedding)
        cos_N_D, sin_N_D = self._cos_T_D[positions_N][:, None], self._sin_T_D[positions_N][:, None]
        for index, layer in enumerate(self._layers):
            normed_N_C = self._rms(hidden_N_C, layer.before_attention)
            q_N_H_D = layer.query(normed_N_C).unflatten(1, width)
            k_N_K_D = layer.key(normed_N_C).unflatten(1, width)
            if layer.query_norm is not None and layer.key_norm is not None:
                q_N_H_D, k_N_K_D = self._rms(q_N_H_D, layer.query_norm), self._rms(k_N_K_D, layer.key_norm)
            q_N_H_D, k_N_K_D = _rotate(q_N_H_D, cos_N_D, sin_N_D), _rotate(k_N_K_D, cos_N_D, sin_N_D)
            v_N_K_D = layer.value(normed_N_C).unflatten(1, width)
            hidden_N_C = hidden_N_C + layer.output(attend(index, q_N_H_D, k_N_K_D, v_N_K_D))
            normed_N_C = self._rms(hidden_N_C, layer.before_mlp)
            hidden_N_C = hidden_N_C + layer.down(F.silu(layer.gate(normed_N_C)) * layer.up(normed_N_C))
        return self._rms(hidden_N_C, self._norm)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._epsilon)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Parts of neighbouring rows with the same positions, which are attended in one go."""

    rows: slice
    tokens: slice
    start: int
    stop: int


def _stretches(parts: Sequence[Part]) -> list[_Stretch]:
    found, at = [], 0
    numbered = enumerate(parts)
    for (_, start, length), group in groupby(
        numbered, key=lambda it: (it[1].row - it[0], it[1].start, len(it[1].tokens))
    ):
        members = [part for _, part in group]
        tokens = length * len(members)
        rows = slice(members[0].row, members[-1].row + 1)
        found.append(_Stretch(rows, slice(at, at + tokens), start, start + length))
        at += tokens
    return found


def _later(stretch: _Stretch, device: torch.device) -> Tensor | None:
    """Which positions each token sees, where tokens before the stretch are seen by all."""
    if stretch.start == 0:
        return None
    tokens = stretch.stop - stretch.start
    return torch.ones(tokens, stretch.stop, dtype=torch.bool, device=device).tril(stretch.start)


def _rotate(x_N_H_D: Tensor, cos_N_D: Tensor, sin_N_D: Tensor) -> Tensor:
    """Rotary positions; the sign of the first half is in the sines."""
    return x_N_H_D * cos_N_D + x_N_H_D.roll(x_N_H_D.shape[-1] // 2, -1) * sin_N_D


def is_plain(module: Any) -> bool:
    """Whether `PlainDecoder` computes what this module does."""
    config = _causal_lm(module).config
    return (
        type(_causal_lm(module)).__name__ in ("Qwen3ForCausalLM", "LlamaForCausalLM")
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
        and all(kind == "full_attention" for kind in config.to_dict().get("layer_types") or [])
    )


def _causal_lm(module: Any) -> Any:
    from peft import PeftModel

    return module.get_base_model() if isinstance(module, PeftModel) else module


def _linear(module: nn.Module) -> Linear:
    if type(module) is not nn.Linear:
        return module
    bias = None if module.bias is None else module.bias.detach()
    return partial(F.linear, weight=module.weight.detach(), bias=bias)


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    normed = dict(attention.named_children())
    return Layer(
        before_attention=layer.input_layernorm.weight.detach(),
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        query_norm=normed["q_norm"].weight.detach() if "q_norm" in normed else None,
        key_norm=normed["k_norm"].weight.detach() if "k_norm" in normed else None,
        output=_linear(attention.o_proj),
        before_mlp=layer.post_attention_layernorm.weight.detach(),
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
    )
