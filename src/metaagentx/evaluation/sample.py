"""One sample: a design, its execution, its grade."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..calls import seed_of
from ..designer import pattern_of, write_script
from ..rollout import Resources, RolloutOptions, execute
from ..types import Call, Design, Execution, Fault, Role, Task
from .methods import Method
from .outcomes import Outcome


class Place(NamedTuple):
    """Which sample, by numbers."""

    task: int
    sample: int
    vote: int


@dataclass(frozen=True, slots=True)
class Sampler:
    """What all samples share."""

    resources: Resources
    options: RolloutOptions
    path: tuple[object, ...]
    """Where in the evaluation: what is drawn depends on this and on the place, and not on the method."""

    async def take(self, method: Method, task: Task, place: Place) -> tuple[Outcome, Fault | None]:
        """What came of it, and what kept it from an ordinary result."""
        path = (*self.path, place.task, place.sample)
        design = await self._design(method, task, path)
        execution = None
        if design.script is not None and design.fault is None:
            shared = replace(self.resources, speakers={Role.EXECUTOR: method.executor})
            execution = await execute(design.script, task, shared, self.options, (*path, place.vote))
        return _outcome(task, place, design, execution), execution.fault if execution else design.fault

    async def _design(self, method: Method, task: Task, path: tuple[object, ...]) -> Design:
        if method.designer is not None:
            options = self.options
            return await write_script(task, method.designer, seed_of(*path), options.manual, options.limits.calls)
        assert method.script is not None
        return Design(Call(Role.DESIGNER, "", (), ""), method.script, pattern=pattern_of(method.script))


def _outcome(task: Task, place: Place, design: Design, execution: Execution | None) -> Outcome:
    calls = [design.call] if design.call.tokens else []  # a fixed script and a backend that is away write nothing
    seconds = design.call.seconds
    fault, reward, answer = design.fault, None, None
    if execution is not None:
        calls += execution.calls
        seconds += execution.seconds
        fault, reward, answer = execution.fault, execution.reward, execution.answer
    return Outcome(
        task=task.id,
        sample=place.sample,
        vote=place.vote,
        solved=reward is not None and reward.solved,
        tokens=sum(call.tokens for call in calls),
        calls=len(calls),
        seconds=round(seconds, 4),
        fault="" if fault is None else fault.kind,
        pattern=design.pattern,
        answer=answer or "",
    )
