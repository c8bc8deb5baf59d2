"""Build the policies of both roles on this machine: shared weights, a LoRA for each role, or a model for each."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from . import threads  # noqa: F401  before torch

# isort: split
import torch

from ...atomic import atomic_directory
from ...options import ModelConfig, OptimizerConfig
from ...progress import print_line
from ...types import Role
from ..hub import fetch_model
from .engine import Engine
from .gguf import convert_gguf
from .model import LocalModel, LoraOptions, load_model
from .policy import LocalPolicy
from .presets import new_model

_LARGE_MODEL = 20_000_000
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True, slots=True)
class LocalPolicies:
    """The policies that are trained, and those that a KL term is measured against."""

    policies: dict[Role, LocalPolicy]
    references: dict[Role, LocalPolicy] | None


def use_threads(count: int) -> None:
    """Compute with this many threads; 0 leaves it to torch. A very small model is fastest with one."""
    if count:
        torch.set_num_threads(count)


def build_policies(
    options: ModelConfig,
    directory: Path,
    seed: int,
    optimizer: OptimizerConfig | None = None,
    *,
    with_reference: bool = False,
    for_training: bool = False,
) -> LocalPolicies:
    """Load or create the models. A new one is saved in the directory, where a resumed run finds it.

    `with_reference`: load the untrained model as well, for a KL term. `for_training`: raise now for a
    model that cannot be trained.
    """
    use_threads(options.threads)
    torch.manual_seed(seed)
    models = _models(options, directory, seed)
    _return_freed_memory(models[Role.EXECUTOR])
    # One engine for each model: roles on the same model share batches, prefixes and copies of the weights.
    engines = {model: _engine(model, options) for model in dict.fromkeys(models.values())}
    policies = {role: LocalPolicy(model, role, engines[model], optimizer) for role, model in models.items()}
    if for_training:
        for policy in policies.values():
            policy.ensure_trainable()
    if not with_reference:
        return LocalPolicies(policies, None)
    reference = LocalPolicy(_load(options, directory, seed), "reference", samples=False)
    return LocalPolicies(policies, dict.fromkeys(Role, reference))


def _return_freed_memory(model: LocalModel) -> None:
    """Let the C library give large blocks back to the system as soon as they are freed, for a larger model on a CPU.

    By default it keeps blocks of up to 32 MB for later, and the holes between them make the peak of an update half as
    large again, more than can be planned. New pages cost time, up to a quarter of an update with small micro-batches:
    small models are left alone.
    """
    weights = sum(weight.numel() for weight in model.module.parameters())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None and model.device.type == "cpu" and weights >= _LARGE_MODEL:
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def start_model(options: ModelConfig, directory: Path, seed: int) -> Path:
    """Return the directory of the model that a run starts from. A new or converted one is saved in the run directory.

    One that only the Hugging Face hub has is downloaded.
    """
    if not options.made_by_run:
        return fetch_model(options.path)
    path = directory / "model"
    if path.exists():
        return path
    if options.preset is not None:
        with atomic_directory(path) as unfinished:
            new_model(unfinished, options.preset, seed)
    elif options.gguf_file is not None:
        print_line(f"converting {options.gguf_file} to {path}")
        convert_gguf(fetch_model(options.path, options.gguf_file), options.gguf_file, path)
    return path


def _models(options: ModelConfig, directory: Path, seed: int) -> dict[Role, LocalModel]:
    lora = LoraOptions(options.lora_rank, options.lora_alpha) if options.lora_rank else None
    if options.sharing == "lora" and lora is not None:
        base = _load(options, directory, seed)
        return {role: base.with_adapter(str(role), lora) for role in Role}
    if options.sharing == "separate":
        return {role: _load(options, directory, seed, lora) for role in Role}
    return dict.fromkeys(Role, _load(options, directory, seed, lora))


def _load(options: ModelConfig, directory: Path, seed: int, lora: LoraOptions | None = None) -> LocalModel:
    return load_model(
        start_model(options, directory, seed),
        device=options.device,
        dtype=options.dtype,
        lora=lora,
        chat_template=options.chat_template,
    )


def _engine(model: LocalModel, options: ModelConfig) -> Engine:
    return Engine(
        model,
        max_batch=options.max_batch,
        kv_budget_tokens=options.kv_budget_tokens,
        compiled=options.compiled,
        deterministic=options.deterministic,
        sampling_dtype=options.sampling_dtype,
    )
