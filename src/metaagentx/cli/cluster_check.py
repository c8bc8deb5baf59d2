"""The plan of a recipe's step on a cluster, in lines or as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import typer

from ..backends.cluster_plan import CONSTANTS, ClusterPlan, StepWork, plan_cluster
from ..backends.model_shape import ModelShape
from ..config import Config
from ..errors import MetaAgentXError
from ..types import Role
from .memory_check import show_size

MAX_GPUS, MAX_HOSTS = 1024, 1024
_FIXES = {
    "the memory of a GPU": "up to 8 GPUs share the weights; or train a LoRA (--set model.lora_rank=16)",
    "decoding": "more GPUs help",
    "the slowest execution": "more GPUs do not help: grow tasks.per_step, or shorten replies (rollout.executor_tokens)",
    "the event loop of the host": "move executions to more hosts, with a rollout process on each (--hosts)",
    "the cores of the host": "move executions to more hosts (--hosts), or to hosts with more cores",
    "the arithmetic of the update": "more GPUs help, if an optimizer step has a call for each (optimizer.minibatch)",
    "the network between GPUs in the update": "take fewer optimizer steps (optimizer.minibatch)",
    "weight sync": "grow tasks.per_step, or train a LoRA (model.lora_rank)",
}


def print_cluster(config: Config, shape: ModelShape, gpus: str, hosts: int, gpu_memory: int, as_json: bool) -> None:
    """Print the plans for these numbers of GPUs."""
    if not 1 <= hosts <= MAX_HOSTS:
        raise MetaAgentXError(f"--hosts: invalid value {hosts}, expected 1 to {MAX_HOSTS}")
    plans = [plan_cluster(shape, step_work(config), count, hosts, gpu_memory) for count in _parse_gpus(gpus)]
    if as_json:
        constants = {name: asdict(constant) for name, constant in CONSTANTS.items()}
        shown = [asdict(plan) | {"step_seconds": plan.step_seconds} for plan in plans]
        typer.echo(json.dumps({"plans": shown, "constants": constants}, indent=1))
        return
    for number, plan in enumerate(plans):
        typer.echo("" if number else "An estimate from published and assumed figures of the engines: docs/scale.md.")
        for line in _lines(plan, gpu_memory):
            typer.echo(line)


def step_work(config: Config) -> StepWork:
    """Return what a recipe does in the step that trains most."""
    rollout, optimizer = config.rollout, config.optimizer
    roles = {role for stage in config.stages for role in stage.learning_rates}
    designs = config.tasks.per_step * rollout.designs
    return StepWork(
        designs=designs,
        executions=designs * rollout.executions,
        in_flight=rollout.in_flight,
        designer_limit=rollout.designer_tokens,
        executor_limit=rollout.executor_tokens,
        trained_roles=max((frozenset(stage.learning_rates) for stage in config.stages), key=_weight),
        epochs=max(stage.epochs for stage in config.stages),
        minibatch=optimizer.minibatch,
        updates_per_step=optimizer.updates_per_step,
        token_budget=optimizer.token_budget,
        lora_rank=config.model.lora_rank,
        learners=len(roles),
    )


def _weight(roles: frozenset[Role]) -> tuple[bool, bool]:
    return Role.EXECUTOR in roles, Role.DESIGNER in roles


def _parse_gpus(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() and 1 <= int(number) <= MAX_GPUS for number in numbers):
        raise MetaAgentXError(
            f"--gpus: invalid value {text!r}, expected a number from 1 to {MAX_GPUS}, or several, such as 8,64,512"
        )
    return [int(number) for number in numbers]


def _lines(plan: ClusterPlan, gpu_memory: int) -> Iterator[str]:
    where = f"{_count(plan.gpus, 'GPU')}, {_count(plan.hosts, 'host')}"
    if not plan.fits:
        needed = show_size(int(plan.gpu_bytes))
        yield f"{where}: does not fit: {needed} per GPU of {show_size(gpu_memory)}; {_FIXES[plan.bottleneck]}"
        return
    yield f"{where}: a step takes {_time(plan.step_seconds)}; limited by {plan.bottleneck}"
    yield (
        f"  work        {plan.executions:,} executions, {plan.calls:,} calls, {plan.reply_tokens / 1e6:,.2f} "
        f"million tokens written, {plan.prompt_tokens / 1e6:,.2f} million read, "
        f"{plan.trained_tokens / 1e6:,.2f} million trained on"
    )
    yield (
        f"  rollout     {_time(plan.rollout_seconds)}: prefill {_time(plan.prefill_seconds)}, decoding "
        f"{_time(plan.decode_seconds)} with {plan.replies_per_gpu:.1f} replies per GPU, the slowest execution "
        f"{_time(plan.tail_seconds)}, hosts {_time(plan.host_seconds)}"
    )
    yield (
        f"  update      {_time(plan.update_seconds)}: arithmetic {_time(plan.compute_seconds)} on "
        f"{_count(plan.busy_gpus, 'GPU')}, network {_time(plan.gradient_seconds)}, "
        f"{plan.optimizer_steps:,} optimizer steps"
    )
    yield f"  weight sync {_time(plan.sync_seconds)}"
    yield f"  memory      {show_size(int(plan.gpu_bytes))} per GPU; {show_size(int(plan.host_bytes))} per host"
    yield (
        f"  network     {show_size(int(plan.node_network_bytes))} from each node in the update; "
        f"{show_size(int(plan.host_network_bytes))} between hosts and engines"
    )
    yield (
        f"  hosts       {plan.cpu_seconds:,.1f} CPU-seconds; {plan.executions_per_s:,.1f} executions/s wanted, "
        f"one host feeds {plan.host_executions_per_s:,.0f}"
    )
    yield f"  then        {_FIXES[plan.bottleneck]}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s"
