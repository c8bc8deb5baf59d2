"""Trees to data: exactly what was sampled, for the roles that learn."""

import asyncio
from dataclasses import replace

import pytest

from metaagentx.backends.scripted import ScriptedPolicy
from metaagentx.config import CreditConfig, RolloutConfig, StageConfig
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.training.batching import calls_of, data_for, datum_of
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
