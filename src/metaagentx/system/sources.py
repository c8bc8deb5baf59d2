"""What a question can be put to: a run, an exported system, a model directory, or a model on a server.

Finding a source reads its settings and loads nothing, so that mistakes in the tools show before a model is loaded.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ..backends.model_files import check_model
from ..backends.openai import OpenAIChatModel
from ..config import Config, contradictions, load_config
from ..errors import MetaAgentXError
from ..policy import ChatModel, Policy
from ..runs import Run
from ..types import Role
from .models import checkpoint_step, has_both_roles, load_run_recipe, policies_at, trained_policies
from .saved import FILE, read_system

_NO_RECIPE = ("steps=1", 'model.path="none"', "stages=[{steps=1, executor=1.0}]", 'tasks.train="none"')
"""What a recipe must have and a question does not use."""


@dataclass(frozen=True, slots=True)
class Source:
    """A system that was found and not loaded yet."""

    config: Config
    trained: bool
    """Its Designer has learned the workflow language."""
    load: Callable[[], Awaitable[Mapping[Role, Policy] | Mapping[Role, ChatModel]]]


def local_source(name: str, designer: str | None, overrides: Sequence[str]) -> Source:
    """Find a run, an exported system or a model directory."""
    directory, step = split_step(name)
    if (directory / "run.json").is_file():
        if designer is not None:
            raise MetaAgentXError("a run has its own Designer: leave out the designer, or give a model")
        run = Run.open(directory)
        config = load_run_recipe(run, overrides).config
        checkpoint = run.checkpoint_at(checkpoint_step(run, step))
        return Source(config, True, lambda: trained_policies(config, run.directory, checkpoint))
    if (directory / FILE).is_file():
        saved = read_system(directory)
        config = saved.apply(_settings(overrides))
        paths = {role: directory / saved.roles[role] for role in Role}
        other = Path(designer) if designer else paths[Role.DESIGNER]
        _check_models(paths[Role.EXECUTOR], other)
        return Source(config, True, lambda: _load(config, paths[Role.EXECUTOR], other))
    config = _settings(overrides)
    other = Path(designer or name)
    _check_models(Path(name), other)
    return Source(config, False, lambda: _load(config, Path(name), other))


def served_model(  # noqa: PLR0913, PLR0917  what a server needs to be known
    stack: AsyncExitStack,
    name: str,
    designer: str | None,
    base_url: str,
    key_env: str | None,
    settings: Path | None,
    overrides: Sequence[str],
) -> Source:
    """Return a model on a server, with the settings of an exported system if there are any."""
    config = _settings(overrides) if settings is None else read_system(settings).apply(_settings(overrides))
    seconds = config.rollout.attempt_seconds
    opened = {
        each: OpenAIChatModel.from_options(each, base_url, key_env, None, retry_seconds=seconds / 2)
        for each in dict.fromkeys((designer or name, name))
    }

    async def load() -> Mapping[Role, ChatModel]:
        models: dict[str, ChatModel] = {}
        for each, model in opened.items():
            models[each] = await stack.enter_async_context(model)
            await model.check(seconds)
        return {Role.DESIGNER: models[designer or name], Role.EXECUTOR: models[name]}

    return Source(config, settings is not None, load)


def offer_tools(config: Config, functions: Sequence[str], commands: Sequence[str]) -> Config:
    """Return a recipe that offers these tools besides its own."""
    if not functions and not commands:
        return config
    offered = {
        "functions": list(dict.fromkeys([*config.tools.functions, *functions])),
        "mcp": list(dict.fromkeys([*config.tools.mcp, *commands])),
    }
    changed = config.model_copy(update={"tools": config.tools.model_copy(update=offered)})
    for problem in contradictions(changed):
        raise MetaAgentXError(problem)
    return changed


def split_step(source: str) -> tuple[Path, str]:
    """Return directory and checkpoint of `RUN@STEP`; without a step the best one is meant."""
    directory, at, step = source.rpartition("@")
    return (Path(directory), step) if at and not Path(source).exists() else (Path(source), "best")


def _settings(overrides: Sequence[str]) -> Config:
    return load_config(None, [*_NO_RECIPE, *overrides], require_peers=False)


def _check_models(*paths: Path) -> None:
    for path in paths:
        if not has_both_roles(path):
            check_model(path)


async def _load(config: Config, path: Path, designer: Path) -> Mapping[Role, Policy]:
    policies = policies_at(config, path)
    if designer == path:
        return policies
    return {Role.DESIGNER: policies_at(config, designer)[Role.DESIGNER], Role.EXECUTOR: policies[Role.EXECUTOR]}
