"""A role's checkpoint: a Hugging Face model directory with the training state beside the weights.

    config.json, model.safetensors, tokenizer.json, chat_template.jinja, ...   as transformers and vLLM read them
    (with a LoRA: adapter_config.json, adapter_model.safetensors, ...)
    training/state.json            format, role, steps taken, last learning rate, token budget now and configured
    training/optimizer.safetensors AdamW moments, and the accumulated gradient if any, by name of the weight
    training/masters.safetensors   the weights in fp32, of a bf16 model that is trained
    training/random.safetensors    states of the random number generators

The training state has its own directory because servers load every safetensors file beside a config. No pickle. A
checkpoint is written under another name and renamed: it is complete or absent.

Roles on shared weights have the same weights, which are stored once: of roles that are saved side by side, the first
has the files, and the others have a file `shared.json` with the name of the first one's directory in place of weights,
masters and tokenizer. `model_directory` in `backends/model_files.py` returns the directory with the files. So save all
roles when the weights have changed. In checkpoints of earlier versions every role has the files.

Call everything here in the model's thread.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...atomic import atomic_directory, follow_umask
from ...errors import MetaAgentXError
from ..model_files import SHARED, model_directory
from .model import LocalModel, SavedWeights, load_model
from .optimizer import MOMENTS, MOMENTUM
from .training import Learner, LearnerState, trained_weights

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The contents of a checkpoint, read and checked before anything is changed."""

    weights: Mapping[str, Tensor]
    masters: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    state: LearnerState


def save_checkpoint(learner: Learner, role: str, path: Path) -> None:
    """Write the checkpoint; an existing one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = learner.model
    shares = _is_saved_beside(model, path)
    with atomic_directory(path) as directory:
        training = directory / "training"
        training.mkdir()
        if shares:
            assert model.saved is not None
            (directory / SHARED).write_text(json.dumps({"weights": model.saved.path.name}) + "\n")
        else:
            _save_model(model, directory)
            if model.masters:
                save_file(_to_cpu(model.masters), training / "masters.safetensors")
        save_file(_optimizer_tensors(learner), training / "optimizer.safetensors")
        save_file(_random_states(), training / "random.safetensors")
        state = {"format": _FORMAT, "role": role, "adapter": model.adapter, **asdict(learner.state)}
        state["configured_token_budget"] = learner.options.token_budget
        (training / "state.json").write_text(json.dumps(state, indent=2) + "\n")
        follow_umask(directory)
    if not shares:
        model.saved = SavedWeights(model.version, path, _fingerprints(path))


def load_checkpoint(learner: Learner, path: Path) -> None:
    """Resume from a checkpoint. One that does not fit changes nothing."""
    replaced = path.with_name(f".{path.name}.replaced")
    if replaced.exists() and not path.exists():  # the process ended between the two renames of `atomic_directory`
        replaced.rename(path)
    checkpoint = _read_checkpoint(learner, path)
    _copy_weights(learner.model, checkpoint.weights, checkpoint.masters)
    _restore_optimizer(learner, checkpoint.optimizer)
    learner.state = checkpoint.state
    torch.set_rng_state(checkpoint.random["cpu"])
    if torch.cuda.is_available() and "cuda" in checkpoint.random:
        torch.cuda.set_rng_state(checkpoint.random["cuda"])


def load_weights(model: LocalModel, path: Path) -> None:
    """Load only the weights of a checkpoint. Those that do not fit change nothing."""
    if not path.is_dir():
        raise MetaAgentXError(f"no checkpoint at {path}")
    _copy_weights(model, _read_weights(model, path), {})


def _copy_weights(model: LocalModel, weights: Mapping[str, Tensor], masters: Mapping[str, Tensor]) -> None:
    """Copy the weights, and the masters where there are any: into the model's own, or into fp32 weights."""
    with torch.no_grad():
        current = _weights_of(model)
        for name, tensor in weights.items():
            current[name].copy_(tensor)
        for name, tensor in masters.items():
            current[name].copy_(tensor)
            if current[name].dtype != tensor.dtype:
                model.masters.setdefault(name, tensor.to(current[name].device, copy=True))
        for name, master in model.masters.items():
            master.copy_(masters.get(name, current[name]))
    model.weights_changed()


def _save_model(model: LocalModel, directory: Path) -> None:
    """Write weights and tokenizer into a directory."""
    if model.adapter is None:
        model.module.save_pretrained(directory)
    else:
        model.module.save_pretrained(directory, selected_adapters=[model.adapter])
        inner = directory / model.adapter  # peft saves every adapter but "default" in a directory of its name
        if inner.is_dir():
            for file in list(inner.iterdir()):
                file.rename(directory / file.name)
            inner.rmdir()
    model.tokenizer.hf.save_pretrained(directory)


def _is_saved_beside(model: LocalModel, path: Path) -> bool:
    """Return whether another role's checkpoint beside this one has these weights, and nobody has changed its files."""
    saved = model.saved
    if saved is None or saved.version != model.version or saved.path.parent != path.parent or saved.path == path:
        return False
    return bool(saved.files) and saved.files == _fingerprints(saved.path)


def _fingerprints(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the files of a model's directory, each with numbers that change when it is written or replaced."""
    stats = {file.name: file.stat() for file in path.glob("*") if file.is_file()}
    return {name: (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    tensors = {f"gradient/{name}": gradient for name, gradient in learner.gradients.items()}
    for name, state in learner.moments.items():
        tensors |= {f"{moment}/{name}": tensor for moment, tensor in state.items()}
    return _to_cpu(tensors)


def _to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _restore_optimizer(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    if learner.moments:
        learner.optimizer.state.clear()
    learner.gradients = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        dtype = torch.promote_types(tensor.dtype, torch.float32)  # earlier versions had those of bf16 weights in bf16
        if kind == "gradient":
            learner.gradients[name] = tensor.to(learner.parameters[name].device, dtype, copy=True)
        else:  # in main memory until the next step: the device may not have room for the moments of all roles
            learner.optimizer.state[learner.weights[name]][kind] = tensor.to("cpu", dtype, copy=True)


def _weights_of(model: LocalModel) -> dict[str, Tensor]:
    if model.adapter is not None:
        return dict(trained_weights(model))
    weights: dict[str, Tensor] = model.module.state_dict()
    return weights


def _read_checkpoint(learner: Learner, path: Path) -> _Checkpoint:
    if not path.is_dir():
        raise MetaAgentXError(f"no checkpoint at {path}")
    training = path / "training"
    if not training.is_dir():
        raise MetaAgentXError(
            f"{path} has no training state, so training cannot resume from it: start a new run with it as model.path"
        )
    state = _read_state(training / "state.json", learner)
    optimizer = _read_tensors(training / "optimizer.safetensors")
    random = _read_tensors(training / "random.safetensors")
    weights = _read_weights(learner.model, path)
    masters_file = model_directory(path) / "training" / "masters.safetensors"
    masters = _read_tensors(masters_file) if masters_file.exists() else {}
    for key, tensor in [*optimizer.items(), *((f"master/{name}", master) for name, master in masters.items())]:
        kind, _, name = key.partition("/")
        known = kind in (*MOMENTS, MOMENTUM, "gradient", "master") and name in learner.parameters
        if not known or (kind != "step" and tensor.shape != learner.parameters[name].shape):
            file = masters_file if kind == "master" else training / "optimizer.safetensors"
            raise MetaAgentXError(f"{file} belongs to another model: {key} does not match")
    if "cpu" not in random:
        raise MetaAgentXError(f"{training / 'random.safetensors'} lacks the CPU's random state")
    return _Checkpoint(weights, masters, optimizer, random, state)


def _read_state(path: Path, learner: Learner) -> LearnerState:
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        if state["format"] != _FORMAT:
            raise MetaAgentXError(f"{path} has format {state['format']}, expected {_FORMAT}")
        if bool(state["adapter"]) != bool(learner.model.adapter):
            kinds = ("full weights", "a LoRA")
            saved, ours = kinds[bool(state["adapter"])], kinds[bool(learner.model.adapter)]
            raise MetaAgentXError(f"{path.parent.parent} holds {saved}, and this policy trains {ours}")
        budget = _token_budget(int(state["token_budget"]), state.get("configured_token_budget"), learner)
        return LearnerState(int(state["steps"]), float(state["learning_rate"]), budget)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaAgentXError(f"{path} is missing or damaged ({error!r}): use an earlier checkpoint") from error


def _token_budget(saved: int, configured: int | None, learner: Learner) -> int:
    """Return the saved budget, which may have been halved because memory ran out; where the configured budget has
    changed, as in a fork, return that. Checkpoints of older versions do not have the configured one."""
    current = learner.options.token_budget
    if configured is None:
        return min(saved, current)
    return saved if configured == current else current


def _read_weights(model: LocalModel, path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor]
    if model.adapter:
        weights = _read_adapter(model, path)
    else:
        dtype = str(model.dtype).removeprefix("torch.")
        arguments = model.tokenizer.template_arguments
        weights = load_model(path, device="cpu", dtype=dtype, chat_template=arguments).module.state_dict()
    expected = _weights_of(model)
    for name in [*expected, *weights]:
        if name not in weights:
            problem = f"it has no {name}"
        elif name not in expected:
            problem = f"this model has no {name}"
        elif weights[name].shape != expected[name].shape:
            shapes = tuple(weights[name].shape), tuple(expected[name].shape)
            problem = f"{name} has shape {shapes[0]}, expected {shapes[1]}"
        else:
            continue
        raise MetaAgentXError(f"{path} is the checkpoint of another model: {problem}")
    return weights


def _read_adapter(model: LocalModel, path: Path) -> dict[str, Tensor]:
    """Return the weights of a LoRA under this adapter's names: the files of peft leave out the adapter's name."""
    saved = _read_tensors(model_directory(path) / "adapter_model.safetensors")
    names = {f"{name}.".replace(f".{model.adapter}.", ".").removesuffix("."): name for name in _weights_of(model)}
    return {names.get(name, name): tensor for name, tensor in saved.items()}


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise MetaAgentXError(f"{path} is missing or truncated ({error}): use an earlier checkpoint") from error
