"""Build the evaluation of a model without a run: a directory, a name on the hub, or a model on a server."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ..backends.openai import OpenAIChatModel
from ..config import Config, load_config
from ..errors import MetaAgentXError
from ..evaluation.measure import EvaluationOptions, evaluate
from ..evaluation.methods import SELF, SELF_SHORT, model_methods, model_names
from ..options import PRESET
from ..policy import ChatModel, Policy
from ..rollout.tree import RolloutOptions
from ..runs.work import weights_digest
from ..types import Role
from .assembly import open_resources
from .evaluation_request import (
    EvalRequest,
    EvalResult,
    check_custom_graders,
    choose_methods,
    has_both_roles,
    load_scripts,
    policies_at,
    task_sets,
)
from .preflight import check_model_setting, check_output_directory

_NO_RECIPE = ("steps=1", 'model.path="none"', "stages=[{steps=1, executor=1.0}]", 'tasks.train="none"')
"""What a recipe must have and an evaluation of a model does not use."""


@dataclass(frozen=True, slots=True)
class Server:
    """An OpenAI-compatible server, as the options of the command describe it."""

    base_url: str
    key_env: str | None = None
    """The environment variable that holds the API key."""
    extra_body: str | None = None
    """A JSON object that is added to each request."""
    concurrency: int = 32
    """The most requests at once."""


@dataclass(frozen=True, slots=True)
class ModelRequest(EvalRequest):
    """An evaluation of a model."""

    model: str
    """A directory or a name on the hub; on a server, the name that the server has for it."""
    server: Server | None = None
    recipe: Path | None = None
    """Limits, sampling and the seed come from it. Not set: the defaults."""
    overrides: Sequence[str] = ()


async def evaluate_model(request: ModelRequest) -> EvalResult:
    """Evaluate a model. Nothing is written before the request is checked and the server has replied."""
    if not request.tasks:
        raise MetaAgentXError("a model without a run has no tasks of its own: choose some, such as --tasks gsm8k")
    config = load_config(
        request.recipe, [*(() if request.recipe else _NO_RECIPE), *request.overrides], require_peers=False
    )
    scripts = load_scripts(request.scripts)
    names = model_names(scripts)
    names = choose_methods(request, names, [name for name in names if name != SELF_SHORT], SELF)
    directory = request.out or Path("runs", "eval", _slug(request.model))
    check_output_directory(directory, "choose another directory with --out")
    if request.server is None:
        _check_local(request.model, config)
    sets, _ = task_sets(config, request)
    await check_custom_graders(sets)
    if request.server is not None:
        in_flight = min(config.rollout.in_flight, request.server.concurrency)
        config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"in_flight": in_flight})})
    async with _open_model(request, config) as (policies, digest):
        async with open_resources(config, policies) as resources:
            methods = model_methods(resources.samplers, scripts, digest)
            options = EvaluationOptions(
                samples=request.samples,
                seed=config.seed,
                baseline=SELF if SELF in names else names[0],
                rollout=RolloutOptions(config.rollout, config.reward),
                at_once=config.rollout.in_flight,
                split=request.split or "test",
                model=request.model if request.server is None else f"{request.model} at {request.server.base_url}",
            )
            chosen = [method for method in methods if method.name in names]
            evaluation = await evaluate(chosen, sets, resources, options, directory)
            return EvalResult(evaluation, directory)


@asynccontextmanager
async def _open_model(
    request: ModelRequest, config: Config
) -> AsyncIterator[tuple[Mapping[Role, Policy] | Mapping[Role, ChatModel], str]]:
    """Yield the policies of both roles and what identifies the weights."""
    if request.server is None:
        path = Path(request.model)
        policies = policies_at(config, path, config.model.gguf_file)
        yield policies, weights_digest(path) if path.exists() else request.model
        return
    server, seconds = request.server, config.rollout.attempt_seconds
    async with OpenAIChatModel.from_options(
        request.model,
        server.base_url,
        server.key_env,
        server.extra_body,
        max_concurrency=server.concurrency,
        retry_seconds=seconds / 2,
    ) as model:
        await model.check(seconds)
        yield dict.fromkeys(Role, model), f"{model} {server.extra_body or ''}".rstrip()


def _check_local(model: str, config: Config) -> None:
    """Check the files of a model, or of a model for each role."""
    if model.startswith(PRESET):
        raise MetaAgentXError(f"{model} is a new model, not one to evaluate: create it with `metaagentx model new DIR`")
    path = Path(model)
    for part in [str(path / role) for role in Role] if has_both_roles(path) else [model]:
        check_model_setting(part, config.model.gguf_file)


def _slug(model: str) -> str:
    """Return a directory name for a path or a name."""
    return re.sub("[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
