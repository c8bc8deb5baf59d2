"""Routers over fixed designs: the honest one never sees the tasks that it is scored on."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.evaluation.figures import DesignFigures, design_figures
from metaagentx.evaluation.outcomes import Outcome
from metaagentx.evaluation.routers import HINDSIGHT, ROUTER, cross_fit, hindsight, route


def outcome(task: int, solved: bool, fault: str = "", script: str | None = None, sample: int = 0) -> Outcome:
    return Outcome(f"t{task}", sample, 0, solved, tokens=1, calls=1, seconds=0.0, fault=fault, script=script)


def test_a_design_that_is_lucky_on_one_half_gains_nothing_on_the_other() -> None:
    lucky = {"even": [1, 0, 1, 0], "odd": [0, 1, 0, 1]}
    assert fmean(hindsight(lucky)) == 0.5
    assert cross_fit(lucky) == [0, 0, 0, 0], "each half chooses the design that fails on the other one"
    good = {"bad": [0, 1, 0, 0], "good": [1, 1, 1, 1]}
    assert cross_fit(good) == [1, 1, 1, 1]
    # On the odd tasks both are equal, so the first of them is chosen for the even ones.
    assert cross_fit({"first": [0, 1, 0, 1], "second": [1, 1, 1, 1]}) == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="at least two tasks"):
        cross_fit({"one": [1.0]})


@given(st.integers(2, 9).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1)))
def test_hindsight_is_an_upper_bound_and_beats_every_design(rows: list[list[bool]]) -> None:
    designs = {str(number): [float(value) for value in row] for number, row in enumerate(rows)}
    best = fmean(hindsight(designs))
    assert best == max(map(fmean, designs.values()))
    if len(rows[0]) % 2 == 0:  # of an odd number, one half has more tasks
        assert fmean(cross_fit(designs)) <= best + 1e-9


def test_only_fixed_designs_are_routed_to_and_unjudged_tasks_are_left_out() -> None:
    outcomes = {
        "metaagentx": [outcome(number, True) for number in range(5)],
        "single agent": [outcome(number, number < 2) for number in range(5)],
        "fixed: tool": [*(outcome(number, number >= 2) for number in range(4)), outcome(4, False, "infra")],
        "self-consistency": [outcome(number, True) for number in range(5)],
    }
    assert route(outcomes) == {ROUTER: [1, 1, 0, 0], HINDSIGHT: [1, 1, 0, 0]}
    assert route({"metaagentx": outcomes["metaagentx"]}) == {}
    assert route({"single agent": [outcome(0, True)]}) == {}
    twice = {"single agent": [outcome(task, sample == 0, sample=sample) for task in range(2) for sample in range(2)]}
    assert route(twice)[ROUTER] == [0.5, 0.5], "a task counts by the share of its samples that solve it"


def test_different_scripts_are_counted_among_those_that_can_run() -> None:
    written = [outcome(0, True, script="a"), outcome(1, False, script="a"), outcome(2, False, "crash", "b")]
    written += [outcome(3, False, "no_script", ""), outcome(4, False, "infra", "c")]
    assert design_figures(written) == DesignFigures(designs=4, scripts=2, invalid=0.25)
    assert design_figures([outcome(0, True)]) is None, "outcomes of earlier versions have no scripts"
