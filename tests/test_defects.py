"""Defects of the published code in rollout and credit, each with the test that keeps it out."""

import asyncio
from dataclasses import replace

from metaagentx.config import CreditConfig, RolloutConfig, StageConfig
from metaagentx.rewards.graders import Graders
from metaagentx.rollout.tree import RolloutOptions, rollout_batch
from metaagentx.sandbox import Sandbox
from metaagentx.training.batching import data_for
from metaagentx.training.credit import assign_credit
from metaagentx.training.stages import stage_at
from metaagentx.types import Role
from tests.rollout_helpers import (
    HEAD,
    RIGHT,
    RUN,
    SINGLE,
    TASK,
    VOTE,
    WRONG,
    Actor,
    by_agent,
    design,
    executions_of,
    in_words,
    resources,
)


def right_or_wrong(conversation: list[dict[str, str]], seed: int) -> str:
    return [RIGHT, WRONG][seed % 2]


def test_the_executor_is_sampled_and_its_log_probabilities_are_kept(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """It was sampled greedily, so that the executions of a design hardly differed."""
    executor = Actor(right_or_wrong)
    shared = resources(Actor(design(VOTE)), executor, sandbox, graders)
    samplers = {role: replace(sampler, temperature=0.8) for role, sampler in shared.samplers.items()}
    (tree,) = runner.run(
        rollout_batch(
            [TASK],
            replace(shared, samplers=samplers),
            RolloutOptions(RolloutConfig(designs=2, executions=4)),
            ("test",),
        )
    )
    assert {params.temperature for params in executor.asked} == {0.8}
    assert len({params.seed for params in executor.asked}) == len(executor.asked) == 24
    assert len({tuple(call.text for call in execution.calls) for execution in executions_of([tree])}) > 1
    assign_credit(tree, CreditConfig())
    calls = [call for execution in executions_of([tree]) for call in execution.calls]
    data = data_for(Role.EXECUTOR, [tree])
    assert len(data) == len(calls)
    for call, datum in zip(calls, data, strict=True):
        assert call.logprobs == tuple(-0.25 - place / 1000 for place in range(call.tokens))
        assert datum.logprobs == (0.0,) * len(call.prompt) + call.logprobs


def test_frozen_is_absent() -> None:
    """It was a learning rate of 1e-9 on a shared optimizer."""
    stages = [StageConfig(steps=30, executor=5e-6), StageConfig(steps=30, designer=5e-6)]
    for step in range(120):
        learns = Role.EXECUTOR if step % 60 < 30 else Role.DESIGNER
        assert stage_at(step, stages).learning_rates == {learns: 5e-6}


def test_with_one_execution_a_design_tasks_are_still_apart(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """With N = 1 all tasks of a batch fell into one group."""
    easy, hard = replace(TASK, question="easy"), replace(TASK, question="hard")

    def reply(conversation: list[dict[str, str]], seed: int) -> str:
        return RIGHT if conversation[-1]["content"] == "easy" else WRONG

    shared = resources(Actor(design(SINGLE)), Actor(reply), sandbox, graders)
    trees = runner.run(
        rollout_batch([easy, hard], shared, RolloutOptions(RolloutConfig(designs=3, executions=1)), ("test",))
    )
    for tree in trees:
        assign_credit(tree, CreditConfig())
    rewards = [execution.reward.total for execution in executions_of(trees) if execution.reward]
    assert [round(reward, 6) for reward in rewards] == [1.8] * 3 + [0.8] * 3
    assert data_for(Role.EXECUTOR, trees) == data_for(Role.DESIGNER, trees) == []


def test_a_crashed_execution_has_its_own_calls_and_nothing_of_an_earlier_one(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """A crashed script was credited with the previous step's trajectory."""
    crash = HEAD + '1 / 0\nworkflow.add_node(AgentNode("Solver", "Solve."))' + RUN
    executor = Actor(by_agent({"Solve.": RIGHT}))
    for script, wanted in (
        (SINGLE, (["Solver"], r"\boxed{14}", 0, None, 1.8)),
        (crash, ([], None, None, "script_error", 0.0)),
    ):
        shared = resources(Actor(design(script)), executor, sandbox, graders)
        (tree,) = runner.run(
            rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=1, executions=1)), ("test",))
        )
        assert in_words(tree.designs[0].executions[0]) == wanted


def test_the_program_that_is_run_is_the_one_that_was_written(
    runner: asyncio.Runner, sandbox: Sandbox, graders: Graders
) -> None:
    """Scripts were patched by regular expressions before they ran."""
    script = SINGLE + r'print("\frac \times \theta", r"\boxed", repr("\n"))'
    shared = resources(Actor(design(script)), Actor(RIGHT), sandbox, graders)
    (tree,) = runner.run(
        rollout_batch([TASK], shared, RolloutOptions(RolloutConfig(designs=1, executions=1)), ("test",))
    )
    assert tree.designs[0].script == script.strip("\n")
    assert tree.designs[0].executions[0].log == "\\boxed{14}\n\frac \times \theta \\boxed '\\n'\n"
