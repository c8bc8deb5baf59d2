"""One role on a model in this process: the five verbs of `policy.Policy`.

Policies on one `LocalModel` share its weights and have an optimizer each; policies on models made by `with_adapter`
share the base and have a LoRA each.
"""

from collections.abc import Sequence
from pathlib import Path

from ...policy import PAPER_LOSS, Completion, Datum, LossName, LossOptions, Metrics, SamplingParams
from .chat import ChatTokenizer
from .checkpoint import load_checkpoint, save_checkpoint
from .engine import Engine
from .model import LocalModel
from .training import Learner, TrainingOptions


class LocalPolicy:
    """A role's way to a model: sampling by the engine, learning by a learner of its own."""

    def __init__(
        self, model: LocalModel, role: str, engine: Engine | None = None, options: TrainingOptions | None = None
    ) -> None:
        self.model = model
        self.role = role
        self.engine = engine or Engine(model)
        self.learner = model.submit(lambda: Learner(model, options)).result()

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's own."""
        return self.model.tokenizer

    @property
    def context_length(self) -> int:
        """How many tokens prompt and completion may have together."""
        return self.model.context_length

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Draw one completion; concurrent calls are computed together."""
        return await self.engine.sample(prompt, params)

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossOptions = PAPER_LOSS
    ) -> Metrics:
        """Add the gradient of the loss on these data to what has been gathered."""
        return await self.model.run(lambda: self.learner.forward_backward(data, loss, options))

    async def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """The log-probability of each token that has a weight; for a policy that serves as the reference."""
        return await self.model.run(lambda: self.learner.logprobs(data, temperature))

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Take one step with the gathered gradient and forget it."""
        return await self.model.run(lambda: self.learner.optim_step(learning_rate))

    def work(self) -> Metrics:
        """What its sampler has done; roles on one model have one sampler."""
        return self.engine.work()

    def shares_weights(self, other: object) -> bool:
        """Whether the other role is on the same model."""
        return isinstance(other, LocalPolicy) and other.model is self.model

    async def gradient_cosine(self, other: object) -> float | None:
        """How far the other role's gathered gradient points the same way, where both are on the same weights."""
        if not isinstance(other, LocalPolicy) or not self.shares_weights(other):
            return None
        learner = other.learner
        return await self.model.run(lambda: self.learner.gradient_cosine(learner))

    async def save(self, path: Path) -> None:
        """Write everything that is needed to go on from here."""
        await self.model.run(lambda: save_checkpoint(self.learner, self.role, path))

    async def load(self, path: Path) -> None:
        """Go on from there."""
        await self.model.run(lambda: load_checkpoint(self.learner, path))
