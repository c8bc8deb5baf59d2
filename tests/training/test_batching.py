"""Trees to data: exactly what was sampled, for the roles that learn."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.config import CreditConfig, RolloutConfig, StageConfig
from metaagentx.policy import Datum
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.training.batching import calls_of, data_for, datum_of, episodes_of, split_minibatches
from metaagentx.training.credit import assign_credit
from metaagentx.training.stages import stage_at
from metaagentx.types import Call, Design, Execution, Reward, Role, Rollout
from tests.rollout_helpers import (
    COMPUTE,
    RIGHT,
    SINGLE,
    TASK,
    TOOL,
    WRONG,
    Actor,
    by_agent,
    design,
    executions_of,
    resources,
)


def call(*, advantage: float | None, role: Role = Role.EXECUTOR, first: int = 1) -> Call:
    prompt, completion = (first, first + 1), (first + 2, first + 3, first + 4)
    return Call(role, "a", (), "t", 3, advantage, prompt, completion, logprobs=(-0.1, -0.2, -0.3))


def test_a_datum_is_what_was_read_and_what_was_written() -> None:
    datum = datum_of(call(advantage=0.5), 0.5)
    assert datum.tokens == (1, 2, 3, 4, 5)
    assert datum.weights == (0.0, 0.0, 1.0, 1.0, 1.0)
    assert datum.logprobs == (0.0, 0.0, -0.1, -0.2, -0.3)
    assert datum.advantage == 0.5


def test_a_call_without_an_advantage_or_without_tokens_is_not_learnt_from_and_one_with_0_is() -> None:
    calls = [call(advantage=None), call(advantage=0.0, first=10), call(advantage=-1.0, first=20)]
    calls.append(replace(call(advantage=1.0), completion=(), logprobs=()))
    rollout = Rollout(TASK, [Design(call(advantage=None, role=Role.DESIGNER), "s", [Execution(calls)])])
    # One of average worth adds nothing to the gradient, but it is one of those that the mean is over.
    assert [(datum.tokens[0], datum.advantage) for datum in data_for(Role.EXECUTOR, [rollout])] == [
        (10, 0.0),
        (20, -1.0),
    ]
    assert data_for(Role.DESIGNER, [rollout]) == []


def test_data_follow_the_tree() -> None:
    def one(first: int) -> Design:
        executions = [Execution([call(advantage=1.0, first=first + 10 * n)]) for n in range(1, 3)]
        return Design(call(advantage=1.0, role=Role.DESIGNER, first=first), "s", executions)

    batch = [Rollout(TASK, [one(100), one(200)]), Rollout(TASK, [one(300)])]
    assert [datum.tokens[0] for datum in data_for(Role.DESIGNER, batch)] == [100, 200, 300]
    assert [datum.tokens[0] for datum in data_for(Role.EXECUTOR, batch)] == [110, 120, 210, 220, 310, 320]


def test_episodes_are_designs_and_executions_without_calls_that_teach_nothing() -> None:
    calls = [call(advantage=1.0, first=10), call(advantage=1.0, first=20)]
    executions = [Execution(calls), Execution([call(advantage=None)]), Execution([call(advantage=-1.0, first=30)])]
    batch = [Rollout(TASK, [Design(call(advantage=1.0, role=Role.DESIGNER, first=first), "s", executions)])
             for first in (1, 2)]  # fmt: skip

    def firsts(role: Role) -> list[list[int]]:
        return [[datum.tokens[0] for datum in episode] for episode in episodes_of(role, batch)]

    assert firsts(Role.DESIGNER) == [[1], [2]]
    assert firsts(Role.EXECUTOR) == [[10, 20], [30]] * 2


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 40), st.integers(0, 2**62))
def test_mini_batches_have_every_sample_once_and_keep_executions_together(
    lengths: list[int], size: int, seed: int
) -> None:
    episodes = [[Datum((number, place), (0.0, 1.0)) for place in range(n)] for number, n in enumerate(lengths)]
    batches = split_minibatches(episodes, size, seed)
    data = [datum for batch in batches for datum in batch]
    assert sorted(datum.tokens for datum in data) == [datum.tokens for episode in episodes for datum in episode]
    assert len(batches) == -(-len(data) // size), "as few optimizer steps as the size allows"
    assert all(0 < len(batch) <= size for batch in batches)
    assert not batches or max(map(len, batches)) - min(map(len, batches)) <= 1, "no small one at the end"
    for before, after in pairwise(data):
        assert after.tokens == (before.tokens[0], before.tokens[1] + 1) or after.tokens[1] == 0
    assert batches == split_minibatches(episodes, size, seed)


def test_mini_batches_mix_tasks_in_an_order_of_their_seed() -> None:
    episodes = [[Datum((number,), (1.0,))] for number in range(32)]
    orders = [
        [datum.tokens[0] for batch in split_minibatches(episodes, 16, seed) for datum in batch] for seed in (1, 2)
    ]
    assert orders[0] != orders[1]
    assert all(min(order[:16]) < 8 and max(order[:16]) >= 24 for order in orders)


def test_a_role_that_does_not_learn_in_a_stage_gets_no_data() -> None:
    """What a step trains is a loop over the roles that the stage names; the other one is not among them."""
    reward = Reward(1, 0, 0, 0, 1.0, True)
    designs = [Design(call(advantage=1.0, role=Role.DESIGNER), "s", [Execution([call(advantage=1.0)], reward=reward)])]
    stages = [StageConfig(steps=1, executor=1e-5), StageConfig(steps=1, designer=1e-5)]
    taught = [
        {role: len(data_for(role, [Rollout(TASK, designs)])) for role in stage_at(step, stages).learning_rates}
        for step in range(3)
    ]
    assert taught == [{Role.EXECUTOR: 1}, {Role.DESIGNER: 1}, {Role.EXECUTOR: 1}]


def test_data_of_a_grown_tree_are_the_tokens_that_were_sampled(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    designer = ScriptedPolicy([design(SINGLE), design(TOOL)])
    executor = Actor(by_agent({"Solve.": WRONG, "Compute.": [COMPUTE, RIGHT]}))
    shared = resources(designer, executor, sandbox, graders)
    rollouts = runner.run(
        rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=2, executions=2)), ("test",))
    )
    for rollout in rollouts:
        assign_credit(rollout, CreditConfig())
    data, calls = data_for(Role.EXECUTOR, rollouts), list(calls_of(Role.EXECUTOR, rollouts))
    assert len(data) == len(calls) == 2 * 1 + 2 * 2
    for datum, one in zip(data, calls, strict=True):
        assert datum.tokens == one.prompt + one.completion
        assert executor.tokenizer.decode(datum.tokens[len(one.prompt) :]) == one.text
        assert len(datum.tokens) == len(datum.weights) == len(datum.logprobs or ())
        assert datum.weights == (0.0,) * len(one.prompt) + (1.0,) * len(one.completion)
        assert (datum.logprobs or ())[len(one.prompt) :] == one.logprobs
    for execution in executions_of(rollouts)[2:]:
        first, second = (datum_of(one) for one in execution.calls)
        assert second.tokens[: len(first.tokens)] == first.tokens
    assert [datum.advantage for datum in data] == pytest.approx([-1, -1, 1, 1, 1, 1], abs=1e-5)
