"""The memory plan of a recipe on a machine: what must fit where, and which settings make it fit."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..backends.hub import find_model
from ..backends.memory_plan import ACCURACY, ALWAYS, MemoryPlan, Workload, plan_memory
from ..backends.model_files import check_model
from ..backends.model_shape import KNOWN_SHAPES, ModelShape, preset_shape, read_shape
from ..backends.presets import check_preset
from ..config import Config
from ..errors import MetaAgentXError
from ..sandbox.memory import available_bytes

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SMALLEST_BUDGET = 256
_SHOWN_PARTS = 4
MAX_SUGGESTIONS = 3
Suggestions = list[tuple[dict[str, object], MemoryPlan]]
"""Settings to change, and the plan with them."""


def check_memory(config: Config, directory: Path) -> list[str]:
    """Return the plan of a run in a few lines, or raise if it cannot fit. `directory` is the run directory."""
    shape = find_shape(config, directory)
    if shape is None:  # an architecture with other keys in its config
        return []
    config, sizes = place(config)
    plan = plan_recipe(config, shape, sizes)
    suggestions = [] if plan.fits(sizes) else suggest(config, shape, sizes)
    if not plan.fits(sizes, ACCURACY):
        raise MetaAgentXError(describe_misfit(plan, sizes, suggestions))
    lines = []
    for device in plan.devices:
        needed = f"{show_size(plan.peak(device))}{of_free(sizes, device)}"
        lines.append(f"memory on {device}: {needed}; {largest_parts(plan, device)}")
    if suggestions:
        lines.append(f"memory is tight: plans are right within {ACCURACY:.0%}; {describe_fixes(suggestions)}")
    return lines


def find_shape(config: Config, directory: Path | None = None) -> ModelShape | None:
    """Return the shape of a recipe's model: of the run that made it, of its files, or of a model known by name."""
    model = config.model
    if model.preset is not None:
        check_preset(model.preset)
        return preset_shape(model.preset)
    if directory is not None and model.made_by_run and (directory / "model").exists():
        return read_shape(directory / "model")
    path = find_model(model.path, model.gguf_file)
    if path is None or not path.exists():
        return KNOWN_SHAPES.get(Path(model.path).name)
    check_model(path, model.gguf_file)
    return read_shape(path, model.gguf_file)


def plan_recipe(config: Config, shape: ModelShape, sizes: Mapping[str, int]) -> MemoryPlan:
    """Return the plan of a recipe whose device is known, with this much memory on each device."""
    rates, rollout = [stage.learning_rates for stage in config.stages], config.rollout
    work = Workload(
        learners=len({role for learning in rates for role in learning}),
        learners_at_once=max(map(len, rates)),
        reference=config.loss.kl > 0,
        reply_tokens=max(rollout.designer_tokens, rollout.executor_tokens),
        replies_at_once=rollout.in_flight,
    )
    device = config.model.device or "cpu"
    return plan_memory(shape, config.model, config.optimizer, work, device, sizes.get(device))


def place(config: Config) -> tuple[Config, dict[str, int]]:
    """Return the config with the device that its model gets on this machine, and the free memory of each device."""
    gpus = _free_on_gpus() if config.model.device != "cpu" else []
    if config.model.device is None:
        config = change(config, {"model.device": "cuda:0" if gpus else "cpu"})
    device = config.model.device or "cpu"
    number = device.removeprefix("cuda").removeprefix(":") or "0"
    sizes = {"cpu": available_bytes()}
    if device.startswith("cuda") and number.isdecimal() and int(number) < len(gpus):
        sizes[device] = gpus[int(number)]
    return config, sizes


def _free_on_gpus() -> list[int]:
    """Return the free bytes of each NVIDIA GPU."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [int(line) << 20 for line in found.stdout.split() if line.isdecimal()]


def suggest(config: Config, shape: ModelShape, sizes: Mapping[str, int]) -> Suggestions:
    """Return changes of settings that make a recipe fit, with their plans: the smallest changes first."""
    fitting: Suggestions = []
    for changes in _candidates(config):
        if any(known.items() <= changes.items() for known, _ in fitting):
            continue
        changed = plan_recipe(change(config, changes), shape, sizes)
        if changed.fits(dict(sizes)):
            fitting = [(known, plan) for known, plan in fitting if set(known) != set(changes)]
            fitting.append((changes, changed))
        if len(fitting) == MAX_SUGGESTIONS:
            break
    return fitting


def _candidates(config: Config) -> Iterator[dict[str, object]]:
    """Yield changes of settings, single ones first."""
    budget, kv_tokens = config.optimizer.token_budget, config.model.kv_budget_tokens
    budgets: list[dict[str, object]] = [
        {"optimizer.token_budget": budget >> n} for n in range(1, 20) if budget >> n >= _SMALLEST_BUDGET
    ]
    caches: list[dict[str, object]] = [
        {"model.kv_budget_tokens": kv_tokens >> n} for n in range(1, 20) if kv_tokens and kv_tokens >> n >= 1024
    ]
    recompute: dict[str, object] = {}
    if config.optimizer.activation_checkpointing is not True:
        recompute = {"optimizer.activation_checkpointing": True}
    lora: dict[str, object] = {} if config.model.lora_rank else {"model.lora_rank": 16}
    smaller: dict[str, object] = {}
    if config.model.dtype == "float32" and config.model.device != "cpu":
        smaller["model.dtype"] = "bfloat16"
    if config.model.sharing == "separate":
        smaller["model.sharing"] = "shared"
    if config.loss.kl:
        smaller["loss.kl"] = 0.0
    yield from ({key: value} for key, value in (recompute | lora | smaller).items())
    yield from budgets
    yield from caches
    for first in (recompute, lora, recompute | lora, recompute | lora | smaller):
        yield first
        yield from (first | second for second in (*budgets, *caches))
    yield from (recompute | lora | smaller | first | second for first in budgets for second in caches)


def change(config: Config, changes: Mapping[str, object]) -> Config:
    for key, value in changes.items():
        section, _, name = key.partition(".")
        changed = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: changed})
    return config


def describe_misfit(plan: MemoryPlan, sizes: Mapping[str, int], suggestions: Suggestions) -> str:
    """Return one line: which device lacks how much, and what fits."""
    device = next(name for name in plan.devices if name in sizes and plan.peak(name) > sizes[name])
    needed, free = show_size(plan.peak(device)), show_size(sizes[device])
    fix = describe_fixes(suggestions) or "no setting makes it fit: use a smaller model or a device with more memory"
    return f"the recipe needs {needed} on {device} ({largest_parts(plan, device)}), and {free} are free: {fix}"


def largest_parts(plan: MemoryPlan, device: str) -> str:
    """Return the largest phase of a device and its largest parts in words."""
    phase = max(ALWAYS, key=lambda phase: plan.total(device, phase))
    parts = [part for part in plan.parts if part.device == device and phase in part.phases]
    parts.sort(key=lambda part: -part.bytes)
    listed = ", ".join(f"{part.name} {show_size(part.bytes)}" for part in parts[:_SHOWN_PARTS])
    return f"{phase}: {listed}"


def describe_fixes(suggestions: Suggestions) -> str:
    """Return in words what fits, or nothing."""
    options = []
    for changes, plan in suggestions:
        settings = " ".join(f"--set {key}={json.dumps(value).strip(chr(34))}" for key, value in changes.items())
        options.append(f"{settings} ({show_size(plan.peak(plan.device))})")
    return f"this fits: {', or '.join(options)}" if options else ""


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 80GiB, 80G or 81920MiB."""
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if parts is None or float(parts[1]) == 0:
        raise MetaAgentXError(f"invalid size {text!r}: expected a number with a unit, such as 80GiB")
    return int(float(parts[1]) * _UNITS[parts[2].upper()])


def show_size(size: int) -> str:
    """Return a size with its unit."""
    return f"{size / _UNITS['G']:.1f} GiB" if size >= _UNITS["G"] else f"{size / _UNITS['M']:.0f} MiB"


def of_free(sizes: Mapping[str, int], device: str) -> str:
    return f" of {show_size(sizes[device])}" if device in sizes else ""
