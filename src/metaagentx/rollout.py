"""The hierarchical rollout: M designs of a task, N executions of each, all of it concurrent.

A design starts executing as soon as it is written, an execution's calls go to the policy as they come, and nothing
waits for anything it does not need. An infra fault is tried again where it happened, from the same seeds, and then left
in the tree without a reward.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .calls import Speaker, seed_of
from .designer import write_script
from .errors import MetaAgentXError
from .executor import ExecutionLimits, run_script
from .rewards.errors import GraderUnavailable
from .rewards.graders import Graders
from .rewards.score import RewardWeights, score
from .sandbox import Sandbox
from .types import Design, Execution, Fault, Role, Rollout, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How a tree is grown."""

    designs: int = 4
    executions: int = 4
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    weights: RewardWeights = field(default_factory=RewardWeights)
    retries: int = 2
    """Of a script under which the sandbox failed, and of a grade. Calls have their own: `Speaker.retries`."""
    full: bool = False
    """Grade as for an evaluation: all tests, all or nothing."""
    allow_hard_coded: bool = False
    """Pay for answers that no agent wrote."""
    allow_fed: bool = False
    """Pay for answers that the script wrote into a prompt before any agent had said them."""
    manual: bool = False
    """The Designer reads the language's manual: for a teacher that has not learnt it."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What rollouts share: the policies, the sandbox, the graders, and how many executions may be under way."""

    speakers: Mapping[Role, Speaker]
    sandbox: Sandbox
    graders: Graders
    in_flight: asyncio.Semaphore
    on_execution: Callable[[Execution], None] = lambda execution: None
    """Told of every finished execution, for progress."""


async def grow(
    tasks: Sequence[Task], resources: Resources, options: RolloutOptions, path: tuple[object, ...]
) -> list[Rollout]:
    """The trees of several tasks. Machinery that gave nothing at all stops the run: there is nothing to go on with."""
    trees = (rollout(task, resources, options, (*path, place)) for place, task in enumerate(tasks))
    rollouts = await _all(trees)
    faults = [fault for tree in rollouts for fault in _infra_faults(tree)]
    if faults and not any(_judged(tree) for tree in rollouts):
        raise MetaAgentXError(f"nothing works any more, {len(faults)} infra faults and no result: {faults[0].message}")
    return rollouts


async def rollout(task: Task, resources: Resources, options: RolloutOptions, path: tuple[object, ...]) -> Rollout:
    """Grow the tree of one task. `path` is its place in the run, from which everything drawn in it has its seed."""

    async def design(number: int) -> Design:
        place = (*path, number)
        speaker = resources.speakers[Role.DESIGNER]
        written = await write_script(task, speaker, seed_of(*place), options.manual, options.limits.calls)
        return await execute_design(written, task, resources, options, place)

    return Rollout(task, await _all(design(number) for number in range(options.designs)))


async def execute_design(
    design: Design, task: Task, resources: Resources, options: RolloutOptions, place: tuple[object, ...]
) -> Design:
    """Run a design as often as wanted, if it can be run."""
    if design.script is not None and design.fault is None:
        script = design.script
        runs = (execute(script, task, resources, options, (*place, n)) for n in range(options.executions))
        design.executions = await _all(runs)
    return design


async def execute(
    script: str, task: Task, resources: Resources, options: RolloutOptions, place: tuple[object, ...]
) -> Execution:
    """One execution with its reward."""
    speaker = resources.speakers[Role.EXECUTOR]
    async with resources.in_flight:
        limits, retries = options.limits, options.retries
        execution = await run_script(script, task, speaker, resources.sandbox, limits, place, retries=retries)
        await _reward(execution, task, resources, options)
    resources.on_execution(execution)
    return execution


async def _reward(execution: Execution, task: Task, resources: Resources, options: RolloutOptions) -> None:
    allowed = {"hard_coded": options.allow_hard_coded, "fed": options.allow_fed}
    if execution.fault is not None and allowed.get(execution.fault.kind, False):
        execution.fault = None
    grade = None
    for attempt in range(options.retries + 1) if execution.fault is None else ():
        try:
            grade = await resources.graders.grade(task, execution.answer, options.full)
            break
        except GraderUnavailable as error:
            if attempt == options.retries:
                execution.fault = Fault("infra", f"the grader failed {attempt + 1} times: {error}")
    execution.reward = score(task, execution, grade, options.weights, options.full)


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. An error, which can only be ours, ends the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _infra_faults(tree: Rollout) -> Iterator[Fault]:
    for design in tree.designs:
        for fault in (design.fault, *(execution.fault for execution in design.executions)):
            if fault is not None and fault.infra:
                yield fault


def _judged(tree: Rollout) -> bool:
    """Whether anything in it counts: a script that could not run does, too."""
    rewards = [execution.reward for design in tree.designs for execution in design.executions]
    return any(reward is not None for reward in rewards) or any(
        design.fault is not None and not design.fault.infra for design in tree.designs
    )
