"""Who learns when."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.config import StageConfig
from metaagentx.training.stages import stage_at
from metaagentx.types import Role

D, E = Role.DESIGNER, Role.EXECUTOR
PAPER = [StageConfig(steps=3, executor=5e-6), StageConfig(steps=2, designer=1e-6)]
TABLE = {
    "the paper's, executor first, then over again": (PAPER, "EEEDDEEEDDEE"),
    "joint": ([StageConfig(steps=1, executor=1e-5, designer=1e-5)], "BBBB"),
    "one-step alternation": ([StageConfig(steps=1, executor=1e-5), StageConfig(steps=1, designer=1e-5)], "EDEDED"),
    "executor only": ([StageConfig(steps=7, executor=1e-5)], "EEEEEEEEE"),
    "designer only": ([StageConfig(steps=7, designer=1e-5)], "DDDDDDDDD"),
    "a rest": (
        [StageConfig(steps=1, executor=1e-5), StageConfig(steps=1), StageConfig(steps=1, designer=1e-5)],
        "E-DE-D",
    ),
}
NAMES = {frozenset({E}): "E", frozenset({D}): "D", frozenset({D, E}): "B", frozenset[Role](): "-"}
RATE = st.none() | st.floats(1e-9, 1.0)
STAGES = st.lists(
    st.builds(StageConfig, steps=st.integers(1, 9), executor=RATE, designer=RATE),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", TABLE)
def test_by_table(name: str) -> None:
    stages, wanted = TABLE[name]
    assert "".join(NAMES[frozenset(stage_at(step, stages).learning_rates)] for step in range(len(wanted))) == wanted


def test_a_role_that_is_not_named_is_absent_and_not_slow() -> None:
    assert stage_at(0, PAPER).learning_rates == {E: 5e-6}
    assert stage_at(3, PAPER).learning_rates == {D: 1e-6}


@given(STAGES, st.integers(0, 200))
def test_stages_are_a_list_repeated_for_ever(stages: list[StageConfig], step: int) -> None:
    written_out = itertools.cycle(stage for stage in stages for _ in range(stage.steps))
    assert stage_at(step, stages) is next(itertools.islice(written_out, step, None))


@given(STAGES, st.integers(0, 200))
def test_a_cycle_changes_nothing(stages: list[StageConfig], step: int) -> None:
    cycle = sum(stage.steps for stage in stages)
    assert stage_at(step, stages) is stage_at(step + cycle, stages)


@given(STAGES)
def test_each_stage_has_its_share_of_a_cycle(stages: list[StageConfig]) -> None:
    cycle = sum(stage.steps for stage in stages)
    met = [id(stage_at(step, stages)) for step in range(cycle)]
    assert [met.count(id(stage)) for stage in stages] == [stage.steps for stage in stages]
