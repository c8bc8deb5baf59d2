"""The small models we start from, and the errors of those that do not load."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.model import load_model
from metaagentx.backends.local.model_runner import is_native
from metaagentx.backends.local.presets import new_model
from metaagentx.backends.presets import PRESETS
from metaagentx.cli.main import app
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import SamplingParams
from metaagentx.workflow.manual import language_manual
from metaagentx.workflow.protocol import INSTRUCTION
from metaagentx.workflow.reply import DESIGN_REQUEST
from tests.backends.learners import chat_tokenizer, random_model

EXAMPLES = Path(__file__).parents[2] / "src/metaagentx/workflow/examples"


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / "nano"
    new_model(path, "nano")
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize(("preset", "millions"), [("nano", 0.3), ("tiny", 0.8), ("small", 1.9), ("4m", 4.1)])
def test_presets_have_the_size_they_say(preset: str, millions: float, tmp_path: Path) -> None:
    assert round(new_model(tmp_path / preset, preset) / 1e6, 1) == millions


def test_the_same_seed_gives_the_same_bytes_in_another_process(nano: Path, tmp_path: Path) -> None:
    start = "from metaagentx.cli.main import main; main()"
    command = [sys.executable, "-c", start, "model", "new", "--preset", "nano", str(tmp_path / "again")]
    assert "0.30 million parameters" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert contents(tmp_path / "again") == contents(nano)
    new_model(tmp_path / "other", "nano", seed=1)
    assert contents(tmp_path / "other")["model.safetensors"] != contents(nano)["model.safetensors"]


def test_plain_transformers_loads_it(nano: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(nano)
    tokenizer: Any = AutoTokenizer.from_pretrained(nano)
    assert model.config.vocab_size == len(tokenizer) == PRESETS["nano"].vocabulary
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)["input_ids"]
    assert ids == load_model(nano).tokenizer.encode_chat([{"role": "user", "content": "Hi"}])


def test_the_protocol_costs_few_tokens_and_decodes_as_it_was() -> None:
    tokenizer = chat_tokenizer()
    whole = (INSTRUCTION, DESIGN_REQUEST, "<delivery>", "</delivery>", "\\boxed{", "<solution>", "</code>", "<think>")
    for text in whole:
        (token,) = tokenizer.hf.encode(text, add_special_tokens=False)
        assert tokenizer.decode([token]) == text
    for text in (language_manual(), *(file.read_text() for file in EXAMPLES.glob("*.py"))):
        tokens = tokenizer.hf.encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == text
        assert len(tokens) < len(text) / 3
    assert [tokenizer.decode([token]) for token in tokenizer.hf.encode("1000 2024")] == [*"1000", " ", *"2024"]


def test_places_and_presets_that_do_not_do_are_told(nano: Path, tmp_path: Path) -> None:
    with pytest.raises(MetaAgentXError, match="unknown preset huge: choose one of nano, "):
        new_model(tmp_path / "huge", "huge")
    with pytest.raises(MetaAgentXError, match="already exists"):
        new_model(nano, "nano")
    result = CliRunner().invoke(app, ["model", "new", "--help"])
    assert "0.3 to 10 million" in " ".join(result.output.replace("│", " ").split())


def test_paths_that_are_no_models_are_told(nano: Path, tmp_path: Path) -> None:
    with pytest.raises(MetaAgentXError, match=r"no model at .*/nowhere: create .* `metaagentx model new"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(MetaAgentXError, match=r"is not a model directory: it has no config\.json"):
        load_model(tmp_path)


def damaged(nano: Path, place: Path, name: str, content: bytes | None) -> Path:
    place.mkdir()
    for file, data in contents(nano).items():
        (place / file).write_bytes(data)
    (place / name).unlink()
    if content is not None:
        (place / name).write_bytes(content)
    return place


def test_damaged_models_are_told_by_the_file(nano: Path, tmp_path: Path) -> None:
    weights = contents(nano)["model.safetensors"]
    with pytest.raises(MetaAgentXError, match=r"model\.safetensors is truncated"):
        load_model(damaged(nano, tmp_path / "cut", "model.safetensors", weights[: len(weights) // 2]))
    with pytest.raises(MetaAgentXError, match=r"has no weights: copy model\.safetensors"):
        load_model(damaged(nano, tmp_path / "none", "model.safetensors", None))
    with pytest.raises(MetaAgentXError, match=r"config\.json is not valid JSON"):
        load_model(damaged(nano, tmp_path / "config", "config.json", b"{"))
    with pytest.raises(MetaAgentXError, match="no chat template"):
        load_model(damaged(nano, tmp_path / "template", "chat_template.jinja", None))
    deeper = contents(nano)["config.json"].replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 3')
    deeper = deeper.replace(b'"full_attention"\n', b'"full_attention",\n    "full_attention"\n')
    with pytest.raises(MetaAgentXError, match=r"lacks 11 of its weights, for instance model\.layers\.2"):
        load_model(damaged(nano, tmp_path / "deeper", "config.json", deeper))


def test_a_missing_tokenizer_is_told_by_the_file(nano: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        with pytest.raises(MetaAgentXError) as refused:
            load_model(damaged(nano, tmp_path / f"no-{name}", name, None))
        assert str(refused.value) == (
            f"the model directory {tmp_path}/no-{name} has no {name}: copy the tokenizer's files from where the model "
            f"comes from, for instance with `hf download NAME --local-dir {tmp_path}/no-{name}`"
        )
    (tmp_path / "no-tokenizer.json" / "tokenizer_config.json").unlink()
    with pytest.raises(MetaAgentXError, match=r"has no tokenizer\.json and no tokenizer_config\.json: copy"):
        load_model(tmp_path / "no-tokenizer.json")
    for content in (b'{"version', b"{}", b'{"added_tokens": [], "model": {"type": "?"}}'):
        place = tmp_path / str(len(content))
        with pytest.raises(MetaAgentXError, match=rf"^the tokenizer of {place} does not load \(.+\): copy its files"):
            load_model(damaged(nano, place, "tokenizer.json", content))


def test_the_files_of_a_new_model_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        new_model(tmp_path / "new", "nano")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o640}


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_models_that_transformers_saved_are_loaded_and_sampled(kind: str, tmp_path: Path) -> None:
    saved = random_model(kind, torch.float32)
    saved.module.save_pretrained(tmp_path)
    saved.tokenizer.hf.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    for each in (saved, loaded):
        assert is_native(each.module)
    ask = ([3, 4, 5], SamplingParams(8, seed=1))
    drawn = [asyncio.run(Engine(each, compiled=False).sample(*ask)) for each in (saved, loaded)]
    assert drawn[0].tokens == drawn[1].tokens
