"""Messages to tokens by a model's own chat template, and back.

A conversation that goes on is continued, never encoded anew: the tokens so far, sampled ones among them, stay as they
are, and only what the template writes after an assistant's turn is encoded and appended. Encoding the whole text again
would change tokens wherever the model wrote a text in other pieces than the tokenizer would, and wherever the template
alters earlier turns, as Qwen3's does with their thinking: training would then see tokens that nobody sampled.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from ...errors import MetaAgentXError

Messages = Sequence[Mapping[str, str]]


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template, as the `Tokenizer` of `policy.py`."""

    def __init__(self, tokenizer: Any, end_tokens: Iterable[int] = (), name: str = "this model") -> None:
        """`end_tokens`: those its model ends a turn with, besides the tokenizer's own and the template's."""
        if tokenizer.chat_template is None:
            raise MetaAgentXError(
                f"the tokenizer of {name} has no chat template, so it is not known how a conversation is written: use "
                "an instruct model, or put its chat_template.jinja beside tokenizer.json"
            )
        self.hf = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        known = {*end_tokens} | ({tokenizer.eos_token_id} - {None})
        opening = self._after_turn([{"role": "user", "content": "."}])[0]
        self.end_tokens: frozenset[int] = frozenset(known | ({opening} & self._special))
        """Any of these ends a turn."""
        self._end = opening if opening in self.end_tokens else min(self.end_tokens)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included."""
        return len(self.hf)

    def encode_chat(self, messages: Messages) -> list[int]:
        """A conversation as the prompt for the next assistant turn."""
        return self._encode(self._render(messages))

    def encode_continuation(self, tokens: Sequence[int], new_messages: Messages) -> list[int]:
        """The same tokens, the end of the turn if it is missing, the new messages, and the next turn's beginning."""
        following = self._after_turn(new_messages)
        ended = bool(tokens) and tokens[-1] in self.end_tokens
        if ended and following[0] in self.end_tokens:
            following = following[1:]
        return [*tokens, *following]

    def encode_reply(self, text: str) -> list[int]:
        """What a model that wrote this text would have sampled: its tokens and the end of the turn."""
        return [*self._encode(text), self._end]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a completion, without special tokens."""
        text: str = self.hf.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _after_turn(self, new_messages: Messages) -> list[int]:
        """What the template writes between the last word of an assistant and the first of its next turn."""
        # Made from the messages themselves, so that none of them can hold it, whoever wrote them.
        contents = "\0".join(message["content"] for message in new_messages)
        mark = f"turn {hashlib.sha256(contents.encode()).hexdigest()}"
        text = self._render([{"role": "user", "content": "."}, {"role": "assistant", "content": mark}, *new_messages])
        _, found, following = text.partition(mark)
        if not found:
            raise MetaAgentXError("the chat template leaves out what the assistant said: conversations cannot go on")
        return self._encode(following)

    def _render(self, messages: Messages) -> str:
        plain = [dict(message) for message in messages]
        try:
            text: str = self.hf.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise MetaAgentXError(f"the chat template refuses a conversation of {roles}: {error}") from error
        return text

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self.hf.encode(text, add_special_tokens=False)
        return tokens
