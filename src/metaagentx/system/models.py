"""Open what a run or a model directory holds: policies of a checkpoint, samplers, sandbox and graders.

`train`, `eval`, `coldstart`, the quickstart and `System` share it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ..backends.hub import find_model
from ..backends.model_files import model_directory
from ..config import Config, Recipe, load_recipe
from ..errors import MetaAgentXError
from ..policy import ChatModel, Policy
from ..rewards.graders import Graders
from ..rollout.sampling import RoleSampler
from ..rollout.tree import Resources
from ..runs import Run
from ..sandbox import Sandbox
from ..tools import ToolBox
from ..types import Execution, Role


def build_samplers(config: Config, policies: Mapping[Role, Policy | ChatModel]) -> dict[Role, RoleSampler]:
    """Return a sampler for each role."""
    rollout = config.rollout
    max_tokens = {Role.DESIGNER: rollout.designer_tokens, Role.EXECUTOR: rollout.executor_tokens}
    return {
        role: RoleSampler(
            role, policy, max_tokens[role], rollout.temperatures[role], rollout.attempt_seconds, rollout.retries
        )
        for role, policy in policies.items()
    }


@asynccontextmanager
async def open_resources(
    config: Config,
    policies: Mapping[Role, Policy] | Mapping[Role, ChatModel],
    on_execution: Callable[[Execution], None] = lambda execution: None,
) -> AsyncIterator[Resources]:
    """Open a sandbox, graders and the offered tools for rollouts with these policies."""
    in_flight = config.rollout.in_flight
    async with AsyncExitStack() as stack:
        tools = await stack.enter_async_context(ToolBox.open(config.tools)) if config.tools.offered else None
        sandbox = await stack.enter_async_context(Sandbox(max_runs=in_flight + 64))
        graders = await stack.enter_async_context(Graders())
        samplers = build_samplers(config, policies)
        yield Resources(samplers, sandbox, graders, asyncio.Semaphore(in_flight), on_execution, tools)


def load_run_recipe(run: Run, overrides: Sequence[str] = ()) -> Recipe:
    """Load the recipe in a run directory.

    Relative paths in it are resolved from the run directory, then from where the run was created, then from the working
    directory, which older runs mean.
    """
    here = run.directory
    bases = [here, here.resolve(), *([run.created_in] if run.created_in else []), Path.cwd()]
    return load_recipe(here / "config.toml", overrides, bases)


def checkpoint_step(run: Run, name: str) -> int:
    """Return the step of the checkpoint that `best`, `last` or a number means."""
    steps, best = run.checkpoints, run.best
    if not steps:
        raise MetaAgentXError(f"{run.directory} has no checkpoint yet: train it first")
    if name == "best" and best is not None:
        return best.step
    if name in ("best", "last"):
        return max(steps)
    if not name.isdecimal():
        raise MetaAgentXError(f"unknown checkpoint {name!r}: write best, last, or a step: {', '.join(map(str, steps))}")
    return int(name)


def find_initial_model(config: Config, directory: Path) -> Path:
    """Return the directory of the model that a run started from."""
    return directory / "model" if config.model.made_by_run else find_model(config.model.path) or Path(config.model.path)


async def trained_policies(config: Config, directory: Path, checkpoint: Path) -> Mapping[Role, Policy]:
    """Load the policies of a checkpoint, without optimizer state."""
    from ..backends.local.build import build_policies

    if not config.model.lora_rank:
        shared = config.model.sharing == "shared"
        return policies_at(config, checkpoint / Role.EXECUTOR if shared else checkpoint)
    policies = build_policies(config.model, directory, config.seed).policies
    for role, policy in policies.items():
        await policy.load_weights(checkpoint / role)
    return policies


def policies_at(config: Config, path: Path) -> Mapping[Role, Policy]:
    """Load the model of a directory for both roles, or one model for each role if it has two."""
    from ..backends.local.build import build_policies

    if has_both_roles(path):
        directories = {role: model_directory(path / role) for role in Role}
        if len({*directories.values()}) > 1:
            return {role: policies_at(config, directory)[role] for role, directory in directories.items()}
        path = directories[Role.EXECUTOR]
    changes = {"path": str(path), "gguf_file": None, "sharing": "shared", "lora_rank": 0}
    return build_policies(config.model.model_copy(update=changes), path, config.seed).policies


def has_both_roles(path: Path) -> bool:
    """Return whether a directory has a model for each role."""
    return (path / Role.DESIGNER).is_dir() and (path / Role.EXECUTOR).is_dir()
