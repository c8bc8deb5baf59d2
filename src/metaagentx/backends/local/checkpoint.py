"""A role's checkpoint: a Hugging Face model directory, and beside the weights what is needed to go on training.

    config.json, model.safetensors, tokenizer.json, chat_template.jinja, ...   as transformers and vLLM read them
    (with a LoRA: adapter_config.json, adapter_model.safetensors, ...)
    training/state.json            format, role, steps taken, last learning rate, token budget now and as configured
    training/optimizer.safetensors moments of AdamW, and the gradient if one was gathered, by name of the weight
    training/random.safetensors    state of the random number generators

The training state has a directory of its own because servers load every safetensors file that lies beside a config. No
pickle. A checkpoint is written beside its place and renamed: it is there whole or not at all.

Roles on shared weights have the same weights in their checkpoints, and in one directory these are one file with two
names (hard links), where the file system knows such. So nothing may write into a file of a checkpoint: replace it.

Call everything here in the model's thread.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...errors import MetaAgentXError
from ...runs.files import directory_appears, follow_umask
from .model import LocalModel, SavedWeights, load_model
from .training import Learner, Progress, trained_weights

_FORMAT = 1
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class _Saved:
    """Everything of a checkpoint, read and found fit before anything is changed."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    progress: Progress


def save_checkpoint(learner: Learner, role: str, path: Path) -> None:
    """Write the checkpoint; one that was there is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with directory_appears(path) as directory:
        _save_model(learner.model, directory, path)
        training = directory / "training"
        training.mkdir()
        save_file(_optimizer_tensors(learner), training / "optimizer.safetensors")
        save_file(_random_states(), training / "random.safetensors")
        state = {"format": _FORMAT, "role": role, "adapter": learner.model.adapter, **asdict(learner.progress)}
        state["configured_token_budget"] = learner.options.token_budget
        (training / "state.json").write_text(json.dumps(state, indent=2) + "\n")
        follow_umask(directory)
    learner.model.saved = SavedWeights(learner.model.version, path, _fingerprints(path))


def load_checkpoint(learner: Learner, path: Path) -> None:
    """Go on from a checkpoint. One that does not fit changes nothing."""
    aside = _aside(path)
    if aside.exists() and not path.exists():  # the process ended between two renames
        aside.rename(path)
    saved = _read(learner, path)
    _put(learner.model, saved.weights)
    _restore_optimizer(learner, saved.optimizer)
    learner.progress = saved.progress
    torch.set_rng_state(saved.random["cpu"])
    if torch.cuda.is_available() and "cuda" in saved.random:
        torch.cuda.set_rng_state(saved.random["cuda"])


def load_weights(model: LocalModel, path: Path) -> None:
    """Only the weights of a checkpoint. Those that do not fit change nothing."""
    if not path.is_dir():
        raise MetaAgentXError(f"there is no checkpoint at {path}")
    _put(model, _read_fitting_weights(model, path))


def _put(model: LocalModel, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        current = _weights_of(model)
        for name, tensor in weights.items():
            current[name].copy_(tensor)
    model.weights_changed()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _save_model(model: LocalModel, directory: Path, path: Path) -> None:
    """Write weights and tokenizer into a directory that is going to be at `path`."""
    if _link_saved(model, directory, path):
        return
    if model.adapter is None:
        model.module.save_pretrained(directory)
    else:
        model.module.save_pretrained(directory, selected_adapters=[model.adapter])
        inner = directory / model.adapter  # peft puts every adapter but "default" into a directory of its name
        if inner.is_dir():
            for file in list(inner.iterdir()):
                file.rename(directory / file.name)
            inner.rmdir()
    model.tokenizer.hf.save_pretrained(directory)


def _link_saved(model: LocalModel, directory: Path, path: Path) -> bool:
    """Take the files of the other role, if its checkpoint lies beside this one and the weights are still the same."""
    saved = model.saved
    if saved is None or saved.version != model.version or saved.path.parent != path.parent or saved.path == path:
        return False
    if not saved.files or saved.files != _fingerprints(saved.path):
        return False
    try:
        for name in saved.files:
            if name.endswith(".safetensors"):
                os.link(saved.path / name, directory / name)
            else:
                shutil.copyfile(saved.path / name, directory / name)
    except OSError:  # a file system without hard links
        for name in saved.files:
            (directory / name).unlink(missing_ok=True)
        return False
    return True


def _fingerprints(path: Path) -> dict[str, tuple[int, ...]]:
    """The files of a model's directory, and what changes when one is written or replaced."""
    stats = {file.name: file.stat() for file in path.glob("*") if file.is_file()}
    return {name: (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) for name, found in stats.items()}


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    tensors = {f"gradient/{name}": gradient for name, gradient in learner.gradients.items()}
    for name, weight in learner.weights.items():
        state = learner.optimizer.state.get(weight, {})
        tensors |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS if moment in state}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _random_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _restore_optimizer(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    learner.optimizer.state.clear()
    learner.gradients = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        weight = learner.weights[name]
        placed = tensor.to(weight.device, copy=True)
        if kind == "gradient":
            learner.gradients[name] = placed
        else:
            learner.optimizer.state[weight][kind] = placed


def _weights_of(model: LocalModel) -> dict[str, Tensor]:
    if model.adapter is not None:
        return dict(trained_weights(model))
    weights: dict[str, Tensor] = model.module.state_dict()
    return weights


def _read(learner: Learner, path: Path) -> _Saved:
    if not path.is_dir():
        raise MetaAgentXError(f"there is no checkpoint at {path}")
    training = path / "training"
    if not training.is_dir():
        raise MetaAgentXError(
            f"{path} has no training state, so training cannot go on from it: start a new run with it as the model"
        )
    progress = _read_state(training / "state.json", learner)
    optimizer = _tensors(training / "optimizer.safetensors")
    random = _tensors(training / "random.safetensors")
    weights = _read_fitting_weights(learner.model, path)
    for key, tensor in optimizer.items():
        kind, _, name = key.partition("/")
        known = kind in (*_MOMENTS, "gradient") and name in learner.weights
        if not known or (kind != "step" and tensor.shape != learner.weights[name].shape):
            raise MetaAgentXError(f"{training / 'optimizer.safetensors'} is of another model: {key} does not fit")
    if "cpu" not in random:
        raise MetaAgentXError(f"{training / 'random.safetensors'} lacks the state of the random numbers")
    return _Saved(weights, optimizer, random, progress)


def _read_state(path: Path, learner: Learner) -> Progress:
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        if state["format"] != _FORMAT:
            raise MetaAgentXError(f"{path} has format {state['format']}, and this version reads {_FORMAT}")
        if bool(state["adapter"]) != bool(learner.model.adapter):
            kinds = ("full weights", "a LoRA")
            saved, ours = kinds[bool(state["adapter"])], kinds[bool(learner.model.adapter)]
            raise MetaAgentXError(f"{path.parent.parent} holds {saved}, and this policy trains {ours}")
        budget = _token_budget(int(state["token_budget"]), state.get("configured_token_budget"), learner)
        return Progress(int(state["steps"]), float(state["learning_rate"]), budget)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaAgentXError(f"{path} is missing, truncated or not ours ({error!r}): use an earlier one") from error


def _token_budget(saved: int, configured: int | None, learner: Learner) -> int:
    """The saved one, which may be smaller than configured because memory ran out; where another one is configured
    now, as in a fork, that. Checkpoints of older versions do not say what was configured."""
    now = learner.options.token_budget
    if configured is None:
        return min(saved, now)
    return saved if configured == now else now


def _read_fitting_weights(model: LocalModel, path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor]
    weights = _read_adapter(model, path) if model.adapter else load_model(path, device="cpu").module.state_dict()
    _check_same(path, _shapes(weights), _shapes(_weights_of(model)))
    return weights


def _read_adapter(model: LocalModel, path: Path) -> dict[str, Tensor]:
    """Files of peft leave out the adapter's name, so that it can be loaded under another."""
    saved = _tensors(path / "adapter_model.safetensors")
    names = {f"{name}.".replace(f".{model.adapter}.", ".").removesuffix("."): name for name in _weights_of(model)}
    return {names.get(name, name): tensor for name, tensor in saved.items()}


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise MetaAgentXError(f"{path} is missing or truncated ({error}): use an earlier checkpoint") from error


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _check_same(path: Path, found: Mapping[str, torch.Size], expected: Mapping[str, torch.Size]) -> None:
    for name in [*expected, *found]:
        if name not in found:
            raise MetaAgentXError(f"{path} is the checkpoint of another model: it has no {name}")
        if name not in expected:
            raise MetaAgentXError(f"{path} is the checkpoint of another model: this one has no {name}")
        if found[name] != expected[name]:
            sizes = f"{tuple(found[name])} there, {tuple(expected[name])} here"
            raise MetaAgentXError(f"{path} is the checkpoint of another model: {name} is {sizes}")
