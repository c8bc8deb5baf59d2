"""Training data from rollouts: one Datum for each call that has an advantage, exactly as it was sampled.

Calls of one conversation, executions of one design and designs of one task share prefixes, which the backend computes
once. The order is that of the tree, so the same trees give the same data. Mini-batches shuffle designs or executions,
and keep the calls of an execution together.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..policy import Datum
from ..types import Call, Role, Rollout


def data_for(role: Role, rollouts: Sequence[Rollout]) -> list[Datum]:
    """Return the training data of a role from these rollouts."""
    return [datum for episode in episodes_of(role, rollouts) for datum in episode]


def episodes_of(role: Role, rollouts: Sequence[Rollout]) -> list[list[Datum]]:
    """Return the training data of a role by episode: a design, or an execution with all its calls."""
    episodes = [
        [datum_of(call, call.advantage) for call in calls if call.completion and call.advantage is not None]
        for calls in _episodes(role, rollouts)
    ]
    return [episode for episode in episodes if episode]


def anchors_of(role: Role, rollouts: Sequence[Rollout], weight: float) -> list[Datum]:
    """Return the sound replies of a role (designs that can run, calls of executions without a fault), each with this
    weight as its advantage.
    """
    calls = (call for calls in _episodes(role, rollouts, sound=True) for call in calls)
    return [datum_of(call, weight) for call in calls if call.completion]


def split_minibatches(episodes: Sequence[Sequence[Datum]], size: int, seed: int) -> list[list[Datum]]:
    """Return the data of shuffled episodes in as few mini-batches of at most `size` as possible, of equal length or
    one shorter. The calls of an episode stay next to each other, though a mini-batch may end between them.
    """
    data = [datum for episode in random.Random(seed).sample(episodes, len(episodes)) for datum in episode]
    count = -(-len(data) // size)
    bounds = [len(data) * number // count for number in range(count + 1)] if data else [0]
    return [data[start:end] for start, end in pairwise(bounds)]


def calls_of(role: Role, rollouts: Sequence[Rollout]) -> Iterator[Call]:
    """Yield the calls of a role, in the order of the tree."""
    for calls in _episodes(role, rollouts):
        yield from calls


def _episodes(role: Role, rollouts: Sequence[Rollout], *, sound: bool = False) -> Iterator[Sequence[Call]]:
    """Yield the calls of each design or execution; with `sound` of those without a fault."""
    for design in (design for rollout in rollouts for design in rollout.designs):
        if role is Role.DESIGNER:
            if not sound or design.fault is None:
                yield [design.call]
        else:
            yield from (each.calls for each in design.executions if not sound or each.fault is None)


def datum_of(call: Call, advantage: float = 0.0) -> Datum:
    """Return a call as a sequence: prompt tokens have weight 0, completion tokens weight 1."""
    prompt, completion = len(call.prompt), len(call.completion)
    return Datum(
        tokens=(*call.prompt, *call.completion),
        weights=(0.0,) * prompt + (1.0,) * completion,
        advantage=advantage,
        logprobs=(0.0,) * prompt + call.logprobs,
    )
