"""A model in this process: its weights, its tokenizer, and the one thread that may touch them.

Sampling and training both go through `run`, which executes one function at a time in the model's own thread: the event
loop is never blocked and nobody reads weights that are being written. Whoever changes weights calls `weights_changed`,
and cached keys and values of the old ones are not used again. fp32 on a CPU: bf16 is slower there, and kills the
process on some virtual machines.
"""

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from ...errors import MetaAgentXError
from ..model_files import how_to_get
from .chat import ChatTokenizer
from .memory import is_out_of_memory, one_line, out_of_memory_is

VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""What transformers makes a tokenizer from; the first is what it writes itself."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Train small matrices beside frozen weights."""

    rank: int = 16
    alpha: int = 32
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get one."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """A directory that weights were written to, so that they need not be written twice."""

    version: int
    path: Path
    files: Mapping[str, tuple[int, ...]]
    """Each with what tells it from one that was written later."""


@dataclass(eq=False)
class LocalModel:
    """One model. `with_adapter` gives further ones on the same weights, each with a LoRA of its own."""

    module: Any
    """The causal LM of transformers, or a peft model around it."""
    tokenizer: ChatTokenizer
    device: torch.device
    dtype: torch.dtype
    context_length: int
    adapter: str | None = None
    """The LoRA that is on while this model's functions run."""
    version: int = 0
    """Counts changes of the weights."""
    saved: SavedWeights | None = None
    """Where these weights were written last."""
    _has_adapters: bool = False
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "model"))

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result, computed in the model's thread."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """The same for those who do not wait in an event loop."""

        def in_turn() -> T:
            self._choose_adapter()
            return function()

        return self._thread.submit(in_turn)

    def weights_changed(self) -> None:
        """Say that the weights are not what they were."""
        self.version += 1

    def _choose_adapter(self) -> None:
        if self.adapter is not None:
            if self.module.active_adapter != self.adapter:
                self.module.set_adapter(self.adapter)
            self.module.base_model.enable_adapter_layers()
        elif self._has_adapters:
            self.module.base_model.disable_adapter_layers()

    def with_adapter(self, name: str, lora: LoraOptions) -> "LocalModel":
        """A model of its own on the same weights: they share all but a LoRA, and the thread."""
        module = _with_lora(self.module, lora, name)
        self.module, self._has_adapters = module, True  # from here on this one, too, is reached through peft
        return replace(self, adapter=name, version=0, saved=None)


def load_model(
    path: str | Path, *, device: str | None = None, gguf_file: str | None = None, lora: LoraOptions | None = None
) -> LocalModel:
    """A model from a directory in Hugging Face format, or from a GGUF file in a directory.

    `device` is a GPU where there is one. Only frozen weights go without a gradient: with `lora` all but the LoRA.
    """
    path = Path(path)
    _check_directory(path, gguf_file)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    too_large = f"{path} does not fit into the memory: use a smaller model, or a machine with more"
    with out_of_memory_is(MetaAgentXError, too_large):
        tokenizer = _read_tokenizer(path, gguf_file)
        module = _read_weights(path, gguf_file, dtype)
        module.to(place).eval()
    ends = module.generation_config.eos_token_id if module.generation_config else None
    chat = ChatTokenizer(tokenizer, [ends] if isinstance(ends, int) else ends or [], name=str(path))
    context: int = module.config.max_position_embeddings
    if lora is None:
        return LocalModel(module, chat, place, dtype, context)
    module = _with_lora(module, lora, "default")
    return LocalModel(module, chat, place, dtype, context, adapter="default", _has_adapters=True)


def _read_tokenizer(path: Path, gguf_file: str | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, **_gguf_option(gguf_file))
    except Exception as error:  # the tokenizers library raises nothing more special
        if is_out_of_memory(error):
            raise
        where = path / gguf_file if gguf_file else path
        raise MetaAgentXError(
            f"the tokenizer of {where} does not load ({one_line(error)}): copy its files again"
        ) from error


def _gguf_option(gguf_file: str | None) -> dict[str, Any]:
    return {"gguf_file": gguf_file} if gguf_file else {}


def _read_weights(path: Path, gguf_file: str | None, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, **_gguf_option(gguf_file)
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise MetaAgentXError(f"{path} does not load: {one_line(error)}") from error
    module, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise MetaAgentXError(
            f"{path} lacks {len(missing)} of its weights, {missing[0]} for one: the checkpoint is incomplete, or of "
            "another architecture than its config.json says"
        )
    return module


def _check_directory(path: Path, gguf_file: str | None) -> None:
    if not path.exists():
        raise MetaAgentXError(f"there is no model at {path}: {how_to_get(path)}")
    if gguf_file is not None:
        if not (path / gguf_file).is_file():
            raise MetaAgentXError(f"there is no file {gguf_file} in {path}")
        return
    if not (path / "config.json").is_file():
        raise MetaAgentXError(
            f"{path} is not a model directory: it has no config.json (a GGUF file is named with gguf_file)"
        )
    try:
        json.loads((path / "config.json").read_text())
    except ValueError as error:
        raise MetaAgentXError(f"{path / 'config.json'} is not valid JSON: {error}") from error
    _check_tokenizer(path)
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, "pt"):
                pass
        except SafetensorError as error:
            raise MetaAgentXError(f"{file} is truncated or not a safetensors file ({error}): copy it again") from error


def _check_tokenizer(path: Path) -> None:
    """Without these files transformers says something else, or makes up a tokenizer that does not fit the weights."""
    missing = [] if any((path / name).is_file() for name in VOCABULARY_FILES) else [VOCABULARY_FILES[0]]
    missing += [] if (path / "tokenizer_config.json").is_file() else ["tokenizer_config.json"]
    if missing:
        raise MetaAgentXError(
            f"the model directory {path} has no {' and no '.join(missing)}: copy the tokenizer's files from where the "
            f"model comes from, for instance with `hf download NAME --local-dir {shlex.quote(str(path))}`"
        )


def _with_lora(module: Any, lora: LoraOptions, name: str) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    if isinstance(module, PeftModel):
        module.add_adapter(name, config)
        return module.eval()
    return get_peft_model(module, config, adapter_name=name).eval()
