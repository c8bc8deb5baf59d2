"""A role's checkpoint: a Hugging Face model directory, and beside the weights what is needed to go on training.

    config.json, model.safetensors, tokenizer.json, chat_template.jinja, ...   as transformers and vLLM read them
    (with a LoRA: adapter_config.json, adapter_model.safetensors, ...)
    training/state.json            format, role, steps taken, last learning rate, token budget
    training/optimizer.safetensors moments of AdamW, and the gradient if one was gathered, by name of the weight
    training/random.safetensors    state of the random number generators

The training state has a directory of its own because servers load every safetensors file that lies beside a config. No
pickle. A checkpoint is written beside its place and renamed: it is there whole or not at all.

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

from ...errors import MetaAgentXError
from ...runs.files import directory_appears
from .model import load_model
from .training import Learner, Progress

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
        _save_model(learner, directory)
        training = directory / "training"
        training.mkdir()
        save_file(_optimizer_tensors(learner), training / "optimizer.safetensors")
        save_file(_random_states(), training / "random.safetensors")
        state = {"format": _FORMAT, "role": role, "adapter": learner.model.adapter, **asdict(learner.progress)}
        (training / "state.json").write_text(json.dumps(state, indent=2) + "\n")


def load_checkpoint(learner: Learner, path: Path) -> None:
    """Go on from a checkpoint. One that does not fit changes nothing."""
    aside = _aside(path)
    if aside.exists() and not path.exists():  # the process ended between two renames
        aside.rename(path)
    saved = _read(learner, path)
    with torch.no_grad():
        current = _weights_of(learner)
        for name, tensor in saved.weights.items():
            current[name].copy_(tensor)
    _restore_optimizer(learner, saved.optimizer)
    learner.progress = saved.progress
    torch.set_rng_state(saved.random["cpu"])
    if torch.cuda.is_available() and "cuda" in saved.random:
        torch.cuda.set_rng_state(saved.random["cuda"])
    learner.model.weights_changed()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _save_model(learner: Learner, directory: Path) -> None:
    model = learner.model
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


def _weights_of(learner: Learner) -> dict[str, Tensor]:
    if learner.model.adapter is not None:
        return dict(learner.weights)
    weights: dict[str, Tensor] = learner.model.module.state_dict()
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
    weights = _read_adapter(learner, path) if learner.model.adapter else _read_weights(path)
    _check_same(path, {name: tensor.shape for name, tensor in weights.items()}, _shapes(_weights_of(learner)))
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
        return Progress(int(state["steps"]), float(state["learning_rate"]), int(state["token_budget"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MetaAgentXError(f"{path} is missing, truncated or not ours ({error!r}): use an earlier one") from error


def _read_weights(path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_model(path, device="cpu").module.state_dict()
    return weights


def _read_adapter(learner: Learner, path: Path) -> dict[str, Tensor]:
    """Files of peft leave out the adapter's name, so that it can be loaded under another."""
    adapter = learner.model.adapter
    saved = _tensors(path / "adapter_model.safetensors")
    names = {f"{name}.".replace(f".{adapter}.", ".").removesuffix("."): name for name in learner.weights}
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
