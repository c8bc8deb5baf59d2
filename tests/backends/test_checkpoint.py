"""Checkpoints: going on equals never having stopped, other programs can read them, and broken ones say so."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tests.backends.learners  # noqa: F401  before torch

# isort: split
import torch
from safetensors.torch import load_file

from metaagentx.atomic import copy_directory
from metaagentx.backends.local.checkpoint import _restore_optimizer, load_checkpoint, save_checkpoint
from metaagentx.backends.local.model import LocalModel, LoraOptions, load_model
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.local.training import Learner
from metaagentx.backends.model_files import check_adapter, model_directory
from metaagentx.errors import MetaAgentXError
from metaagentx.options import LossConfig, OptimizerConfig
from metaagentx.policy import Datum


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / "nano"
    new_model(path, "nano")
    return path


@pytest.fixture(scope="module")
def checkpoint(directory: Path) -> Path:
    learner = Learner(load_model(directory))
    step(learner, 0)
    save_checkpoint(learner, "designer", directory.parent / "saved")
    return directory.parent / "saved"


def step(learner: Learner, seed: int, *, finish: bool = True) -> None:
    """A step on random data, which come from the generator whose state is part of a checkpoint."""
    tokens = torch.randint(0, 200, (4, 12)).tolist()
    data = [Datum(tuple(row), (0.0,) * 4 + (1.0,) * 8, advantage=seed - 1.5, logprobs=(-5.0,) * 12) for row in tokens]
    learner.forward_backward(data, "ppo", LossConfig())
    if finish:
        learner.optim_step(1e-3)


def digest(learner: Learner) -> str:
    """Every bit that matters: weights, moments, gradient and random numbers."""
    found = hashlib.sha256()
    for name, weight in sorted(learner.model.module.state_dict().items()):
        found.update(name.encode() + weight.numpy().tobytes())
    for name, parameter in sorted(learner.weights.items()):
        for key, tensor in sorted(learner.optimizer.state.get(parameter, {}).items()):
            found.update(f"{name}{key}".encode() + tensor.numpy().tobytes())
    for name, gradient in sorted(learner.gradients.items()):
        found.update(name.encode() + gradient.numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes() + repr(learner.state).encode())
    return found.hexdigest()


def with_lora(directory: Path) -> LocalModel:
    """The model that the designer learns on, of two that share the weights."""
    base = load_model(directory)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        designer = base.with_adapter("designer", LoraOptions(rank=4))
        base.with_adapter("executor", LoraOptions(rank=4))
    designer.module.set_adapter("designer")
    return designer


@pytest.mark.parametrize("make", [load_model, with_lora])
@pytest.mark.parametrize("in_the_middle", [False, True])
def test_going_on_equals_never_having_stopped(
    directory: Path, tmp_path: Path, make: Callable[[Path], LocalModel], in_the_middle: bool
) -> None:
    torch.manual_seed(3)
    first = Learner(make(directory))
    step(first, 0)
    step(first, 1, finish=not in_the_middle)
    first.state.token_budget = 100
    save_checkpoint(first, "designer", tmp_path / "5")
    step(first, 2)
    step(first, 3)
    torch.manual_seed(99)
    second = Learner(make(directory))
    version = second.model.version
    load_checkpoint(second, tmp_path / "5")
    assert second.model.version == version + 1
    assert second.state.token_budget == 100
    step(second, 2)
    step(second, 3)
    assert digest(second) == digest(first)


def test_new_settings_of_the_optimizer_are_used_and_a_budget_that_memory_forced_is_kept(
    directory: Path, tmp_path: Path
) -> None:
    saved = Learner(load_model(directory))
    step(saved, 2)
    saved.state.token_budget = 100
    save_checkpoint(saved, "designer", tmp_path / "1")
    same, other = Learner(load_model(directory)), Learner(load_model(directory), OptimizerConfig(token_budget=500))
    for learner in (same, other):
        load_checkpoint(learner, tmp_path / "1")
    assert (same.state.token_budget, other.state.token_budget) == (100, 500)
    save_checkpoint(other, "designer", tmp_path / "2")
    load_checkpoint(same, tmp_path / "2")
    assert same.state.token_budget == 8192

    changed = OptimizerConfig(gradient_clip=1e-3, beta1=0.0, beta2=0.5, weight_decay=0.3)
    learner, fresh = (Learner(load_model(path), changed) for path in (tmp_path / "1", tmp_path / "1"))
    load_checkpoint(learner, tmp_path / "1")
    fresh.optimizer.load_state_dict(
        {"state": saved.optimizer.state_dict()["state"], "param_groups": fresh.optimizer.state_dict()["param_groups"]}
    )
    for each in (learner, fresh):
        torch.manual_seed(7)
        step(each, 2)
    weights, expected = (dict(each.model.module.state_dict()) for each in (learner, fresh))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

    state = json.loads((tmp_path / "1" / "training" / "state.json").read_text())
    del state["configured_token_budget"]  # as older versions wrote it
    (tmp_path / "1" / "training" / "state.json").write_text(json.dumps(state))
    for budget, expected_budget in ((8192, 100), (50, 50)):
        learner = Learner(load_model(directory), OptimizerConfig(token_budget=budget))
        load_checkpoint(learner, tmp_path / "1")
        assert learner.state.token_budget == expected_budget


def test_weights_that_have_not_changed_are_written_once_in_a_directory(directory: Path, tmp_path: Path) -> None:
    """On any file system: the second role names the directory of the first."""
    model = load_model(directory)
    learners = {role: Learner(model) for role in ("designer", "executor")}
    step(learners["executor"], 1)

    def save(place: Path) -> None:
        for role, learner in learners.items():
            save_checkpoint(learner, role, place / role)

    save(tmp_path / "a")
    save(tmp_path / "b")
    for place in (tmp_path / "a", tmp_path / "b"):
        assert [path.name for path in place.rglob("*.json") if path.name == "config.json"] == ["config.json"]
        assert sorted(path.name for path in (place / "executor").iterdir()) == ["shared.json", "training"]
        assert model_directory(place / "executor") == model_directory(place / "designer") == place / "designer"
        assert {path.stat().st_nlink for path in place.rglob("*") if path.is_file()} == {1}
    (tmp_path / "b").rename(tmp_path / "moved")
    other = Learner(load_model(directory))
    load_checkpoint(other, tmp_path / "moved" / "executor")
    assert other.state.steps == 1
    assert digest(other) == digest(learners["executor"])
    other = Learner(load_model(tmp_path / "moved" / "executor"))  # as model.path
    assert digest(other) == digest(learners["designer"])

    before = (tmp_path / "a" / "designer" / "model.safetensors").read_bytes()
    step(learners["executor"], 2)
    save_checkpoint(learners["executor"], "executor", tmp_path / "a" / "executor")
    executor = tmp_path / "a" / "executor" / "model.safetensors"
    assert executor.read_bytes() != before == (tmp_path / "a" / "designer" / "model.safetensors").read_bytes()
    executor.write_bytes(b"damaged since")
    save_checkpoint(learners["designer"], "designer", tmp_path / "a" / "designer")
    load_checkpoint(learners["designer"], tmp_path / "a" / "designer")


def test_a_shared_lora_is_written_once(directory: Path, tmp_path: Path) -> None:
    model = load_model(directory, lora=LoraOptions(rank=4))
    learner = Learner(model)
    step(learner, 0)
    for role in ("designer", "executor"):
        save_checkpoint(learner, role, tmp_path / role)
    assert [path.parent.name for path in tmp_path.rglob("adapter_model.safetensors")] == ["designer"]
    check_adapter(tmp_path / "executor")
    other = Learner(load_model(directory, lora=LoraOptions(rank=4)))
    load_checkpoint(other, tmp_path / "executor")
    assert digest(other) == digest(learner)


def test_shared_weights_are_found_through_a_link_and_from_inside(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(directory)
    for role in ("designer", "executor"):
        save_checkpoint(Learner(model), role, tmp_path / "saved" / role)
    (tmp_path / "mine").symlink_to(tmp_path / "saved" / "executor")
    monkeypatch.chdir(tmp_path / "saved" / "executor")
    for path in (tmp_path / "mine", Path()):
        assert model_directory(path) == (tmp_path / "saved" / "designer").resolve()


def test_loaded_moments_wait_in_main_memory(directory: Path, checkpoint: Path) -> None:
    """There is one device here: the one without memory stands for a GPU, which may not hold those of both roles."""
    learner = Learner(load_model(directory))
    assert not learner.moments and learner.optimizer
    learner.parameters = {name: torch.nn.Parameter(value.to("meta")) for name, value in learner.parameters.items()}
    _restore_optimizer(learner, load_file(checkpoint / "training" / "optimizer.safetensors"))
    assert {tensor.device.type for state in learner.moments.values() for tensor in state.values()} == {"cpu"}


def test_a_template_that_needs_an_argument_does_not_keep_a_run_from_going_on(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "model")
    file = tmp_path / "model" / "chat_template.jinja"
    file.write_text("{%- if depth > 2 -%}deep{%- endif -%}" + file.read_text())
    learner = Learner(load_model(tmp_path / "model", chat_template={"depth": 1}))
    save_checkpoint(learner, "designer", tmp_path / "saved")
    load_checkpoint(learner, tmp_path / "saved")


def test_half_of_a_checkpoint_says_what_it_lacks(directory: Path, tmp_path: Path) -> None:
    model = load_model(directory)
    for role in ("designer", "executor"):
        save_checkpoint(Learner(model), role, tmp_path / role)
    (tmp_path / "designer").rename(tmp_path / "elsewhere")
    refuses(Learner(model), tmp_path / "executor", "names 'designer' as the directory .* copy the whole checkpoint")
    (tmp_path / "executor" / "shared.json").write_text('{"weights": "../elsewhere"}')
    refuses(Learner(model), tmp_path / "executor", "names '../elsewhere' as the directory")


def test_checkpoints_of_earlier_versions_are_loaded(directory: Path, tmp_path: Path) -> None:
    """There, every role had the files, as hard links where the file system had them."""
    model = load_model(directory)
    learners = {role: Learner(model) for role in ("designer", "executor")}
    step(learners["executor"], 1)
    for role, learner in learners.items():
        save_checkpoint(learner, role, tmp_path / "old" / role)
    (tmp_path / "old" / "executor" / "shared.json").unlink()
    for file in (tmp_path / "old" / "designer").iterdir():
        if file.is_file():
            (tmp_path / "old" / "executor" / file.name).hardlink_to(file)
    copy_directory(tmp_path / "old", tmp_path / "copy")
    for place in ("old", "copy"):
        assert (tmp_path / place / "executor" / "model.safetensors").stat().st_nlink == 2
        other = Learner(load_model(directory))
        load_checkpoint(other, tmp_path / place / "executor")
        assert digest(other) == digest(learners["executor"])


def test_plain_transformers_loads_it_and_gives_the_same_logits(checkpoint: Path, directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner = Learner(load_model(directory))
    load_checkpoint(learner, checkpoint)
    plain = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokens == learner.model.tokenizer.encode_chat(messages)
    with torch.no_grad():
        expected = learner.model.module(input_ids=torch.tensor([tokens])).logits
        assert torch.equal(plain(input_ids=torch.tensor([tokens])).logits, expected)


def test_a_lora_loads_in_plain_peft(directory: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    learner = Learner(with_lora(directory))
    step(learner, 0)
    save_checkpoint(learner, "designer", tmp_path / "1")
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(directory), tmp_path / "1")
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(plain(input_ids=tokens).logits, learner.model.module(input_ids=tokens).logits)


def test_only_the_models_own_files_lie_beside_its_config(checkpoint: Path) -> None:
    """A server loads every safetensors file there, and none of ours is a weight."""
    assert [file.name for file in checkpoint.glob("*.safetensors")] == ["model.safetensors"]
    assert sorted(file.name for file in (checkpoint / "training").iterdir()) == [
        "optimizer.safetensors",
        "random.safetensors",
        "state.json",
    ]
    assert json.loads((checkpoint / "training" / "state.json").read_text())["role"] == "designer"


def test_a_checkpoint_is_replaced_whole(directory: Path, tmp_path: Path) -> None:
    learner = Learner(load_model(directory))
    save_checkpoint(learner, "designer", tmp_path / "a" / "latest")
    step(learner, 0)
    save_checkpoint(learner, "designer", tmp_path / "a" / "latest")
    assert os.listdir(tmp_path / "a") == ["latest"]
    (tmp_path / "a" / "latest").rename(tmp_path / "a" / ".latest.replaced")  # killed between the two renames
    other = Learner(load_model(directory))
    load_checkpoint(other, tmp_path / "a" / "latest")
    assert other.state.steps == 1


def test_nothing_half_written_is_left_when_saving_fails(directory: Path, tmp_path: Path) -> None:
    learner = Learner(load_model(directory))
    (tmp_path / "latest").write_text("a file where the checkpoint is to be")
    learner.gradients["model.norm.weight"] = torch.zeros(2, 2).T[:1].to_sparse()  # safetensors cannot write this
    with pytest.raises((ValueError, RuntimeError)):
        save_checkpoint(learner, "designer", tmp_path / "latest")
    assert os.listdir(tmp_path) == ["latest"]


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("weights", lambda path: os.truncate(path / "model.safetensors", 5000), "model.safetensors is truncated"),
    ("moments", lambda path: os.truncate(path / "training/optimizer.safetensors", 5000), "missing or truncated"),
    ("random", lambda path: (path / "training/random.safetensors").unlink(), "missing or truncated"),
    ("state", lambda path: os.truncate(path / "training/state.json", 20), "state.json is missing or damaged"),
    ("config", lambda path: os.truncate(path / "config.json", 20), "config.json is not valid JSON"),
    ("tokenizer", lambda path: os.truncate(path / "tokenizer.json", 20), "does not load"),
    (
        "format",
        lambda path: (path / "training/state.json").write_text('{"format": 2}'),
        "has format 2, expected 1",
    ),
]


@pytest.mark.parametrize(("what", "damage", "line"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_truncated_checkpoint_changes_nothing_and_says_so(
    checkpoint: Path, directory: Path, tmp_path: Path, what: str, damage: Callable[[Path], object], line: str
) -> None:
    import shutil

    shutil.copytree(checkpoint, tmp_path / "broken")
    damage(tmp_path / "broken")
    refuses(Learner(load_model(directory)), tmp_path / "broken", line)


def refuses(learner: Learner, path: Path, line: str) -> None:
    before = digest(learner)
    with pytest.raises(MetaAgentXError, match=line) as caught:
        load_checkpoint(learner, path)
    assert "\n" not in str(caught.value)
    assert digest(learner) == before


def test_a_foreign_checkpoint_says_so(checkpoint: Path, directory: Path, tmp_path: Path) -> None:
    nano = Learner(load_model(directory))
    refuses(nano, tmp_path / "nowhere", "no checkpoint at")
    refuses(nano, directory, "has no training state")
    new_model(tmp_path / "tiny", "tiny")
    tiny = Learner(load_model(tmp_path / "tiny"))
    refuses(tiny, checkpoint, "the checkpoint of another model")
    refuses(Learner(with_lora(directory)), checkpoint, "holds full weights, and this policy trains a LoRA")
