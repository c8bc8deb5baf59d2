"""The evaluator: samples of tasks, each a design, its execution and its grade.

Held-out measurement during training and `metaagentx eval` both sample here. What is drawn for a sample depends on the
seed path of its task and on the numbers of sample and vote, never on the method or on the order of work. Programs have
to pass all tests.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..config import EvaluationConfig
from ..errors import MetaAgentXError
from ..rollout.designer import write_script
from ..rollout.sampling import RoleSampler, seed_of
from ..rollout.tree import Resources, RolloutOptions, execute, gather
from ..types import Call, Design, Execution, Role, Task
from .methods import Method
from .outcomes import Outcome

SeedPath: TypeAlias = tuple[object, ...]


class SampleKey(NamedTuple):
    """Identifies a sample: the index of its task, its number, and the number of the vote."""

    task: int
    sample: int
    vote: int = 0


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Samples methods on tasks."""

    resources: Resources
    options: RolloutOptions
    """Limits and retries. Its numbers of designs and executions are not used."""
    at_once: int
    """Samples in progress at the same time; executions are also bounded by `Resources.in_flight`."""
    designs: dict[tuple[object, ...], Design] = field(default_factory=dict)
    """The designs so far, by Designer and seeds: methods with the same Designer execute the same designs."""

    async def run(
        self,
        method: Method,
        tasks: Sequence[tuple[Task, SeedPath]],
        keys: Sequence[SampleKey],
        on_outcome: Callable[[Outcome], None],
    ) -> str:
        """Sample every key and report each outcome. Return the message of the first infrastructure fault, or ""."""
        waiting, first_infra_message = iter(keys), ""

        async def work() -> None:
            nonlocal first_infra_message
            for key in waiting:
                design, execution = await self._sample(method, *tasks[key.task], key)
                fault = execution.fault if execution else design.fault
                if fault is not None and fault.infra:
                    first_infra_message = first_infra_message or fault.message
                on_outcome(_outcome(tasks[key.task][0], key, design, execution))

        await gather(work() for _ in range(min(self.at_once, len(keys))))
        return first_infra_message

    async def _sample(
        self, method: Method, task: Task, seed_path: SeedPath, key: SampleKey
    ) -> tuple[Design, Execution | None]:
        options, path = replace(self.options, strict=True), (*seed_path, key.sample)
        if method.designer is not None:
            design = await self._design(method.designer, task, path, method.manual)
        else:
            assert method.script is not None
            design = Design(Call(Role.DESIGNER, "", (), ""), method.script)
        if design.script is None or design.fault is not None:
            return design, None
        shared = replace(self.resources, samplers={Role.EXECUTOR: method.executor})
        return design, await execute(design.script, task, shared, options, (*path, key.vote))

    async def _design(self, designer: RoleSampler, task: Task, path: SeedPath, manual: bool) -> Design:
        """Return the Designer's design for these seeds; it is sampled once."""
        key = (id(designer), task.id, path, manual)
        if key not in self.designs:
            options, tools = self.options, self.resources.tool_specs
            design = await write_script(task, designer, seed_of(*path), options.rollout, options.prompts, manual, tools)
            if design.fault is not None and design.fault.infra:
                return design
            self.designs[key] = design
        return self.designs[key]


def evaluation_samplers(samplers: Mapping[Role, RoleSampler], config: EvaluationConfig) -> dict[Role, RoleSampler]:
    """Return the samplers of training with the temperatures of evaluation, where the recipe sets others."""
    return {
        role: replace(sampler, temperature=config.temperature_of(role, sampler.temperature))
        for role, sampler in samplers.items()
    }


def check_judged(what: str, outcomes: Sequence[Outcome], first_infra_message: str) -> None:
    """Raise where infrastructure faults left nothing to judge."""
    if not any(outcome.judged for outcome in outcomes):
        raise MetaAgentXError(f"{what}: every sample failed with an infrastructure fault; first: {first_infra_message}")


def _outcome(task: Task, key: SampleKey, design: Design, execution: Execution | None) -> Outcome:
    calls = [design.call] if design.call.tokens else []  # a fixed script and a backend that failed have no tokens
    seconds = design.call.seconds
    fault, reward, answer, pattern = design.fault, None, None, ""
    if execution is not None:
        calls += execution.calls
        seconds += execution.seconds
        fault, reward, answer = execution.fault, execution.reward, execution.answer
        pattern = execution.structure.pattern if execution.structure else ""
    return Outcome(
        task=task.id,
        sample=key.sample,
        vote=key.vote,
        solved=reward is not None and reward.solved,
        tokens=sum(call.tokens for call in calls),
        calls=len(calls),
        seconds=round(seconds, 4),
        fault="" if fault is None else fault.kind,
        pattern=pattern,
        answer=answer,
        script=_script_digest(design.script) if _can_run(design, execution) else "",
    )


def _can_run(design: Design, execution: Execution | None) -> bool:
    """Return whether a design has a valid script; one that would need too many agents is found out when it runs."""
    fault = design.fault or (execution.fault if execution is not None else None)
    return design.fault is None and (fault is None or fault.kind != "invalid_script")


@lru_cache(1024)
def _script_digest(script: str | None) -> str:
    return hashlib.sha256((script or "").encode(errors="backslashreplace")).hexdigest()[:16]
