"""The one seam between the algorithm and any model: five verbs, tokens in and tokens out.

After `optim_step` returns, `sample` uses the new weights, so a stale sampler cannot exist. `sample` takes one request;
batching concurrent ones is the backend's business. Losses are names with options, not functions: a backend on another
machine must be able to compute them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

Metrics = Mapping[str, float]


class BackendError(Exception):
    """The machinery behind a policy failed: a server that is away, memory that ran out. Asking again may help."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a completion is drawn. No top-p, no top-k, no penalties: they bias the ratio that training relies on."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; the one that did is part of it."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a completion, besides the model's own end of turn; the one that did is part of it."""
    seed: int | None = None
    """Makes this request's draws its own, whatever else is in the batch."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was drawn, and the log-probability with which each token was drawn."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]
    token_count: int | None = None
    """How many the model wrote, where `tokens` are not the model's own. None: as many as `tokens`."""


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence to learn from. Sequences that begin alike are computed once up to where they part."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    """For each token: 0 where it was given (prompt, tool output), 1 where the model wrote it and learns from it."""
    advantage: float = 0.0
    logprobs: tuple[float, ...] | None = None
    """Behaviour log-probabilities, one for each token; where the weight is 0 they are not looked at."""
    reference_logprobs: tuple[float, ...] | None = None
    """Under a reference model, where a KL term is wanted."""


LossName = Literal["cross_entropy", "importance_sampling"]


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Variants of the policy loss, all of one function. The defaults are the paper's: clipped ratio, token mean."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    """Larger than `clip_low`: clip-higher, as in DAPO."""
    dual_clip: float | None = 3.0
    """The most that a token with a negative advantage may weigh."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens, mean of sequence means, or a sum over a constant (Dr.GRPO)."""
    constant: float = 1.0
    """What sums are divided by with `normalise = "constant"`."""
    sequence_ratio: bool = False
    """One ratio for a whole sequence, the geometric mean of its tokens' (GSPO)."""
    kl: float = 0.0
    """Weight of the KL divergence to the reference."""
    truncate_ratio: float | None = None
    """Truncated importance sampling: when another engine sampled, weigh tokens by min(ratio to it, this)."""
    temperature: float = 1.0
    """With which the data were sampled: a ratio compares probabilities at one temperature, or it means nothing."""


PAPER_LOSS = LossOptions()


class Tokenizer(Protocol):
    """What the algorithm needs of a tokenizer."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation as the prompt for the next assistant turn, by the model's own chat template."""

    def encode_continuation(self, tokens: Sequence[int], new_messages: Sequence[Mapping[str, str]]) -> list[int]:
        """What follows sampled tokens when the conversation goes on: the tokens so far are kept as they are."""

    def encode_reply(self, text: str) -> list[int]:
        """A text as a completion with the end of its turn, to learn from what others wrote."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a completion, without special tokens."""


class Policy(Protocol):
    """One trainable language model in one role."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""

    @property
    def context_length(self) -> int:
        """How many tokens prompt and completion may have together."""

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Draw one completion."""

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossOptions = PAPER_LOSS
    ) -> Metrics:
        """Add the gradient of the loss on these data to what has been gathered."""

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Take one step with the gathered gradient and forget it."""

    async def save(self, path: Path) -> None:
        """Write everything that is needed to go on from here."""

    async def load(self, path: Path) -> None:
        """Go on from there."""


@runtime_checkable
class ComparesGradients(Protocol):
    """A policy that can say how far another role's gathered gradient points the same way as its own."""

    async def gradient_cosine(self, other: object) -> float | None:
        """The cosine, or None where they do not share weights or one of them has gathered nothing."""


@runtime_checkable
class GivesLogprobs(Protocol):
    """A policy that can serve as the reference of a KL term."""

    async def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """The log-probability at this temperature of each token that has a weight; 0 for the others."""


@runtime_checkable
class CountsWork(Protocol):
    """A policy that can say how busy its sampler was."""

    def work(self) -> Metrics:
        """Sums since the beginning, such as `sampled_tokens` and `busy_seconds`."""


@runtime_checkable
class SharesWeights(Protocol):
    """A policy that can say whether another role is on the same weights."""

    def shares_weights(self, other: object) -> bool:
        """Whether what one of them learns changes the other."""
