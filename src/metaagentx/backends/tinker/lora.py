"""One LoRA on a server: it samples, gives log-probabilities and takes optimizer steps.

Samples are drawn from weights that the server has published for sampling. On some engines a sample from older ones puts
these back into the trainer, so an optimizer step waits until every sample is done and forgets where they were drawn
from; the next sample publishes the new weights first. Nothing is sampled while a step runs.

Servers differ in how they reduce the losses of tokens to one: to their sum, or to the mean over sequences of the mean
over tokens. `probe_reduction` finds out, and `step` multiplies by what the server divides by.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...errors import MetaAgentXError
from ...options import OptimizerConfig
from ...policy import Completion, SamplingParams
from ..chat import ChatTokenizer
from .server import Server

_log = logging.getLogger(__name__)
_SEEDS = 2**31 - 1
_EPSILON = 1e-8  # as in the local backend


class Reduction(Enum):
    """How a server reduces the losses of tokens."""

    SUM = "sum"
    MEAN = "mean over sequences of the mean over tokens"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the checks on this side need to know of a model."""

    context_length: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """Where a server has the state of a LoRA."""

    state: str
    """For training, with the optimizer's."""
    weights: str
    """For sampling and for download."""


@dataclass(frozen=True, slots=True)
class TokenGradients:
    """A sequence, its log-probabilities now, and the gradient of the loss by each of them; one for each target."""

    tokens: tuple[int, ...]
    logprobs: Sequence[float]
    gradients: Sequence[float]


class ServerLora:
    """A LoRA of one role, or of both."""

    def __init__(self, server: Server, client: Any, tokenizer: ChatTokenizer, shape: Shape, micro_batch: int) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.shape = shape
        self.reduction = Reduction.SUM
        self.version = 0
        """Counts changes of the weights."""
        self._client = client
        self._micro_batch = micro_batch
        self._sampler: Any = None
        self._busy = asyncio.Lock()
        self._outstanding: set[asyncio.Future[Any]] = set()
        self._saved: tuple[int, SavedState] | None = None
        self._sampled_tokens = 0
        self._busy_seconds = 0.0
        self._busy_from = 0.0

    def stats(self) -> dict[str, float]:
        """Return totals: sampled tokens, and seconds during which at least one sample was awaited."""
        running = time.perf_counter() - self._busy_from if self._outstanding else 0.0
        return {"sampled_tokens": float(self._sampled_tokens), "busy_seconds": self._busy_seconds + running}

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion from the newest weights."""
        from tinker import types

        room = self._check_prompt(prompt, params)
        sampler = await self._current_sampler()
        end_tokens = sorted(self.tokenizer.end_tokens.union(params.stop_tokens))
        asked = types.SamplingParams(
            max_tokens=min(params.max_tokens, room),
            temperature=params.temperature,
            stop=end_tokens,  # the server does not stop at the end of a turn by itself
            seed=None if params.seed is None else params.seed % _SEEDS,
        )
        request = sampler.sample(types.ModelInput.from_ints(list(prompt)), 1, asked)
        answer = asyncio.ensure_future(asyncio.wrap_future(request))
        self._track(answer)
        # Shielded: a caller that gives up leaves the request on the server, and a step must still wait for it.
        sequence = (await self.server.wait("sampling", asyncio.shield(answer))).sequences[0]
        tokens, logprobs = tuple(sequence.tokens), tuple(sequence.logprobs or ())
        self._sampled_tokens += len(tokens)
        if not tokens or len(logprobs) != len(tokens):
            raise MetaAgentXError(
                f"{self.server} returned {len(tokens)} tokens with {len(logprobs)} log-probabilities: training needs "
                "one for each token"
            )
        return Completion(tokens, logprobs, "stop" if tokens[-1] in end_tokens else "length")

    async def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probabilities of all tokens of each sequence but its first."""
        from tinker import types

        data = [_datum(types, tokens, weights=[1.0] * (len(tokens) - 1)) for tokens in sequences]
        shortest = sorted(sequences, key=len)[0]
        padding = [_datum(types, shortest, weights=[1.0] * (len(shortest) - 1))] * self._padding(len(data))
        output: Any = await self.server.repeat(
            "computing log-probabilities", lambda: self._client.forward([*data, *padding], "cross_entropy")
        )
        rows = [[float(value) for value in row["logprobs"].tolist()] for row in output.loss_fn_outputs[: len(data)]]
        for tokens, row in zip(sequences, rows, strict=True):
            if len(row) != len(tokens) - 1 or not all(map(math.isfinite, row)):
                raise MetaAgentXError(f"{self.server} returned log-probabilities that are missing or not finite")
        return rows

    async def step(
        self, data: Sequence[TokenGradients], learning_rate: float, options: OptimizerConfig
    ) -> float | None:
        """Take an optimizer step with these gradients; return the norm of the gradient where the server tells it."""
        from tinker import types

        parameters = types.AdamParams(
            learning_rate=learning_rate,
            beta1=options.beta1,
            beta2=options.beta2,
            eps=_EPSILON,
            weight_decay=options.weight_decay,
            grad_clip_norm=options.gradient_clip,
        )
        async with self._busy:
            if self._outstanding:
                await self.server.wait("finishing the last samples", asyncio.wait([*self._outstanding]))
            self._sampler = None
            norm = await self._step(data, parameters)
            self.version += 1
        return norm

    async def _step(self, data: Sequence[TokenGradients], parameters: Any) -> float | None:
        from tinker import types

        shortest = min(data, key=lambda datum: len(datum.tokens))
        nothing = TokenGradients(shortest.tokens, shortest.logprobs, [0.0] * len(shortest.gradients))
        padded = [*data, *[nothing] * self._padding(len(data))]
        requests = []
        for datum in padded:
            factor = len(padded) * len(datum.gradients) if self.reduction is Reduction.MEAN else 1
            advantages = [-factor * gradient for gradient in datum.gradients]
            requests.append(_datum(types, datum.tokens, logprobs=datum.logprobs, advantages=advantages))
        # Both at once, so that the server need not wait for this side in between.
        backward = self._client.forward_backward(requests, "importance_sampling")
        stepping = self._client.optim_step(parameters)
        _, answer = await self.server.wait("updating the weights", _both(backward, stepping))
        metrics: Mapping[str, float] = answer.metrics or {}
        return next((float(value) for name, value in metrics.items() if name.endswith("grad_norm")), None)

    async def save(self) -> SavedState:
        """Save on the server what training resumes from, and the weights for sampling; once for the same weights."""
        if self._saved is None or self._saved[0] != self.version:
            async with self._busy:
                state: Any = await self.server.repeat(
                    "saving the state", lambda: self._client.save_state(_new_name(self.version))
                )
                weights: Any = await self.server.repeat(
                    "saving the weights", lambda: self._client.save_weights_for_sampler(_new_name(self.version))
                )
            self._saved = self.version, SavedState(state.path, weights.path)
        return self._saved[1]

    async def load(self, state: str) -> None:
        """Go on from a state on the server, with its optimizer."""
        async with self._busy:
            self._sampler = None
            self.version += 1
            await self.server.repeat("loading the state", lambda: self._client.load_state_with_optimizer(state))

    async def probe_reduction(self) -> Reduction:
        """Find out how the server reduces losses, on a LoRA that was not trained yet, and leave it as it was.

        The gradient of one token, alone, and beside as many sequences again and in a sequence three times as long:
        its norm stays the same where the server takes sums, and is a sixth where it takes means of means.
        """
        from tinker import types

        before = await self.server.wait("saving the state", self._client.save_state(_new_name(0)))
        guess = -math.log(self.shape.vocabulary)
        norms: list[float | None] = []
        for length, batches in ((8, 1), (24, 2)):
            tokens = tuple(index % self.shape.vocabulary for index in range(25))
            one = TokenGradients(tokens[: length + 1], [guess] * length, [0.0] * 3 + [-1.0] + [0.0] * (length - 4))
            rest = TokenGradients(tokens[:9], [guess] * 8, [0.0] * 8)
            data = [one, *[rest] * (batches * self._micro_batch - 1)]
            norms.append(await self._step(data, types.AdamParams(learning_rate=0.0)))
        await self.load(before.path)
        self.version = 0
        if norms[0] is None or norms[1] is None:
            _log.warning(
                "%s reports no norm of the gradient: it is taken to sum losses, as the Tinker API says", self.server
            )
            return Reduction.SUM
        ratio = norms[1] / norms[0] if norms[0] else math.nan
        for reduction, expected in ((Reduction.SUM, 1.0), (Reduction.MEAN, 1 / 6)):
            if abs(ratio / expected - 1) < 0.05:
                return reduction
        raise MetaAgentXError(
            f"{self.server} reduces losses in a way that is not known (ratio {ratio:.4g}, expected 1 for sums or 1/6 "
            "for means): use another version of the server"
        )

    async def _current_sampler(self) -> Any:
        """Return the sampling client of the newest weights, and publish these if nothing was sampled from them yet."""
        async with self._busy:
            if self._sampler is None:
                self._sampler = await self.server.repeat(
                    "publishing the weights", self._client.save_weights_and_get_sampling_client_async
                )
            return self._sampler

    def _track(self, answer: "asyncio.Future[Any]") -> None:
        """Remember a request until the server has answered it, whether or not the caller still waits."""
        if not self._outstanding:
            self._busy_from = time.perf_counter()
        self._outstanding.add(answer)

        def done(answer: "asyncio.Future[Any]") -> None:
            self._outstanding.discard(answer)
            if not self._outstanding:
                self._busy_seconds += time.perf_counter() - self._busy_from
            if not answer.cancelled():
                answer.exception()  # nobody may be waiting for it any more

        answer.add_done_callback(done)

    def _check_prompt(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Return the room for a reply. The server would not answer what is refused here."""
        room = self.shape.context_length - len(prompt)
        if not prompt or min(prompt) < 0 or max(prompt) >= self.shape.vocabulary:
            raise MetaAgentXError(f"invalid prompt: expected one or more tokens from 0 to {self.shape.vocabulary - 1}")
        if room < 1:
            raise MetaAgentXError(
                f"the prompt has {len(prompt)} tokens, and the model's context of {self.shape.context_length} leaves "
                "no room for a reply: shorten the prompt or use a model with a longer context"
            )
        if params.max_tokens < 1 or params.temperature < 0:
            raise MetaAgentXError(
                f"max_tokens must be >= 1 and temperature >= 0, got {params.max_tokens} and {params.temperature}"
            )
        if params.stop:
            raise MetaAgentXError("the tinker backend has no stop strings, only stop tokens: use `stop_tokens`")
        return room

    def _padding(self, count: int) -> int:
        """Return how many sequences complete the last micro-batch: every other count is compiled anew."""
        return -count % self._micro_batch


def _new_name(version: int) -> str:
    """Return a name for what is saved; the server refuses one that it has."""
    return f"{version}-{uuid.uuid4().hex[:12]}"


async def _both(first: Any, second: Any) -> tuple[Any, Any]:
    one, two = await asyncio.gather(first, second)
    return one, two


def _datum(types: Any, tokens: Sequence[int], **inputs: Sequence[float]) -> Any:
    """Return a sequence as the server takes it: each token but the last is an input, each but the first a target."""
    targets = types.TensorData(data=list(tokens[1:]), dtype="int64", shape=[len(tokens) - 1])
    floats = {
        name: types.TensorData(data=list(values), dtype="float32", shape=[len(tokens) - 1])
        for name, values in inputs.items()
    }
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(tokens[:-1])), loss_fn_inputs={"target_tokens": targets, **floats}
    )
