"""Which roles are trained in a step: the stages of the recipe follow one another and then repeat."""

from collections.abc import Sequence

from ..config import StageConfig


def stage_at(step: int, stages: Sequence[StageConfig]) -> StageConfig:
    """Return the stage that a step belongs to."""
    position = step % sum(stage.steps for stage in stages)
    for stage in stages:
        if position < stage.steps:
            return stage
        position -= stage.steps
    raise AssertionError("a position within the cycle is within a stage")
