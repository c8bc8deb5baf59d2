"""The policies of a recipe on this machine: shared weights, a LoRA for each role, or a model for each."""

from dataclasses import dataclass
from pathlib import Path

from . import threads  # noqa: F401  before torch

# isort: split
import torch

from ...config import Config
from ...runs.files import directory_appears
from ...types import Role
from .engine import Engine
from .model import LocalModel, LoraOptions, load_model
from .policy import LocalPolicy
from .presets import new_model
from .training import TrainingOptions

PRESET = "preset:"


@dataclass(frozen=True, slots=True)
class LocalPolicies:
    """What learns, and what a KL term is measured against."""

    policies: dict[Role, LocalPolicy]
    references: dict[Role, LocalPolicy] | None


def use_threads(count: int) -> None:
    """Compute with so many threads; 0 leaves it to torch. A very small model is fastest with one."""
    if count:
        torch.set_num_threads(count)


def build_policies(config: Config, directory: Path, *, learns: bool = False) -> LocalPolicies:
    """Load or make the models. One that is made new is put into the directory, where a resumed run finds it.

    `learns`: the policies are going to be trained, so a model that cannot be is refused now.
    """
    use_threads(config.model.threads)
    torch.manual_seed(config.seed)
    models = _models(config, directory)
    policies = {
        role: LocalPolicy(model, role, _engine(model, config), _options(config)) for role, model in models.items()
    }
    if models[Role.DESIGNER] is models[Role.EXECUTOR]:  # one engine, so that both roles share batches and prefixes
        policies[Role.DESIGNER].engine = policies[Role.EXECUTOR].engine
    if learns:
        for policy in policies.values():
            policy.ensure_trainable()
    if not config.loss.kl:
        return LocalPolicies(policies, None)
    reference = LocalPolicy(_load(config, directory), "reference")
    return LocalPolicies(policies, dict.fromkeys(Role, reference))


def _models(config: Config, directory: Path) -> dict[Role, LocalModel]:
    wanted = config.model
    lora = LoraOptions(wanted.lora_rank, 2 * wanted.lora_rank) if wanted.lora_rank else None
    if wanted.sharing == "lora" and lora is not None:
        base = _load(config, directory)
        return {role: base.with_adapter(str(role), lora) for role in Role}
    if wanted.sharing == "separate":
        return {role: _load(config, directory, lora) for role in Role}
    return dict.fromkeys(Role, _load(config, directory, lora))


def _load(config: Config, directory: Path, lora: LoraOptions | None = None) -> LocalModel:
    path = Path(config.model.path)
    if config.model.path.startswith(PRESET):
        path = directory / "model"
        if not path.exists():
            with directory_appears(path) as unfinished:
                new_model(unfinished, config.model.path.removeprefix(PRESET), config.seed)
    return load_model(path, device=config.model.device, gguf_file=config.model.gguf_file, lora=lora)


def _engine(model: LocalModel, config: Config) -> Engine:
    wanted = config.model
    return Engine(
        model,
        max_batch=wanted.max_batch,
        kv_budget_tokens=wanted.kv_budget_tokens,
        compiled=wanted.compiled,
        deterministic=wanted.deterministic,
    )


def _options(config: Config) -> TrainingOptions:
    wanted = config.optimizer
    return TrainingOptions(
        wanted.token_budget, wanted.gradient_clip, (wanted.beta1, wanted.beta2), weight_decay=wanted.weight_decay
    )
