"""Encodes messages to tokens by a model's own chat template, and decodes completions.

A conversation is continued, never encoded again: the tokens so far, sampled ones included, stay unchanged, and only
what the template writes after an assistant's turn is encoded and appended. Encoding the whole text again would change
tokens wherever the model split a text in another way than the tokenizer does, and wherever the template alters earlier
turns, as Qwen3's does with their reasoning: training would then see tokens that were never sampled.

The arguments of the template, `model.chat_template` in a recipe, hold for everything that is encoded.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from ..errors import MetaAgentXError
from ..policy import Messages


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template, as the `Tokenizer` of `policy.py`."""

    def __init__(
        self,
        tokenizer: Any,
        end_tokens: Iterable[int] = (),
        name: str = "this model",
        template_arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Wrap a tokenizer. `end_tokens`: tokens that end a turn besides those of the tokenizer and the template."""
        if tokenizer.chat_template is None:
            raise MetaAgentXError(
                f"the tokenizer of {name} has no chat template: use an instruct model, or put its "
                "chat_template.jinja beside tokenizer.json"
            )
        self.hf = tokenizer
        self.template_arguments = dict(template_arguments or {})
        self._special = frozenset(tokenizer.all_special_ids)
        known = {*end_tokens} | ({tokenizer.eos_token_id} - {None})
        opening = self._after_turn([{"role": "user", "content": "."}])[0]
        self.end_tokens: frozenset[int] = frozenset(known | ({opening} & self._special))
        """Each of these ends a turn."""
        self._end = opening if opening in self.end_tokens else min(self.end_tokens)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a conversation as the prompt for the next assistant turn."""
        return self._encode(self._render(messages))

    def encode_continuation(self, tokens: Sequence[int], new_messages: Messages) -> list[int]:
        """Return the same tokens, the end of the turn if it is missing, the new messages, and the next turn's start."""
        following = self._after_turn(new_messages)
        ended = bool(tokens) and tokens[-1] in self.end_tokens
        if ended and following[0] in self.end_tokens:
            following = following[1:]
        return [*tokens, *following]

    def encode_reply(self, text: str) -> list[int]:
        """Return the tokens of a text and the end of the turn."""
        return [*self._encode(text), self._end]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without special tokens."""
        text: str = self.hf.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _after_turn(self, new_messages: Messages) -> list[int]:
        """Return what the template writes between the end of an assistant's text and the start of its next turn."""
        # The marker is a hash of the messages, so that none of them can contain it, whoever wrote them.
        contents = "\0".join(message["content"] for message in new_messages)
        marker = f"turn {hashlib.sha256(contents.encode()).hexdigest()}"
        text = self._render([{"role": "user", "content": "."}, {"role": "assistant", "content": marker}, *new_messages])
        _, separator, following = text.partition(marker)
        if not separator:
            raise MetaAgentXError(
                "the chat template omits assistant messages, so conversations cannot be continued: use another model"
            )
        return self._encode(following)

    def _render(self, messages: Messages) -> str:
        plain = [dict(message) for message in messages]
        try:
            text: str = self.hf.apply_chat_template(
                plain, add_generation_prompt=True, tokenize=False, **self.template_arguments
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            given = f" with model.chat_template = {self.template_arguments}" if self.template_arguments else ""
            raise MetaAgentXError(
                f"the chat template does not accept a conversation of {roles}{given}: {error}"
            ) from error
        return text

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self.hf.encode(text, add_special_tokens=False)
        return tokens
