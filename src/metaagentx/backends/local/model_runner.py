"""Our own forward pass for Qwen3 and Llama models: plain torch operations on the module's weights and our KV cache.

`prefill` computes keys and values of many tokens, `decode` reads one token in each slot and returns logits. On a CPU,
small models are computed from copies of their matrices, transposed and concatenated where they multiply the same input:
up to a third less time for few rows. Copies of larger models are packed (`packed_linear.py`), and may be narrower than
the weights. A LoRA is merged into the copies. `refresh_weights` updates them. Of a layer that peft has wrapped only the
weights are used: the base layer and the LoRA of this model, whichever adapter is active in peft. So a decode step is
the same operations on the same tensors from the first to the last, and can be compiled if they are not packed. Several
threads may decode at once, each in its own `KVSlots`.

Shapes as in `kv_cache.py`, and: B rows of a decode step, N tokens of any slots one after the other, C hidden size,
H query heads, G = H / K, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Lock
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory_budget import MAX_COPIED_WEIGHTS, MIN_PACKED_WEIGHTS
from .attention import attend_bf16, attend_shared
from .kv_cache import KVLayout, KVSlots
from .lora_linear import apply_linears, lora_linear, merged_weight
from .model import LocalModel, base_causal_lm
from .packed_linear import PackedLinear, SamplingDtype, bf16_available, packing_available

Linear = Callable[[Tensor], Tensor]

_NATIVE = ("Qwen3ForCausalLM", "LlamaForCausalLM")
_FIRST_ROPE_POSITIONS = 2048
_MASKS = 512
"""The masks of positions below this are made once."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens to prefill into a slot from position `start` on; the positions before are computed already."""

    slot: int
    start: int
    tokens: Sequence[int]


class ModelRunner(Protocol):
    """A model as the engine runs it."""

    @property
    def layout(self) -> KVLayout:
        """The shape of its keys and values."""

    @property
    def weight_count(self) -> int:
        """The number of its weights: about as many multiplications as a token takes."""

    def refresh_weights(self) -> None:
        """Update what is derived from the weights, after they have changed."""

    def prefill(self, slots: KVSlots, chunks: Sequence[PrefillChunk]) -> None:
        """Compute keys and values of tokens into their slots."""

    def decode(self, slots: KVSlots, tokens_B: Tensor, positions_B: Tensor, length: int, shared: int = 0) -> Tensor:
        """Read a token in each of the first B slots and return logits [B, V]. All positions are below `length`.

        In all of these slots the first `shared` positions are the same.
        """


class LayerWeights(NamedTuple):
    """What a transformer layer computes with."""

    attention_norm: Tensor
    query_key_value: Linear
    head_norms_HK_D: Tensor | None
    """Of the query heads and then of the key heads, where there are any."""
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


class NativeRunner:
    """Runs Qwen3 and Llama models."""

    def __init__(self, model: LocalModel, sampling_dtype: SamplingDtype = "auto", *, may_pack: bool = True) -> None:
        """Prepare to run a model. With `may_pack=False`, matrices are packed only if they are to be narrower.

        `sampling_dtype` is ignored where there is a reason in `why_not_bf16`.
        """
        config = model.module.config
        causal_lm = base_causal_lm(model.module)
        body = causal_lm.model
        self._model = model
        self._heads: int = config.num_attention_heads
        self._head_width: int = config.head_dim
        self._scale: float = self._head_width**-0.5
        self._epsilon: float = config.rms_norm_eps
        self._narrow = sampling_dtype == "bfloat16" and why_not_bf16(model) is None
        kv_dtype = torch.bfloat16 if self._narrow else model.dtype
        self.layout = KVLayout(
            config.num_hidden_layers, config.num_key_value_heads, self._head_width, kv_dtype, model.device
        )
        self.weight_count = _count_weights(causal_lm)
        self._copies_weights = model.device.type == "cpu" and self.weight_count <= MAX_COPIED_WEIGHTS
        self._merges_lora = self._copies_weights and model.dtype == torch.float32
        self._lm_head = causal_lm.lm_head  # stays fp32: the rounding of large logits would show in log-probabilities
        large = self.weight_count >= MIN_PACKED_WEIGHTS and may_pack
        self.packed = self._merges_lora and packing_available() and (large or self._narrow)
        """Whether products are computed from packed copies of the weights."""
        self.traceable = self._copies_weights and not self.packed and (model.adapter is None or self._merges_lora)
        """Whether `decode_tensors` reads tensors alone that stay where they are and need no gradient."""
        self._refreshers: list[Callable[[], None]] = []
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._norm: Tensor = body.norm.weight.detach()
        self._layers = [self._layer(layer) for layer in body.layers]
        self._head = self._linear(self._lm_head)
        self._rotary = body.rotary_emb
        self._rope_lock = Lock()
        self._cos_sin_T_D = self._compute_rope(_FIRST_ROPE_POSITIONS)
        self._masks_T_T = self._make_mask(torch.arange(_MASKS, device=model.device), _MASKS)

    def refresh_weights(self) -> None:
        """Copy the weights again, into the existing tensors: a compiled step refers to those."""
        with torch.no_grad():
            for refresh in self._refreshers:
                refresh()

    def _copy(self, current: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            copy = current().contiguous().clone()

        def refresh() -> None:
            copy.copy_(current())

        self._refreshers.append(refresh)
        return copy

    def _layer(self, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        norms = dict(attention.named_children())
        head_norms_HK_D = None
        if "q_norm" in norms:
            query_D, key_D = norms["q_norm"].weight, norms["k_norm"].weight
            heads, key_heads = self._heads, self.layout.key_heads
            head_norms_HK_D = self._copy(
                lambda: torch.cat([query_D.expand(heads, -1), key_D.expand(key_heads, -1)]).detach()
            )
        return LayerWeights(
            attention_norm=layer.input_layernorm.weight.detach(),
            query_key_value=self._linear(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms_HK_D=head_norms_HK_D,
            output=self._linear(attention.o_proj),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=self._linear(mlp.gate_proj, mlp.up_proj),
            down=self._linear(mlp.down_proj),
        )

    def _linear(self, *modules: nn.Module) -> Linear:
        """Return a function that applies these linear layers to the same input and concatenates their outputs."""
        layers = [lora_linear(module, self._model.adapter) for module in modules]
        has_lora = any(layer.lora_a is not None for layer in layers)
        if not self._copies_weights or (has_lora and not self._merges_lora):
            return partial(apply_linears, layers)

        def weight_out_in() -> Tensor:
            return torch.cat([merged_weight(layer) for layer in layers])

        biases = [layer.bias for layer in layers if layer.bias is not None]
        if self.packed:
            linear = PackedLinear(torch.bfloat16 if self._narrow and modules[0] is not self._lm_head else torch.float32)

            def pack() -> None:
                with torch.no_grad():
                    linear.pack(weight_out_in(), torch.cat(biases) if biases else None)

            pack()
            self._refreshers.append(pack)
            return linear
        weight_in_out = self._copy(lambda: weight_out_in().t())
        if not biases:
            return lambda x_N_in: x_N_in @ weight_in_out
        bias_out = self._copy(lambda: torch.cat(biases))
        return lambda x_N_in: torch.addmm(bias_out, x_N_in, weight_in_out)

    def _compute_rope(self, positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, the sign of the first half in the sines."""
        positions = min(1 << (positions - 1).bit_length(), self._model.context_length)
        cos, sin = self._rotary(self._embedding, torch.arange(positions, device=self._model.device)[None])
        half = self._head_width // 2
        return cos[0].clone(), torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)

    def _ensure_rope_cache(self, positions: int) -> None:
        """Extend the cosines and sines to this many positions; a long context does not pay for all of them at once."""
        with self._rope_lock:
            if positions > len(self._cos_sin_T_D[0]):
                self._cos_sin_T_D = self._compute_rope(positions)

    def prefill(self, slots: KVSlots, chunks: Sequence[PrefillChunk]) -> None:
        """Compute keys and values of all chunks in one pass through the linear layers."""
        device = self.layout.device
        tokens_N = torch.tensor([token for chunk in chunks for token in chunk.tokens], device=device)
        positions_N = torch.cat([torch.arange(c.start, c.start + len(c.tokens), device=device) for c in chunks])
        spans = _spans(chunks)
        self._ensure_rope_cache(max(span.stop for span in spans))

        def attend(layer: int, q_N_H_D: Tensor, k_N_K_D: Tensor, v_N_K_D: Tensor) -> Tensor:
            keys_S_K_T_D, values_S_K_T_D = slots.keys_S_K_T_D[layer], slots.values_S_K_T_D[layer]
            outputs = []
            for span in spans:
                rows, start, stop, tokens = span.slots, span.start, span.stop, span.tokens
                shape = (rows.stop - rows.start, stop - start)
                keys_S_K_T_D[rows, :, start:stop] = k_N_K_D[tokens].unflatten(0, shape).transpose(1, 2)
                values_S_K_T_D[rows, :, start:stop] = v_N_K_D[tokens].unflatten(0, shape).transpose(1, 2)
                attended_S_H_T_D = F.scaled_dot_product_attention(
                    q_N_H_D[tokens].unflatten(0, shape).transpose(1, 2).to(self.layout.dtype),
                    keys_S_K_T_D[rows, :, :stop],
                    values_S_K_T_D[rows, :, :stop],
                    attn_mask=_causal_mask(span, device),
                    is_causal=start == 0,
                    enable_gqa=True,
                )
                outputs.append(attended_S_H_T_D.transpose(1, 2).flatten(2).flatten(0, 1))
            return torch.cat(outputs).to(q_N_H_D.dtype)

        self._hidden(tokens_N, positions_N, attend)

    def decode(self, slots: KVSlots, tokens_B: Tensor, positions_B: Tensor, length: int, shared: int = 0) -> Tensor:
        """Read a token in each of the first B slots and return logits [B, V]."""
        batch = len(tokens_B)
        keys = [keys_S_K_T_D[:batch] for keys_S_K_T_D in slots.keys_S_K_T_D]
        values = [values_S_K_T_D[:batch] for values_S_K_T_D in slots.values_S_K_T_D]
        mask_B_T = self.decode_mask(positions_B, length)
        return self.decode_tensors(keys, values, tokens_B, positions_B, mask_B_T, shared)

    def decode_mask(self, positions_B: Tensor, length: int) -> Tensor:
        """Return what is added to the attention scores, [B, T]: minus infinity behind each row's position."""
        self._ensure_rope_cache(length)
        if length <= _MASKS:  # reading a row is cheaper than making it
            return self._masks_T_T[:, :length].index_select(0, positions_B)
        return self._make_mask(positions_B, length)

    def _make_mask(self, positions_B: Tensor, length: int) -> Tensor:
        later_B_T = torch.arange(length, device=self.layout.device) > positions_B[:, None]
        return torch.zeros(later_B_T.shape, dtype=self.layout.dtype, device=self.layout.device).masked_fill_(
            later_B_T, float("-inf")
        )

    def decode_tensors(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        tokens_B: Tensor,
        positions_B: Tensor,
        mask_B_T: Tensor,
        shared: int = 0,
    ) -> Tensor:
        """Compute the tensor part of `decode`, which can be compiled. Keys and values are [B, K, T, D] per layer."""
        batch, length = mask_B_T.shape
        rows_B = torch.arange(batch, device=self.layout.device)

        def attend(layer: int, q_B_H_D: Tensor, k_B_K_D: Tensor, v_B_K_D: Tensor) -> Tensor:
            keys[layer][rows_B, :, positions_B] = k_B_K_D.to(self.layout.dtype)
            values[layer][rows_B, :, positions_B] = v_B_K_D.to(self.layout.dtype)
            keys_B_K_T_D, values_B_K_T_D = keys[layer][:, :, :length], values[layer][:, :, :length]
            # The G query heads of a key head take the place of a sequence's positions, so no key is repeated.
            q_B_K_G_D = (q_B_H_D * self._scale).unflatten(1, (self.layout.key_heads, -1))
            if self._narrow:
                return attend_bf16(q_B_K_G_D, keys_B_K_T_D, values_B_K_T_D, mask_B_T, shared)
            if shared:
                return attend_shared(q_B_K_G_D, keys_B_K_T_D, values_B_K_T_D, mask_B_T, shared)
            scores_B_K_G_T = q_B_K_G_D @ keys_B_K_T_D.transpose(2, 3)
            weights_B_K_G_T = (scores_B_K_G_T + mask_B_T[:, None, None]).softmax(-1)
            attended: Tensor = (weights_B_K_G_T @ values_B_K_T_D).flatten(1)
            return attended

        return self._head(self._hidden(tokens_B, positions_B, attend))

    def _hidden(
        self, tokens_N: Tensor, positions_N: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        heads, key_heads = self._heads, self.layout.key_heads
        hidden_N_C = F.embedding(tokens_N, self._embedding)
        cos_T_D, sin_T_D = self._cos_sin_T_D
        cos_N_1_D, sin_N_1_D = cos_T_D[positions_N][:, None], sin_T_D[positions_N][:, None]
        for index, layer in enumerate(self._layers):
            qkv_N = layer.query_key_value(self._rms(hidden_N_C, layer.attention_norm))
            qk_N_HK_D, v_N_K_D = qkv_N.unflatten(1, (-1, self._head_width)).split([heads + key_heads, key_heads], 1)
            if layer.head_norms_HK_D is not None:
                qk_N_HK_D = self._rms(qk_N_HK_D, layer.head_norms_HK_D)
            q_N_H_D, k_N_K_D = _rotate(qk_N_HK_D, cos_N_1_D, sin_N_1_D).split([heads, key_heads], 1)
            hidden_N_C = hidden_N_C + layer.output(attend(index, q_N_H_D, k_N_K_D, v_N_K_D))
            gate, up = layer.gate_up(self._rms(hidden_N_C, layer.mlp_norm)).chunk(2, 1)
            hidden_N_C = hidden_N_C + layer.down(F.silu(gate) * up)
        return self._rms(hidden_N_C, self._norm)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype.itemsize < 4:
            x = F.rms_norm(x, x.shape[-1:], None, self._epsilon)
        else:  # takes a third of the time of the above on a CPU
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            x = x * torch.rsqrt(norm.square().mul(1 / x.shape[-1]).add(self._epsilon))
        return x * weight


class _Span(NamedTuple):
    """Chunks of adjacent slots with the same positions, which are attended in one operation."""

    slots: slice
    tokens: slice
    start: int
    stop: int


def _spans(chunks: Sequence[PrefillChunk]) -> list[_Span]:
    spans, offset = [], 0
    for (_, start, length), group in groupby(
        enumerate(chunks), key=lambda pair: (pair[1].slot - pair[0], pair[1].start, len(pair[1].tokens))
    ):
        slots = [chunk.slot for _, chunk in group]
        tokens = length * len(slots)
        spans.append(_Span(slice(slots[0], slots[-1] + 1), slice(offset, offset + tokens), start, start + length))
        offset += tokens
    return spans


def _causal_mask(span: _Span, device: torch.device) -> Tensor | None:
    """Return which positions each token sees [T, T], or None where the span starts its sequences."""
    if span.start == 0:
        return None
    return torch.ones(span.stop - span.start, span.stop, dtype=torch.bool, device=device).tril(span.start)


def _rotate(x_N_H_D: Tensor, cos_N_1_D: Tensor, sin_N_1_D: Tensor) -> Tensor:
    """Apply rotary positions; the sign of the first half is in the sines."""
    return torch.addcmul(x_N_H_D * cos_N_1_D, x_N_H_D.roll(x_N_H_D.shape[-1] // 2, -1), sin_N_1_D)


def is_native(module: Any) -> bool:
    """Return whether `NativeRunner` computes what this module does."""
    causal_lm = base_causal_lm(module)
    config = causal_lm.config
    return (
        type(causal_lm).__name__ in _NATIVE
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
        and all(kind == "full_attention" for kind in config.to_dict().get("layer_types") or [])
    )


def why_not_bf16(model: LocalModel) -> str | None:
    """Return why a model is not sampled from bf16 copies, and from what instead; None where it can be."""
    causal_lm = base_causal_lm(model.module)
    if not is_native(model.module):
        name = type(causal_lm).__name__
        other = " with other layers" if name in _NATIVE else ""
        return f"only Qwen3 and Llama models are sampled from copies, and this is a {name}{other}"
    if model.device.type != "cpu":
        return f"the model is on {model.device} and is sampled from its weights"
    if model.dtype != torch.float32:
        return f"the weights are {str(model.dtype).removeprefix('torch.')} themselves"
    if (count := _count_weights(causal_lm)) > MAX_COPIED_WEIGHTS:
        return f"{count:,} weights are more than the {MAX_COPIED_WEIGHTS:,} that are copied"
    if not bf16_available():
        return "this processor has no bf16 products, sampling from float32 copies"
    return None


def _count_weights(causal_lm: Any) -> int:
    return sum(parameter.numel() for parameter in causal_lm.parameters())
