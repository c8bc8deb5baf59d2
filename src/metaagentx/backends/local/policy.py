"""One role on a model in this process: the five verbs of `policy.Policy`.

Policies on one `LocalModel` share its weights and have an optimizer each; policies on models made by `with_adapter`
share the base and have a LoRA each. Whoever only samples needs no learner, so none is made before it is needed: a model
that cannot be trained here can still be evaluated.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ...errors import MetaAgentXError
from ...policy import PAPER_LOSS, Completion, Datum, LossName, LossOptions, Metrics, SamplingParams
from .chat import ChatTokenizer
from .checkpoint import load_checkpoint, load_weights, save_checkpoint
from .engine import Engine
from .memory import out_of_memory_is
from .model import LocalModel
from .training import Learner, TrainingOptions

T = TypeVar("T")


class LocalPolicy:
    """A role's way to a model: sampling by the engine, learning by a learner of its own."""

    def __init__(
        self, model: LocalModel, role: str, engine: Engine | None = None, options: TrainingOptions | None = None
    ) -> None:
        self.model = model
        self.role = role
        self.engine = engine or Engine(model)
        self._options = options
        self._learner: Learner | None = None

    @property
    def learner(self) -> Learner:
        """What learns in this role, made when it is first asked for. A model that cannot be trained is refused."""
        return self.model.submit(self._get_learner).result()

    def ensure_trainable(self) -> None:
        """Refuse a model that cannot be trained here, before anything else is done with it."""
        self.model.submit(self._get_learner).result()

    def _get_learner(self) -> Learner:
        """The same for those who are in the model's thread."""
        if self._learner is None:
            self._learner = Learner(self.model, self._options)
        return self._learner

    async def _learn(self, doing: str, function: Callable[[Learner], T]) -> T:
        """The function's result, computed in the model's thread with the learner."""
        budget = (self._options or TrainingOptions()).token_budget
        line = (
            f"out of memory while {doing} of the {self.role}: use a LoRA (model.lora_rank) or a smaller model, or "
            f"lower optimizer.token_budget (now {budget}) where gradients take the memory"
        )
        with out_of_memory_is(MetaAgentXError, line):
            return await self.model.run(lambda: function(self._get_learner()))

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
        return await self._learn(
            "computing the gradient", lambda learner: learner.forward_backward(data, loss, options)
        )

    async def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """The log-probability of each token that has a weight; for a policy that serves as the reference."""
        return await self._learn("computing log-probabilities", lambda learner: learner.logprobs(data, temperature))

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Take one step with the gathered gradient and forget it."""
        return await self._learn("taking the optimizer step", lambda learner: learner.optim_step(learning_rate))

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
        return await self._learn("comparing gradients", lambda learner: learner.gradient_cosine(other._get_learner()))

    async def save(self, path: Path) -> None:
        """Write everything that is needed to go on from here."""
        await self._learn("saving the state", lambda learner: save_checkpoint(learner, self.role, path))

    async def load(self, path: Path) -> None:
        """Go on from there."""
        await self._learn("loading the state", lambda learner: load_checkpoint(learner, path))

    async def load_weights(self, path: Path) -> None:
        """Sample from a checkpoint's weights. What only training needs is not looked at."""
        await self.model.run(lambda: load_weights(self.model, path))
