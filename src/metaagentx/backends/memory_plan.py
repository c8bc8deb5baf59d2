"""How much memory a recipe needs, from the shape of its model and before anything is loaded. Without torch.

A plan lists what lies on which device, each with the phases that it exists in: while sampling there are keys and
values, while a role is updated there are gradients and activations. What must fit is the largest phase, not the sum of
all. Estimates of activations count the tensors that autograd keeps in a Llama or Qwen3 layer of transformers;
`benchmarks/memory_plan.py` compares plans with measured peaks on a CPU. For a CPU, plans assume that torch has oneDNN
and that the processor has bf16 products: only torch knows. Without them, what is sampled from takes as much as in
float32, and the update of a LoRA as much as through transformers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..options import ModelConfig, OptimizerConfig
from .memory_budget import (
    DETERMINISTIC_ROWS,
    KV_SHARE,
    LORA_PASS_HEAD_ROWS,
    LORA_PASS_SPAN,
    MAX_COPIED_WEIGHTS,
    MAX_LOGITS,
    MAX_PREFILL_TOKENS,
    PREFIX_SHARE,
)
from .model_shape import ModelShape

Phase = Literal["loading", "sampling", "update"]
RUNNING: tuple[Phase, ...] = ("sampling", "update")
ALWAYS: tuple[Phase, ...] = ("loading", *RUNNING)

LIBRARIES_BYTES = 380 << 20
"""Python with torch, transformers and peft, after the first products; measured."""
GPU_CONTEXT_BYTES = 600 << 20
"""What CUDA and its libraries take on a GPU; estimated."""
LORA_PASS_BLOCKS_BYTES = 48 << 20
"""Blocks of tokens within a layer's pass, a dozen tensors of at most one MB, and the buffers of oneDNN."""
LOGIT_COPIES = 3
"""Logits, their exponentials, and what is computed from these."""
PROMPT_TOKENS = 1024
"""Added to the longest reply: the assumed length of the longest sequence."""
ACCURACY = 0.15
"""How far a plan may be off. A recipe is refused if it cannot fit even then."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a recipe does with its model, as far as memory is concerned."""

    learners: int
    """Roles that are trained in some stage: each has its own moments."""
    learners_at_once: int
    """The most roles that are trained in one stage: each has its own gradient."""
    reference: bool
    """The initial model is kept for a KL term."""
    reply_tokens: int
    """The longest reply."""
    replies_at_once: int
    """The most replies that are sampled concurrently."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that takes memory."""

    name: str
    device: str
    bytes: int
    phases: tuple[Phase, ...] = RUNNING


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What lies on which device, and when."""

    device: str
    """The device of the model."""
    dtype: str
    parameters: int
    trained: int
    """Weights that a role trains."""
    kv_tokens: int
    parts: tuple[Part, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices, the model's first."""
        return tuple(dict.fromkeys([self.device, *(part.device for part in self.parts)]))

    def total(self, device: str, phase: Phase) -> int:
        """Return the bytes of a phase."""
        return sum(part.bytes for part in self.parts if part.device == device and phase in part.phases)

    def peak(self, device: str) -> int:
        """Return the bytes that a device must have: those of the largest phase."""
        return max(self.total(device, phase) for phase in ALWAYS)

    def fits(self, memory: Mapping[str, int], tolerance: float = 0.0) -> bool:
        """Return whether each device with a known memory has enough, if plans may be too large by the tolerance."""
        return all(self.peak(device) <= memory[device] * (1 + tolerance) for device in self.devices if device in memory)


def plan_memory(
    shape: ModelShape,
    model: ModelConfig,
    optimizer: OptimizerConfig,
    work: Workload,
    device: str,
    memory: int | None = None,
) -> MemoryPlan:
    """Return the plan for a model on a device such as `cpu` or `cuda:0`.

    The memory of the device decides how large the KV cache is, if the recipe does not, and whether the moments of a
    role wait in main memory while another role is trained.
    """
    on_cpu = device.startswith("cpu")
    dtype = ("float32" if on_cpu else "bfloat16") if model.dtype == "auto" else model.dtype
    size = 4 if dtype == "float32" else 2
    trained = shape.lora_parameters(model.lora_rank) or shape.parameters
    row = min(shape.context, work.reply_tokens + PROMPT_TOKENS)
    parts = [*_parts(shape, model, optimizer, work, device, size)]
    kv_token = 2 * shape.layers * shape.key_width * _sampled_size(shape, model, size, device)
    kv_tokens = model.kv_budget_tokens or 0
    if not kv_tokens:
        rows = DETERMINISTIC_ROWS if model.deterministic else 1
        wanted = max(rows, min(model.max_batch, work.replies_at_once)) * row
        sampling = sum(part.bytes for part in parts if part.device == device and "sampling" in part.phases)
        free = max(0, memory - sampling) if memory is not None else wanted * kv_token
        kv_tokens = max(rows * row, min(wanted, int(KV_SHARE * free) // kv_token))
    prefixes = int(PREFIX_SHARE * kv_tokens * kv_token)
    parts += [
        Part("KV cache", device, kv_tokens * kv_token - prefixes, ("sampling",)),
        Part("cached prefixes", device, prefixes),
    ]
    waiting = 8 * trained * (work.learners - work.learners_at_once)
    plan = MemoryPlan(device, dtype, shape.parameters, trained, kv_tokens, tuple(part for part in parts if part.bytes))
    if not waiting:
        return plan
    plans = [
        MemoryPlan(
            device, dtype, shape.parameters, trained, kv_tokens,
            (*plan.parts, Part("AdamW moments of the other role", place, waiting)),
        )
        for place in (device, "cpu")
    ]  # fmt: skip
    return plans[not on_cpu and memory is not None and plans[0].peak(device) > memory]


def _parts(
    shape: ModelShape, model: ModelConfig, optimizer: OptimizerConfig, work: Workload, device: str, size: int
) -> Iterator[Part]:
    """Yield what does not depend on how much memory there is."""
    on_cpu = device.startswith("cpu")
    lora = shape.lora_parameters(model.lora_rank)
    models = 2 if model.sharing == "separate" else 1
    engines = 2 if model.sharing in ("separate", "lora") else 1
    trained = lora or shape.parameters
    row = min(shape.context, work.reply_tokens + PROMPT_TOKENS)
    positions = optimizer.token_budget
    yield Part("Python and libraries", "cpu", LIBRARIES_BYTES, ALWAYS)
    if not on_cpu:
        yield Part("CUDA", device, GPU_CONTEXT_BYTES, ALWAYS)
        yield Part("weights while they are loaded", "cpu", shape.parameters * size, ("loading",))
    yield Part("weights", device, models * shape.parameters * size, ALWAYS)
    yield Part("float32 master weights", device, 0 if lora or size == 4 else 4 * models * shape.parameters)
    yield Part("LoRA", device, 4 * lora * engines)
    yield Part("reference model", device, work.reference * shape.parameters * size, ALWAYS)
    if on_cpu:
        yield Part("copies for decoding", device, engines * _copied_bytes(shape, model, size, device))
    yield Part("AdamW moments", device, 8 * trained * work.learners_at_once)
    yield Part("gradients", device, 4 * trained * work.learners_at_once, ("update",))
    recompute = optimizer.activation_checkpointing is True
    most_logits, copies = MAX_LOGITS, LOGIT_COPIES
    if lora and on_cpu and size == 4 and shape.native:
        kept = lora_pass_bytes(shape, positions, min(row, positions), recompute)
        most_logits, copies = LORA_PASS_HEAD_ROWS * shape.vocabulary, 1
    else:
        kept = activation_bytes(shape, size, positions, min(row, positions), recompute, lora > 0)
    yield Part("activations", device, kept, ("update",))
    logits = 4 * copies * min(most_logits, positions * shape.vocabulary)
    yield Part("logits", device, logits, ("update",))
    yield Part("prefill and sampling", device, _sampling(shape, size, model, work), ("sampling",))


def _sampled_size(shape: ModelShape, model: ModelConfig, size: int, device: str) -> int:
    """Return the bytes of a weight of the layers and of a key that is sampled from."""
    copied = device.startswith("cpu") and size == 4 and shape.native and shape.parameters <= MAX_COPIED_WEIGHTS
    return 2 if copied and model.sampling_dtype == "bfloat16" else size


def _copied_bytes(shape: ModelShape, model: ModelConfig, size: int, device: str) -> int:
    """Return the size of the engine's copies. A LoRA is merged into them where weights are float32."""
    if not shape.native or shape.parameters > MAX_COPIED_WEIGHTS:
        return 0
    layers = _sampled_size(shape, model, size, device)
    if model.lora_rank and size < 4:
        layers = 0
    return size * shape.vocabulary * shape.width + layers * shape.linear_parameters


def activation_bytes(shape: ModelShape, size: int, positions: int, row: int, recompute: bool, has_lora: bool) -> int:
    """Return the bytes that autograd keeps of a micro-batch.

    In a layer these are: of each of two norms its input, the normalized input and the output; the rotated queries, and
    keys and values repeated for all query heads; the attention's output in two layouts; in the MLP the gate, its
    activation, up and their product. Norms compute in float32, and a LoRA on the float32 copy of a layer's input.
    """
    norms = 2 * shape.width * (12 if size == 4 else 8)
    attention = 5 * shape.attention_width + 2 * shape.qk_norm * (shape.attention_width + shape.key_width)
    layer = norms + size * (attention + 4 * shape.hidden)
    if has_lora and size == 2:
        layer += 4 * (5 * shape.width + shape.attention_width + shape.hidden)
    layers = size * shape.width * shape.layers + layer if recompute else layer * shape.layers
    mask = row * (size + 1)  # and a boolean one, while it is made
    ends = 16 * shape.width  # embedding, last norm, and the states that logits are computed from
    return positions * (layers + mask + ends)


def lora_pass_bytes(shape: ModelShape, positions: int, row: int, recompute: bool) -> int:
    """Return the bytes that the fp32 training pass of a LoRA keeps of a micro-batch, and those of a layer's pass.

    In a layer these are: its input, queries, keys and values, with Qwen3 also before their norm, the attention output,
    the input of the MLP, gate and up. A layer's pass has gradients of attention and residual, and merged matrices.
    """
    attention = 2 * shape.attention_width + 2 * shape.key_width
    attention += shape.qk_norm * (shape.attention_width + shape.key_width)
    inner = attention + shape.width + 2 * shape.hidden
    kept = shape.width * shape.layers + inner * (1 if recompute else shape.layers)
    gradients = 2 * shape.width + 2 * shape.attention_width + 2 * shape.key_width
    masks = shape.heads // shape.key_heads * (row // 2 + LORA_PASS_SPAN)
    ends = 4 * shape.width
    merged = 4 * shape.linear_parameters // shape.layers
    return 4 * positions * (kept + gradients + masks + ends) + merged + LORA_PASS_BLOCKS_BYTES


def _sampling(shape: ModelShape, size: int, model: ModelConfig, work: Workload) -> int:
    """Return the bytes of a prefill pass or of a decode step's logits, whichever are more."""
    token = 3 * shape.width + 2 * (shape.attention_width + shape.key_width) + 4 * shape.hidden
    rows = min(model.max_batch, work.replies_at_once)
    return max(MAX_PREFILL_TOKENS * token * size, rows * shape.vocabulary * 4 * LOGIT_COPIES)
