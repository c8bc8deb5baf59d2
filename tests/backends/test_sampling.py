"""Sampling against a plain forward pass, and conversations that are continued and never encoded again."""

import asyncio
from pathlib import Path

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
import torch

from metaagentx.backends.local import engine as engine_module
from metaagentx.backends.local import model_runner
from metaagentx.backends.local.engine import Engine
from metaagentx.backends.local.model import LocalModel, LoraOptions, load_model
from metaagentx.backends.local.packed_linear import SamplingDtype, bf16_available
from metaagentx.backends.local.presets import new_model
from metaagentx.errors import MetaAgentXError
from metaagentx.policy import Completion, SamplingParams
from tests.backends.learners import chat_tokenizer, random_model

PROMPTS = [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3], [7] * 40, [1, 2]]


def sample_all(engine: Engine, prompts: list[list[int]], max_tokens: int = 12) -> list[Completion]:
    async def everybody() -> list[Completion]:
        asks = (engine.sample(p, SamplingParams(max_tokens, seed=n)) for n, p in enumerate(prompts))
        return await asyncio.gather(*asks)

    return asyncio.run(everybody())


def plain_logprobs(model: LocalModel, prompt: list[int], drawn: tuple[int, ...]) -> list[float]:
    tokens = torch.tensor([[*prompt, *drawn]])
    with torch.no_grad():
        logits = model.module(input_ids=tokens).logits.log_softmax(-1)
    return [float(logits[0, len(prompt) - 1 + n, token]) for n, token in enumerate(drawn)]


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_drawn_logprobs_are_those_of_a_full_forward_pass(kind: str, deterministic: bool) -> None:
    model = random_model(kind, torch.float32)
    engine = Engine(model, compiled=False, deterministic=deterministic)
    for prompt, drawn in zip(PROMPTS, sample_all(engine, PROMPTS), strict=True):
        assert len(drawn.tokens) == len(drawn.logprobs) <= 12
        assert drawn.logprobs == pytest.approx(plain_logprobs(model, prompt, drawn.tokens), abs=1e-4)


def test_a_requests_draws_are_its_own_whatever_else_is_in_the_batch() -> None:
    model = random_model("qwen3", torch.float32)
    together = sample_all(Engine(model, compiled=False), PROMPTS)
    for number, prompt in enumerate(PROMPTS):
        alone = asyncio.run(Engine(model, compiled=False).sample(prompt, SamplingParams(12, seed=number)))
        assert alone.tokens == together[number].tokens


def test_the_deterministic_mode_gives_the_same_bits_twice() -> None:
    model = random_model("qwen3", torch.float32)
    first = sample_all(Engine(model, compiled=False, deterministic=True), PROMPTS)
    assert sample_all(Engine(model, compiled=False, deterministic=True), PROMPTS) == first


def test_requests_that_do_not_fit_wait_for_their_turn() -> None:
    model = random_model("qwen3", torch.float32)
    roomy = sample_all(Engine(model, compiled=False), PROMPTS * 4)
    tight = sample_all(Engine(model, compiled=False, max_batch=2, kv_budget_tokens=256), PROMPTS * 4)
    assert [drawn.tokens for drawn in tight] == [drawn.tokens for drawn in roomy]


def test_greedy_is_greedy_and_stop_tokens_stop() -> None:
    model = random_model("qwen3", torch.float32)
    greedy = asyncio.run(Engine(model, compiled=False).sample([1, 2], SamplingParams(6, temperature=0.0)))
    with torch.no_grad():
        best = int(model.module(input_ids=torch.tensor([[1, 2]])).logits[0, -1].argmax())
    assert greedy.tokens[0] == best
    stopped = asyncio.run(
        Engine(model, compiled=False).sample([1, 2], SamplingParams(6, temperature=0.0, stop_tokens=(best,)))
    )
    assert (stopped.tokens, stopped.finish) == ((best,), "stop")


def test_new_weights_are_used_at_once() -> None:
    model = random_model("qwen3", torch.float32)
    engine = Engine(model, compiled=False)
    sample_all(engine, PROMPTS)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.5)
    model.version += 1
    drawn = sample_all(engine, PROMPTS)[1]
    assert drawn.logprobs == pytest.approx(plain_logprobs(model, PROMPTS[1], drawn.tokens), abs=1e-4)


def test_a_prompt_longer_than_the_context_is_one_clear_line() -> None:
    engine = Engine(random_model("qwen3", torch.float32), compiled=False)
    with pytest.raises(MetaAgentXError, match="256"):
        asyncio.run(engine.sample([1] * 300, SamplingParams(4)))


def test_a_continuation_keeps_tokens_that_encoding_again_would_change() -> None:
    tokenizer = chat_tokenizer()
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Add 2 and 2."}])
    word = tokenizer.hf.encode("delivery", add_special_tokens=False)
    letters = [tokenizer.hf.encode(letter, add_special_tokens=False)[0] for letter in "delivery"]
    assert len(word) < len(letters)  # the model wrote it in other pieces than the tokenizer would
    longer = tokenizer.encode_continuation([*prompt, *letters], [{"role": "user", "content": "Go on."}])
    assert longer[: len(prompt) + len(letters)] == [*prompt, *letters]
    assert tokenizer.decode(letters) == "delivery"


def test_a_new_model_loads_in_plain_transformers_and_is_the_same_twice(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for name in ("one", "two"):
        new_model(tmp_path / name, "nano", seed=3)
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    module = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert tokenizer.chat_template
    ours = load_model(tmp_path / "one")
    tokens = torch.tensor([ours.tokenizer.encode_chat([{"role": "user", "content": "2 + 2"}])])
    with torch.no_grad():
        assert torch.equal(module(input_ids=tokens).logits, ours.module(input_ids=tokens).logits)


def test_a_path_that_is_no_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MetaAgentXError, match="nowhere"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MetaAgentXError, match="empty"):
        load_model(tmp_path / "empty")


def with_lora(dtype: SamplingDtype, seed: int = 0) -> tuple[LocalModel, Engine]:
    """A model of the size of a head of SmolLM2, with a LoRA that changes what it says, and its engine."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4}
    model = random_model("llama", torch.float32, initializer_range=0.1, vocab_size=512, **shape)
    model = model.with_adapter("default", LoraOptions(rank=4, alpha=8))
    change_lora(model, seed)
    return model, Engine(model, compiled=False, sampling_dtype=dtype)


def change_lora(model: LocalModel, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.module.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    model.weights_changed()


def gaps(model: LocalModel, completions: list[Completion]) -> torch.Tensor:
    """How far recorded log-probabilities are from those of the module, for all sampled tokens."""
    model.submit(lambda: None).result()  # activates the LoRA
    rows = [
        torch.tensor(plain_logprobs(model, prompt, completion.tokens)) - torch.tensor(completion.logprobs)
        for prompt, completion in zip(PROMPTS, completions, strict=True)
    ]
    return torch.cat(rows).abs()


@pytest.mark.parametrize("packed", [False, True])
def test_a_lora_is_merged_and_an_update_of_it_is_sampled_at_once(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "MIN_PACKED_WEIGHTS", 0 if packed else 1 << 40)
    model, engine = with_lora("auto")
    first = sample_all(engine, PROMPTS)
    assert gaps(model, first).max() < 1e-4
    change_lora(model, seed=1)
    second = sample_all(engine, PROMPTS)
    assert gaps(model, second).max() < 1e-4
    assert gaps(model, first).max() > 0.1  # the update was large enough to see


@pytest.mark.skipif(not bf16_available(), reason="this processor has no bf16 products")
def test_bf16_copies_record_what_they_sample_and_stay_near_the_fp32_module() -> None:
    model, engine = with_lora("bfloat16")
    for seed in (1, 2):
        completions = sample_all(engine, PROMPTS, max_tokens=60)
        gap = gaps(model, completions)
        assert 0 < gap.mean() < 0.01
        assert gap.quantile(0.99) < 0.05
        change_lora(model, seed)
    alone = asyncio.run(engine.sample(PROMPTS[1], SamplingParams(60, seed=1)))
    together = sample_all(engine, PROMPTS, max_tokens=60)[1]
    assert alone.logprobs[:5] == pytest.approx(together.logprobs[:5], abs=1e-2)


def test_bf16_without_such_products_is_one_line_and_samples_as_fp32(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_runner, "bf16_available", lambda: False)
    engine_module._print_ignored.cache_clear()
    torch.manual_seed(0)  # of the LoRA's first matrices
    _, engine = with_lora("auto")
    expected = sample_all(engine, PROMPTS)
    for _ in ("designer", "executor"):
        torch.manual_seed(0)
        model, engine = with_lora("bfloat16")
        completions = sample_all(engine, PROMPTS)
        assert [one.tokens for one in completions] == [one.tokens for one in expected]
        assert gaps(model, completions).max() < 1e-4
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        'model.sampling_dtype = "bfloat16" is ignored: this processor has no bf16 products, '
        "sampling from float32 copies"
    )


def test_bf16_copies_of_what_is_not_copied_are_ignored_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = random_model("llama", torch.float32)
    monkeypatch.setattr(model_runner, "MAX_COPIED_WEIGHTS", 1000)
    for model, reason in (
        (random_model("llama", torch.bfloat16), "the weights are bfloat16 themselves"),
        (small, "weights are more than the 1,000 that are copied"),
        (random_model("llama", torch.float32, hidden_act="gelu"), "this is a LlamaForCausalLM with other layers"),
    ):
        engine_module._print_ignored.cache_clear()
        drawn = sample_all(Engine(model, compiled=False, sampling_dtype="bfloat16"), PROMPTS)
        plain = sample_all(Engine(model, compiled=False), PROMPTS)
        assert [one.tokens for one in drawn] == [one.tokens for one in plain]
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('model.sampling_dtype = "bfloat16" is ignored: ') and line.endswith(reason)
