"""Chat: the model's own template, and conversations that continue without encoding a token again."""

import inspect
import random
import time
from pathlib import Path

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from metaagentx.backends.chat import ChatTokenizer
from metaagentx.coldstart.demonstrations import Demonstration
from metaagentx.coldstart.sft import encode_row
from metaagentx.errors import MetaAgentXError
from metaagentx.options import RESERVED_ARGUMENTS
from metaagentx.rollout.sampling import encode_prompt
from metaagentx.types import Call, Role
from tests.backends.learners import chat_tokenizer

# As Qwen3's: the thinking of earlier turns is taken out, and what is left is stripped.
FORGETFUL = (
    "{%- for message in messages -%}"
    "{%- set content = message.content.split('</think>')[-1].strip('\\n') -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
PLAIN_TEXT = (
    "{%- for message in messages -%}{{- message.role + ': ' + message.content + '\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'assistant: ' -}}{%- endif -%}"
)
ALTERNATING = (
    "{%- for message in messages -%}"
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles must alternate') -}}"
    "{%- endif -%}{{- message.content + '<|im_end|>' -}}{%- endfor -%}"
)
QWEN3 = (Path(__file__).parents[1] / "data" / "qwen3_chat_template.jinja").read_text()
NO_THOUGHT = "<think>\n\n</think>\n\n"
ASK = [{"role": "user", "content": "2 + 2?"}]
MORE = [{"role": "user", "content": "Sure?"}]
texts = st.text(st.characters(codec="ascii", exclude_characters="\x00"), max_size=20)


def drifting(template: str, **arguments: object) -> ChatTokenizer:
    """Its merges join what stands on both sides of a turn's end, and letters that a model may write one by one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "a"), ("a", "Ċ"), ("b", "Ċ"), ("Ċ", "u"), ("s", "e"), ("u", "se")]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *map("".join, merges)])}
    bpe = Tokenizer(models.BPE(vocabulary, merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>"), AddedToken("<|endoftext|>")])
    hf = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>")
    hf.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    hf.chat_template = template
    return ChatTokenizer(hf, template_arguments=arguments)


def test_a_prompt_is_what_the_template_writes() -> None:
    tokenizer = drifting(FORGETFUL)
    tokens = tokenizer.encode_chat(ASK)
    assert tokenizer.hf.decode(tokens) == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"


def test_the_ends_of_a_turn_are_the_tokenizers_the_templates_and_the_models() -> None:
    tokenizer = drifting(FORGETFUL)
    ends = {tokenizer.hf.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")}
    assert tokenizer.end_tokens == ends
    assert ChatTokenizer(tokenizer.hf, [7]).end_tokens == ends | {7}


@given(st.integers(0, 2**32), st.booleans(), texts)
def test_sampled_tokens_are_kept_whatever_the_template_and_the_tokenizer_would_make_of_them(
    seed: int, ended: bool, content: str
) -> None:
    tokenizer = DRIFTING
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    prompt = tokenizer.encode_chat(ASK)
    letters = [tokenizer.hf.convert_tokens_to_ids(letter) for letter in ("a", "b", "ab", "Ċ", "u", "s")]
    sampled = random.Random(seed).choices(letters, k=12) + [end] * ended
    tokens = tokenizer.encode_continuation([*prompt, *sampled], [{"role": "user", "content": content}])
    assert tokens[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    following = tokenizer.hf.decode(tokens[len(prompt) + len(sampled) :])
    shown = content.rsplit("</think>", maxsplit=1)[-1].strip("\n")
    expected = f"\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    assert following == ("" if ended else "<|im_end|>") + expected


DRIFTING = drifting(FORGETFUL)


def test_encoding_the_conversation_again_would_have_changed_it() -> None:
    tokenizer = drifting(FORGETFUL)
    prompt = tokenizer.encode_chat(ASK)
    reply = tokenizer.hf.encode("<think>no</think>", add_special_tokens=False)
    sampled = [*reply, *(tokenizer.hf.convert_tokens_to_ids(letter) for letter in "aba")]
    kept = tokenizer.encode_continuation([*prompt, *sampled], MORE)
    again = tokenizer.encode_chat([*ASK, {"role": "assistant", "content": tokenizer.decode(sampled)}, *MORE])
    assert "<think>" in tokenizer.decode(kept) and "<think>" not in tokenizer.decode(again)
    assert again[: len(prompt) + len(sampled)] != [*prompt, *sampled]


def test_a_template_without_an_end_token_is_continued_by_its_text() -> None:
    tokenizer = drifting(PLAIN_TEXT)
    prompt = tokenizer.encode_chat(ASK)
    letters = [tokenizer.hf.convert_tokens_to_ids(letter) for letter in ("a", "b")]
    tokens = tokenizer.encode_continuation([*prompt, *letters], MORE)
    assert tokens[: len(prompt) + 2] == [*prompt, *letters]
    assert tokenizer.decode(tokens) == "user: 2 + 2?\nassistant: ab\nuser: Sure?\nassistant: "


def test_a_message_that_holds_our_own_mark_changes_nothing() -> None:
    tokenizer = chat_tokenizer()
    told = tokenizer.encode_continuation([5], [{"role": "user", "content": "0mark 00mark"}])
    assert tokenizer.hf.decode(told).endswith("<|end|><|user|>0mark 00mark<|end|><|assistant|>")


def test_several_turns_of_our_own_model_equal_the_whole_conversation() -> None:
    tokenizer = chat_tokenizer()
    prompt = tokenizer.encode_chat(ASK)
    reply = tokenizer.hf.encode("It is \\boxed{4}.<|end|>", add_special_tokens=False)
    tokens = tokenizer.encode_continuation([*prompt, *reply], [{"role": "tool", "content": "4"}, *MORE])
    conversation = [
        *ASK,
        {"role": "assistant", "content": "It is \\boxed{4}."},
        {"role": "tool", "content": "4"},
        *MORE,
    ]
    assert tokens == tokenizer.encode_chat(conversation)


def test_decoding_leaves_special_tokens_out_and_text_as_it_is() -> None:
    tokenizer = chat_tokenizer()
    text = " <delivery> 12 , 5 .  Ünïcode\n</delivery>"
    assert tokenizer.decode([*tokenizer.hf.encode(text, add_special_tokens=False), 1]) == text


def test_no_template_and_a_conversation_that_it_refuses_are_told() -> None:
    with pytest.raises(MetaAgentXError, match=r"tokenizer of ./here has no chat template"):
        hf = drifting(FORGETFUL).hf
        hf.chat_template = None
        ChatTokenizer(hf, name="./here")
    with pytest.raises(MetaAgentXError, match=r"does not accept a conversation of system: roles must alternate"):
        drifting(ALTERNATING).encode_chat([{"role": "system", "content": "Add."}])
    with pytest.raises(MetaAgentXError, match="there is no role narrator"):
        chat_tokenizer().encode_chat([{"role": "narrator", "content": "Add."}])


def test_no_text_makes_a_continuation_slow() -> None:
    """The mark between two turns was once lengthened until no message held it, a million times where one held all."""
    tokenizer = drifting(PLAIN_TEXT)
    hostile = [{"role": "user", "content": "0" * 200_000 + "mark"}]
    started = time.process_time()
    tokenizer.encode_continuation(tokenizer.encode_chat(ASK), hostile)
    assert time.process_time() - started < 20


def test_qwen3_thinks_unless_the_recipe_says_otherwise() -> None:
    asked = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    for arguments, start in (({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, NO_THOUGHT)):
        tokenizer = drifting(QWEN3, **arguments)
        assert tokenizer.hf.decode(tokenizer.encode_chat(ASK)) == asked + start
        assert {tokenizer.hf.convert_tokens_to_ids("<|im_end|>"), tokenizer.hf.eos_token_id} == tokenizer.end_tokens


def test_a_template_ignores_arguments_that_it_does_not_use() -> None:
    assert drifting(QWEN3, depth=3, style="short").encode_chat(ASK) == drifting(QWEN3).encode_chat(ASK)


def test_an_argument_that_the_template_cannot_use_is_told() -> None:
    counting = "{%- if depth > 2 -%}deep{%- endif -%}" + QWEN3
    assert drifting(counting, depth=3).encode_chat(ASK) != drifting(counting, depth=1).encode_chat(ASK)
    with pytest.raises(MetaAgentXError, match=r"with model.chat_template = \{'depth': 'high'\}: '>' not supported"):
        drifting(counting, depth="high")


def test_arguments_that_the_backend_sets_are_reserved() -> None:
    """A recipe with one of them is an error; without the list it would end in a TypeError, or change the prompt."""
    own = inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters.values()
    assert {p.name for p in own if p.kind is p.POSITIONAL_OR_KEYWORD} <= RESERVED_ARGUMENTS


@given(st.integers(0, 2**32), st.booleans(), texts)
def test_a_conversation_without_thinking_continues_without_it_and_keeps_sampled_tokens(
    seed: int, ended: bool, content: str
) -> None:
    tokenizer = SILENT
    prompt = tokenizer.encode_chat(ASK)
    letters = [tokenizer.hf.convert_tokens_to_ids(letter) for letter in ("a", "b", "ab", "Ċ", "u", "s")]
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    sampled = random.Random(seed).choices(letters, k=12) + [end] * ended
    tokens = tokenizer.encode_continuation([*prompt, *sampled], [{"role": "user", "content": content}])
    assert tokens[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    following = tokenizer.hf.decode(tokens[len(prompt) + len(sampled) :])
    asked = f"\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n{NO_THOUGHT}"
    assert following == ("" if ended else "<|im_end|>") + asked


SILENT = drifting(QWEN3, enable_thinking=False)


class Silent:
    """A policy as far as prompts are concerned."""

    tokenizer = SILENT


def test_sft_trains_what_the_model_sees_when_it_is_sampled() -> None:
    """Also in a conversation with tools, in which Qwen3's template writes earlier replies without the empty thought."""
    system = {"role": "system", "content": "Compute."}
    first = [system, *ASK]
    second = [*first, {"role": "assistant", "content": "```python\nprint(4)\n```"}, *MORE]
    calls: list[Call] = []
    for messages, reply in ((first, second[2]["content"]), (second, "ab")):
        prompt = encode_prompt(Silent, tuple(messages), calls)  # type: ignore[arg-type]
        completion = SILENT.encode_reply(reply)
        row = Demonstration((*messages, {"role": "assistant", "content": reply}), Role.EXECUTOR)
        assert encode_row(SILENT, row) == (prompt, completion)
        calls.append(
            Call(Role.EXECUTOR, "A", tuple(messages), reply, prompt=tuple(prompt), completion=tuple(completion))
        )
    shown = SILENT.hf.decode(calls[1].prompt)
    assert shown.count(NO_THOUGHT) == 2 and shown.endswith(NO_THOUGHT)
    assert SILENT.hf.decode(SILENT.encode_chat(second)).count(NO_THOUGHT) == 1, "the template alone would differ"
    assert calls[1].completion[-1] == SILENT.hf.convert_tokens_to_ids("<|im_end|>")


def test_rows_that_are_no_conversation_of_ours_are_written_by_the_template() -> None:
    told = ({"role": "user", "content": "a"}, *({"role": "assistant", "content": text} for text in ("b", "c", "d")))
    assert encode_row(SILENT, Demonstration(told, Role.EXECUTOR))[0] == SILENT.encode_chat(told[:-1])
