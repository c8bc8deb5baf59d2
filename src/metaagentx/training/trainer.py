"""The training loop: sample rollouts, assign credit, update the roles of this stage, write the step to the run.

A step is a function of the recipe, the step's index and the weights. So a run that is stopped at any moment and
resumed continues as if it had not been stopped.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace

from ..config import Config, StageConfig
from ..evaluation.held_out import solve_rate, training_subset
from ..evaluation.sampling import evaluation_samplers
from ..policy import ComparesGradients, Datum, GivesLogprobs, HasEngine, Policy, SamplerStats, require_trainable
from ..progress import TrainingProgress
from ..rollout.sampling import seed_of
from ..rollout.tree import Resources, RolloutOptions, rollout_batch
from ..runs import Run
from ..tasks import Mixture
from ..types import Role, Rollout, Task
from .batching import anchors_of, data_for, episodes_of, split_minibatches
from .credit import assign_credit
from .failed_steps import FailedSteps
from .loggers import Loggers
from .metrics import Clock, step_metrics, summarize_updates
from .stages import stage_at

REDRAWN_FROM = 10**9
"""Position in the stream of tasks of those that replace tasks without spread."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """Everything that a training run needs. `train` continues from the run's last checkpoint."""

    config: Config
    policies: Mapping[Role, Policy]
    resources: Resources
    tasks: Mixture
    run: Run
    progress: TrainingProgress
    loggers: Loggers
    references: Mapping[Role, GivesLogprobs] | None = None
    """Frozen policies that the KL term is measured against."""

    async def train(self) -> None:
        """Train from the run's next step to the last. If canceled, save a checkpoint of all finished steps."""
        for role, sampler in self.resources.samplers.items():
            require_trainable(role, sampler.policy)
        if self.run.checkpoint is not None:
            await self.run.load_checkpoint(self._policies_by_name())
        failed_steps = FailedSteps(self.config)
        for step in range(self.run.next_step, self.config.steps):
            clock, stage, stats = Clock(), stage_at(step, self.config.stages), self._sampler_stats()
            try:
                with clock.phase("rollout"):
                    rollouts = await self._sample_rollouts(step, stage)
            except asyncio.CancelledError:
                await self._save(step)  # sampling does not change the weights
                raise
            if warning := failed_steps.warning(step, rollouts):
                self.progress.warn(warning)
                self.run.log(warning)
            await self._finish(step, self._learn(step, stage, rollouts, clock, stats))
            if error := failed_steps.error():
                await self._save(step + 1)
                raise error

    async def _finish(self, step: int, rest: Coroutine[None, None, None]) -> None:
        """Run the part of a step that changes weights to its end, even if training is canceled meanwhile."""
        task = asyncio.ensure_future(rest)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await task
            await self._save(step + 1)
            raise

    async def _save(self, steps_done: int) -> None:
        """Save a checkpoint after the last finished step, unless there is one."""
        if steps_done > self.run.next_step:
            await self.run.save_checkpoint(steps_done, self._policies_by_name(), self.config.run.keep_checkpoints)

    async def _sample_rollouts(self, step: int, stage: StageConfig) -> list[Rollout]:
        """Sample the trees of a step, with credit. Tasks without spread are replaced up to `rollout.redraws` times."""
        size, redraws = self.config.tasks.per_step, self.config.rollout.redraws
        rollouts = await self._sample_trees(self.tasks.batch(step, size), step, 0)
        for attempt in range(1, redraws + 1):
            flat = [index for index, tree in enumerate(rollouts) if not _has_signal(tree, stage)]
            if not flat:
                break
            first = REDRAWN_FROM + (step * redraws + attempt - 1) * size
            others = await self._sample_trees([self.tasks.task(first + index) for index in flat], step, attempt)
            for index, tree in zip(flat, others, strict=True):
                rollouts[index] = tree
        return rollouts

    async def _sample_trees(self, tasks: Sequence[Task], step: int, attempt: int) -> list[Rollout]:
        config = self.config
        self.progress.expect(len(tasks) * config.rollout.designs * config.rollout.executions)
        options, path = RolloutOptions.of(config), (config.seed, "train", step, attempt)
        rollouts = await rollout_batch(tasks, self.resources, options, path)
        for tree in rollouts:
            assign_credit(tree, config.credit)
        return rollouts

    async def _learn(
        self, step: int, stage: StageConfig, rollouts: list[Rollout], clock: Clock, stats_before: Mapping[str, float]
    ) -> None:
        """Update, measure, evaluate, and write the step to the run."""
        with clock.phase("update"):
            update_metrics = await self._update(step, rollouts, stage)
        metrics = step_metrics(rollouts) | update_metrics
        metrics |= {f"learning_rate/{role}": rate for role, rate in stage.learning_rates.items()}
        metrics |= await self._evaluate(step + 1, clock)
        metrics |= {f"engine/{name}": value - stats_before[name] for name, value in self._sampler_stats().items()}
        await self._write(step, metrics | clock.metrics(), rollouts)

    async def _update(self, step: int, rollouts: Sequence[Rollout], stage: StageConfig) -> dict[str, float]:
        """Take the optimizer steps of each epoch: one per mini-batch, or `updates_per_step`, for each role trained."""
        size, parts = self.config.optimizer.minibatch, self.config.optimizer.updates_per_step
        metrics: dict[str, float] = {}
        if size is not None:
            for role in Role:
                if role in stage.learning_rates:
                    metrics |= await self._update_by_minibatches(step, role, rollouts, stage)
            return metrics
        for update in range(parts * stage.epochs):
            metrics |= await self._update_once(rollouts[update % parts :: parts], stage)
        return metrics

    async def _update_by_minibatches(
        self, step: int, role: Role, rollouts: Sequence[Rollout], stage: StageConfig
    ) -> dict[str, float]:
        """Take an optimizer step for each mini-batch of a role. Return totals of counts and means of the rest."""
        size, rate = self.config.optimizer.minibatch, stage.learning_rates[role]
        assert size is not None
        episodes, updates = episodes_of(role, rollouts), list[dict[str, float]]()
        metrics: dict[str, float] = {}
        for epoch in range(stage.epochs):
            for data in split_minibatches(episodes, size, seed_of(self.config.seed, "minibatch", step, epoch, role)):
                losses = await self._forward_backward(role, data)
                metrics |= await self._add_anchors(role, rollouts, stage)
                updates.append({**losses, **await self.policies[role].optim_step(rate)})
        return metrics | {f"{role}/{name}": value for name, value in summarize_updates(updates).items()}

    async def _add_anchors(self, role: Role, rollouts: Sequence[Rollout], stage: StageConfig) -> dict[str, float]:
        """Add the gradient of the anchor term to that of the role's loss, where the other role shares the weights."""
        if not stage.anchor or len(stage.learning_rates) > 1 or self.config.model.sharing != "shared":
            return {}
        (frozen,) = set(Role) - set(stage.learning_rates)
        if not (data := anchors_of(frozen, rollouts, stage.anchor)):
            return {}
        temperature = self.resources.samplers[frozen].temperature
        options = self.config.loss.model_copy(update={"kl": 0.0})
        losses = await self.policies[role].forward_backward(data, "ppo", options, temperature)
        moved = {"anchor/approx_kl": losses["approx_kl"]} if "approx_kl" in losses else {}
        return {"anchor/sequences": float(len(data)), **moved}

    async def _update_once(self, rollouts: Sequence[Rollout], stage: StageConfig) -> dict[str, float]:
        rates, metrics = stage.learning_rates, dict[str, float]()
        for role in rates:
            if data := data_for(role, rollouts):
                losses = await self._forward_backward(role, data)
                metrics |= {f"{role}/{name}": value for name, value in losses.items()}
                metrics |= await self._add_anchors(role, rollouts, stage)
        metrics |= await self._gradient_cosine(rates)
        for role, rate in rates.items():
            if f"{role}/loss" in metrics:
                optimizer_metrics = await self.policies[role].optim_step(rate)
                metrics |= {f"{role}/{name}": value for name, value in optimizer_metrics.items()}
        return metrics

    async def _forward_backward(self, role: Role, data: list[Datum]) -> Mapping[str, float]:
        """Add the gradient of the loss on these data to the accumulated gradient of a role."""
        temperature = self.resources.samplers[role].temperature
        data = await self._with_reference(role, data, temperature)
        return await self.policies[role].forward_backward(data, "ppo", self.config.loss, temperature)

    async def _gradient_cosine(self, rates: Mapping[Role, float]) -> dict[str, float]:
        designer, executor = self.policies[Role.DESIGNER], self.policies[Role.EXECUTOR]
        if len(rates) < 2 or not isinstance(designer, ComparesGradients):
            return {}
        cosine = await designer.gradient_cosine(executor)
        return {} if cosine is None else {"gradients/cosine": cosine}

    async def _with_reference(self, role: Role, data: list[Datum], temperature: float) -> list[Datum]:
        """Add the log-probabilities of the reference policy, if the loss has a KL term."""
        if not self.config.loss.kl or self.references is None:
            return data
        logprobs = await self.references[role].logprobs(data, temperature)
        return [replace(datum, reference_logprobs=tuple(row)) for datum, row in zip(data, logprobs, strict=True)]

    async def _evaluate(self, done: int, clock: Clock) -> dict[str, float]:
        evaluation = self.config.evaluation
        if not evaluation.every or (done % evaluation.every and done != self.config.steps):
            return {}
        held_out, options = self.tasks.held_out, RolloutOptions.of(self.config)
        tasks = [held_out[index] for index in training_subset(len(held_out), evaluation.tasks)]
        self.progress.expect(len(tasks) * evaluation.samples)
        with clock.phase("evaluation"):
            samplers = evaluation_samplers(self.resources.samplers, evaluation)
            resources = replace(self.resources, samplers=samplers)
            solved = await solve_rate(tasks, resources, options, evaluation.samples)
        self.progress.evaluation(done, solved)
        return {"evaluation/solved": solved}

    async def _write(self, step: int, metrics: Mapping[str, float], rollouts: list[Rollout]) -> None:
        done, options = step + 1, self.config.run
        self.run.write_step(step, metrics, rollouts if step % options.rollouts_every == 0 else None)
        self.loggers.log(step, metrics)
        rates: dict[str, float] = {role: metrics[name] for role in Role if (name := f"learning_rate/{role}") in metrics}
        self.progress.step(step, metrics, rates)
        # The best checkpoint solves most of the held-out tasks; among equal ones it is the earliest.
        solved, best = metrics.get("evaluation/solved"), self.run.best
        if solved is not None and (best is None or solved > best.score):
            self.run.mark_best(done, solved)
        # The checkpoint comes last: it implies that everything before it is written.
        if done % options.checkpoint_every == 0 or done == self.config.steps or solved is not None:
            await self.run.save_checkpoint(done, self._policies_by_name(), options.keep_checkpoints)

    def _sampler_stats(self) -> Mapping[str, float]:
        """Return the totals of all samplers; roles that share one are counted once."""
        samplers = {id(p.engine if isinstance(p, HasEngine) else p): p for p in self.policies.values()}
        stats = [policy.stats() for policy in samplers.values() if isinstance(policy, SamplerStats)]
        names = dict.fromkeys(name for totals in stats for name in totals)
        return {name: sum(totals.get(name, 0.0) for totals in stats) for name in names}

    def _policies_by_name(self) -> dict[str, Policy]:
        return {str(role): policy for role, policy in self.policies.items()}


def _has_signal(tree: Rollout, stage: StageConfig) -> bool:
    """Return whether any role of the stage has something to learn from a tree."""
    return any(data_for(role, [tree]) for role in stage.learning_rates)
