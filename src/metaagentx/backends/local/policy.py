"""One role on a model in this process, as a `policy.Policy`.

Policies on one `LocalModel` share its weights and have an optimizer each; policies on models made by `with_adapter`
share the base and have a LoRA each. The learner is created when it is first needed, so a model that cannot be trained
here can still be sampled and evaluated.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ...errors import MetaAgentXError
from ...options import LossConfig, OptimizerConfig
from ...policy import DEFAULT_LOSS, Completion, Datum, LossName, Metrics, SamplingParams
from ..chat import ChatTokenizer
from .checkpoint import load_checkpoint, load_weights, save_checkpoint
from .engine import Engine
from .memory import translate_out_of_memory
from .model import LocalModel
from .training import Learner

T = TypeVar("T")


class LocalPolicy:
    """A role on a model: the engine samples, and the role's own learner trains."""

    def __init__(
        self,
        model: LocalModel,
        role: str,
        engine: Engine | None = None,
        options: OptimizerConfig | None = None,
        *,
        samples: bool = True,
    ) -> None:
        """Use this engine, or a new one; with `samples=False` none is built before the first sample."""
        self.model = model
        self.role = role
        self._engine = Engine(model) if engine is None and samples else engine
        self._options = options
        self._learner: Learner | None = None

    @property
    def engine(self) -> Engine:
        """The engine that samples."""
        if self._engine is None:
            self._engine = Engine(self.model)
        return self._engine

    def ensure_trainable(self) -> None:
        """Raise for a model that cannot be trained here, before anything else is done with it."""
        self.model.submit(self._get_learner).result()

    def _get_learner(self) -> Learner:
        """Return the learner of this role, created on first use. Call this in the model's thread."""
        if self._learner is None:
            self._learner = Learner(self.model, self._options)
        return self._learner

    async def _with_learner(self, activity: str, function: Callable[[Learner], T]) -> T:
        """Return the function's result, computed in the model's thread with the learner."""
        budget = (self._options or OptimizerConfig()).token_budget
        message = (
            f"out of memory while {activity} of the {self.role}: use a LoRA (model.lora_rank) or a smaller model, or "
            f"lower optimizer.token_budget (now {budget}) where gradients take the memory"
        )
        with translate_out_of_memory(MetaAgentXError, message):
            return await self.model.run(lambda: function(self._get_learner()))

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def template_arguments(self) -> Mapping[str, object]:
        """The arguments of the chat template, `model.chat_template` in a recipe."""
        return self.tokenizer.template_arguments

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and completion may have together."""
        return self.model.context_length

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion; concurrent calls are batched."""
        return await self.engine.sample(prompt, params)

    async def sample_within(self, seconds: float, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion; raise `TimeoutError` if it takes longer once it is admitted to a batch."""
        return await self.engine.sample(prompt, params, seconds)

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Metrics:
        """Add the gradient of the loss on these data to the accumulated gradient."""
        return await self._with_learner(
            "computing the gradient", lambda learner: learner.forward_backward(data, loss, options, temperature)
        )

    async def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probability of each token that has a weight; for a policy that serves as the reference."""
        return await self._with_learner(
            "computing log-probabilities", lambda learner: learner.logprobs(data, temperature)
        )

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Take one optimizer step with the accumulated gradient and clear it."""
        return await self._with_learner("taking the optimizer step", lambda learner: learner.optim_step(learning_rate))

    def stats(self) -> Metrics:
        """Return the engine's totals; roles on one model share an engine."""
        return self.engine.stats()

    async def gradient_cosine(self, other: object) -> float | None:
        """Return the cosine with the other role's accumulated gradient, where both are on the same weights."""
        if not isinstance(other, LocalPolicy) or other.model is not self.model:
            return None
        return await self._with_learner(
            "comparing gradients", lambda learner: learner.gradient_cosine(other._get_learner())
        )

    async def save(self, path: Path) -> None:
        """Write a checkpoint from which training can resume."""
        await self._with_learner("saving the state", lambda learner: save_checkpoint(learner, self.role, path))

    async def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        await self._with_learner("loading the state", lambda learner: load_checkpoint(learner, path))

    async def load_weights(self, path: Path) -> None:
        """Load the weights of a checkpoint for sampling, without its training state."""
        await self.model.run(lambda: load_weights(self.model, path))
