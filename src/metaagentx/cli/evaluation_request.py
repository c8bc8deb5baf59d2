"""Build an evaluation: of a run with its initial model (before RL), or of a model without a run."""

import difflib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..backends.model_files import check_model
from ..backends.openai import OpenAIChatModel
from ..config import Config, load_config
from ..errors import MetaAgentXError
from ..evaluation import held_out
from ..evaluation.designs import FIXED_DESIGNS
from ..evaluation.measure import EvaluationOptions, evaluate
from ..evaluation.methods import (
    OLD_NAMES,
    SELF,
    SELF_SHORT,
    TRAINED,
    VOTES,
    model_methods,
    model_names,
    standard_methods,
    standard_names,
)
from ..evaluation.names import short_names
from ..evaluation.result import Evaluation
from ..evaluation.sampling import evaluation_samplers
from ..options import PRESET
from ..policy import ChatModel, Metrics, Policy
from ..rewards.probe import check_graders
from ..rollout.tree import RolloutOptions
from ..runs import Run, evaluation_directory
from ..runs.work import weights_digest
from ..system.models import (
    build_samplers,
    checkpoint_step,
    find_initial_model,
    has_both_roles,
    load_run_recipe,
    open_resources,
    policies_at,
    trained_policies,
)
from ..tasks import TaskSet, load
from ..tasks.mixture import parse_mixture
from ..tasks.paper import paper_sources
from ..types import CustomGrader, Role, Task
from ..workflow.validate import validate
from .preflight import check_checkpoint, check_model_setting, check_output_directory

PAPER = "paper"
"""The name for the six benchmarks of the paper."""
HELD_OUT = "held-out"
"""The name of the split where the tasks are the held-out tasks of the training run."""

_NO_RECIPE = ("steps=1", 'model.path="none"', "stages=[{steps=1, executor=1.0}]", 'tasks.train="none"')
"""What a recipe must have and an evaluation of a model does not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """The options that evaluations of a run and of a model share."""

    tasks: tuple[str, ...] = ()
    """Sources, or `paper`; by default the run's held-out tasks, or with a split that of its training sources."""
    public_tests: bool = False
    """Grade programs of the paper's benchmarks by their public tests alone, as published."""
    split: str = ""
    limit: int = 0
    samples: int = 1
    methods: tuple[str, ...] = ()
    designs: Mapping[str, str] = field(default_factory=lambda: FIXED_DESIGNS)
    """The fixed designs, by name."""
    scripts: tuple[Path, ...] = ()
    """Files with further fixed designs, measured in addition to the chosen methods."""
    out: Path | None = None
    temperature: float | None = None
    """Sampling temperature of both roles; by default the recipe's own for evaluation."""

    @property
    def temperatures(self) -> list[str]:
        """The settings of a recipe that the temperature stands for."""
        keys = () if self.temperature is None else ("temperature", "designer_temperature", "executor_temperature")
        return [f"evaluation.{key}={self.temperature}" for key in keys]


@dataclass(frozen=True, slots=True)
class RunRequest(EvalRequest):
    """An evaluation of a run."""

    run: Path
    initial_model: Path | None = None
    """The model before RL; by default the one that the run started from, if it still exists."""
    checkpoint: str = "best"


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


@dataclass(frozen=True, slots=True)
class EvalResult:
    """An evaluation and where it is."""

    evaluation: Evaluation
    directory: Path
    missing: Path | None = None
    """The initial model, if methods were left out because it does not exist."""
    usage: Metrics | None = None
    """Requests and tokens, as the server counts them, of this command."""


async def evaluate_run(request: RunRequest) -> EvalResult:
    """Evaluate a run. As far as possible, mistakes in the request are found before a model is loaded."""
    paper = paper_tests(request)
    run = Run.open(request.run)
    config = load_run_recipe(run, request.temperatures).config
    step = checkpoint_step(run, request.checkpoint)
    checkpoint = run.checkpoint_at(step)
    start = find_initial_model(config, run.directory)
    old = request.initial_model or start
    scripts = _load_scripts(request, config.rollout.lenient)
    names = _method_names(request, [*scripts], old.exists())
    needs_old = not OLD_NAMES.isdisjoint(names)
    directory = request.out or evaluation_directory(run.directory, step)
    check_output_directory(directory, "choose another directory with --out")
    check_checkpoint(config, checkpoint)
    if config.model.lora_rank:
        check_model(start)
    if needs_old and not has_both_roles(old):
        check_model(old)
    sets, positions = task_sets(config, request)
    await _check_custom_graders(sets)
    new_policies = await trained_policies(config, run.directory, checkpoint)
    old_policies = policies_at(config, old) if needs_old else None
    async with open_resources(config, new_policies) as resources:
        new_samplers = evaluation_samplers(resources.samplers, config.evaluation)
        old_samplers = build_samplers(config, old_policies) if old_policies else None
        old_samplers = old_samplers and evaluation_samplers(old_samplers, config.evaluation)
        weights = (weights_digest(checkpoint), weights_digest(old))
        methods = standard_methods(new_samplers, old_samplers, scripts, weights)
        options = EvaluationOptions(
            samples=request.samples,
            seed=config.seed,
            baseline=TRAINED if TRAINED in names else names[0],
            rollout=RolloutOptions.of(config),
            at_once=config.rollout.in_flight,
            checkpoint=step,
            split=HELD_OUT if positions else request.split or "test",
            paper=paper,
            held_out=positions,
        )
        chosen = [method for method in methods if method.name in names]
        evaluation = await evaluate(chosen, sets, resources, options, directory)
    return EvalResult(evaluation, directory, None if request.methods or old.exists() else old)


async def evaluate_model(request: ModelRequest) -> EvalResult:
    """Evaluate a model. Nothing is written before the request is checked and the server has replied."""
    paper = paper_tests(request)
    if not request.tasks:
        raise MetaAgentXError("a model without a run has no tasks of its own: choose some, such as --tasks gsm8k")
    settings = [*(() if request.recipe else _NO_RECIPE), *request.overrides, *request.temperatures]
    config = load_config(request.recipe, settings, require_peers=False)
    scripts = _load_scripts(request, config.rollout.lenient)
    names = model_names(scripts)
    names = _choose_methods(request, names, [name for name in names if name != SELF_SHORT], SELF)
    directory = request.out or Path("runs", "eval", _slug(request.model))
    check_output_directory(directory, "choose another directory with --out")
    if request.server is None:
        _check_local(request.model, config)
    sets, _ = task_sets(config, request)
    await _check_custom_graders(sets)
    if request.server is not None:
        in_flight = min(config.rollout.in_flight, request.server.concurrency)
        config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"in_flight": in_flight})})
    async with _open_model(request, config, directory) as (policies, digest):
        async with open_resources(config, policies) as resources:
            methods = model_methods(evaluation_samplers(resources.samplers, config.evaluation), scripts, digest)
            options = EvaluationOptions(
                samples=request.samples,
                seed=config.seed,
                baseline=SELF if SELF in names else names[0],
                rollout=RolloutOptions.of(config),
                at_once=config.rollout.in_flight,
                split=request.split or "test",
                paper=paper,
                model=request.model if request.server is None else f"{request.model} at {request.server.base_url}",
            )
            chosen = [method for method in methods if method.name in names]
            evaluation = await evaluate(chosen, sets, resources, options, directory)
        model = policies[Role.EXECUTOR]
        return EvalResult(evaluation, directory, usage=model.stats() if isinstance(model, OpenAIChatModel) else None)


@asynccontextmanager
async def _open_model(
    request: ModelRequest, config: Config, directory: Path
) -> AsyncIterator[tuple[Mapping[Role, Policy] | Mapping[Role, ChatModel], str]]:
    """Yield the policies of both roles and what identifies the weights. A GGUF file is converted in the directory."""
    if request.server is None:
        from ..backends.local.build import start_model

        path = start_model(config.model.model_copy(update={"path": request.model}), directory, config.seed)
        yield policies_at(config, path), weights_digest(path)
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


def task_sets(
    config: Config, request: EvalRequest
) -> tuple[dict[str, Sequence[Task]], dict[str, Sequence[int]] | None]:
    """Return the requested tasks by a short name of their source, and the positions of held-out tasks."""
    sets: dict[str, Sequence[Task]] = {}
    if not request.tasks and not request.split:
        tasks = config.load_tasks().held_out
        if not tasks:
            raise MetaAgentXError("the run has no held-out tasks: choose tasks, for example --tasks gsm8k")
        numbered = list(zip(tasks, held_out.seed_positions(len(tasks), config.evaluation.tasks), strict=True))
        positions: dict[str, Sequence[int]] = {}
        for source, name in short_names(dict.fromkeys(task.source for task in tasks), keep_kind=True).items():
            part = [(task, position) for task, position in numbered if task.source == source]
            sets[name], positions[name] = zip(*part[: request.limit or None], strict=True)
        return sets, positions
    sources = request.tasks or tuple(str(part) for part, _ in parse_mixture(config.tasks.train))
    sources = tuple(
        name for given in sources for name in (paper_sources(request.public_tests) if given == PAPER else (given,))
    )
    for source in sources:
        loaded = load(source, request.split or "test", config.tasks.data_dir, sources)
        # A file is known by its name alone, as its tasks are: results stay valid when directories are moved.
        _, mark, query = source.partition("?")
        name = f"{loaded.name}{mark}{query}" if source.startswith("jsonl:") else source
        sets[name] = _choose_tasks(loaded, source, request.limit)
    return {short: sets[name] for name, short in short_names(sets, keep_kind=True).items()}, None


def paper_tests(request: EvalRequest) -> Literal["all tests", "public tests"] | None:
    """Return by which tests programs are graded, if the tasks are the paper's benchmarks and no others."""
    if request.public_tests and PAPER not in request.tasks:
        raise MetaAgentXError("--public-tests is for the paper's benchmarks: add --tasks paper, or remove it")
    if request.tasks != (PAPER,) or request.split not in ("", "test"):
        return None
    return "public tests" if request.public_tests else "all tests"


async def _check_custom_graders(sets: Mapping[str, Sequence[Task]]) -> None:
    """Check that the graders of the user's own tasks can be used."""
    tasks = (task for part in sets.values() for task in part)
    await check_graders(task.grading for task in tasks if isinstance(task.grading, CustomGrader))


def _choose_tasks(tasks: TaskSet, source: str, limit: int) -> list[Task]:
    if tasks.endless:
        if not limit:
            raise MetaAgentXError(f"{source} is endless: say how many of its tasks to use, such as --limit 100")
        return list(tasks.first(limit))
    # Shuffled: files are often sorted, for example by difficulty.
    return [tasks.drawn(0, number) for number in range(min(limit or len(tasks), len(tasks)))]


def _method_names(request: RunRequest, scripts: Sequence[str], has_old: bool) -> list[str]:
    """Return the names of the requested methods, in their usual order."""
    if request.initial_model is not None and not has_old:
        raise MetaAgentXError(f"no model at {request.initial_model}: give --initial-model the directory of a model")
    chosen = _choose_methods(request, standard_names(True, scripts), standard_names(has_old, scripts), TRAINED)
    for name in chosen:
        if name in OLD_NAMES and not has_old:
            raise MetaAgentXError(f"{name} needs the initial model: name its directory with --initial-model")
    return chosen


def _choose_methods(request: EvalRequest, names: Sequence[str], default: Sequence[str], budget_of: str) -> list[str]:
    """Return those of `names` that are requested, in their order; self-consistency has the budget of `budget_of`."""
    known = {_normalize(name): name for name in names}
    requested = [_normalize(name) for name in request.methods or default]
    requested += [_normalize(f"fixed: {path.stem}") for path in request.scripts]
    for name in requested:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise MetaAgentXError(f"unknown method {name!r}; did you mean {known[near[0]]!r}?")
    chosen = [name for key, name in known.items() if key in requested]
    if VOTES in chosen and budget_of not in chosen:
        raise MetaAgentXError(f"{VOTES} has the budget of {budget_of}: measure that as well")
    return chosen


def _normalize(name: str) -> str:
    """Return a name without dashes: on the command line names may have them."""
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _load_scripts(request: EvalRequest, lenient: bool) -> dict[str, str]:
    """Return all fixed designs by name: the request's, and those of files. Each has its own name and can run."""
    scripts = dict(request.designs)
    for path in request.scripts:
        for name in scripts:
            if _normalize(name) == _normalize(path.stem):
                raise MetaAgentXError(f"{path}: there is already a design {name!r}: rename the file")
        try:
            script = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MetaAgentXError(f"{path} cannot be read as a script: {error}") from None
        for problem in validate(script, lenient):
            raise MetaAgentXError(f"the script {path} cannot run: {problem}")
        scripts[path.stem] = script
    return scripts
