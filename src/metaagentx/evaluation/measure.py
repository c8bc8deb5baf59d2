"""Every method on every task: the same tasks and the same seeds for all, one design for each sample, graded in full.

What is drawn for a sample depends on the set, the task's place and the sample's number, never on the method or on the
order of anything. Each outcome is written down when it is there.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import TypeAlias

from ..calls import Speaker
from ..errors import MetaAgentXError
from ..progress import Counter
from ..rollout import Resources, RolloutOptions
from ..runs.files import held
from ..types import JSON, Task
from ..workflow.validate import Limits, validate
from .ballot import elect
from .figures import mean_tokens
from .methods import Method
from .outcomes import Ledger, Outcome
from .result import Evaluation
from .sample import Place, Sampler

TaskSets: TypeAlias = Mapping[str, Sequence[Task]]


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """How it is measured."""

    samples: int = 1
    """Of each task, by each method."""
    seed: int = 0
    against: str = ""
    """The method that all others are compared with; the first one by default."""
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    """Limits and retries. How many designs and executions it says does not matter here."""
    at_once: int = 128
    """Samples under way; executions are also bounded by `Resources.in_flight`."""
    checkpoint: int | None = None
    """The step of the checkpoint that is measured, and `split`, where the tasks are from: written down for readers."""
    split: str = ""


async def evaluate(
    methods: Sequence[Method],
    task_sets: TaskSets,
    resources: Resources,
    options: EvaluationOptions,
    directory: Path,
) -> Evaluation:
    """Measure, and write evaluation.json and evaluation.md. Each method brings its own speakers.

    Called again with the same directory it goes on from where it was stopped.
    """
    _check(methods, task_sets, options)
    with held(directory):
        work = _Work(methods, task_sets, resources, options, directory)
        for method in sorted(methods, key=lambda method: bool(method.matches)):
            for name in task_sets:
                await work.measure(method, name)
        found = Evaluation(
            samples=options.samples,
            seed=options.seed,
            checkpoint=options.checkpoint,
            split=options.split,
            against=options.against or methods[0].name,
            methods=tuple(method.name for method in methods),
            sets=tuple(task_sets),
            outcomes=work.outcomes,
            votes=work.votes,
        )
        found.write(directory)
    return found


def _check(methods: Sequence[Method], task_sets: TaskSets, options: EvaluationOptions) -> None:
    names = [method.name for method in methods]
    plain = {method.name for method in methods if not method.matches}
    limits = Limits(calls=options.rollout.limits.calls)
    if not names or len(set(names)) < len(names):
        raise MetaAgentXError(f"an evaluation needs methods of different names, and not: {', '.join(names) or 'none'}")
    if options.samples < 1:
        raise MetaAgentXError("an evaluation needs at least one sample of each task")
    if options.against and options.against not in names:
        raise MetaAgentXError(f"{options.against} is not among the methods: {', '.join(names)}")
    for method in methods:
        if method.matches and method.matches not in plain:
            raise MetaAgentXError(f"{method.name} has the budget of {method.matches}: measure that as well")
        for problem in validate(method.script, limits) if method.script is not None else ():
            raise MetaAgentXError(f"the script of {method.name} cannot run: {problem}")
    for name, tasks in task_sets.items():
        if len({task.id for task in tasks}) < max(1, len(tasks)):
            raise MetaAgentXError(f"{name} has {'two tasks of one id' if tasks else 'no tasks'}")
    if not task_sets:
        raise MetaAgentXError("an evaluation needs tasks")


class _Work:
    """One evaluation under way."""

    def __init__(
        self,
        methods: Sequence[Method],
        task_sets: TaskSets,
        resources: Resources,
        options: EvaluationOptions,
        directory: Path,
    ) -> None:
        self.outcomes: dict[tuple[str, str], list[Outcome]] = {}
        self.votes: dict[str, dict[str, int]] = {}
        self._methods = methods
        self._sets = task_sets
        self._resources = resources
        self._options = options
        self._rollout = replace(options.rollout, full=True)
        self._trouble = ""
        self._directory = directory / "outcomes"
        self._directory.mkdir(exist_ok=True)

    async def measure(self, method: Method, name: str) -> None:
        """All samples of a method on a set."""
        if method.matches:
            found = await self._vote(method, name)
        else:
            (found,) = await self._run(method, name, range(1))
        self.outcomes[method.name, name] = found

    async def _vote(self, method: Method, name: str) -> list[Outcome]:
        """As many answers as the budget allows, and one more where that is a little less than the budget."""
        budget = mean_tokens(self.outcomes[method.matches, name])
        rounds = [self._single(method, name) or (await self._run(method, name, range(1)))[0]]
        one = mean_tokens(rounds[0])
        rounds += await self._run(method, name, range(1, ceil(budget / one) if one else 1))
        found = await self._elect(name, rounds)
        while mean_tokens(found) < budget and any(outcome.tokens for outcome in rounds[-1]):
            rounds += await self._run(method, name, range(len(rounds), len(rounds) + 1))
            found = await self._elect(name, rounds)
        self.votes.setdefault(method.name, {})[name] = len(rounds)
        return found

    def _single(self, method: Method, name: str) -> list[Outcome] | None:
        """What the same agent answered where it is a method itself: by the same seeds, so that is the first vote."""
        for other in self._methods:
            same = (other.script, other.executor, other.weights) == (method.script, method.executor, method.weights)
            if same and not other.matches:
                return self.outcomes[other.name, name]
        return None

    async def _elect(self, name: str, rounds: Sequence[Sequence[Outcome]]) -> list[Outcome]:
        questions = {task.id: task.question for task in self._sets[name]}
        return [await elect(questions[votes[0].task], votes) for votes in zip(*rounds, strict=True)]

    async def _run(self, method: Method, name: str, votes: range) -> list[list[Outcome]]:
        """The outcomes of these votes, each a list over tasks and samples. Only what is not there yet is run."""
        tasks, samples = self._sets[name], range(self._options.samples)
        ledger = Ledger(self._directory, self._header(method, name))
        missing = [
            Place(place, sample, vote)
            for place, task in enumerate(tasks)
            for sample in samples
            for vote in votes
            if (task.id, sample, vote) not in ledger.outcomes
        ]
        await self._sample(method, name, missing, ledger)
        found = [[ledger.outcomes[task.id, sample, vote] for task in tasks for sample in samples] for vote in votes]
        if not all(any(outcome.judged for outcome in outcomes) for outcomes in found):
            raise MetaAgentXError(f"{method.name} on {name}: nothing works any more: {self._trouble}")
        return found

    async def _sample(self, method: Method, name: str, places: Sequence[Place], ledger: Ledger) -> None:
        # Without the directories of a file's path: the same tasks have the same seeds wherever they are.
        plain = Path(name.removeprefix("jsonl:")).name
        sampler = Sampler(self._resources, self._rollout, (self._options.seed, "evaluation", plain))
        waiting, solved = iter(places), 0

        async def work(progress: Counter) -> None:
            nonlocal solved
            for place in waiting:
                outcome, fault = await sampler.take(method, self._sets[name][place.task], place)
                ledger.add(outcome)
                self._trouble = fault.message if fault is not None and fault.infra else self._trouble
                solved += outcome.solved
                progress.advance(solved=solved)

        try:
            with Counter(len(places), f"{method.name} on {name}") as progress:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._options.at_once, len(places))):
                        group.create_task(work(progress))
        except BaseExceptionGroup as errors:  # an error of ours ends the rest and is raised as it is
            raise errors.exceptions[0] from None

    def _header(self, method: Method, name: str) -> dict[str, JSON]:
        """All that an outcome depends on, as far as it can be told."""
        script = None if method.script is None else _digest(method.script)
        tasks = [[task.id, task.question, repr(task.grading)] for task in self._sets[name]]
        return {
            "method": method.name,
            "set": name,
            "samples": self._options.samples,
            "seed": self._options.seed,
            "weights": method.weights,
            "script": script,
            "tasks": _digest(repr(tasks)),
            "designer": _asked(method.designer),
            "executor": _asked(method.executor),
            "limits": asdict(self._rollout.limits),
            "allow_hard_coded": self._rollout.allow_hard_coded,
            "manual": self._rollout.manual,
            # Only where it is set: an evaluation that an earlier version began can be resumed.
            **({"allow_fed": True} if self._rollout.allow_fed else {}),
        }


def _asked(speaker: Speaker | None) -> JSON:
    return None if speaker is None else {"max_tokens": speaker.max_tokens, "temperature": speaker.temperature}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
