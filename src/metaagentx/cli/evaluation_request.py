"""Build the evaluation of a run: its checkpoint, its initial model (before RL), the methods and the tasks."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..backends.hub import find_model
from ..backends.model_files import check_model
from ..config import Config
from ..errors import MetaAgentXError
from ..evaluation import held_out
from ..evaluation.designs import FIXED_DESIGNS
from ..evaluation.measure import EvaluationOptions, evaluate
from ..evaluation.methods import OLD_NAMES, TRAINED, VOTES, standard_methods, standard_names
from ..evaluation.names import short_names
from ..evaluation.result import Evaluation
from ..policy import Policy
from ..rewards.probe import check_graders
from ..rollout.tree import RolloutOptions
from ..runs import Run, evaluation_directory
from ..runs.work import weights_digest
from ..tasks import TaskSet, load
from ..tasks.mixture import parse_mixture
from ..types import CustomGrader, Role, Task
from ..workflow.validate import validate
from .assembly import build_samplers, load_run_recipe, open_resources
from .preflight import check_checkpoint, check_output_directory

PAPER = ("livecodebench", "apps", "codecontests", "aime24", "aime25", "olympiadbench")
"""The paper's benchmarks."""
HELD_OUT = "held-out"
"""The name of the split where the tasks are the held-out tasks of the training run."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """The options of the command."""

    run: Path
    initial_model: Path | None = None
    """The model before RL; by default the one that the run started from, if it still exists."""
    tasks: tuple[str, ...] = ()
    """Sources, or `paper`; by default the run's held-out tasks, or with a split that of its training sources."""
    split: str = ""
    limit: int = 0
    samples: int = 1
    methods: tuple[str, ...] = ()
    scripts: tuple[Path, ...] = ()
    """Files with further fixed designs, measured in addition to the chosen methods."""
    out: Path | None = None
    checkpoint: str = "best"


@dataclass(frozen=True, slots=True)
class EvalResult:
    """An evaluation and where it is."""

    evaluation: Evaluation
    directory: Path
    missing: Path | None = None
    """The initial model, if methods were left out because it does not exist."""


async def evaluate_run(request: EvalRequest) -> EvalResult:
    """Evaluate a run. As far as possible, mistakes in the request are found before a model is loaded."""
    run = Run.open(request.run)
    config = load_run_recipe(run).config
    step = _checkpoint_step(run, request.checkpoint)
    checkpoint = run.checkpoint_at(step)
    start = _start_model(config, run.directory)
    old = request.initial_model or start
    scripts = _load_scripts(request.scripts)
    names = _method_names(request, [*scripts], old.exists())
    needs_old = not OLD_NAMES.isdisjoint(names)
    directory = request.out or evaluation_directory(run.directory, step)
    check_output_directory(directory, "choose another directory with --out")
    check_checkpoint(config, checkpoint)
    if config.model.lora_rank:
        check_model(start)
    if needs_old and not _has_both_roles(old):
        check_model(old)
    sets, positions = task_sets(config, request)
    await check_graders(
        task.grading for tasks in sets.values() for task in tasks if isinstance(task.grading, CustomGrader)
    )
    new_policies = await trained_policies(config, run.directory, checkpoint)
    old_policies = _policies_at(config, old) if needs_old else None
    async with open_resources(config, new_policies) as resources:
        old_samplers = None if old_policies is None else build_samplers(config, old_policies)
        weights = (weights_digest(checkpoint), weights_digest(old))
        methods = standard_methods(resources.samplers, old_samplers, scripts, weights)
        options = EvaluationOptions(
            samples=request.samples,
            seed=config.seed,
            baseline=TRAINED if TRAINED in names else names[0],
            rollout=RolloutOptions(config.rollout, config.reward),
            at_once=config.rollout.in_flight,
            checkpoint=step,
            split=HELD_OUT if positions else request.split or "test",
            held_out=positions,
        )
        chosen = [method for method in methods if method.name in names]
        evaluation = await evaluate(chosen, sets, resources, options, directory)
    return EvalResult(evaluation, directory, None if request.methods or old.exists() else old)


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
    sources = tuple(name for given in sources for name in (PAPER if given == "paper" else (given,)))
    for source in sources:
        loaded = load(source, request.split or "test", config.tasks.data_dir, sources)
        # A file is known by its name alone, as its tasks are: results stay valid when directories are moved.
        _, mark, query = source.partition("?")
        name = f"{loaded.name}{mark}{query}" if source.startswith("jsonl:") else source
        sets[name] = _choose_tasks(loaded, source, request.limit)
    return {short: sets[name] for name, short in short_names(sets, keep_kind=True).items()}, None


def _choose_tasks(tasks: TaskSet, source: str, limit: int) -> list[Task]:
    if tasks.endless:
        if not limit:
            raise MetaAgentXError(f"{source} is endless: say how many of its tasks to use, such as --limit 100")
        return list(tasks.first(limit))
    # Shuffled: files are often sorted, for example by difficulty.
    return [tasks.drawn(0, number) for number in range(min(limit or len(tasks), len(tasks)))]


async def trained_policies(config: Config, directory: Path, checkpoint: Path) -> Mapping[Role, Policy]:
    """Load the policies of a checkpoint, without optimizer state."""
    from ..backends.local.build import build_policies

    if not config.model.lora_rank:
        shared = config.model.sharing == "shared"
        return _policies_at(config, checkpoint / Role.EXECUTOR if shared else checkpoint)
    policies = build_policies(config.model, directory, config.seed).policies
    for role, policy in policies.items():
        await policy.load_weights(checkpoint / role)
    return policies


def _policies_at(config: Config, path: Path) -> Mapping[Role, Policy]:
    """Load the model of a directory for both roles, or one model for each role if it has two."""
    from ..backends.local.build import build_policies

    if _has_both_roles(path):
        return {role: _policies_at(config, path / role)[role] for role in Role}
    changes = {"path": str(path), "gguf_file": None, "sharing": "shared", "lora_rank": 0}
    return build_policies(config.model.model_copy(update=changes), path, config.seed).policies


def _has_both_roles(path: Path) -> bool:
    return (path / Role.DESIGNER).is_dir() and (path / Role.EXECUTOR).is_dir()


def _start_model(config: Config, directory: Path) -> Path:
    """Return the directory of the model that a run started from."""
    return directory / "model" if config.model.made_by_run else find_model(config.model.path) or Path(config.model.path)


def _checkpoint_step(run: Run, name: str) -> int:
    steps, best = run.checkpoints, run.best
    if not steps:
        raise MetaAgentXError(f"{run.directory} has no checkpoint yet: there is nothing to evaluate")
    if name == "best" and best is not None:
        return best.step
    if name in ("best", "last"):
        return max(steps)
    if not name.isdecimal():
        raise MetaAgentXError(f"unknown checkpoint {name!r}: write best, last, or a step: {', '.join(map(str, steps))}")
    return int(name)


def _method_names(request: EvalRequest, scripts: Sequence[str], has_old: bool) -> list[str]:
    """Return the names of the requested methods, in their usual order."""
    if request.initial_model is not None and not has_old:
        raise MetaAgentXError(f"no model at {request.initial_model}: give --initial-model the directory of a model")
    known = {_normalize(name): name for name in standard_names(True, scripts)}
    requested = [_normalize(name) for name in request.methods or standard_names(has_old, scripts)]
    requested += [_normalize(f"fixed: {path.stem}") for path in request.scripts]
    for name in requested:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise MetaAgentXError(f"unknown method {name!r}; did you mean {known[near[0]]!r}?")
        if known[name] in OLD_NAMES and not has_old:
            raise MetaAgentXError(f"{known[name]} needs the initial model: name its directory with --initial-model")
    chosen = [name for key, name in known.items() if key in requested]
    if VOTES in chosen and TRAINED not in chosen:
        raise MetaAgentXError(f"{VOTES} has the budget of {TRAINED}: measure that as well")
    return chosen


def _normalize(name: str) -> str:
    """Return a name without dashes: on the command line names may have them."""
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _load_scripts(paths: Sequence[Path]) -> dict[str, str]:
    """Return all fixed designs by name: the standard ones, and those of files. Each has its own name and can run."""
    scripts = dict(FIXED_DESIGNS)
    for path in paths:
        for name in scripts:
            if _normalize(name) == _normalize(path.stem):
                raise MetaAgentXError(f"{path}: there is already a design {name!r}: rename the file")
        try:
            script = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MetaAgentXError(f"{path} cannot be read as a script: {error}") from None
        for problem in validate(script):
            raise MetaAgentXError(f"the script {path} cannot run: {problem}")
        scripts[path.stem] = script
    return scripts
