"""Chat: the model's own template, and conversations that continue without encoding a token again."""

import random
import time

import pytest

import metaagentx.backends.local.threads  # noqa: F401  before torch

# isort: split
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from metaagentx.backends.local.chat import ChatTokenizer
from metaagentx.errors import MetaAgentXError
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
ASK = [{"role": "user", "content": "2 + 2?"}]
MORE = [{"role": "user", "content": "Sure?"}]
texts = st.text(st.characters(codec="ascii", exclude_characters="\x00"), max_size=20)


def drifting(template: str) -> ChatTokenizer:
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
    return ChatTokenizer(hf)


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
