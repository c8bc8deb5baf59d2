"""Creates small models to start from: Qwen3 architecture, tied embeddings, random weights, our own tokenizer.

`new_model` writes a directory in Hugging Face format, the same bytes for the same preset and seed.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from ...atomic import follow_umask
from ...errors import MetaAgentXError
from ..presets import PRESETS, check_preset
from .vocabulary import train_tokenizer


def new_model(path: Path, preset: str, seed: int = 0, texts: Sequence[str] = ()) -> int:
    """Write a new model to a new or empty directory and return its number of parameters.

    With `texts`, its tokenizer is trained on them, and may have fewer tokens than the preset's vocabulary.
    """
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as hf_logging

    check_preset(preset)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise MetaAgentXError(f"{path} already exists: remove it or choose another directory")
    shape = PRESETS[preset]
    tokenizer = train_tokenizer(shape.vocabulary, texts)
    config = Qwen3Config(
        vocab_size=64 * math.ceil(len(tokenizer) / 64) if texts else shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.width // shape.heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=True,
        initializer_range=0.05,  # the usual 0.02 is for wide models and makes narrow ones slow to start
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    hf_logging.disable_progress_bar()
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    follow_umask(path)
    return sum(parameter.numel() for parameter in model.parameters())
