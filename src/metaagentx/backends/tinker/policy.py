"""One role on a server's LoRA, as a `policy.Policy`.

The losses are the local backend's: the server gives the log-probabilities of the data, the loss and its gradient by
each of them are computed here, and the server's loss `importance_sampling` gets these gradients as advantages. There
its ratio is 1, so its gradient is ours.

The gradient is sent with the optimizer step. Two roles on one LoRA so never mix theirs; where both learn in one step,
the second one's is computed again from the weights that the first one has changed.
"""

import json
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...atomic import atomic_directory, follow_umask
from ...errors import MetaAgentXError
from ...options import LossConfig, OptimizerConfig
from ...policy import DEFAULT_LOSS, BackendError, Completion, Datum, LossName, Metrics, SamplingParams
from ..chat import ChatTokenizer
from ..checks import check_data
from ..losses import compute_loss, loss_metrics, normalization_of, terms_of
from ..model_files import SHARED
from .lora import SavedState, ServerLora, TokenGradients

_FORMAT = 1
BACKEND = "tinker"


@dataclass(frozen=True, slots=True)
class _Gradient:
    """The gradient of a call of `forward_backward`, and what it was computed from."""

    data: Sequence[Datum]
    loss: LossName
    options: LossConfig
    version: int
    parts: list[TokenGradients]
    metrics: dict[str, float]


class TinkerPolicy:
    """A role on a LoRA. Both roles may be on the same one."""

    def __init__(self, lora: ServerLora, role: str, base_model: str, options: OptimizerConfig | None = None) -> None:
        self.lora = lora
        self.role = role
        self.base_model = base_model
        self._options = options or OptimizerConfig()
        self._gradients: list[_Gradient] = []
        self._steps = 0

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        return self.lora.tokenizer

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and completion may have together."""
        return self.lora.shape.context_length

    def stats(self) -> Metrics:
        """Return totals of the LoRA."""
        return self.lora.stats()

    async def sample(self, prompt: Sequence[int], params: SamplingParams) -> Completion:
        """Sample one completion."""
        return await self.lora.sample(prompt, params)

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossName, options: LossConfig = DEFAULT_LOSS, temperature: float = 1.0
    ) -> Metrics:
        """Compute the gradient of the loss on these data; the next `optim_step` sends it."""
        check_temperature(temperature)
        check_data(data, loss, options, self.context_length, self.lora.shape.vocabulary)
        gradient = await self._gradient(data, loss, options)
        if gradient.parts:
            self._gradients.append(gradient)
        return gradient.metrics

    async def logprobs(self, data: Sequence[Datum], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probability of each token that has a weight; for a policy that serves as the reference."""
        check_temperature(temperature)
        check_data(data, "cross_entropy", DEFAULT_LOSS, self.context_length, self.lora.shape.vocabulary)
        trained = [datum for datum in data if any(datum.weights)]
        rows = iter(await self.lora.logprobs([datum.tokens for datum in trained]) if trained else [])
        return [
            [value if weight else 0.0 for value, weight in zip((0.0, *next(rows)), datum.weights, strict=True)]
            if any(datum.weights)
            else [0.0] * len(datum.tokens)
            for datum in data
        ]

    async def optim_step(self, learning_rate: float) -> Metrics:
        """Take one optimizer step with the accumulated gradient and clear it. Without a gradient nothing changes."""
        gradients, self._gradients = self._gradients, []
        if not gradients:
            return {"grad_norm": 0.0, "learning_rate": learning_rate}
        for index, gradient in enumerate(gradients):
            if gradient.version != self.lora.version:
                gradients[index] = await self._gradient(gradient.data, gradient.loss, gradient.options)
        parts = [part for gradient in gradients for part in gradient.parts]
        norm = await self.lora.step(parts, learning_rate, self._options)
        self._steps += 1
        return {"learning_rate": learning_rate} | ({} if norm is None else {"grad_norm": norm})

    async def _gradient(self, data: Sequence[Datum], loss: LossName, options: LossConfig) -> _Gradient:
        version, normalization = self.lora.version, normalization_of(data, options)
        trained = {index: data[index] for index in normalization.per_datum}
        sums = {"loss": 0.0, "packed_tokens": float(sum(len(datum.tokens) for datum in trained.values()))}
        parts: list[TokenGradients] = []
        if trained:
            rows = await self.lora.logprobs([datum.tokens for datum in trained.values()])
            pairs = list(zip(trained.values(), rows, strict=True))
            chosen = [v for datum, row in pairs for v, weight in zip(row, datum.weights[1:], strict=True) if weight]
            logprobs_K = torch.tensor(chosen, requires_grad=True)
            terms = terms_of(trained, normalization, logprobs_K.device, logprobs_K.dtype)
            value, metrics = compute_loss(loss, options, logprobs_K, terms)
            values = iter(torch.autograd.grad(value, logprobs_K)[0].tolist())
            for datum, row in pairs:
                gradients = [next(values) if weight else 0.0 for weight in datum.weights[1:]]
                parts.append(TokenGradients(datum.tokens, row, gradients))
            sums |= {name: float(number) for name, number in (metrics | {"loss": value.detach()}).items()}
        metrics_of_call = loss_metrics(sums, len(trained), normalization.tokens)
        return _Gradient(data, loss, options, version, parts, metrics_of_call)

    async def save(self, path: Path) -> None:
        """Write a checkpoint: the LoRA in peft's format, and where the server has the state to resume from.

        Of roles on one LoRA that are saved side by side, the first has the weights, as in the local backend.
        """
        saved = await self.lora.save()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(path) as directory:
            beside = next((other.name for other in _beside(path) if _state_of(other) == saved.state), None)
            if beside is None:
                await self._download(saved, directory)
            else:
                (directory / SHARED).write_text(json.dumps({"weights": beside}) + "\n")
            (directory / "training").mkdir()
            state = {
                "format": _FORMAT,
                "backend": BACKEND,
                "role": self.role,
                "steps": self._steps,
                "state": saved.state,
                "url": self.lora.server.url,
                "base_model": self.base_model,
            }
            (directory / "training" / "state.json").write_text(json.dumps(state, indent=2) + "\n")
            follow_umask(directory)

    async def _download(self, saved: SavedState, directory: Path) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            archive = Path(temporary) / "lora.tar"
            await self.lora.server.download(saved.weights, archive)
            try:
                with tarfile.open(archive) as opened:
                    opened.extractall(directory, filter="data")
            except (tarfile.TarError, EOFError) as error:
                raise BackendError(f"{self.lora.server} sent a damaged archive of the LoRA: {error}") from error
        complete_adapter(directory, self.base_model)
        self.tokenizer.hf.save_pretrained(directory)

    async def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        try:
            state: dict[str, Any] = json.loads((path / "training" / "state.json").read_text())
            backend = state.get("backend", "local")
            if backend == BACKEND:
                where, steps, url = str(state["state"]), int(state["steps"]), str(state["url"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetaAgentXError(f"{path} is missing or damaged ({error!r}): use an earlier checkpoint") from error
        if backend != BACKEND:
            raise MetaAgentXError(f"{path} was written by the {backend} backend: set model.backend to {backend!r}")
        self._gradients = []
        try:
            await self.lora.load(where)
        except (MetaAgentXError, BackendError) as error:
            if "stopped answering" in str(error) or "did not finish" in str(error):
                raise
            raise MetaAgentXError(
                f"{self.lora.server} does not have the state {where} of {path}, which {url} saved: start it with the "
                f"--checkpoints-base and --database-url of that time ({error})"
            ) from error
        self._steps = steps


def check_temperature(temperature: float) -> None:
    """Raise for a temperature that a server's losses do not have."""
    if temperature != 1:
        raise MetaAgentXError(f"the tinker backend trains at temperature 1 only, got {temperature:g}")


def complete_adapter(directory: Path, base_model: str) -> None:
    """Complete the config of a LoRA, in which servers leave out which layers it changes: peft and vLLM need that."""
    from safetensors import safe_open

    file = directory / "adapter_config.json"
    config = json.loads(file.read_text())
    with safe_open(directory / "adapter_model.safetensors", framework="pt") as weights:
        layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in weights.keys()}  # noqa: SIM118
    config |= {"target_modules": sorted(layers), "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _beside(path: Path) -> list[Path]:
    return [other for other in path.parent.iterdir() if other != path and (other / "adapter_config.json").is_file()]


def _state_of(path: Path) -> str | None:
    """Return the state on the server that a checkpoint belongs to, if it is one of this backend."""
    try:
        state = json.loads((path / "training" / "state.json").read_text()).get("state")
        return state if isinstance(state, str) else None
    except (OSError, ValueError, AttributeError):
        return None
