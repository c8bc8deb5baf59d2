"""Our own training pass for a LoRA on a Qwen3 or Llama model on a CPU, with gradients written by hand.

The same function as the decoder of transformers with peft around it, to rounding. Only the LoRA gets gradients; no
gradient of a frozen weight exists at any time. This module takes the matrices from the model and runs the layers, which
are in lora_layer.py; their products, norms and attention are in lora_kernels.py. What makes it faster than autograd
through the module:

- Products run in oneDNN, which on some processors is more than twice as fast in fp32 as the library torch takes.
- The LoRA is merged into a layer's matrices for the layer's pass, one matrix at a time, so products are not doubled.
- Everything between products runs in blocks of tokens that stay in the processor's cache. The backward pass keeps the
  inputs of products that cost much and computes norms and activations again.
- Attention runs over spans of a tree: a block of queries attends to its ancestors and itself, not to the whole row.
- The head computes the gradient of a hidden state while the logits are there, so logits are neither kept nor computed
  again.

N: nodes of a micro-batch, padding left out, or the trained ones where they meet the head. H: hidden size. K: trained
tokens. D: head size.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory_budget import LORA_PASS_SPAN
from .lora_kernels import HeadPass, Span
from .lora_layer import LayerContext, LayerPass, LoraLayer, LoraLinear
from .model import base_causal_lm
from .packed_linear import packing_available
from .prefix_tree import AttentionSpan, MicroBatch, attention_spans, compact

_BLOCK_BYTES = (1 << 20) - 4096
"""Of the widest tensor in a block of tokens: below what a large model's memory is returned to the system for."""


class LoraPass:
    """The hidden states and log-probabilities of a model with a LoRA, for training."""

    def __init__(self, module: Any, adapter: str) -> None:
        causal_lm = base_causal_lm(module)
        body, config = causal_lm.model, causal_lm.config
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._norm: Tensor = body.norm.weight.detach()
        self._head: Tensor = causal_lm.lm_head.weight.detach()
        self._rotary = body.rotary_emb
        self._epsilon: float = config.rms_norm_eps
        self._head_size: int = config.head_dim
        self._groups: int = config.num_attention_heads // config.num_key_value_heads
        widest = max(config.intermediate_size, config.hidden_size)
        self._block = max(32, _BLOCK_BYTES // (widest * self._embedding.element_size()))
        self._layers = [_layer(layer, adapter) for layer in body.layers]

    def hidden(self, batch: MicroBatch, nodes_N: Tensor, *, recompute: bool = False) -> Tensor:
        """Return the last hidden states of these nodes of a micro-batch. With `recompute`, layers keep their inputs
        only."""
        nodes = compact(batch)
        positions_1_N = torch.tensor([nodes.depths])
        cos, sin = (values[0].to(self._embedding.dtype) for values in self._rotary(self._embedding, positions_1_N))
        half = self._head_size // 2
        sin = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
        spans = [self._span(span) for span in attention_spans(nodes, LORA_PASS_SPAN)]
        keep = torch.is_grad_enabled() and not recompute
        context = LayerContext(cos[:, None], sin[:, None], spans, self._epsilon, self._head_size, self._block, keep)
        hidden_N_H = F.embedding(torch.tensor(nodes.tokens), self._embedding)
        apply: Callable[..., Tensor] = LayerPass.apply
        for layer in self._layers:
            hidden_N_H = apply(layer, context, hidden_N_H, *layer.parameters)
        chosen_N_H = hidden_N_H[torch.tensor(nodes.places)[nodes_N]]
        return F.rms_norm(chosen_N_H, chosen_N_H.shape[-1:], self._norm, self._epsilon)

    def _span(self, span: AttentionSpan) -> Span:
        keys, ends = torch.tensor(span.keys), torch.tensor(span.ends)
        queries = torch.arange(span.start, span.stop)[:, None]
        mask = torch.zeros(len(queries), len(keys), dtype=self._embedding.dtype)
        mask.masked_fill_((keys > queries) | (ends <= queries), -torch.inf)
        return Span(slice(span.start, span.stop), keys, mask.repeat(self._groups, 1)[None, None])

    def score(self, hidden_N_H: Tensor, index_K: Tensor, tokens_K: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of each trained token, from the hidden states of the nodes before them.

        Entropies are NaN where gradients are disabled: they would cost as much as the log-probabilities.
        """
        apply: Callable[..., tuple[Tensor, Tensor]] = HeadPass.apply
        return apply(hidden_N_H, self._head, index_K, tokens_K, temperature, torch.is_grad_enabled())


def has_lora_pass(module: Any, adapter: str | None) -> bool:
    """Return whether `LoraPass` computes what this module does: LoRAs on linear layers only, without biases.

    Its products run in oneDNN, which this build of torch may lack.
    """
    from .model_runner import is_native

    if adapter is None or not packing_available() or not is_native(module):
        return False
    causal_lm = base_causal_lm(module)
    dtype = causal_lm.lm_head.weight.dtype
    if causal_lm.device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        return False
    if causal_lm.config._attn_implementation != "sdpa":
        return False
    layers = [part for layer in causal_lm.model.layers for part in _linears(layer).values()]
    covered = {id(parameter) for part in layers for parameter in part.parameters()}
    named = causal_lm.named_parameters()
    return (
        all(id(weight) in covered for name, weight in named if "lora_" in name or weight.requires_grad)
        and all(_is_plain_lora(part, adapter) for part in layers)
        and all(weight.dtype == dtype for weight in causal_lm.parameters())
    )


def _is_plain_lora(part: Any, adapter: str) -> bool:
    base = part if type(part) is nn.Linear else getattr(part, "base_layer", None)
    if type(base) is not nn.Linear or base.bias is not None or base.weight.requires_grad:
        return False
    if base is part or adapter not in part.lora_A:
        return True
    return (
        not part.merged
        and not part.lora_variant.get(adapter)
        and type(part.lora_dropout[adapter]) is nn.Identity
        and part.lora_A[adapter].bias is None
        and part.lora_B[adapter].bias is None
    )


def _linears(layer: Any) -> dict[str, Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "query": attention.q_proj,
        "key": attention.k_proj,
        "value": attention.v_proj,
        "output": attention.o_proj,
        "gate": mlp.gate_proj,
        "up": mlp.up_proj,
        "down": mlp.down_proj,
    }


def _layer(layer: Any, adapter: str) -> LoraLayer:
    norms = dict(layer.self_attn.named_children())
    query_norm, key_norm = (norms[name].weight.detach() if name in norms else None for name in ("q_norm", "k_norm"))
    linears = {name: _linear(part, adapter) for name, part in _linears(layer).items()}
    return LoraLayer(
        **linears,
        attention_norm=layer.input_layernorm.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        query_norm=query_norm,
        key_norm=key_norm,
    )


def _linear(part: Any, adapter: str) -> LoraLinear:
    if type(part) is nn.Linear:
        return LoraLinear(part.weight.detach())
    weight = part.base_layer.weight.detach()
    if adapter not in part.lora_A:
        return LoraLinear(weight)
    return LoraLinear(weight, part.lora_A[adapter].weight, part.lora_B[adapter].weight, part.scaling[adapter])
