"""A model in this process: its weights, its tokenizer, and the one thread that may touch them.

Sampling and training both go through `run`, which executes one function at a time in the model's thread: the event loop
is never blocked, and nothing reads weights that are being written. Code that changes weights calls `weights_changed`,
so that keys and values cached from the old ones are not used again. Weights are fp32 on a CPU by default: bf16 is
slower there, and kills the process on some virtual machines (`ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16` avoids that).

An update at a usual learning rate is smaller than the distance between two bf16 numbers. So a bf16 model that is
trained has fp32 masters, which the optimizers of all its roles move and which its weights are rounded from. A LoRA is
always fp32.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from ...errors import MetaAgentXError
from ..chat import ChatTokenizer
from ..model_files import check_model, model_directory
from .memory import is_out_of_memory, one_line, translate_out_of_memory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """The shape of a LoRA: small trained matrices beside frozen weights."""

    rank: int = 16
    alpha: int = 32
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get one."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """A directory that the weights were saved to, so that they need not be written twice."""

    version: int
    path: Path
    files: Mapping[str, tuple[int, ...]]
    """The files, each with a fingerprint that changes when it is written again."""


@dataclass(eq=False)
class LocalModel:
    """One model. `with_adapter` returns further ones on the same weights, each with its own LoRA."""

    module: Any
    """The causal LM of transformers, or a peft model around it."""
    tokenizer: ChatTokenizer
    device: torch.device
    dtype: torch.dtype
    context_length: int
    adapter: str | None = None
    """The LoRA that is active while this model's functions run."""
    version: int = 0
    """Counts changes of the weights."""
    saved: SavedWeights | None = None
    """Where these weights were saved last."""
    masters: dict[str, torch.Tensor] = field(default_factory=dict)
    """The trained weights in fp32, by name, where the weights themselves are narrower; empty before training."""
    _has_adapters: bool = False
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "model"))

    async def run(self, function: Callable[[], T]) -> T:
        """Return the function's result, computed in the model's thread."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Run the function in the model's thread and return its future, for callers outside of an event loop."""

        def run_with_adapter() -> T:
            self._activate_adapter()
            return function()

        return self._thread.submit(run_with_adapter)

    def weights_changed(self) -> None:
        """Record that the weights have changed."""
        self.version += 1

    def _activate_adapter(self) -> None:
        if self.adapter is not None:
            if self.module.active_adapter != self.adapter:
                self.module.set_adapter(self.adapter)
            self.module.base_model.enable_adapter_layers()
        elif self._has_adapters:
            self.module.base_model.disable_adapter_layers()

    def with_adapter(self, name: str, lora: LoraOptions) -> "LocalModel":
        """Return another model that shares the weights and the thread, and has its own LoRA."""
        module = _add_lora(self.module, lora, name)
        self.module, self._has_adapters = module, True  # from here on this model is reached through peft, too
        return replace(self, adapter=name, version=0, saved=None, masters={})


def seed_new_weights(seed: int) -> None:
    """Make what is drawn for new weights, such as those of a LoRA, follow from a seed."""
    torch.manual_seed(seed)


def base_causal_lm(module: Any) -> Any:
    """Return the causal LM of transformers, without peft's wrapper."""
    from peft import PeftModel

    return module.get_base_model() if isinstance(module, PeftModel) else module


def load_model(
    path: str | Path,
    *,
    device: str | None = None,
    dtype: str = "auto",
    lora: LoraOptions | None = None,
    chat_template: Mapping[str, object] | None = None,
) -> LocalModel:
    """Load a model from a directory in Hugging Face format.

    `device` defaults to the GPU, if there is one. `dtype`: float32, bfloat16, or auto, which is bfloat16 on a GPU. With
    `lora`, the weights are frozen and a new LoRA is trained. `chat_template` are the arguments of the chat template.
    """
    path = model_directory(Path(path))
    check_model(path)
    torch_device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if dtype == "auto":
        dtype = "bfloat16" if torch_device.type == "cuda" else "float32"
    torch_dtype: torch.dtype = getattr(torch, dtype)
    too_large = f"{path} does not fit into memory: use a smaller model, or a machine with more memory"
    with translate_out_of_memory(MetaAgentXError, too_large):
        tokenizer = load_tokenizer(path)
        module = load_weights(path, torch_dtype)
        module.to(torch_device).eval()
    ends = module.generation_config.eos_token_id if module.generation_config else None
    end_tokens = [ends] if isinstance(ends, int) else ends or []
    chat_tokenizer = ChatTokenizer(tokenizer, end_tokens, str(path), chat_template)
    model = LocalModel(module, chat_tokenizer, torch_device, torch_dtype, module.config.max_position_embeddings)
    return model if lora is None else model.with_adapter("default", lora)


def load_tokenizer(path: Path, **options: Any) -> Any:
    """Load the tokenizer of a directory."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, **options)
    except Exception as error:  # the tokenizers library raises nothing more specific
        if is_out_of_memory(error):
            raise
        raise MetaAgentXError(
            f"the tokenizer of {path} does not load ({one_line(error)}): copy its files again"
        ) from error


def load_weights(path: Path, dtype: torch.dtype, **options: Any) -> Any:
    """Load the causal LM of a directory; raise if a weight is missing."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise MetaAgentXError(f"{path} does not load: {one_line(error)}") from error
    module, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise MetaAgentXError(
            f"{path} lacks {len(missing)} of its weights, for instance {missing[0]}: the checkpoint is incomplete, or "
            "of another architecture than its config.json says"
        )
    return module


def _add_lora(module: Any, lora: LoraOptions, name: str) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    if isinstance(module, PeftModel):
        module.add_adapter(name, config, autocast_adapter_dtype=True)  # fp32, whatever the base is
        return module.eval()
    return get_peft_model(module, config, adapter_name=name, autocast_adapter_dtype=True).eval()
