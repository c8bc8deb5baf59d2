"""A policy without a model: replies from a list, by agent, or from a function. For tests, documentation and dry runs.

Its tokens are the bytes of the text, its chat format one line a message, its log-probabilities zeros. It counts what it
is taught, so that a test can see which role learnt what and when.

    policy = ScriptedPolicy(["first reply", "second reply"])
    policy = ScriptedPolicy(lambda conversation: "a reply to " + conversation[-1]["content"])
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..policy import PAPER_LOSS, Completion, Datum, LossName, LossOptions, Metrics, SamplingParams

Conversation = Sequence[Mapping[str, str]]
_END = 256  # the one token that is no byte: the end of a message


class ByteTokenizer:
    """Text as bytes; a message is `role: content` and an end token."""

    def encode_chat(self, messages: Conversation) -> list[int]:
        """The conversation, then the beginning of the assistant's turn."""
        return [*self._messages(messages), *b"assistant: "]

    def encode_continuation(self, tokens: Sequence[int], new_messages: Conversation) -> list[int]:
        """The same tokens, the end of the turn if it is missing, the new messages, and the next turn's beginning."""
        ended = [] if tokens and tokens[-1] == _END else [_END]
        return [*tokens, *ended, *self.encode_chat(new_messages)]

    def encode_reply(self, text: str) -> list[int]:
        """The bytes and the end token."""
        return [*text.encode(), _END]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the bytes."""
        return bytes(token for token in tokens if token != _END).decode("utf-8", "replace")

    def read_chat(self, tokens: Sequence[int]) -> list[dict[str, str]]:
        """The messages of a prompt, without the turn that is still open."""
        messages, part = [], bytearray()
        for token in tokens:
            if token == _END:
                role, _, content = part.decode("utf-8", "replace").partition(": ")
                messages.append({"role": role, "content": content})
                part.clear()
            else:
                part.append(token)
        return messages

    def _messages(self, messages: Conversation) -> list[int]:
        tokens: list[int] = []
        for message in messages:
            tokens += [*f"{message['role']}: {message['content']}".encode(), _END]
        return tokens


class ScriptedPolicy:
    """Replies from a script. Running out of replies is an error that says so."""

    def __init__(self, replies: Iterable[str] | Callable[[list[dict[str, str]]], str]) -> None:
        self.tokenizer = ByteTokenizer()
        self.context_length = 1 << 20
        self.conversations: list[list[dict[str, str]]] = []
        self.taught: list[Datum] = []
        self.steps: list[float] = []
        self._reply = replies if callable(replies) else _in_turn(replies)

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """The next reply, cut at `max_tokens` and at stop texts as a model's would be."""
        conversation = self.tokenizer.read_chat(prompt)
        self.conversations.append(conversation)
        text = self._reply(conversation)
        stops = [text.index(stop) + len(stop) for stop in params.stop if stop in text]
        tokens = [*(text[: min(stops)] if stops else text).encode(), *([] if stops else [_END])]
        finish = "stop" if len(tokens) <= params.max_tokens else "length"
        tokens = tokens[: params.max_tokens]
        return Completion(tuple(tokens), (0.0,) * len(tokens), finish)  # type: ignore[arg-type]

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossOptions = PAPER_LOSS
    ) -> Metrics:
        """Remember what was taught."""
        self.taught += data
        return {"loss": 0.0}

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Remember the step."""
        self.steps.append(learning_rate)
        return {"grad_norm": 0.0}

    async def save(self, path: Path) -> None:
        """Write how many steps were taken."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "scripted.txt").write_text("\n".join(map(repr, self.steps)))

    async def load(self, path: Path) -> None:
        """Take up the steps that were taken."""
        self.steps = [float(line) for line in (path / "scripted.txt").read_text().split()]


def _in_turn(replies: Iterable[str]) -> Callable[[list[dict[str, str]]], str]:
    waiting = iter(replies)

    def reply(conversation: list[dict[str, str]]) -> str:
        for text in waiting:
            return text
        raise RuntimeError(f"the script has no reply left for {conversation[-1]['content'][:200]!r}")

    return reply
