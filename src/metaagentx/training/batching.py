"""Training data from rollouts: one Datum for each call that has an advantage, exactly as it was sampled.

Calls of one conversation, executions of one design and designs of one task share prefixes, which the backend computes
once. The order is that of the tree, so the same trees give the same data.
"""

from collections.abc import Iterator, Sequence

from ..policy import Datum
from ..types import Call, Role, Rollout


def data_for(role: Role, rollouts: Sequence[Rollout]) -> list[Datum]:
    """Return the training data of a role from these rollouts."""
    return [
        datum_of(call, call.advantage)
        for call in calls_of(role, rollouts)
        if call.completion and call.advantage is not None
    ]


def calls_of(role: Role, rollouts: Sequence[Rollout]) -> Iterator[Call]:
    """Yield the calls of a role, in the order of the tree."""
    for rollout in rollouts:
        for design in rollout.designs:
            if role is Role.DESIGNER:
                yield design.call
            else:
                for execution in design.executions:
                    yield from execution.calls


def datum_of(call: Call, advantage: float = 0.0) -> Datum:
    """Return a call as a sequence: prompt tokens have weight 0, completion tokens weight 1."""
    prompt, completion = len(call.prompt), len(call.completion)
    return Datum(
        tokens=(*call.prompt, *call.completion),
        weights=(0.0,) * prompt + (1.0,) * completion,
        advantage=advantage,
        logprobs=(0.0,) * prompt + call.logprobs,
    )
