"""The loop: grow trees, give credit, let the roles of this stage learn, write everything down.

What happens in a step is a function of the recipe, the step's number and the weights. So a run that is stopped at any
moment and resumed goes on as if nothing had happened.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace

from .batching import data_for
from .config import Config
from .credit import assign_credit
from .evaluate import solve_rate
from .loggers import Loggers
from .metrics import Clock, measure
from .policy import ComparesGradients, CountsWork, Datum, GivesLogprobs, LossOptions, Policy
from .progress import TrainingProgress
from .rollout import Resources, grow
from .runs import Run
from .settings import credit_options, rollout_options, stages_of
from .stages import Stage, stage_at
from .standstill import Standstill
from .tasks import Mixture
from .types import Role, Rollout, Task

REDRAWN_FROM = 10**9
"""Where in the stream of tasks those come from that replace tasks without spread."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """All that a run needs. `train` goes on from where its run stands."""

    config: Config
    policies: Mapping[Role, Policy]
    resources: Resources
    tasks: Mixture
    run: Run
    progress: TrainingProgress
    loggers: Loggers
    references: Mapping[Role, GivesLogprobs] | None = None
    """Frozen policies that a KL term is measured against."""

    async def train(self) -> None:
        """Train from the run's next step to the last. When it is canceled, a checkpoint keeps all finished steps."""
        if self.run.checkpoint is not None:
            await self.run.load_checkpoint(self._named())
        standstill = Standstill(self.config)
        for step in range(self.run.next_step, self.config.steps):
            clock, stage, before = Clock(), stage_at(step, stages_of(self.config)), self._work()
            try:
                with clock.phase("rollout"):
                    rollouts = await self._grow(step, stage.learning_rates)
            except asyncio.CancelledError:
                await self._keep(step)  # rollouts leave the weights as they are
                raise
            if warning := standstill.warning(step, rollouts):
                self.progress.warn(warning)
                self.run.log(warning)
            await self._finish(step, self._learn(step, stage, rollouts, clock, before))
            if error := standstill.error():
                await self._keep(step + 1)
                raise error

    async def _finish(self, step: int, rest: Coroutine[None, None, None]) -> None:
        """Do the rest of a step, which begins to change weights: to its end, even if training is canceled meanwhile."""
        finishing = asyncio.ensure_future(rest)
        try:
            await asyncio.shield(finishing)
        except asyncio.CancelledError:
            await finishing
            await self._keep(step + 1)
            raise

    async def _keep(self, done: int) -> None:
        """Save a checkpoint after the last finished step, unless there is one."""
        if done > self.run.next_step:
            await self.run.save_checkpoint(done, self._named(), self.config.run.keep_checkpoints)

    async def _learn(
        self, step: int, stage: Stage, rollouts: list[Rollout], clock: Clock, before: Mapping[str, float]
    ) -> None:
        """Update, measure, evaluate, and write the step down."""
        with clock.phase("update"):
            learnt = await self._update(rollouts, stage)
        found = measure(rollouts) | learnt
        found |= {f"learning_rate/{role}": rate for role, rate in stage.learning_rates.items()}
        found |= await self._evaluate(step + 1, clock)
        found |= {f"engine/{name}": value - before[name] for name, value in self._work().items()}
        await self._write(step, found | clock.metrics(), rollouts)

    async def _grow(self, step: int, rates: Mapping[Role, float]) -> list[Rollout]:
        """The trees of a step, with credit. Tasks whose groups teach nothing may be replaced, so often and no more."""
        size, redraws = self.config.tasks.per_step, self.config.rollout.redraws
        rollouts = await self._trees(self.tasks.batch(step, size), step, 0)
        for attempt in range(1, redraws + 1):
            flat = [place for place, tree in enumerate(rollouts) if not _teaches(tree, rates)]
            if not flat:
                break
            first = REDRAWN_FROM + (step * redraws + attempt - 1) * size
            others = await self._trees([self.tasks.task(first + place) for place in flat], step, attempt)
            for place, tree in zip(flat, others, strict=True):
                rollouts[place] = tree
        return rollouts

    async def _trees(self, tasks: Sequence[Task], step: int, attempt: int) -> list[Rollout]:
        options, credit = rollout_options(self.config), credit_options(self.config)
        self.progress.expect(len(tasks) * options.designs * options.executions)
        rollouts = await grow(tasks, self.resources, options, (self.config.seed, "train", step, attempt))
        for tree in rollouts:
            assign_credit(tree, credit)
        return rollouts

    async def _update(self, rollouts: Sequence[Rollout], stage: Stage) -> dict[str, float]:
        """One optimizer step, or as many as the recipe says, for each role that learns now."""
        parts = self.config.optimizer.updates_per_step
        found: dict[str, float] = {}
        for update in range(parts * stage.epochs):
            found |= await self._update_once(rollouts[update % parts :: parts], stage.learning_rates)
        return found

    async def _update_once(self, rollouts: Sequence[Rollout], rates: Mapping[Role, float]) -> dict[str, float]:
        found: dict[str, float] = {}
        for role in rates:
            options = self.config.loss.options(self.resources.speakers[role].temperature)
            data = await self._with_reference(role, data_for(role, rollouts), options)
            if data:
                losses = await self.policies[role].forward_backward(data, "importance_sampling", options)
                found |= {f"{role}/{name}": value for name, value in losses.items()}
        found |= await self._cosine(rates)
        for role, rate in rates.items():
            if f"{role}/loss" in found:
                taken = await self.policies[role].optim_step(rate)
                found |= {f"{role}/{name}": value for name, value in taken.items()}
        return found

    async def _cosine(self, rates: Mapping[Role, float]) -> dict[str, float]:
        designer, executor = self.policies[Role.DESIGNER], self.policies[Role.EXECUTOR]
        if len(rates) < 2 or not isinstance(designer, ComparesGradients):
            return {}
        cosine = await designer.gradient_cosine(executor)
        return {} if cosine is None else {"gradients/cosine": cosine}

    async def _with_reference(self, role: Role, data: list[Datum], options: LossOptions) -> list[Datum]:
        if not options.kl or self.references is None or not data:
            return data
        found = await self.references[role].logprobs(data, options.temperature)
        return [replace(datum, reference_logprobs=tuple(values)) for datum, values in zip(data, found, strict=True)]

    def _work(self) -> Mapping[str, float]:
        policy = self.policies[Role.EXECUTOR]
        return policy.work() if isinstance(policy, CountsWork) else {}

    async def _evaluate(self, done: int, clock: Clock) -> dict[str, float]:
        wanted = self.config.evaluation
        if not wanted.every or (done % wanted.every and done != self.config.steps):
            return {}
        tasks, options = _spread(self.tasks.held_out, wanted.tasks), rollout_options(self.config)
        self.progress.expect(len(tasks) * wanted.samples)
        with clock.phase("evaluation"):
            solved = await solve_rate(tasks, self.resources, options, wanted.samples)
        self.progress.evaluation(done, solved)
        return {"evaluation/solved": solved}

    async def _write(self, step: int, found: Mapping[str, float], rollouts: list[Rollout]) -> None:
        done, wanted = step + 1, self.config.run
        self.run.write_step(step, found, rollouts if step % wanted.rollouts_every == 0 else None)
        self.loggers.log(step, found)
        self.progress.step(step, found, {r: found[f"learning_rate/{r}"] for r in Role if f"learning_rate/{r}" in found})
        # The best checkpoint is the one that solves most of the held-out tasks; of equals the earliest.
        solved, best = found.get("evaluation/solved"), self.run.best
        if solved is not None and (best is None or solved > best.score):
            self.run.mark_best(done, solved)
        # Last of all: a checkpoint says that everything before it is there.
        if done % wanted.checkpoint_every == 0 or done == self.config.steps or solved is not None:
            await self.run.save_checkpoint(done, self._named(), wanted.keep_checkpoints)

    def _named(self) -> dict[str, Policy]:
        return {str(role): policy for role, policy in self.policies.items()}


def _teaches(tree: Rollout, rates: Mapping[Role, float]) -> bool:
    return any(data_for(role, [tree]) for role in rates)


def _spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """So many of them, evenly: they stand ordered by source."""
    return [tasks[place * len(tasks) // count] for place in range(count)]
