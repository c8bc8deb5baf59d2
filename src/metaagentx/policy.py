"""The interfaces between the algorithm and any model.

`Policy` is a trainable model at token level: `sample`, `forward_backward`, `optim_step`, `save`, `load`. After
`optim_step` returns, `sample` uses the new weights, so a stale sampler cannot exist. Losses are names with options, not
functions, so that a backend on another machine can compute them. `ChatModel` is a model that takes messages and returns
text, such as one behind an OpenAI-compatible server: it can be sampled, not trained. Both take one request per call;
batching concurrent requests is the backend's business.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from .errors import MetaAgentXError
from .options import LossConfig

Messages: TypeAlias = Sequence[Mapping[str, str]]
Metrics: TypeAlias = Mapping[str, float]
FinishReason: TypeAlias = Literal["stop", "length"]


class BackendError(Exception):
    """A backend failed, for instance an unreachable server or exhausted memory. A retry may succeed."""


class PromptRejected(Exception):
    """The backend refuses this conversation while it serves others: sending it again does not help."""


class ContextOverflow(PromptRejected):
    """The conversation leaves no room for a reply in the model's context."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a completion is sampled. No top-p, top-k or penalties: they bias the ratio that training relies on."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    stop: tuple[str, ...] = ()
    """Stop strings. The one that ends a completion is part of it. Not used by rollouts; for callers of the engine."""
    stop_tokens: tuple[int, ...] = ()
    """Stop tokens besides the model's end of turn, treated like stop strings. Not used by rollouts either."""
    seed: int | None = None
    """Makes this request's draws independent of whatever else is in the batch."""
    on_token: Callable[[int, int], None] | None = field(default=None, compare=False, repr=False)
    """Called with position and token as they are sampled, from any thread and again after a restart. Backends that do
    not stream ignore it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens, each with the log-probability with which it was drawn."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply of a `ChatModel`, with the token usage of the request."""

    text: str
    finish: FinishReason
    prompt_tokens: int
    completion_tokens: int
    prompt: tuple[int, ...] = ()
    """Where the server returns token ids: those of the prompt, those of the reply, and their log-probabilities."""
    completion: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence to train on. A prefix that several sequences share is computed once."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    """For each token: 0 where it was given (prompt, tool output), 1 where the model wrote it and is trained on it."""
    advantage: float = 0.0
    logprobs: tuple[float, ...] | None = None
    """Behavior log-probabilities, one for each token; ignored where the weight is 0."""
    reference_logprobs: tuple[float, ...] | None = None
    """Log-probabilities under the reference model; needed for a KL term only."""


LossName = Literal["cross_entropy", "ppo"]
"""`ppo` is the clipped policy-gradient loss, with dual clip."""

DEFAULT_LOSS = LossConfig()


class Tokenizer(Protocol):
    """What the algorithm needs of a tokenizer."""

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a conversation as the prompt for the next assistant turn, by the model's own chat template."""

    def encode_continuation(self, tokens: Sequence[int], new_messages: Messages) -> list[int]:
        """Return the prompt that continues sampled tokens with new messages; the tokens so far stay unchanged."""

    def encode_reply(self, text: str) -> list[int]:
        """Return a text as a completion with the end of its turn, for supervised training."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without special tokens."""


class Policy(Protocol):
    """One trainable language model in one role."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and completion may have together."""

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion."""

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Metrics:
        """Add the gradient of the loss on these data to the accumulated gradient.

        `temperature` is the one the data were sampled at: a ratio compares probabilities at the same temperature.
        """

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Take one optimizer step with the accumulated gradient and clear it."""

    async def save(self, path: Path) -> None:
        """Write a checkpoint from which training can resume."""

    async def load(self, path: Path) -> None:
        """Resume from a checkpoint."""


@runtime_checkable
class ChatModel(Protocol):
    """A model that takes messages and returns text. It can be sampled, not trained."""

    async def chat(self, messages: Messages, params: SamplingParams) -> ChatReply:
        """Return the reply to a conversation. Raises `PromptRejected` where the server refuses it."""


def require_trainable(role: str, model: Policy | ChatModel) -> Policy:
    """Return the model if it works at token level; raise for a chat model, which has no tokens to train on."""
    if isinstance(model, ChatModel):
        raise MetaAgentXError(
            f"the {role} is a chat model ({type(model).__name__}), which returns text without token ids and "
            "log-probabilities and cannot be trained: train with the local backend"
        )
    return model


@runtime_checkable
class ComparesGradients(Protocol):
    """A policy that can compare its accumulated gradient with another role's."""

    async def gradient_cosine(self, other: object) -> float | None:
        """Return the cosine, or None where they do not share weights or one of them has no gradient."""


@runtime_checkable
class GivesLogprobs(Protocol):
    """A policy that can serve as the reference of a KL term."""

    async def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probability at this temperature of each token that has a weight; 0 for the others."""


@runtime_checkable
class QueuesRequests(Protocol):
    """A policy whose requests wait for room. A deadline is on its sampling, not on how many others came first."""

    async def sample_within(self, seconds: float, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion. Raises `TimeoutError` if it takes longer from when the request has its room.

        Also raises it if nothing at all is sampled for that long, so that a queue that does not move is noticed.
        """


@runtime_checkable
class HasEngine(Protocol):
    """A policy that may share what samples for it."""

    @property
    def engine(self) -> object:
        """What samples. Policies with the same engine have the same `stats`."""


@runtime_checkable
class SamplerStats(Protocol):
    """A model that counts what it has sampled."""

    def stats(self) -> Metrics:
        """Return totals since the start, such as `sampled_tokens` and `busy_seconds`."""


@runtime_checkable
class HasChatTemplate(Protocol):
    """A model whose chat template takes arguments."""

    @property
    def template_arguments(self) -> Mapping[str, object]:
        """The arguments, which its replies depend on."""
