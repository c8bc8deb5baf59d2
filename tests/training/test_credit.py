"""Credit: by table, by property, and the worked example of the documentation."""

import random
import re
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.config import CreditConfig
from metaagentx.training.batching import data_for
from metaagentx.training.credit import advantages, assign_credit
from metaagentx.training.metrics import step_metrics
from metaagentx.types import Call, Design, Execution, Fault, Reward, Role, Rollout
from tests.rollout_helpers import TASK

INFRA = Fault("infra", "the server died")
PAPER = CreditConfig()
PLAIN = CreditConfig(divide_by_std=False)
LEAVE_ONE_OUT = CreditConfig(baseline="leave_one_out", divide_by_std=False)
BY_DESIGN = CreditConfig(executor_peers="design")
Spec = list[list[float | None] | None]
"""The rewards of each design's executions, None for one that an infra fault spoilt; None for a bad script."""


def call(role: Role = Role.EXECUTOR) -> Call:
    return Call(role, "agent", (), "text", tokens=1, prompt=(1,), completion=(2,), logprobs=(-1.0,))


def execution(total: float | None, calls: int = 1) -> Execution:
    if total is None:
        return Execution([call() for _ in range(calls)], fault=INFRA)
    return Execution([call() for _ in range(calls)], reward=Reward(total, 0, 0, 0, total, total > 0))


def tree(*designs: list[float | None] | None, calls: int = 1) -> Rollout:
    made = []
    for rewards in designs:
        fault = Fault("invalid_script", "line 1") if rewards is None else None
        executions = [execution(total, calls) for total in rewards or []]
        made.append(Design(call(Role.DESIGNER), "script", executions, fault))
    return Rollout(TASK, made)


def credited(rollout: Rollout, options: CreditConfig) -> tuple[list[float | None], list[list[float | None]]]:
    """The advantages of the designs, and of the executions of each."""
    assign_credit(rollout, options)
    for design in rollout.designs:
        for one in design.executions:
            assert len({call.advantage for call in one.calls}) <= 1, "every call has its execution's advantage"
    executors = [
        [one.calls[0].advantage if one.calls else None for one in design.executions] for design in rollout.designs
    ]
    return [design.call.advantage for design in rollout.designs], executors


ONE = 1.0 / (1.0 + 1e-6)
TABLE = [
    # designs, options, advantages of the designs, of the executions
    ("paper", [[1.0, 1.0], [0.0, 0.0]], PAPER, [1, -1], [[1, 1], [-1, -1]]),
    ("by design, each flat", [[1.0, 1.0], [0.0, 0.0]], BY_DESIGN, [1, -1], [[None, None], [None, None]]),
    ("by design", [[1.0, 0.0], [0.0, 0.0]], BY_DESIGN, [1, -1], [[1, -1], [None, None]]),
    ("without std", [[1.0, 0.0], [0.0, 0.0]], PLAIN, [0.25, -0.25], [[0.75, -0.25], [-0.25, -0.25]]),
    ("leave one out", [[1.0, 0.0], [0.0, 0.0]], LEAVE_ONE_OUT, [0.5, -0.5], [[1, -1 / 3], [-1 / 3, -1 / 3]]),
    ("all alike", [[0.8, 0.8], [0.8, 0.8]], PAPER, [None, None], [[None, None], [None, None]]),
    ("designs alike, executions not", [[1.0, 0.0], [0.0, 1.0]], PAPER, [None, None], [[1, -1], [-1, 1]]),
    ("N = 1", [[1.0], [0.0]], PAPER, [1, -1], [[1], [-1]]),
    ("N = 1 by design", [[1.0], [0.0]], BY_DESIGN, [1, -1], [[None], [None]]),
    ("M = 1", [[1.0, 0.0]], PAPER, [None], [[1, -1]]),
    ("M = N = 1", [[1.0]], PAPER, [None], [[None]]),
    ("no designs", [], PAPER, [], []),
    ("a bad script is worth 0", [None, [1.0, 1.0]], PAPER, [-1, 1], [[], [None, None]]),
    ("only bad scripts", [None, None], PAPER, [None, None], [[], []]),
    ("an infra fault is nowhere", [[1.0, None], [0.0, 0.0]], PLAIN, [0.5, -0.5], [[2 / 3, None], [-1 / 3, -1 / 3]]),
    ("a design that is all infra", [[None, None], [1.0, 0.0]], PAPER, [None, None], [[None, None], [1, -1]]),
]  # fmt: skip


@pytest.mark.parametrize("case", TABLE, ids=[case[0] for case in TABLE])
def test_by_table(
    case: tuple[str, Spec, CreditConfig, list[float | None], list[list[float | None]]],
) -> None:
    _, spec, options, of_designs, of_executions = case
    designers, executors = credited(tree(*spec), options)
    assert designers == [value if value is None else pytest.approx(value, abs=1e-5) for value in of_designs]
    for found, wanted in zip(executors, of_executions, strict=True):
        assert found == [value if value is None else pytest.approx(value, abs=1e-5) for value in wanted]


def test_a_design_that_an_infra_fault_took_has_no_reward_and_no_advantage() -> None:
    rollout = tree([1.0, 1.0], [0.0, 0.0])
    rollout.designs.append(Design(call(Role.DESIGNER), None, fault=INFRA))
    assert credited(rollout, PAPER)[0] == [pytest.approx(ONE), pytest.approx(-ONE), None]
    assert rollout.designs[2].reward is None
    assert len(data_for(Role.DESIGNER, [rollout])) == 2


def test_groups_weigh_executions_and_not_calls() -> None:
    few, many = tree([1.0, 0.0], [0.0, 0.0]), tree([1.0, 0.0], [0.0, 0.0])
    many.designs[0].executions[0].calls += [call() for _ in range(9)]
    assert credited(few, PAPER) == credited(many, PAPER)
    assert {call.advantage for call in many.designs[0].executions[0].calls} == {
        few.designs[0].executions[0].calls[0].advantage
    }


def test_tasks_never_share_a_group_not_even_with_n_1() -> None:
    """Three tasks, N = 1: each is compared within itself, so an easy task lends nothing to a hard one."""
    batch = [tree([1.8], [0.8]), tree([0.8], [0.0]), tree([0.0], [0.0])]
    for rollout in batch:
        assign_credit(rollout, PAPER)
    advantages_of = [[design.executions[0].calls[0].advantage for design in rollout.designs] for rollout in batch]
    assert advantages_of[:2] == [pytest.approx([1, -1], abs=1e-5), pytest.approx([1, -1], abs=1e-5)]
    assert advantages_of[2] == [None, None]


def test_flat_groups_are_counted_and_not_trained_on() -> None:
    batch = [tree([1.0, 0.0], [0.0, 0.0]), tree([1.0, 1.0], [1.0, 1.0])]
    for rollout in batch:
        assign_credit(rollout, PAPER)
    found = step_metrics(batch)
    assert (found["groups/designer_flat"], found["groups/executor_flat"]) == (0.5, 0.5)
    assert (len(data_for(Role.DESIGNER, batch)), len(data_for(Role.EXECUTOR, batch))) == (2, 4)


# --- properties

REWARDS = st.integers(-20, 40).map(lambda tenths: tenths / 10)
GROUPS = st.lists(REWARDS, min_size=2, max_size=16)
OPTIONS = st.builds(
    CreditConfig,
    executor_peers=st.sampled_from(["task", "design"]),
    baseline=st.sampled_from(["mean", "leave_one_out"]),
    divide_by_std=st.booleans(),
)
SPECS = st.lists(st.none() | st.lists(st.none() | REWARDS, min_size=0, max_size=5), min_size=0, max_size=6)


@given(GROUPS, OPTIONS)
def test_advantages_sum_to_0(rewards: list[float], options: CreditConfig) -> None:
    assert sum(advantages(rewards, options) or []) == pytest.approx(0, abs=1e-9)


@given(GROUPS, OPTIONS, st.randoms(use_true_random=False))
def test_order_does_not_matter(rewards: list[float], options: CreditConfig, shuffler: random.Random) -> None:
    places = list(range(len(rewards)))
    shuffler.shuffle(places)
    found, shuffled = advantages(rewards, options), advantages([rewards[place] for place in places], options)
    assert shuffled == (None if found is None else [found[place] for place in places])


@given(GROUPS, OPTIONS, st.integers(-5, 5))
def test_a_shift_of_all_rewards_changes_nothing(rewards: list[float], options: CreditConfig, shift: int) -> None:
    shifted = advantages([reward + shift for reward in rewards], options)
    assert (shifted or []) == pytest.approx(advantages(rewards, options) or [], abs=1e-6)


@given(GROUPS, st.sampled_from(["mean", "leave_one_out"]), st.integers(1, 8))
def test_a_scale_goes_through_unless_the_spread_is_divided_by(
    rewards: list[float], baseline: Literal["mean", "leave_one_out"], scale: int
) -> None:
    scaled = [reward * scale for reward in rewards]
    plain, divided = (CreditConfig(baseline=baseline, divide_by_std=std) for std in (False, True))
    wanted = [scale * value for value in advantages(rewards, plain) or []]
    assert (advantages(scaled, plain) or []) == pytest.approx(wanted, abs=1e-9)
    # epsilon is the one thing that does not scale
    assert (advantages(scaled, divided) or []) == pytest.approx(advantages(rewards, divided) or [], rel=1e-4)


@given(GROUPS, OPTIONS)
def test_a_better_reward_has_a_better_advantage(rewards: list[float], options: CreditConfig) -> None:
    found = advantages(rewards, options)
    if found is None:
        assert max(rewards) == min(rewards)
        return
    for reward, advantage in zip(rewards, found, strict=True):
        for other, others in zip(rewards, found, strict=True):
            assert (reward > other) == (advantage > others)


@given(GROUPS)
def test_leave_one_out_compares_with_the_mean_of_the_others(rewards: list[float]) -> None:
    others = len(rewards) - 1
    wanted = [reward - (sum(rewards) - reward) / others for reward in rewards]
    assert (advantages(rewards, LEAVE_ONE_OUT) or [0.0] * len(rewards)) == pytest.approx(wanted, abs=1e-9)


@given(GROUPS)
def test_divided_by_the_spread_the_mean_square_is_1(rewards: list[float]) -> None:
    found = advantages(rewards, PAPER)
    if found is not None:
        assert sum(value**2 for value in found) / len(found) == pytest.approx(1, abs=1e-4)


@given(SPECS, OPTIONS, st.randoms(use_true_random=False))
def test_shuffling_a_tree_changes_nothing(spec: Spec, options: CreditConfig, shuffler: random.Random) -> None:
    rollout = tree(*spec)
    before = credited(rollout, options)
    wanted = {id(one): one.calls[0].advantage for design in rollout.designs for one in design.executions}
    wanted |= {id(design): design.call.advantage for design in rollout.designs}
    shuffler.shuffle(rollout.designs)
    for design in rollout.designs:
        shuffler.shuffle(design.executions)
    credited(rollout, options)
    for design in rollout.designs:
        assert design.call.advantage == wanted[id(design)]
        for one in design.executions:
            assert one.calls[0].advantage == wanted[id(one)]
    assert len(before[0]) == len(rollout.designs)


@given(SPECS, OPTIONS, st.integers(0, 5), st.booleans())
def test_an_infra_fault_changes_nothing(spec: Spec, options: CreditConfig, place: int, whole_design: bool) -> None:
    without, with_fault = tree(*spec), tree(*spec)
    if whole_design or not spec:
        with_fault.designs.append(Design(call(Role.DESIGNER), None, fault=INFRA))
    else:
        with_fault.designs[place % len(spec)].executions.append(execution(None))
    credited(without, options)
    credited(with_fault, options)
    for one, other in zip(without.designs, with_fault.designs, strict=False):
        assert (one.reward, one.call.advantage) == (other.reward, other.call.advantage)
        for mine, yours in zip(one.executions, other.executions, strict=False):
            assert mine.calls[0].advantage == yours.calls[0].advantage
    for role in Role:
        assert data_for(role, [without]) == data_for(role, [with_fault])


@given(SPECS, OPTIONS)
def test_credit_given_twice_is_the_same_credit(spec: Spec, options: CreditConfig) -> None:
    rollout = tree(*spec)
    assert credited(rollout, options) == credited(rollout, options)


@given(SPECS, OPTIONS)
def test_every_group_of_a_tree_sums_to_0(spec: Spec, options: CreditConfig) -> None:
    designers, executors = credited(tree(*spec), options)
    families = executors if options.executor_peers == "design" else [[value for one in executors for value in one]]
    for group in (designers, *families):
        assert sum(value for value in group if value is not None) == pytest.approx(0, abs=1e-9)


# --- the documentation's example

DOC = (Path(__file__).parents[2] / "docs" / "algorithm.md").read_text()


def doc_table(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading, without its first two lines."""
    lines = DOC.partition(heading)[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def number(cell: str) -> float | None:
    return None if cell == "none" else float(cell.replace("−", "-"))


def test_the_worked_example_by_hand() -> None:
    """Design 1: 1.8 and 0.8. Design 2: 0.8 and 0."""
    designers, executors = credited(tree([1.8, 0.8], [0.8, 0.0]), PAPER)
    # Means 1.3 and 0.4, their mean 0.85, their spread 0.45.
    assert designers == pytest.approx([0.45 / (0.45 + 1e-6), -0.45 / (0.45 + 1e-6)])
    # Mean of the four 0.85, squares 0.9025 + 0.0025 + 0.0025 + 0.7225 = 1.63, spread sqrt(0.4075) = 0.63836.
    spread = 0.4075**0.5 + 1e-6
    assert executors[0] == pytest.approx([0.95 / spread, -0.05 / spread])
    assert executors[1] == pytest.approx([-0.05 / spread, -0.85 / spread])


def test_the_documentations_example_is_what_the_code_does() -> None:
    rows = doc_table("### An example")
    assert len(rows) == 4
    rewards = [float(row[1]) for row in rows]
    spec: Spec = [rewards[:2], rewards[2:]]  # type: ignore[list-item]
    for column, options in ((3, PAPER), (4, BY_DESIGN), (5, PLAIN), (6, LEAVE_ONE_OUT)):
        _, executors = credited(tree(*spec), options)
        for row, advantage in zip(rows, executors[0] + executors[1], strict=True):
            assert number(row[column]) == pytest.approx(advantage, abs=5e-3), (row, column)
    designs = doc_table("The designs of the same rollout")
    for column, options in ((2, PAPER), (3, PLAIN), (4, LEAVE_ONE_OUT)):
        rollout = tree(*spec)
        designers, _ = credited(rollout, options)
        for row, design, advantage in zip(designs, rollout.designs, designers, strict=True):
            assert float(row[1]) == pytest.approx(design.reward)
            assert number(row[column]) == pytest.approx(advantage, abs=5e-3), (row, column)


def test_the_documentation_names_every_kind_of_fault() -> None:
    from metaagentx.sandbox import Verdict

    kinds = {verdict.value.replace(" ", "_") for verdict in Verdict} - {"ok"}
    kinds |= {"no_script", "invalid_script", "context", "no_answer", "hard_coded", "fed"}
    assert set(re.findall(r"^\| `(\w+)`", DOC.partition("## Faults")[2].partition("\n## ")[0], re.MULTILINE)) == kinds
