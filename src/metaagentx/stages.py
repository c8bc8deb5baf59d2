"""Who learns when. A role that a stage does not name does not learn at all: frozen is absent, not a tiny rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .types import Role


@dataclass(frozen=True, slots=True)
class Stage:
    """So many steps in which these roles learn, each at its rate."""

    steps: int
    learning_rates: Mapping[Role, float]
    epochs: int = 1
    """How often the data of a step are learnt from."""


def stage_at(step: int, stages: Sequence[Stage]) -> Stage:
    """The stages follow one another and then start over."""
    position = step % sum(stage.steps for stage in stages)
    for stage in stages:
        if position < stage.steps:
            return stage
        position -= stage.steps
    raise AssertionError("a position within the cycle is within a stage")


def learning_rates_at(step: int, stages: Sequence[Stage]) -> Mapping[Role, float]:
    """The roles that learn in a step, and how fast."""
    return stage_at(step, stages).learning_rates
