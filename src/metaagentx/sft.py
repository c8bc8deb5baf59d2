"""Supervised learning of both roles from chats, with loss on replies only."""

import hashlib
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from .coldstart import Row
from .errors import MetaAgentXError
from .policy import Datum, Policy, SharesWeights
from .progress import Counter
from .runs.files import write_whole
from .runs.work import weights_mark
from .types import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SftOptions:
    """How long and how fast."""

    steps: int = 200
    rows_per_step: int = 64
    designer_share: float = 0.5
    """Of the rows of a step; the others are the Executor's."""
    learning_rate: float = 1e-5
    warmup_steps: int = 10
    seed: int = 0
    checkpoint_every: int = 100
    threads: int = 0
    """Of the processor; 0: as many as there are cores."""


def sft_settings(rows: Sequence[Row], model: str, options: SftOptions) -> dict[str, object]:
    """What a model is taught with, for `same_settings`; what changes no weights is left out."""
    content = hashlib.sha256("".join(f"{row.role} {json.dumps(row.messages)}\n" for row in rows).encode())
    path = Path(model)
    name = model if model.startswith("preset:") else f"{path.resolve().name} (weights {weights_mark(path)})"
    unchanging = ("checkpoint_every", "threads")
    chosen = {key: value for key, value in asdict(options).items() if key not in unchanging}
    return {"model": name, "rows": f"{len(rows)} (content {content.hexdigest()[:16]})", **chosen}


async def teach(
    policies: Mapping[Role, Policy], rows: Sequence[Row], options: SftOptions, directory: Path
) -> list[float]:
    """The loss of every step. Roles on shared weights learn together, through the policy of the first role.

    `directory` keeps the state, so that it can be called again after a stop and goes on, to the same weights.
    """
    data = {role: [row_datum(policy, row) for row in rows if row.role is role] for role, policy in policies.items()}
    for role, found in data.items():
        if not found:
            raise MetaAgentXError(f"there are no rows of the {role} to learn from")
    learners = _learners(policies)
    losses = await _restore(learners, directory)
    with Counter(options.steps, "learning from the teacher") as progress:
        progress.advance(len(losses))
        for step in range(len(losses), options.steps):
            rate = learning_rate_at(step, options)
            loss = 0.0
            for policy, roles in learners:
                batch = [datum for role in roles for datum in _batch(data[role], step, options, role)]
                loss += (await policy.forward_backward(batch, "cross_entropy"))["loss"] / len(learners)
                await policy.optim_step(rate)
            losses.append(loss)
            progress.advance(1, loss=loss)
            if len(losses) % options.checkpoint_every == 0 or len(losses) == options.steps:
                await _keep(learners, directory, losses)
    return losses


async def _restore(learners: Sequence[tuple[Policy, list[Role]]], directory: Path) -> list[float]:
    """Take up what was kept: the losses so far."""
    state = directory / "state.json"
    if not state.exists():
        return []
    try:
        losses = [float(loss) for loss in json.loads(state.read_text())["losses"]]
    except (ValueError, KeyError, TypeError) as error:
        raise MetaAgentXError(f"{state} is damaged ({error!r}): remove {directory} to begin again") from error
    for policy, roles in learners:
        await policy.load(directory / f"{len(losses):06d}" / roles[0])
    return losses


async def _keep(learners: Sequence[tuple[Policy, list[Role]]], directory: Path, losses: list[float]) -> None:
    """Policies first, then the word that they are there, then older ones go."""
    kept = directory / f"{len(losses):06d}"
    for policy, roles in learners:
        await policy.save(kept / roles[0])
    write_whole(directory / "state.json", json.dumps({"losses": losses}).encode())
    for other in directory.glob("[0-9]*"):
        if other != kept:
            shutil.rmtree(other)


def learning_rate_at(step: int, options: SftOptions) -> float:
    """Rises in the warm-up, then falls in a line to a tenth."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    left = (options.steps - step) / max(1, options.steps - options.warmup_steps)
    return options.learning_rate * max(0.1, left)


def row_datum(policy: Policy, row: Row) -> Datum:
    """A chat as tokens: what was read weighs nothing, the reply 1."""
    prompt = policy.tokenizer.encode_chat(row.messages[:-1])
    reply = policy.tokenizer.encode_reply(row.messages[-1]["content"])
    return Datum((*prompt, *reply), (0.0,) * len(prompt) + (1.0,) * len(reply))


def _learners(policies: Mapping[Role, Policy]) -> list[tuple[Policy, list[Role]]]:
    found: list[tuple[Policy, list[Role]]] = []
    for role, policy in policies.items():
        for other, roles in found:
            if other is policy or (isinstance(policy, SharesWeights) and policy.shares_weights(other)):
                roles.append(role)
                break
        else:
            found.append((policy, [role]))
    return found


def _batch(data: Sequence[Datum], step: int, options: SftOptions, role: Role) -> list[Datum]:
    """A role's rows of a step, in an order that is shuffled anew for every pass, by the seed."""
    share = options.designer_share if role is Role.DESIGNER else 1 - options.designer_share
    size = max(1, round(options.rows_per_step * share))
    places = range(step * size, (step + 1) * size)
    return [data[_order(len(data), place // len(data), options.seed)[place % len(data)]] for place in places]


@lru_cache(maxsize=4)
def _order(count: int, passed: int, seed: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(f"{seed} {passed}").shuffle(order)
    return tuple(order)
