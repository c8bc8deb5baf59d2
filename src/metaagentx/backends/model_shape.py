"""The shape of a model, read without torch: from config.json and the headers of safetensors and GGUF files."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import MetaAgentXError
from .presets import PRESETS

_NATIVE = ("Qwen3ForCausalLM", "LlamaForCausalLM")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the memory that a decoder-only transformer takes depends on."""

    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    """Intermediate size of the MLP."""
    vocabulary: int
    context: int
    tied: bool
    """The embedding is the output head, too."""
    qk_norm: bool
    """Queries and keys are normalized, as in Qwen3."""
    native: bool
    """The engine decodes this architecture with its own forward pass."""
    parameters: int = 0
    """Exactly as in the files, or computed for 0."""

    def __post_init__(self) -> None:
        if not self.parameters:
            norms = self.layers * (2 * self.width + 2 * self.head_width * self.qk_norm) + self.width
            embeddings = (2 - self.tied) * self.vocabulary * self.width
            object.__setattr__(self, "parameters", self.linear_parameters + norms + embeddings)

    @property
    def attention_width(self) -> int:
        """The width of all query heads together."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """The width of all key heads together."""
        return self.key_heads * self.head_width

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear layers of all transformer layers."""
        attention = 2 * self.width * (self.attention_width + self.key_width)
        return self.layers * (attention + 3 * self.width * self.hidden)

    def lora_parameters(self, rank: int) -> int:
        """Return the weights of a LoRA on all linear layers."""
        attention = 4 * self.width + 2 * (self.attention_width + self.key_width)
        return rank * self.layers * (attention + 3 * (self.width + self.hidden))


def _qwen3(width: int, layers: int, heads: int, hidden: int, tied: bool = True) -> ModelShape:
    return ModelShape(width, layers, heads, 8, 128, hidden, 151936, 40960, tied, qk_norm=True, native=True)


KNOWN_SHAPES = {
    "Qwen3-0.6B": _qwen3(1024, 28, 16, 3072),
    "Qwen3-1.7B": _qwen3(2048, 28, 16, 6144),
    "Qwen3-4B": _qwen3(2560, 36, 32, 9728),
    "Qwen3-8B": _qwen3(4096, 36, 32, 12288, tied=False),
    "SmolLM2-135M-Instruct": ModelShape(576, 30, 9, 3, 64, 1536, 49152, 8192, True, qk_norm=False, native=True),
}
"""Shapes by the name of a directory or a hub name, for plans before a download."""


def preset_shape(name: str) -> ModelShape:
    """Return the shape of a preset."""
    p = PRESETS[name]
    return ModelShape(
        p.width, p.layers, p.heads, p.key_heads, p.width // p.heads, p.hidden, p.vocabulary, p.context,
        tied=True, qk_norm=True, native=True,
    )  # fmt: skip


def read_shape(directory: Path, gguf_file: str | None = None) -> ModelShape | None:
    """Return the shape of the model in a directory; None for an architecture whose config has other keys."""
    if gguf_file is not None:
        return _gguf_shape(directory / gguf_file)
    config = json.loads((directory / "config.json").read_bytes())
    tensors: dict[str, int] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= {
            name: prod(tensor["shape"]) for name, tensor in safetensors_header(file).items() if name != "__metadata__"
        }
    tied = config.get("tie_word_embeddings", bool(tensors) and "lm_head.weight" not in tensors)
    if tied:
        tensors.pop("lm_head.weight", None)
    try:
        return ModelShape(
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            key_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_width=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            hidden=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            context=config["max_position_embeddings"],
            tied=tied,
            qk_norm=any("q_norm" in name for name in tensors) or "qwen3" in config.get("model_type", ""),
            native=any(name in _NATIVE for name in config.get("architectures") or ()),
            parameters=sum(tensors.values()),
        )
    except (KeyError, TypeError):
        return None


def safetensors_header(file: Path) -> Mapping[str, Any]:
    """Return the header of a safetensors file."""
    with file.open("rb") as stream:
        header: Mapping[str, Any] = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    return header


def check_gguf(file: Path) -> None:
    """Raise for a file that is not a GGUF file, or a truncated one."""
    try:
        header = _read_gguf(file)
        cut = file.stat().st_size <= header.last_offset
    except (ValueError, KeyError, struct.error, MemoryError, OverflowError, RecursionError):
        cut = True
    if cut:
        raise MetaAgentXError(f"{file} is truncated or not a GGUF file: copy it again")


@dataclass(frozen=True, slots=True)
class _GgufHeader:
    fields: Mapping[str, Any]
    """The values, except those of arrays."""
    tensors: Mapping[str, tuple[int, ...]]
    last_offset: int
    """Where the last tensor begins, at least."""


def _gguf_shape(file: Path) -> ModelShape | None:
    header = _read_gguf(file)
    architecture = header.fields.get("general.architecture")
    fields = {name.removeprefix(f"{architecture}."): value for name, value in header.fields.items()}
    try:
        width, heads = fields["embedding_length"], fields["attention.head_count"]
        return ModelShape(
            width=width,
            layers=fields["block_count"],
            heads=heads,
            key_heads=fields.get("attention.head_count_kv", heads),
            head_width=fields.get("attention.key_length", width // heads),
            hidden=fields["feed_forward_length"],
            vocabulary=prod(header.tensors["token_embd.weight"]) // width,
            context=fields["context_length"],
            tied="output.weight" not in header.tensors,
            qk_norm=any("attn_q_norm" in name for name in header.tensors),
            native=architecture in ("llama", "qwen3"),
            parameters=sum(map(prod, header.tensors.values())),
        )
    except (KeyError, TypeError):
        return None


_GGUF_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_GGUF_STRING, _GGUF_ARRAY = 8, 9


def _read_gguf(file: Path) -> _GgufHeader:
    """Read the header of a GGUF file; arrays, such as the vocabulary, are skipped."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError("not a GGUF file")
        _, tensor_count, field_count = _unpack(stream, "IQQ")
        fields = {}
        for _ in range(field_count):
            name = _gguf_string(stream)
            fields[name] = _gguf_value(stream, _unpack(stream, "I")[0])
        tensors, last = {}, 0
        for _ in range(tensor_count):
            name = _gguf_string(stream)
            tensors[name] = _unpack(stream, f"{_unpack(stream, 'I')[0]}Q")
            _, offset = _unpack(stream, "IQ")
            last = max(last, offset)
        return _GgufHeader(fields, tensors, stream.tell() + last)


def _gguf_value(stream: BinaryIO, kind: int) -> Any:
    if kind == _GGUF_STRING:
        return _gguf_string(stream)
    if kind == _GGUF_ARRAY:
        kind, count = _unpack(stream, "IQ")
        if kind in _GGUF_NUMBERS:
            stream.seek(count * struct.calcsize(f"<{_GGUF_NUMBERS[kind]}"), 1)
        else:
            for _ in range(count):
                _gguf_value(stream, kind)
        return None
    return _unpack(stream, _GGUF_NUMBERS[kind])[0]


def _gguf_string(stream: BinaryIO) -> str:
    length = _unpack(stream, "Q")[0]
    text = stream.read(length)
    if len(text) < length:
        raise ValueError("the file ends within its header")
    return text.decode()


def _unpack(stream: BinaryIO, layout: str) -> tuple[Any, ...]:
    layout = f"<{layout}"
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))
