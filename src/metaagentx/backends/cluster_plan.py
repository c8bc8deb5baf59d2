"""How long a training step takes on a cluster, and what limits it: arithmetic on published figures, without torch.

The engines sample on all GPUs, then train on all GPUs, as the on-policy algorithm needs it: nothing overlaps. Each GPU
has a copy of the model for sampling. For training, the weights are sharded over the GPUs of a node, and gradients are
averaged between nodes. Every constant says whether it is measured (by us, with the command), published or assumed.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..types import Role
from .memory_budget import MAX_LOGITS
from .memory_plan import GPU_CONTEXT_BYTES, LOGIT_COPIES, activation_bytes
from .model_shape import ModelShape

Source = Literal["measured", "published", "assumed"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that plans depend on, and where it is from."""

    value: float
    unit: str
    source: Source
    origin: str


_SIMULATION = "python -m benchmarks.scale --in-flight 1000"
_H100 = "NVIDIA H100 SXM data sheet"
_DGX = "NVIDIA DGX H100 data sheet"
CONSTANTS = {
    "loop_ms_per_call": Constant(0.4, "ms", "measured", "python -m benchmarks.rollout"),
    "loop_ms_per_waiting_second": Constant(0.12, "ms", "measured", f"{_SIMULATION}: a look at each run every second"),
    "cpu_ms_per_execution": Constant(30.0, "ms", "measured", _SIMULATION),
    "mb_per_execution": Constant(2.7, "MB", "measured", _SIMULATION),
    "request_ms_per_call": Constant(2.0, "ms", "measured", "python -m benchmarks.request"),
    "host_cores": Constant(64, "cores", "assumed", "a host without GPUs that runs rollouts, its cores as ours"),
    "peak_tflops": Constant(989, "TFLOPS", "published", f"{_H100}: bfloat16, dense"),
    "memory_gb_per_s": Constant(3350, "GB/s", "published", _H100),
    "nvlink_gb_per_s": Constant(450, "GB/s", "published", f"{_H100}: 900 GB/s in both directions together"),
    "network_gb_per_s": Constant(50, "GB/s", "published", f"{_DGX}: 400 Gbit/s for each GPU"),
    "gpus_per_node": Constant(8, "GPUs", "published", _DGX),
    "training_mfu": Constant(0.35, "of the peak", "assumed", "full batches of long sequences"),
    "prefill_mfu": Constant(0.40, "of the peak", "assumed", "also the arithmetic of decoding"),
    "bandwidth_share": Constant(0.70, "of the peak", "assumed", "of memory, NVLink and network"),
    "decode_overhead_ms": Constant(2.0, "ms", "assumed", "scheduling and launches of a decode step"),
    "sync_overhead_s": Constant(2.0, "s", "assumed", "pausing engines, swapping weights, dropping caches"),
    "calls_per_execution": Constant(4, "calls", "assumed", "three solvers at once, then a judge"),
    "turns_per_execution": Constant(2, "calls", "assumed", "that wait for each other"),
    "prompt_tokens": Constant(1000, "tokens", "assumed", "mean of a prompt"),
    "designer_reply_tokens": Constant(1500, "tokens", "assumed", "mean, or the limit of the recipe if that is less"),
    "executor_reply_tokens": Constant(1500, "tokens", "assumed", "mean, or the limit of the recipe if that is less"),
    "bytes_per_token": Constant(30, "bytes", "assumed", "a token and its log-probability in JSON"),
}
MAX_SEQUENCES = 256
"""The most replies that an engine decodes at once; assumed."""


def constant(name: str) -> float:
    """Return the value of a constant."""
    return CONSTANTS[name].value


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a recipe does in a step, as far as a cluster is concerned."""

    designs: int
    executions: int
    in_flight: int
    designer_limit: int
    executor_limit: int
    trained_roles: frozenset[Role]
    """In the stage that trains most."""
    epochs: int
    minibatch: int | None
    """Calls in an optimizer step."""
    updates_per_step: int
    token_budget: int
    lora_rank: int
    learners: int

    @property
    def calls(self) -> int:
        """Model calls of a step."""
        return self.designs + self.executions * int(constant("calls_per_execution"))

    @property
    def reply_tokens(self) -> float:
        """Tokens that the model writes in a step."""
        executor = (self.calls - self.designs) * self.executor_reply
        return self.designs * self.designer_reply + executor

    @property
    def designer_reply(self) -> float:
        """The mean length of a design."""
        return min(constant("designer_reply_tokens"), self.designer_limit)

    @property
    def executor_reply(self) -> float:
        """The mean length of an agent's reply."""
        return min(constant("executor_reply_tokens"), self.executor_limit)

    @property
    def chain_tokens(self) -> float:
        """What the slowest execution writes one after the other: one of its replies is as long as it may be."""
        turns = constant("turns_per_execution")
        return self.designer_reply + (turns - 1) * self.executor_reply + self.executor_limit

    @property
    def samples(self) -> int:
        """Calls that are trained on."""
        designer, executor = self.designs, self.calls - self.designs
        return designer * (Role.DESIGNER in self.trained_roles) + executor * (Role.EXECUTOR in self.trained_roles)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps in a training step."""
        steps = -(-self.samples // self.minibatch) if self.minibatch else min(self.updates_per_step, self.samples)
        return steps * self.epochs

    @property
    def trained_tokens(self) -> float:
        """Tokens of the calls that are trained on, with their prompts."""
        reply = self.executor_reply if Role.EXECUTOR in self.trained_roles else self.designer_reply
        return self.epochs * self.samples * (constant("prompt_tokens") + reply)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The step of a recipe on a cluster. Seconds of a step are the sum of rollout, update and weight sync."""

    gpus: int
    hosts: int
    calls: int
    executions: int
    prompt_tokens: float
    reply_tokens: float
    trained_tokens: float
    optimizer_steps: int
    replies_per_gpu: float
    """Replies that a GPU decodes at once."""
    prefill_seconds: float
    decode_seconds: float
    """All replies of a step, by the throughput of all GPUs."""
    tail_seconds: float
    """What the slowest execution takes after all others are done."""
    loop_seconds: float
    """Of the event loop on the busiest host."""
    cpu_seconds: float
    """CPU time of all hosts: sandbox, grading, event loop."""
    host_seconds: float
    """What the hosts need at least for the executions of a step."""
    rollout_seconds: float
    compute_seconds: float
    busy_gpus: int
    """GPUs that have a sample of an optimizer step to train on."""
    gradient_seconds: float
    update_seconds: float
    sync_seconds: float
    executions_per_s: float
    """What the GPUs could use in a rollout."""
    host_executions_per_s: float
    """What one host can run and grade."""
    gpu_bytes: float
    """Memory that a GPU must have, with at least one reply in its KV cache."""
    fits: bool
    """Otherwise the seconds mean nothing."""
    host_bytes: float
    node_network_bytes: float
    """Sent by a node in an update: gradients and, with them, new weights."""
    host_network_bytes: float
    """Prompts and replies between hosts and engines."""
    bottleneck: str

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.rollout_seconds + self.update_seconds + self.sync_seconds


def decode_step_seconds(shape: ModelShape, replies: float, context: float) -> float:
    """Return how long one token of each of this many replies takes: memory traffic, arithmetic, overhead."""
    traffic = 2 * shape.parameters + replies * context * _kv_bytes(shape)
    arithmetic = 2 * shape.parameters * replies
    return (
        traffic / (constant("memory_gb_per_s") * 1e9 * constant("bandwidth_share"))
        + arithmetic / (constant("peak_tflops") * 1e12 * constant("prefill_mfu"))
        + constant("decode_overhead_ms") / 1e3
    )


class _Update(NamedTuple):
    """The part of a step after sampling."""

    busy_gpus: int
    compute_seconds: float
    gradient_seconds: float
    sync_seconds: float
    node_network_bytes: float


def _plan_update(shape: ModelShape, work: StepWork, gpus: int) -> _Update:
    node = min(gpus, int(constant("gpus_per_node")))
    busy = min(gpus, -(-work.samples * work.epochs // work.optimizer_steps))
    # Log-probabilities before the update (2), forward (2), backward (4; 2 to the inputs alone), layers again (2).
    passes = 8 if work.lora_rank else 10
    compute = (
        work.trained_tokens
        * passes
        * shape.parameters
        / (constant("peak_tflops") * 1e12 * constant("training_mfu") * busy)
    )
    trained = shape.lora_parameters(work.lora_rank) or shape.parameters
    share = constant("bandwidth_share") * 1e9
    gathered = 0.0 if node == 1 else 4 * 2 * shape.parameters * (node - 1) / node  # two forwards, backward, gradients
    nodes = -(-gpus // node)
    averaged = 0.0 if nodes == 1 else 2 * 2 * trained / node * (nodes - 1) / nodes
    gradient = work.optimizer_steps * (
        gathered / (constant("nvlink_gb_per_s") * share) + averaged / (constant("network_gb_per_s") * share)
    )
    # Weight sync: every GPU gets all trained weights, over the network where there are several nodes.
    link = constant("nvlink_gb_per_s" if nodes == 1 else "network_gb_per_s")
    sync = constant("sync_overhead_s") + (0.0 if gpus == 1 else 2 * trained / (link * share))
    return _Update(busy, compute, gradient, sync, node * averaged * work.optimizer_steps)


def _host_seconds(work: StepWork, waiting_token: float) -> tuple[float, float]:
    """Return the time of the event loop, and the CPU time of all processes, that the executions of a step take."""
    loop = work.calls * (constant("loop_ms_per_call") + constant("request_ms_per_call")) / 1e3
    waited = work.executions * constant("turns_per_execution") * work.executor_reply * waiting_token
    loop += waited * constant("loop_ms_per_waiting_second") / 1e3
    cpu = work.executions * constant("cpu_ms_per_execution") / 1e3 + work.calls * constant("request_ms_per_call") / 1e3
    return loop, cpu


def _longest_part(decode: float, tail: float, host: tuple[bool, float] | None, update: _Update) -> str:
    """Return the name of what takes longest; `host`: whether the event loop limits it, and its seconds."""
    seconds = {
        "decoding": decode,
        "the slowest execution": tail,
        "the arithmetic of the update": update.compute_seconds,
        "the network between GPUs in the update": update.gradient_seconds,
        "weight sync": update.sync_seconds,
    }
    if host is not None:
        seconds["the event loop of the host" if host[0] else "the cores of the host"] = host[1]
    return max(seconds, key=lambda name: seconds[name])


def plan_cluster(shape: ModelShape, work: StepWork, gpus: int, hosts: int, gpu_memory: int) -> ClusterPlan:
    """Return the step of a recipe on GPUs with this much memory, with hosts that run its executions."""
    # Sampling: each GPU has its share of the replies that are under way, as far as its KV cache holds them.
    context = constant("prompt_tokens") + work.executor_reply / 2
    at_once = min(work.in_flight, work.executions) * constant("calls_per_execution") / constant("turns_per_execution")
    state = _training_bytes(shape, work, gpus)
    room = max(0.0, gpu_memory * 0.9 - state - 2 * shape.parameters - GPU_CONTEXT_BYTES)
    most = max(1.0, min(MAX_SEQUENCES, room / (context * _kv_bytes(shape))))
    replies = min(most, max(1.0, at_once / gpus))
    token = decode_step_seconds(shape, replies, context)
    waiting_token = token * max(1.0, at_once / (gpus * replies))  # a reply may have to wait for room
    written = work.reply_tokens / at_once
    decode = written * waiting_token
    # What the slowest execution still has to write when all others are done, with a GPU for itself.
    tail = max(0.0, work.chain_tokens - written) * decode_step_seconds(shape, 1, context)
    flops = constant("peak_tflops") * 1e12
    prompts = work.calls * constant("prompt_tokens")
    prefill = prompts * 2 * shape.parameters / (flops * constant("prefill_mfu")) / min(gpus, work.calls)
    loop, cpu = _host_seconds(work, waiting_token)
    host = max(loop, cpu / constant("host_cores")) / hosts
    sampling = prefill + decode + tail
    update = _plan_update(shape, work, gpus)
    # What the hosts do while the GPUs sample is hidden behind that.
    host_part = None if host <= sampling else (loop >= cpu / constant("host_cores"), host)
    needed = state + 2 * shape.parameters + GPU_CONTEXT_BYTES + _longest(work) * _kv_bytes(shape)
    return ClusterPlan(
        gpus=gpus,
        hosts=hosts,
        calls=work.calls,
        executions=work.executions,
        prompt_tokens=prompts,
        reply_tokens=work.reply_tokens,
        trained_tokens=work.trained_tokens,
        optimizer_steps=work.optimizer_steps,
        replies_per_gpu=replies,
        prefill_seconds=prefill,
        decode_seconds=decode,
        tail_seconds=tail,
        loop_seconds=loop / hosts,
        cpu_seconds=cpu,
        host_seconds=host,
        rollout_seconds=max(sampling, host),
        compute_seconds=update.compute_seconds,
        busy_gpus=update.busy_gpus,
        gradient_seconds=update.gradient_seconds,
        update_seconds=update.compute_seconds + update.gradient_seconds,
        sync_seconds=update.sync_seconds,
        executions_per_s=work.executions / sampling,
        host_executions_per_s=work.executions / (host * hosts),
        gpu_bytes=needed,
        fits=needed <= gpu_memory,
        host_bytes=min(work.in_flight, work.executions) * constant("mb_per_execution") * 1e6 / hosts,
        node_network_bytes=update.node_network_bytes,
        host_network_bytes=(prompts + work.reply_tokens) * constant("bytes_per_token"),
        bottleneck=_longest_part(decode, tail, host_part, update) if needed <= gpu_memory else "the memory of a GPU",
    )


def _kv_bytes(shape: ModelShape) -> int:
    """Return the bytes of a position in the KV cache, in bfloat16."""
    return 2 * 2 * shape.layers * shape.key_width


def _longest(work: StepWork) -> float:
    return constant("prompt_tokens") + max(work.designer_limit, work.executor_limit)


def _training_bytes(shape: ModelShape, work: StepWork, gpus: int) -> float:
    """Return what training keeps on a GPU: its share of weights, masters, gradients and moments; activations.

    The engine that samples has its own copy of the weights, which stays.
    """
    node = min(gpus, int(constant("gpus_per_node")))
    if work.lora_rank:
        sharded = 2 * shape.parameters + shape.lora_parameters(work.lora_rank) * (8 + 8 * work.learners)
    else:
        sharded = shape.parameters * (2 + 4 + 4 + 8 * work.learners)
    kept = activation_bytes(shape, 2, work.token_budget, min(work.token_budget, int(_longest(work))), True, False)
    return sharded / node + kept + 4 * LOGIT_COPIES * MAX_LOGITS
