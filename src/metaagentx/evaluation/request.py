"""The evaluation of a run: its checkpoint, the model it began from, and which tasks."""

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..backends.model_files import check_model
from ..config import Config
from ..config.paths import PRESET
from ..errors import MetaAgentXError
from ..policy import Policy
from ..preflight import check_checkpoint, check_place
from ..rewards.probe import check_graders
from ..runs import Run
from ..session import open_resources, run_recipe, speakers_of
from ..settings import mixture_of, rollout_options
from ..tasks import TaskSet, load
from ..tasks.mixture import parse_mixture
from ..teacher import DESIGNS
from ..types import CustomGrader, Role, Task
from ..workflow.validate import validate
from .measure import EvaluationOptions, evaluate
from .methods import OLD_NAMES, TRAINED, VOTES, standard_methods, standard_names
from .result import Evaluation

PAPER = ("livecodebench", "apps", "codecontests", "aime24", "aime25", "olympiadbench")
"""The paper's benchmarks."""
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_LOOKED_AT = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for on the command line."""

    run: Path
    against: Path | None = None
    """The model before RL; by default the one that the run began from, if it is still there."""
    tasks: tuple[str, ...] = ()
    """Sources, or `paper`; by default the run's held-out tasks, or with a split that of its training sources."""
    split: str = ""
    limit: int = 0
    samples: int = 1
    methods: tuple[str, ...] = ()
    scripts: tuple[Path, ...] = ()
    """Further fixed designs."""
    out: Path | None = None
    checkpoint: str = "best"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found and where it is."""

    found: Evaluation
    directory: Path
    missing: Path | None = None
    """The model from before the training, where methods were left out because it is not there."""


async def evaluate_run(request: Request) -> Answer:
    """Evaluate a run. Everything that can be wrong is found before a model is loaded, as far as possible."""
    run = Run.open(request.run)
    config = run_recipe(run).config
    step = _step(run, request.checkpoint)
    checkpoint = run.checkpoint_at(step)
    before = request.against or _began_from(config, run.directory)
    scripts = DESIGNS | {path.stem: _read_script(path) for path in request.scripts}
    names = _choose(request, [*scripts], before.exists())
    directory = request.out or run.directory / "evaluation" / checkpoint.name
    check_place(directory, "choose another place with --out")
    check_checkpoint(config, checkpoint)
    if config.model.lora_rank:
        check_model(_began_from(config, run.directory), config.model.gguf_file)
    if not OLD_NAMES.isdisjoint(names) and not _both_roles(before):
        check_model(before, _gguf(config, request))
    sets = task_sets(config, request)
    await check_graders(
        task.grading for tasks in sets.values() for task in tasks if isinstance(task.grading, CustomGrader)
    )
    new = await trained_policies(config, run.directory, checkpoint)
    old = None if OLD_NAMES.isdisjoint(names) else _policies_at(config, before, _gguf(config, request))
    async with open_resources(config, new) as resources:
        speakers = None if old is None else speakers_of(config, old)
        weights = (weights_mark(checkpoint), weights_mark(before))
        methods = [m for m in standard_methods(resources.speakers, speakers, scripts, weights) if m.name in names]
        options = EvaluationOptions(
            samples=request.samples,
            seed=config.seed,
            against=TRAINED if TRAINED in names else names[0],
            rollout=rollout_options(config),
            at_once=config.rollout.in_flight,
        )
        missing = None if request.methods or before.exists() else before
        return Answer(await evaluate(methods, sets, resources, options, directory), directory, missing)


def task_sets(config: Config, request: Request) -> dict[str, Sequence[Task]]:
    """The tasks that were asked for, by a short name of their source."""
    found: dict[str, Sequence[Task]] = {}
    if not request.tasks and not request.split:
        held_out = mixture_of(config).held_out
        if not held_out:
            raise MetaAgentXError("the run holds out no tasks: say which to use, such as --tasks gsm8k")
        for source in dict.fromkeys(task.source for task in held_out):
            tasks = [task for task in held_out if task.source == source]
            found[source] = tasks[: request.limit or None]
        return _short_names(found)
    sources = request.tasks or tuple(str(part) for part, _ in parse_mixture(config.tasks.train))
    sources = tuple(name for given in sources for name in (PAPER if given == "paper" else (given,)))
    for source in sources:
        loaded = load(source, request.split or "test", config.tasks.data_dir, sources)
        # A file goes by its name alone, as its tasks do: what was measured stays valid when all is moved.
        _, mark, query = source.partition("?")
        name = f"{loaded.name}{mark}{query}" if source.startswith("jsonl:") else source
        found[name] = _choose_tasks(loaded, source, request.limit)
    return _short_names(found)


def _choose_tasks(tasks: TaskSet, source: str, limit: int) -> list[Task]:
    if tasks.endless:
        if not limit:
            raise MetaAgentXError(f"{source} is endless: say how many of its tasks to use, such as --limit 100")
        return list(tasks.first(limit))
    # In an order without meaning: files are often sorted, by difficulty for instance.
    return [tasks.drawn(0, number) for number in range(min(limit or len(tasks), len(tasks)))]


def weights_mark(directory: Path) -> str:
    """A name for the weights in a directory, by what the ends of their files hold, wherever the directory is."""
    mark = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.suffix in _WEIGHTS and path.is_file()):
        size = file.stat().st_size
        mark.update(f"{file.relative_to(directory)} {size}\n".encode())
        with file.open("rb") as stream:
            mark.update(stream.read(_LOOKED_AT))
            stream.seek(max(0, size - _LOOKED_AT))
            mark.update(stream.read())
    return mark.hexdigest()[:16]


def _short_names(sets: Mapping[str, Sequence[Task]]) -> dict[str, Sequence[Task]]:
    """Without settings, where that leaves no two alike."""
    short = [name.partition("?")[0] for name in sets]
    return {alone if short.count(alone) == 1 else name: sets[name] for name, alone in zip(sets, short, strict=True)}


async def trained_policies(config: Config, directory: Path, checkpoint: Path) -> Mapping[Role, Policy]:
    """The policies of a checkpoint. Full weights are loaded without what only training needs."""
    from ..backends.local.build import build_policies

    if not config.model.lora_rank:
        shared = config.model.sharing == "shared"
        return _policies_at(config, checkpoint / Role.EXECUTOR if shared else checkpoint)
    policies = build_policies(config, directory).policies
    for role, policy in policies.items():
        await policy.load(checkpoint / role)
    return policies


def _policies_at(config: Config, path: Path, gguf_file: str | None = None) -> Mapping[Role, Policy]:
    """Both roles on the model of a directory, or on one each where it has one for each."""
    from ..backends.local.build import build_policies

    if _both_roles(path):
        return {role: _policies_at(config, path / role)[role] for role in Role}
    changed = {"path": str(path), "gguf_file": gguf_file, "sharing": "shared", "lora_rank": 0}
    there = config.model.model_copy(update=changed)
    without_reference = config.loss.model_copy(update={"kl": 0.0})
    return build_policies(config.model_copy(update={"model": there, "loss": without_reference}), path).policies


def _both_roles(path: Path) -> bool:
    return (path / Role.DESIGNER).is_dir() and (path / Role.EXECUTOR).is_dir()


def _began_from(config: Config, directory: Path) -> Path:
    return directory / "model" if config.model.path.startswith(PRESET) else Path(config.model.path)


def _gguf(config: Config, request: Request) -> str | None:
    return config.model.gguf_file if request.against is None else None


def _step(run: Run, wanted: str) -> int:
    steps, best = run.checkpoints, run.best
    if not steps:
        raise MetaAgentXError(f"{run.directory} has no checkpoint yet: there is nothing to evaluate")
    if wanted == "last" or (wanted == "best" and best is None):
        return max(steps)
    if wanted == "best" and best is not None:
        return best.step
    if not wanted.isdecimal():
        raise MetaAgentXError(f"{wanted!r} is no checkpoint: write best, last, or a step: {', '.join(map(str, steps))}")
    return int(wanted)


def _choose(request: Request, scripts: Sequence[str], old: bool) -> list[str]:
    """The names of the methods, in their usual order."""
    if request.against is not None and not old:
        raise MetaAgentXError(f"there is no model at {request.against}: give --against a model's directory")
    usual = {_plain(name): name for name in standard_names(True, scripts)}
    wanted = [_plain(name) for name in request.methods] or [_plain(name) for name in standard_names(old, scripts)]
    for name in wanted:
        if name not in usual:
            near = difflib.get_close_matches(name, usual, n=1, cutoff=0.0)
            raise MetaAgentXError(f"there is no method {name!r}: did you mean {usual[near[0]]!r}?")
        if usual[name] in OLD_NAMES and not old:
            raise MetaAgentXError(f"{usual[name]} needs the model from before the training: name it with --against")
    chosen = [name for key, name in usual.items() if key in wanted]
    if VOTES in chosen and TRAINED not in chosen:
        raise MetaAgentXError(f"{VOTES} has the budget of {TRAINED}: measure that as well")
    return chosen


def _plain(name: str) -> str:
    """Names may be written with dashes."""
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _read_script(path: Path) -> str:
    try:
        script = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MetaAgentXError(f"{path} cannot be read as a script: {error}") from None
    for problem in validate(script):
        raise MetaAgentXError(f"the script {path} cannot run: {problem}")
    return script
