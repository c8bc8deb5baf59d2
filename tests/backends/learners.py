"""Small random models and data for the tests of training."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch

from metaagentx.backends.chat import ChatTokenizer
from metaagentx.backends.local.model import LocalModel
from metaagentx.backends.local.vocabulary import train_tokenizer
from metaagentx.policy import Datum

VOCABULARY = 24


@cache
def chat_tokenizer() -> ChatTokenizer:
    return ChatTokenizer(train_tokenizer(1024))


def random_model(kind: str = "qwen3", dtype: torch.dtype = torch.float64, **changes: Any) -> LocalModel:
    """A model of a few thousand weights, large enough ones that log-probabilities differ."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "tie_word_embeddings": kind == "qwen3",
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    } | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kinds: dict[str, tuple[Any, Any]] = {
            "qwen3": (Qwen3ForCausalLM, Qwen3Config),
            "llama": (LlamaForCausalLM, LlamaConfig),
        }
        causal_lm, config = kinds[kind]
        module = causal_lm(config(**shape))
    module.to(dtype).eval()
    return LocalModel(module, chat_tokenizer(), torch.device("cpu"), dtype, shape["max_position_embeddings"])


BROKEN = ("ignores masks", "one layer ignores masks", "scales logits", "caps logits")


def broken_model(how: str, scale: float) -> Any:
    """A model that packed trees would train wrongly; `scale` is that of its weights."""
    from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

    if "masks" in how:
        model = random_model(dtype=torch.float32, initializer_range=scale, num_hidden_layers=8).module
        ignoring = model.model if how == "ignores masks" else model.model.layers[3].self_attn
        forward = ignoring.forward
        ignoring.forward = lambda *args, **options: forward(*args, **(options | {"attention_mask": None}))
        return model
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    shape |= {"num_attention_heads": 2, "initializer_range": scale}
    shape |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if how == "scales logits":
            return CohereForCausalLM(CohereConfig(**shape)).eval()
        return Gemma2ForCausalLM(Gemma2Config(**shape, head_dim=8, num_key_value_heads=1)).eval()


def write_untrainable(path: Path) -> Path:
    """A Cohere model in a directory: it scales its logits, so training on packed trees refuses it."""
    from transformers import CohereConfig, CohereForCausalLM

    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "vocab_size": 1024, "logit_scale": 9.0, "max_position_embeddings": 1024}
    causal_lm: Any = CohereForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = causal_lm(CohereConfig(**shape, pad_token_id=0, eos_token_id=1, bos_token_id=2))
    module.save_pretrained(path)
    chat_tokenizer().hf.save_pretrained(path)
    return path


def datum(prompt: tuple[int, ...], reply: tuple[int, ...], advantage: float = 1.0, gap: float = 0.1) -> Datum:
    """A reply that is trained on; its behavior log-probabilities are made up."""
    count = len(prompt) + len(reply)
    weights = (0.0,) * len(prompt) + (1.0,) * len(reply)
    behavior = tuple(-3.0 + gap * ((7 * index) % 5 - 2) for index in range(count))
    reference = tuple(value - 0.2 for value in behavior)
    return Datum(prompt + reply, weights, advantage, behavior, reference)


def relative_difference(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    """The norm of all that differs, beside the norm of all there is."""
    assert left.keys() == right.keys()
    difference = math.sqrt(sum(float((left[name] - right[name]).square().sum()) for name in right))
    return difference / math.sqrt(sum(float(value.square().sum()) for value in right.values()))
