"""A forward pass of Qwen3 and Llama models over our own cache, made of plain torch operations on the module's weights.

`extend` reads tokens into rows of a lane, `logits` reads one token in each row and says what may come next. On a CPU
small models are computed from copies of their matrices, transposed and side by side where they multiply the same: up to
a third less time for few rows. `refresh` brings them up to date. Of a layer that peft has wrapped only its weights are
used: the layer and the LoRA of this model, whichever one peft has switched on. So a step is the same operations on the
same tensors from the first to the last, and may be compiled. Several threads may decode at once, each in a lane of its
own.

Shapes as in `kv.py`, and: B rows of a step, N tokens of any rows one after the other, C width, H query heads,
G = H / K, V tokens in all.
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

from .kv import Lane, Layout
from .model import LocalModel

Linear = Callable[[Tensor], Tensor]

COPIED_UP_TO = 300_000_000
"""Weights of a model that is computed from copies."""


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

    @property
    def weights(self) -> int:
        """How many there are: about as many multiplications as a token takes."""

    def refresh(self) -> None:
        """Look at the weights again: they have changed."""

    def extend(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Read tokens into rows."""

    def logits(self, lane: Lane, tokens_B: Tensor, positions_B: Tensor, span: int, shared: int = 0) -> Tensor:
        """Read a token in each of the first B rows, and give logits [B, V]. No position is `span` or more.

        In all of these rows the first `shared` positions hold the same.
        """


class Layer(NamedTuple):
    """What a layer computes with."""

    before_attention: Tensor
    query_key_value: Linear
    head_norms_HK_D: Tensor | None
    """Of the query heads and then of the key heads, where there are any."""
    output: Linear
    before_mlp: Tensor
    gate_up: Linear
    down: Linear


class PlainDecoder:
    """Qwen3 and Llama."""

    def __init__(self, model: LocalModel) -> None:
        config = model.module.config
        causal_lm: Any = _causal_lm(model.module)
        body = causal_lm.model
        self._model = model
        self._heads: int = config.num_attention_heads
        self._head_width: int = config.head_dim
        self._scale: float = self._head_width**-0.5
        self._epsilon: float = config.rms_norm_eps
        self.layout = Layout(
            config.num_hidden_layers, config.num_key_value_heads, self._head_width, model.dtype, model.device
        )
        self.weights = sum(parameter.numel() for parameter in causal_lm.parameters())
        self._copied = model.device.type == "cpu" and self.weights <= COPIED_UP_TO
        self._copies: list[tuple[Tensor, Callable[[], Tensor]]] = []
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._norm: Tensor = body.norm.weight.detach()
        self._layers = [self._layer(layer) for layer in body.layers]
        self._head = self._product(causal_lm.lm_head)
        self._rotary = body.rotary_emb
        self._knowing = Lock()
        self._cos_sin_T_D = self._positions(2048)

    def refresh(self) -> None:
        """Copy the weights again, into the tensors there are: a compiled step knows those."""
        with torch.no_grad():
            for copy, fresh in self._copies:
                copy.copy_(fresh())

    def _copy(self, fresh: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            copy = fresh().contiguous().clone()
        self._copies.append((copy, fresh))
        return copy

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = dict(attention.named_children())
        head_norms_HK_D = None
        if "q_norm" in norms:
            query_D, key_D = norms["q_norm"].weight, norms["k_norm"].weight
            heads, key_heads = self._heads, self.layout.key_heads
            head_norms_HK_D = self._copy(
                lambda: torch.cat([query_D.expand(heads, -1), key_D.expand(key_heads, -1)]).detach()
            )
        return Layer(
            before_attention=layer.input_layernorm.weight.detach(),
            query_key_value=self._product(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms_HK_D=head_norms_HK_D,
            output=self._product(attention.o_proj),
            before_mlp=layer.post_attention_layernorm.weight.detach(),
            gate_up=self._product(mlp.gate_proj, mlp.up_proj),
            down=self._product(mlp.down_proj),
        )

    def _product(self, *modules: nn.Module) -> Linear:
        """What these linear layers make of the same input, side by side."""
        plain = [module for module in modules if type(module) is nn.Linear]
        if len(plain) < len(modules):
            return partial(_with_loras, [_lora_linear(module, self._model.adapter) for module in modules])
        if not self._copied:
            return partial(_side_by_side, plain)
        weight = self._copy(lambda: torch.cat([module.weight for module in plain]).t())
        if plain[0].bias is None:
            return partial(_times, weight)
        return partial(_times_plus, weight, self._copy(lambda: torch.cat([module.bias for module in plain])))

    def _positions(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines, the sign of the first half in the sines."""
        count = min(1 << (count - 1).bit_length(), self._model.context_length)
        cos, sin = self._rotary(self._embedding, torch.arange(count, device=self._model.device)[None])
        half = self._head_width // 2
        return cos[0].clone(), torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)

    def _know_positions(self, count: int) -> None:
        """Up to there; a long context does not pay for all of them at once."""
        with self._knowing:
            if count > len(self._cos_sin_T_D[0]):
                self._cos_sin_T_D = self._positions(count)

    def extend(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Read tokens into rows, all of them in one pass through the linear layers."""
        device = self.layout.device
        tokens_N = torch.tensor([token for part in parts for token in part.tokens], device=device)
        positions_N = torch.cat([torch.arange(p.start, p.start + len(p.tokens), device=device) for p in parts])
        stretches = _stretches(parts)
        self._know_positions(max(stretch.stop for stretch in stretches))

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

    def logits(self, lane: Lane, tokens_B: Tensor, positions_B: Tensor, span: int, shared: int = 0) -> Tensor:
        """Read a token in each of the first B rows, and say what may come next."""
        batch = len(tokens_B)
        keys_B_K_T_D = [keys[:batch] for keys in lane.keys_R_K_T_D]
        values_B_K_T_D = [values[:batch] for values in lane.values_R_K_T_D]
        mask_B_T = self.mask(positions_B, span)
        return self.step(keys_B_K_T_D, values_B_K_T_D, tokens_B, positions_B, mask_B_T, shared)

    def mask(self, positions_B: Tensor, span: int) -> Tensor:
        """What is added to the scores of a step, [B, T]: minus infinity where a row has not come to yet."""
        self._know_positions(span)
        later_B_T = torch.arange(span, device=self.layout.device) > positions_B[:, None]
        return torch.zeros(later_B_T.shape, dtype=self.layout.dtype, device=self.layout.device).masked_fill_(
            later_B_T, float("-inf")
        )

    def step(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        tokens_B: Tensor,
        positions_B: Tensor,
        mask_B_T: Tensor,
        shared: int = 0,
    ) -> Tensor:
        """The tensor part of `logits`, which may be compiled. Keys and values are [B, K, T, D] for each layer."""
        batch, span = mask_B_T.shape
        rows_B = torch.arange(batch, device=self.layout.device)

        def attend(layer: int, q_B_H_D: Tensor, k_B_K_D: Tensor, v_B_K_D: Tensor) -> Tensor:
            keys[layer][rows_B, :, positions_B] = k_B_K_D
            values[layer][rows_B, :, positions_B] = v_B_K_D
            # The G query heads of a key head stand where a sequence's positions usually do: nothing is repeated.
            q_B_K_G_D = (q_B_H_D * self._scale).unflatten(1, (self.layout.key_heads, -1))
            if shared:
                return _attend_shared(q_B_K_G_D, keys[layer][:, :, :span], values[layer][:, :, :span], mask_B_T, shared)
            scores_B_K_G_T = q_B_K_G_D @ keys[layer][:, :, :span].transpose(2, 3)
            weights_B_K_G_T = (scores_B_K_G_T + mask_B_T[:, None, None]).softmax(-1)
            attended: Tensor = (weights_B_K_G_T @ values[layer][:, :, :span]).flatten(1)
            return attended

        return self._head(self._hidden(tokens_B, positions_B, attend))

    def _hidden(
        self, tokens_N: Tensor, positions_N: Tensor, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        heads, key_heads = self._heads, self.layout.key_heads
        hidden_N_C = F.embedding(tokens_N, self._embedding)
        cos_T_D, sin_T_D = self._cos_sin_T_D
        cos_N_D, sin_N_D = cos_T_D[positions_N][:, None], sin_T_D[positions_N][:, None]
        for index, layer in enumerate(self._layers):
            all_heads = layer.query_key_value(self._rms(hidden_N_C, layer.before_attention))
            qk_N_HK_D, v_N_K_D = all_heads.unflatten(1, (-1, self._head_width)).split([heads + key_heads, key_heads], 1)
            if layer.head_norms_HK_D is not None:
                qk_N_HK_D = self._rms(qk_N_HK_D, layer.head_norms_HK_D)
            q_N_H_D, k_N_K_D = _rotate(qk_N_HK_D, cos_N_D, sin_N_D).split([heads, key_heads], 1)
            hidden_N_C = hidden_N_C + layer.output(attend(index, q_N_H_D, k_N_K_D, v_N_K_D))
            gate, up = layer.gate_up(self._rms(hidden_N_C, layer.before_mlp)).chunk(2, 1)
            hidden_N_C = hidden_N_C + layer.down(F.silu(gate) * up)
        return self._rms(hidden_N_C, self._norm)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.layout.dtype.itemsize < 4:
            x = F.rms_norm(x, x.shape[-1:], None, self._epsilon)
        else:  # a third of the time that a CPU takes for the above
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            x = x * torch.rsqrt(length.square().mul(1 / x.shape[-1]).add(self._epsilon))
        return x * weight


def _attend_shared(
    q_B_K_G_D: Tensor, keys_B_K_T_D: Tensor, values_B_K_T_D: Tensor, mask_B_T: Tensor, shared: int
) -> Tensor:
    """Attention of rows that begin alike: what they share is read once, in the first row, for all of them."""
    rows = q_B_K_G_D.shape[0]
    q_K_BG_D = q_B_K_G_D.transpose(0, 1).flatten(1, 2)
    common_K_BG_T = q_K_BG_D @ keys_B_K_T_D[0, :, :shared].transpose(1, 2)
    own_B_K_G_T = q_B_K_G_D @ keys_B_K_T_D[:, :, shared:].transpose(2, 3) + mask_B_T[:, None, None, shared:]
    common_B_K_G_T = common_K_BG_T.unflatten(1, (rows, -1)).transpose(0, 1)
    weights_B_K_G_T = torch.cat([common_B_K_G_T, own_B_K_G_T], dim=-1).softmax(-1)
    weights_K_BG_T = weights_B_K_G_T[..., :shared].transpose(0, 1).flatten(1, 2)
    common_K_BG_D = weights_K_BG_T @ values_B_K_T_D[0, :, :shared]
    own_B_K_G_D = weights_B_K_G_T[..., shared:] @ values_B_K_T_D[:, :, shared:]
    attended: Tensor = (common_K_BG_D.unflatten(1, (rows, -1)).transpose(0, 1) + own_B_K_G_D).flatten(1)
    return attended


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
    return torch.addcmul(x_N_H_D * cos_N_D, x_N_H_D.roll(x_N_H_D.shape[-1] // 2, -1), sin_N_D)


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


def _times(weight: Tensor, x: Tensor) -> Tensor:
    return x @ weight


def _times_plus(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight)


def _side_by_side(modules: Sequence[nn.Linear], x: Tensor) -> Tensor:
    return _joined([F.linear(x, module.weight, module.bias) for module in modules])


def _joined(outputs: list[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


class _LoraLinear(NamedTuple):
    """A linear layer and the LoRA beside it, if it has one."""

    weight: Tensor
    bias: Tensor | None
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None
    scaling: float = 1.0


def _lora_linear(module: Any, adapter: str | None) -> _LoraLinear:
    base = module if type(module) is nn.Linear else module.base_layer
    if base is module or adapter not in module.lora_A:
        return _LoraLinear(base.weight, base.bias)
    lora_a, lora_b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    return _LoraLinear(base.weight, base.bias, lora_a, lora_b, module.scaling[adapter])


def _with_loras(layers: Sequence[_LoraLinear], x: Tensor) -> Tensor:
    """What peft computes in such layers, to the bit."""
    outputs = []
    for layer in layers:
        output = F.linear(x, layer.weight, layer.bias)
        if layer.lora_a is not None and layer.lora_b is not None:
            update = F.linear(F.linear(x.to(layer.lora_a.dtype), layer.lora_a), layer.lora_b)
            output = (output + update * layer.scaling).to(output.dtype)
        outputs.append(output)
    return _joined(outputs)
