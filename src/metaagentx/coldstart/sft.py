"""Supervised fine-tuning of both roles on demonstrations, with loss on replies only."""

import hashlib
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ..atomic import atomic_directory, atomic_write
from ..errors import MetaAgentXError
from ..options import PRESET, OptimizerConfig, TemplateArguments
from ..policy import Datum, Messages, Policy, Tokenizer
from ..progress import CountProgress
from ..runs.work import weights_digest
from ..types import Role
from .demonstrations import Demonstration


@dataclass(frozen=True, slots=True, kw_only=True)
class SftOptions:
    """How many steps, on how much data, at what learning rate."""

    steps: int = 200
    rows_per_step: int = 64
    designer_share: float = 0.5
    """The Designer's share of the rows of a step; the rest are the Executor's."""
    learning_rate: float = 1e-5
    method: Literal["adamw", "muon"] = "adamw"
    """The optimizer, as `optimizer.method` in a recipe."""
    warmup_steps: int = 10
    seed: int = 0
    checkpoint_every: int = 100
    threads: int = 0
    """CPU threads; 0: one per core."""
    dtype: str = "auto"
    """Type of the weights, as `model.dtype` in a recipe."""
    lora_rank: int = 0
    """Rank of the LoRA that is trained and then becomes part of the weights; 0 trains the full weights."""
    join_turns: bool = False
    """Learn from all turns of a conversation in one pass over it."""


def sft_settings(
    rows: Sequence[Demonstration], model: str, options: SftOptions, chat_template: TemplateArguments
) -> dict[str, object]:
    """Return everything the weights depend on, for `check_same_settings`."""
    content = hashlib.sha256("".join(f"{row.role} {json.dumps(row.messages)}\n" for row in rows).encode())
    path = Path(model)
    name = model if model.startswith(PRESET) else f"{path.resolve().name} (weights {weights_digest(path)})"
    hyperparameters = sft_hyperparameters(options)
    del hyperparameters["checkpoint_every"], hyperparameters["threads"]
    if options.method == "adamw":  # as in an earlier version, which had no other
        del hyperparameters["method"]
    settings = {"model": name, "rows": f"{len(rows)} (content {content.hexdigest()[:16]})", **hyperparameters}
    # Only where it is set, so that what an earlier version began can be resumed.
    return settings | ({"chat_template": chat_template} if chat_template else {})


def sft_hyperparameters(options: SftOptions) -> dict[str, object]:
    """Return the options, those that an earlier version did not have only where they are set."""
    later = {"lora_rank": 0, "join_turns": False, "dtype": "auto"}
    return {name: value for name, value in asdict(options).items() if name not in later or value != later[name]}


async def run_sft(
    rows: Sequence[Demonstration],
    model: str,
    out: Path,
    options: SftOptions,
    work: Path,
    chat_template: TemplateArguments | None = None,
) -> list[float]:
    """Fine-tune a model on both roles with shared weights, write it to `out`, and return the loss of every step.

    With `lora_rank` only a LoRA is trained, and `out` has full weights of which it is a part.

    `preset:micro` and the like create a new model, with a tokenizer for these rows. `work` holds what is needed to
    resume after a stop. `chat_template` are the arguments of the model's chat template.
    """
    from ..backends.export import export_weights
    from ..backends.local import LocalPolicy, load_model, new_model
    from ..backends.local.build import use_threads
    from ..backends.local.model import LoraOptions, seed_new_weights

    use_threads(options.threads)
    path = Path(model)
    if model.startswith(PRESET):
        path = work / "new"
        if not path.exists():
            texts = [message["content"] for row in rows for message in row.messages]
            work.mkdir(parents=True, exist_ok=True)
            with atomic_directory(path) as unfinished:
                new_model(unfinished, model.removeprefix(PRESET), options.seed, texts)
    training = OptimizerConfig(method=options.method, token_budget=16384, beta2=0.99)
    lora = LoraOptions(options.lora_rank, 2 * options.lora_rank) if options.lora_rank else None
    seed_new_weights(options.seed)
    model_to_train = load_model(path, dtype=options.dtype, chat_template=chat_template, lora=lora)
    policy = LocalPolicy(model_to_train, Role.DESIGNER, options=training)
    policy.ensure_trainable()
    losses = await fine_tune(policy, rows, options, work / "sft")
    if lora is None:
        await policy.save(out)
    else:
        export_weights(_state_directory(work / "sft", len(losses)), path, out, merged=True)
    return losses


async def fine_tune(policy: Policy, rows: Sequence[Demonstration], options: SftOptions, directory: Path) -> list[float]:
    """Train a policy on the rows of both roles and return the loss of every step.

    `directory` holds the state: call it again after a stop to resume, to the same weights.
    """
    data = {role: [row_datum(policy, row) for row in rows if row.role is role] for role in Role}
    if options.join_turns:
        data = {role: join_turns(rows_of_role) for role, rows_of_role in data.items()}
    for role, rows_of_role in data.items():
        if not rows_of_role:
            raise MetaAgentXError(f"there are no rows of the {role} to learn from")
    losses = await _load_state(policy, directory)
    with CountProgress(options.steps, "SFT on the demonstrations") as progress:
        progress.advance(len(losses))
        for step in range(len(losses), options.steps):
            batch = [datum for role in Role for datum in _batch(data[role], step, options, role)]
            losses.append((await policy.forward_backward(batch, "cross_entropy"))["loss"])
            await policy.optim_step(learning_rate_at(step, options))
            progress.advance(1, loss=losses[-1])
            if len(losses) % options.checkpoint_every == 0 or len(losses) == options.steps:
                await _save_state(policy, directory, losses)
    return losses


async def _load_state(policy: Policy, directory: Path) -> list[float]:
    """Load the newest state, if there is one, and return the losses so far."""
    state = directory / "state.json"
    if not state.exists():
        return []
    try:
        losses = [float(loss) for loss in json.loads(state.read_text())["losses"]]
    except (ValueError, KeyError, TypeError) as error:
        raise MetaAgentXError(f"{state} is damaged ({error!r}): remove {directory} to start again") from error
    await policy.load(_state_directory(directory, len(losses)))
    return losses


async def _save_state(policy: Policy, directory: Path, losses: list[float]) -> None:
    """Save the policy, then the file that points to it, then remove older states."""
    newest = _state_directory(directory, len(losses))
    await policy.save(newest)
    atomic_write(directory / "state.json", json.dumps({"losses": losses}).encode())
    for other in directory.glob("[0-9]*"):
        if other != newest.parent:
            shutil.rmtree(other)


def _state_directory(directory: Path, steps: int) -> Path:
    return directory / f"{steps:06d}" / Role.DESIGNER


def learning_rate_at(step: int, options: SftOptions) -> float:
    """Return the learning rate: linear warm-up, then linear decay to a tenth."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    left = (options.steps - step) / max(1, options.steps - options.warmup_steps)
    return options.learning_rate * max(0.1, left)


def row_datum(policy: Policy, row: Demonstration) -> Datum:
    """Return a demonstration as tokens: prompt tokens have weight 0, tokens of the reply 1."""
    prompt, reply = encode_row(policy.tokenizer, row)
    return Datum((*prompt, *reply), (0.0,) * len(prompt) + (1.0,) * len(reply))


def join_turns(data: Sequence[Datum]) -> list[Datum]:
    """Return the conversations, each once, with the weights of all rows that are an earlier turn of it."""
    joined: dict[tuple[int, ...], Datum] = {datum.tokens: datum for datum in data}
    previous: Datum | None = None
    for tokens in sorted(joined, reverse=True):  # a continuation comes before what it continues
        datum = joined[tokens]
        if previous is not None and previous.tokens[: len(tokens)] == tokens:
            weights = tuple(map(max, datum.weights, previous.weights)) + previous.weights[len(tokens) :]
            del joined[tokens]
            previous = joined[previous.tokens] = replace(previous, weights=weights)
        else:
            previous = datum
    return list(joined.values())


def encode_row(tokenizer: Tokenizer, row: Demonstration) -> tuple[list[int], list[int]]:
    """Return prompt and reply as sampling sees them: in a conversation each turn continues the tokens before it.

    A template may write an earlier reply in another way than it was sampled: Qwen3's leaves out the empty thought of
    `enable_thinking = false`.
    """
    return _encode_prompt(tokenizer, row.messages[:-1]), tokenizer.encode_reply(row.messages[-1]["content"])


def _encode_prompt(tokenizer: Tokenizer, messages: Messages) -> list[int]:
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    starts, ends = [0, *(index + 1 for index in replies)], [*replies, len(messages)]
    parts = [messages[start:end] for start, end in zip(starts, ends, strict=True)]
    if not all(parts):  # not a conversation of ours, in which every reply is followed by a message
        return tokenizer.encode_chat(messages)
    tokens = tokenizer.encode_chat(parts[0])
    for index, part in zip(replies, parts[1:], strict=True):
        tokens = tokenizer.encode_continuation([*tokens, *tokenizer.encode_reply(messages[index]["content"])], part)
    return tokens


def _batch(data: Sequence[Datum], step: int, options: SftOptions, role: Role) -> list[Datum]:
    """Return a role's rows of a step. Every epoch has its own order, which follows from the seed."""
    share = options.designer_share if role is Role.DESIGNER else 1 - options.designer_share
    size = max(1, round(options.rows_per_step * share))
    indices = range(step * size, (step + 1) * size)
    return [data[_order(len(data), index // len(data), options.seed)[index % len(data)]] for index in indices]


@lru_cache(maxsize=4)
def _order(count: int, epoch: int, seed: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return tuple(order)
