"""The hierarchical rollout: M designs of a task, N executions of each, all of it concurrent.

A design is executed as soon as it is written, and an execution's calls go to the policy as they come. An
infrastructure fault is retried where it happened, from the same seeds, and then left in the rollout without a reward.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ..config import Config, PromptsConfig, RewardConfig, RolloutConfig
from ..errors import MetaAgentXError
from ..rewards.errors import GraderUnavailable
from ..rewards.graders import Graders
from ..rewards.score import score
from ..sandbox import Sandbox
from ..tools import ToolBox, ToolSpec
from ..types import Design, Execution, Fault, Role, Rollout, Task
from .designer import DEFAULT_PROMPTS, write_script
from .executor import run_script
from .sampling import RoleSampler, seed_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How rollouts are sampled and scored: sections of the recipe, and what depends on the caller."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    strict: bool = False
    """Grade as for an evaluation: all tests, all or nothing."""
    manual: bool = False
    """Give the Designer the manual of the workflow language: for a teacher that has not learned it."""
    prompts: PromptsConfig = DEFAULT_PROMPTS

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the options of a recipe."""
        return cls(config.rollout, config.reward, prompts=config.prompts)


@dataclass(frozen=True, slots=True)
class Resources:
    """What rollouts share: the policies, the sandbox, the graders, and how many executions may be under way."""

    samplers: Mapping[Role, RoleSampler]
    sandbox: Sandbox
    graders: Graders
    in_flight: asyncio.Semaphore
    on_execution: Callable[[Execution], None] = lambda execution: None
    """Called with every finished execution, for progress."""
    tools: ToolBox | None = None
    """The tools that the operator offers; None: no tools."""

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """What Designers are told about the offered tools."""
        return () if self.tools is None else self.tools.specs


async def rollout_batch(
    tasks: Sequence[Task], resources: Resources, options: RolloutOptions, seed_path: tuple[object, ...]
) -> list[Rollout]:
    """Return the rollouts of several tasks; raise MetaAgentXError if they have nothing but infrastructure faults."""
    rollouts = await gather(
        rollout_task(task, resources, options, (*seed_path, index)) for index, task in enumerate(tasks)
    )
    faults = [fault for rollout in rollouts for fault in _infra_faults(rollout)]
    if faults and not any(map(_has_result, rollouts)):
        raise MetaAgentXError(
            f"every execution failed with an infrastructure fault ({len(faults)} in all; first: {faults[0].message})"
        )
    return rollouts


async def rollout_task(
    task: Task, resources: Resources, options: RolloutOptions, seed_path: tuple[object, ...]
) -> Rollout:
    """Return the rollout of one task. All its seeds are derived from `seed_path`."""

    async def design(number: int) -> Design:
        path = (*seed_path, number)
        sampler = resources.samplers[Role.DESIGNER]
        written = await write_script(
            task,
            sampler,
            seed_of(*path),
            options.rollout,
            options.prompts,
            options.manual,
            resources.tool_specs,
        )
        return await execute_design(written, task, resources, options, path)

    return Rollout(task, await gather(design(number) for number in range(options.rollout.designs)))


async def execute_design(
    design: Design, task: Task, resources: Resources, options: RolloutOptions, seed_path: tuple[object, ...]
) -> Design:
    """Add the executions to a design whose script can run."""
    script = design.script
    if script is not None and design.fault is None:
        paths = ((*seed_path, number) for number in range(options.rollout.executions))
        design.executions = await gather(execute(script, task, resources, options, path) for path in paths)
        design.pattern = design.structure.pattern if design.structure else ""
        faults = [execution.fault for execution in design.executions if execution.fault is not None]
        if len(faults) == len(design.executions) and all(fault.kind == "invalid_script" for fault in faults):
            design.fault, design.executions = faults[0], []  # too large: as if it had not run at all
    return design


async def execute(
    script: str, task: Task, resources: Resources, options: RolloutOptions, seed_path: tuple[object, ...]
) -> Execution:
    """Run a script once and return the execution with its reward."""
    async with resources.in_flight:
        execution = await run_script(
            script,
            task,
            resources.samplers[Role.EXECUTOR],
            resources.sandbox,
            options.rollout,
            seed_path,
            options.prompts.agent_instruction,
            resources.tools,
        )
        await _reward(execution, task, resources, options)
    resources.on_execution(execution)
    return execution


async def _reward(execution: Execution, task: Task, resources: Resources, options: RolloutOptions) -> None:
    """Grade an execution and set its reward."""
    allowed = {"hard_coded": options.reward.allow_hard_coded, "fed": options.reward.allow_fed}
    if execution.fault is not None and allowed.get(execution.fault.kind, False):
        execution.fault = None
    grade = None
    for attempt in range(options.rollout.retries + 1) if execution.fault is None else ():
        try:
            grade = await resources.graders.grade(task, execution.answer, options.strict)
            break
        except GraderUnavailable as error:
            if attempt == options.rollout.retries:
                execution.fault = Fault("infra", f"the grader failed {attempt + 1} times: {error}")
    execution.reward = score(task, execution, grade, options.reward, options.strict)


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. An error, which can only be a bug, cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _infra_faults(rollout: Rollout) -> Iterator[Fault]:
    for design in rollout.designs:
        for fault in (design.fault, *(execution.fault for execution in design.executions)):
            if fault is not None and fault.infra:
                yield fault


def _has_result(rollout: Rollout) -> bool:
    """Return whether anything in a rollout counts: a reward, or a script that could not run."""
    return any(
        (design.fault is not None and not design.fault.infra)
        or any(execution.reward is not None for execution in design.executions)
        for design in rollout.designs
    )
