"""A policy without a model: replies from a list or from a function. For tests, documentation and dry runs.

Its tokens are the bytes of the text, its chat format is one line per message, its log-probabilities are zeros. It
records its training data and steps, so that a test can see which role was trained on what and when.

    policy = ScriptedPolicy(["first reply", "second reply"])
    policy = ScriptedPolicy(lambda conversation: "a reply to " + conversation[-1]["content"])
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..options import LossConfig
from ..policy import DEFAULT_LOSS, Completion, Datum, LossName, Messages, Metrics, SamplingParams

_END = 256  # the end of a message; all other tokens are bytes


class ByteTokenizer:
    """Text as bytes; a message is `role: content` and an end token."""

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return the conversation, then the start of the assistant's turn."""
        tokens: list[int] = []
        for message in messages:
            tokens += [*f"{message['role']}: {message['content']}".encode(), _END]
        return [*tokens, *b"assistant: "]

    def encode_continuation(self, tokens: Sequence[int], new_messages: Messages) -> list[int]:
        """Return the same tokens, the end of the turn if it is missing, the new messages, and the next turn's start."""
        end = [] if tokens and tokens[-1] == _END else [_END]
        return [*tokens, *end, *self.encode_chat(new_messages)]

    def encode_reply(self, text: str) -> list[int]:
        """Return the bytes and the end token."""
        return [*text.encode(), _END]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the bytes."""
        return bytes(token for token in tokens if token != _END).decode("utf-8", "replace")

    def read_chat(self, tokens: Sequence[int]) -> list[dict[str, str]]:
        """Return the messages of a prompt, without the turn that is still open."""
        messages, text = [], bytearray()
        for token in tokens:
            if token == _END:
                role, _, content = text.decode("utf-8", "replace").partition(": ")
                messages.append({"role": role, "content": content})
                text.clear()
            else:
                text.append(token)
        return messages


class ScriptedPolicy:
    """Replies from a script. Running out of replies raises an error."""

    def __init__(self, replies: Iterable[str] | Callable[[list[dict[str, str]]], str]) -> None:
        self.tokenizer = ByteTokenizer()
        self.context_length = 1 << 20
        self.conversations: list[list[dict[str, str]]] = []
        self.trained_on: list[Datum] = []
        self.steps: list[float] = []
        self._reply = replies if callable(replies) else _in_turn(replies)

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Return the next reply, cut at `max_tokens` and at stop strings like a model's."""
        conversation = self.tokenizer.read_chat(prompt)
        self.conversations.append(conversation)
        text = self._reply(conversation)
        stops = [text.index(stop) + len(stop) for stop in params.stop if stop in text]
        tokens = [*(text[: min(stops)] if stops else text).encode(), *([] if stops else [_END])]
        finish = "stop" if len(tokens) <= params.max_tokens else "length"
        tokens = tokens[: params.max_tokens]
        return Completion(tuple(tokens), (0.0,) * len(tokens), finish)  # type: ignore[arg-type]

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Metrics:
        """Record the training data."""
        self.trained_on += data
        return {"loss": 0.0}

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Record the step."""
        self.steps.append(learning_rate)
        return {"grad_norm": 0.0}

    async def save(self, path: Path) -> None:
        """Write the learning rates of the steps so far."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "scripted.txt").write_text("\n".join(map(repr, self.steps)))

    async def load(self, path: Path) -> None:
        """Restore the learning rates of the steps."""
        self.steps = [float(line) for line in (path / "scripted.txt").read_text().split()]


def _in_turn(replies: Iterable[str]) -> Callable[[list[dict[str, str]]], str]:
    remaining = iter(replies)

    def reply(conversation: list[dict[str, str]]) -> str:
        for text in remaining:
            return text
        raise RuntimeError(f"the script has no reply left for {conversation[-1]['content'][:200]!r}")

    return reply
