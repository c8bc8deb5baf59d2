"""Rollouts to what a policy learns from: one Datum for each call that has an advantage, exactly as it was sampled.

Calls of one conversation, executions of one design and designs of one task begin alike; the backend computes what they
share once. Order follows the tree, so the same trees give the same data.
"""

from collections.abc import Iterator, Sequence

from .policy import Datum
from .types import Call, Role, Rollout


def data_for(role: Role, rollouts: Sequence[Rollout]) -> list[Datum]:
    """All that a role learns from in these rollouts."""
    calls = [call for call in calls_of(role, rollouts) if call.completion]
    return [datum_of(call, call.advantage) for call in calls if call.advantage is not None]


def calls_of(role: Role, rollouts: Sequence[Rollout]) -> Iterator[Call]:
    """The calls of a role, in the order of the tree."""
    for rollout in rollouts:
        for design in rollout.designs:
            if role is Role.DESIGNER:
                yield design.call
            else:
                for execution in design.executions:
                    yield from execution.calls


def datum_of(call: Call, advantage: float = 0.0) -> Datum:
    """A call as a sequence: what was read weighs nothing, what was written weighs 1."""
    read, written = len(call.prompt), len(call.completion)
    return Datum(
        tokens=(*call.prompt, *call.completion),
        weights=(0.0,) * read + (1.0,) * written,
        advantage=advantage,
        logprobs=(0.0,) * read + call.logprobs,
    )
