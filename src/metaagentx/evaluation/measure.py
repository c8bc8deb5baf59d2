"""Evaluates every method on every task: the same tasks and the same seeds for all, one design for each sample.

Each outcome is written as soon as it is known, so that an evaluation that was stopped can be resumed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Literal, TypeAlias

from ..atomic import exclusive_lock
from ..errors import MetaAgentXError
from ..policy import HasChatTemplate
from ..progress import CountProgress
from ..rollout.designer import DEFAULT_PROMPTS
from ..rollout.sampling import RoleSampler
from ..rollout.tree import Resources, RolloutOptions
from ..types import JSON, Task
from ..workflow.validate import validate
from . import held_out
from .figures import mean_tokens
from .methods import Method
from .outcomes import Outcome, OutcomeFile
from .result import Evaluation, Summary
from .sampling import Evaluator, SampleKey, SeedPath, check_judged
from .self_consistency import majority_outcome

TaskSets: TypeAlias = Mapping[str, Sequence[Task]]


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """How methods are measured."""

    samples: int = 1
    """Samples of each task, by each method."""
    seed: int = 0
    baseline: str = ""
    """The method that all others are compared with; the first one by default. `against` in evaluation.json."""
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    """Limits and retries. Its numbers of designs and executions are not used."""
    at_once: int = 128
    """Samples in progress at the same time; executions are also bounded by `Resources.in_flight`."""
    checkpoint: int | None = None
    """The step of the measured checkpoint, written to evaluation.json for readers, as is `split`."""
    split: str = ""
    model: str = ""
    """The model that was measured without a run, written to evaluation.json as well."""
    held_out: Mapping[str, Sequence[int]] | None = None
    """By set, the `seed_positions` of its tasks, if they are the held-out tasks of a run. They then have the seeds of
    training, and overall figures are means over tasks: the solve rate is the one that training records."""
    paper: Literal["all tests", "public tests"] | None = None
    """Set if the task sets are the paper's benchmarks: by which tests programs are graded."""


async def evaluate(
    methods: Sequence[Method],
    task_sets: TaskSets,
    resources: Resources,
    options: EvaluationOptions,
    directory: Path,
) -> Evaluation:
    """Measure all methods, and write evaluation.json and evaluation.md. Each method has its own samplers.

    A second call with the same directory resumes.
    """
    _check(methods, task_sets, options)
    names, baseline = tuple(method.name for method in methods), options.baseline or methods[0].name
    with exclusive_lock(directory):
        (directory / "outcomes").mkdir(exist_ok=True)
        job = _Job(methods, task_sets, Evaluator(resources, options.rollout, options.at_once), options, directory)
        for method in sorted(methods, key=lambda method: bool(method.token_budget_of)):
            for name in task_sets:
                await job.run_method(method, name)
        sets = {
            name: Summary.of(names, baseline, {method: [job.outcomes[method, name]] for method in names})
            for name in task_sets
        }
        strata = {method: [job.outcomes[method, name] for name in task_sets] for method in names}
        if options.held_out is not None:
            strata = {method: [list(chain(*parts))] for method, parts in strata.items()}
        (overall,) = sets.values() if len(sets) == 1 else (Summary.of(names, baseline, strata),)
        evaluation = Evaluation(
            samples=options.samples,
            seed=options.seed,
            checkpoint=options.checkpoint,
            split=options.split,
            model=options.model,
            against=baseline,
            methods=names,
            votes=job.votes,
            sets=sets,
            overall=overall,
            paper=options.paper,
            outcomes=job.outcomes,
        )
        evaluation.write(directory)
    return evaluation


def _check(methods: Sequence[Method], task_sets: TaskSets, options: EvaluationOptions) -> None:
    names = [method.name for method in methods]
    measured = {method.name for method in methods if not method.token_budget_of}
    lenient = options.rollout.rollout.lenient
    if not names or len(set(names)) < len(names):
        raise MetaAgentXError(f"an evaluation needs methods with different names, got: {', '.join(names) or 'none'}")
    if options.samples < 1:
        raise MetaAgentXError(f"an evaluation needs at least one sample of each task, got {options.samples}")
    if options.baseline and options.baseline not in names:
        raise MetaAgentXError(f"{options.baseline} is not among the methods: {', '.join(names)}")
    for method in methods:
        if method.token_budget_of and method.token_budget_of not in measured:
            raise MetaAgentXError(f"{method.name} has the budget of {method.token_budget_of}: measure that as well")
        for problem in validate(method.script, lenient) if method.script is not None else ():
            raise MetaAgentXError(f"the script of {method.name} cannot run: {problem}")
    for name, tasks in task_sets.items():
        if len({task.id for task in tasks}) < max(1, len(tasks)):
            raise MetaAgentXError(f"{name} has {'two tasks with the same id' if tasks else 'no tasks'}")
    if not task_sets:
        raise MetaAgentXError("an evaluation needs tasks")


@dataclass(frozen=True, slots=True)
class _Job:
    """An evaluation in progress."""

    methods: Sequence[Method]
    sets: TaskSets
    evaluator: Evaluator
    options: EvaluationOptions
    directory: Path
    outcomes: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)
    """By method and set."""
    votes: dict[str, dict[str, int]] = field(default_factory=dict)

    async def run_method(self, method: Method, name: str) -> None:
        """Run a method on a set of tasks and store its outcomes."""
        if method.token_budget_of:
            self.outcomes[method.name, name] = await self._vote(method, name)
        else:
            (self.outcomes[method.name, name],) = await self._run(method, name, range(1))

    async def _vote(self, method: Method, name: str) -> list[Outcome]:
        """Return the majority outcomes of as many rounds of votes as it takes to spend the token budget."""
        budget = mean_tokens(self.outcomes[method.token_budget_of, name])
        rounds = [self._reuse_single_agent(method, name) or (await self._run(method, name, range(1)))[0]]
        tokens = mean_tokens(rounds[0])
        rounds += await self._run(method, name, range(1, ceil(budget / tokens) if tokens else 1))
        elected = await self._majority_outcomes(name, rounds)
        while mean_tokens(elected) < budget and any(outcome.tokens for outcome in rounds[-1]):
            rounds += await self._run(method, name, range(len(rounds), len(rounds) + 1))
            elected = await self._majority_outcomes(name, rounds)
        self.votes.setdefault(method.name, {})[name] = len(rounds)
        return elected

    def _reuse_single_agent(self, method: Method, name: str) -> list[Outcome] | None:
        """Return the outcomes of the same script if it is a method itself: its seeds are those of the first votes."""
        for other in self.methods:
            same_models = (other.executor, other.weights_digest) == (method.executor, method.weights_digest)
            if other.script == method.script and same_models and not other.token_budget_of:
                return self.outcomes[other.name, name]
        return None

    async def _majority_outcomes(self, name: str, rounds: Sequence[Sequence[Outcome]]) -> list[Outcome]:
        questions = {task.id: task.question for task in self.sets[name]}
        return [await majority_outcome(questions[votes[0].task], votes) for votes in zip(*rounds, strict=True)]

    async def _run(self, method: Method, name: str, votes: range) -> list[list[Outcome]]:
        """Return the outcomes of these votes, each a list over tasks and samples. Only missing samples are run."""
        tasks, samples = self.sets[name], range(self.options.samples)
        outcome_file = OutcomeFile(self.directory / "outcomes", self._header(method, name))
        missing = [
            SampleKey(index, sample, vote)
            for index, task in enumerate(tasks)
            for sample in samples
            for vote in votes
            if (task.id, sample, vote) not in outcome_file.outcomes
        ]
        seeded = list(zip(tasks, self._seed_paths(name), strict=True))
        solved = 0
        with CountProgress(len(missing), f"{method.name} on {name}") as progress:

            def add(outcome: Outcome) -> None:
                nonlocal solved
                outcome_file.add(outcome)
                solved += outcome.solved
                progress.advance(solved=solved)

            first_infra_message = await self.evaluator.run(method, seeded, missing, add)
        recorded = outcome_file.outcomes
        rounds = [[recorded[task.id, sample, vote] for task in tasks for sample in samples] for vote in votes]
        for outcomes in rounds:
            if method.script is not None and all(outcome.fault == "invalid_script" for outcome in outcomes):
                raise MetaAgentXError(
                    f"the script of {method.name} has more agents or model calls than are allowed: "
                    f"write fewer, or raise rollout.calls (now {self.options.rollout.rollout.calls})"
                )
            check_judged(f"{method.name} on {name}", outcomes, first_infra_message)
        return rounds

    def _seed_paths(self, name: str) -> list[SeedPath]:
        if self.options.held_out is not None:
            return [held_out.seed_path(position) for position in self.options.held_out[name]]
        # Without the directories of a file's path: the same tasks have the same seeds wherever the file is.
        plain = Path(name.removeprefix("jsonl:")).name
        return [(self.options.seed, "evaluation", plain, index) for index in range(len(self.sets[name]))]

    def _header(self, method: Method, name: str) -> dict[str, JSON]:
        """Return all that an outcome depends on, as far as it is known."""
        options, rollout = self.options, self.options.rollout
        tasks = [[task.id, task.question, repr(task.grading)] for task in self.sets[name]]
        header: dict[str, JSON] = {
            "method": method.name,
            "set": name,
            "samples": options.samples,
            "seed": options.seed,
            "weights": method.weights_digest,
            "script": None if method.script is None else _digest(method.script),
            "tasks": _digest(repr(tasks)),
            "designer": _sampling(method.designer),
            "executor": _sampling(method.executor),
            "limits": {
                "calls": rollout.rollout.calls,
                "tokens": rollout.rollout.tokens,
                "seconds": rollout.rollout.execution_seconds,
                "cpu_seconds": rollout.rollout.cpu_seconds,
            },
            "allow_hard_coded": rollout.reward.allow_hard_coded,
            "manual": method.manual,
        }
        # Only where it is set, so that an evaluation that an earlier version began can be resumed.
        if rollout.reward.allow_fed:
            header["allow_fed"] = True
        if rollout.rollout.lenient:
            header["dialect"] = rollout.rollout.dialect
        if rollout.prompts != DEFAULT_PROMPTS:
            header["prompts"] = _digest(repr(rollout.prompts))
        if (tools := self.evaluator.resources.tools) is not None:
            header["tools"] = _digest(repr((tools.config, tools.specs)))
        if options.held_out is not None:
            header["held_out_seeds"] = _digest(repr(list(options.held_out[name])))
        return header


def _sampling(sampler: RoleSampler | None) -> JSON:
    if sampler is None:
        return None
    policy = sampler.policy
    arguments = dict(policy.template_arguments) if isinstance(policy, HasChatTemplate) else {}
    # Only where there are any, so that an evaluation that an earlier version began can be resumed.
    template: dict[str, JSON] = {"chat_template": _digest(repr(sorted(arguments.items())))} if arguments else {}
    return {"max_tokens": sampler.max_tokens, "temperature": sampler.temperature, **template}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
