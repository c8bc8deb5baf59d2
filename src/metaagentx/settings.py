"""A recipe's sections as the options of the parts they set."""

from .config import Config
from .credit import CreditOptions
from .executor import ExecutionLimits
from .rewards.score import RewardWeights
from .rollout import RolloutOptions
from .stages import Stage
from .tasks import Mixture
from .types import Role


def mixture_of(config: Config) -> Mixture:
    """The training tasks."""
    return Mixture(config.tasks.train, config.seed, config.tasks.held_out, data_dir=config.tasks.data_dir)


def rollout_options(config: Config) -> RolloutOptions:
    """How trees are grown in training."""
    wanted, reward = config.rollout, config.reward
    return RolloutOptions(
        designs=wanted.designs,
        executions=wanted.executions,
        limits=ExecutionLimits(wanted.calls, wanted.tokens, wanted.execution_seconds, wanted.cpu_seconds),
        weights=RewardWeights(
            reward.outcome, reward.solution, reward.delivery, reward.cost_per_call, reward.cost_per_1000_tokens
        ),
        retries=wanted.retries,
        allow_hard_coded=reward.allow_hard_coded,
        allow_fed=reward.allow_fed,
    )


def credit_options(config: Config) -> CreditOptions:
    """Who is compared with whom."""
    return CreditOptions(config.credit.executor_peers, config.credit.baseline, config.credit.divide_by_std)


def stages_of(config: Config) -> list[Stage]:
    """Who learns when."""
    return [
        Stage(
            stage.steps,
            {role: rate for role, rate in _rates(stage.executor, stage.designer) if rate is not None},
            stage.epochs,
        )
        for stage in config.stages
    ]


def _rates(executor: float | None, designer: float | None) -> list[tuple[Role, float | None]]:
    return [(Role.EXECUTOR, executor), (Role.DESIGNER, designer)]
