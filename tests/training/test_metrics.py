"""What the numbers of a step say, and that the documentation names each of them."""

import math
import re
from pathlib import Path

import pytest

from metaagentx.training.metrics import Clock, step_metrics
from metaagentx.types import Call, Design, Execution, Fault, MathGold, Reward, Role, Rollout, Task

INFRA = Fault("infra", "the server died")


def task(source: str = "gsm8k") -> Task:
    return Task(id="t", kind="math", question="?", grading=MathGold(("1",)), source=source, split="train")


def call(role: Role, tokens: int = 10, advantage: float | None = None, finish: str = "stop") -> Call:
    return Call(role, "agent", (), "text", tokens=tokens, advantage=advantage, finish=finish)


def execution(total: float, *calls: Call, fault: Fault | None = None) -> Execution:
    reward = Reward(outcome=total - 0.3, solution=0.2, delivery=0.1, cost=-0.01, total=total, solved=total > 0.9)
    return Execution(calls=list(calls), fault=fault, reward=reward, seconds=2.0)


def design(script: str | None, reward: float | None, *executions: Execution, advantage: float | None = None) -> Design:
    made = Design(call(Role.DESIGNER, 50, advantage), script, list(executions), reward=reward)
    made.pattern = "ensemble" if script else ""
    made.fault = None if script else Fault("no script", "no code block")
    return made


def rich_step() -> list[Rollout]:
    """Two sources, a design without a script, a crash, faults of ours on both levels, a cut reply, a flat task."""
    executor = Role.EXECUTOR
    good = execution(1.2, call(executor, 30, 1.0), call(executor, 10, 1.0, "length"))
    crashed = execution(0.2, call(executor, 20, -1.0), fault=Fault("script error", "ZeroDivisionError"))
    lost = Execution(calls=[call(executor, 999, 5.0, "length")], fault=INFRA, seconds=999.0)
    lost_design = Design(call(Role.DESIGNER, 999, 9.0), None, fault=INFRA)
    first = [
        design("a", 0.7, good, crashed, lost, advantage=1.0),
        design(None, 0.0, advantage=-1.0),
        lost_design,
    ]
    flat = [execution(1.0, call(executor, 20, 0.0)), execution(1.0, call(executor, 20))]
    second = [design("b", 1.0, flat[0], advantage=0.0), design("b", 1.0, flat[1])]
    second[1].pattern = "agent"
    return [Rollout(task(), first), Rollout(task("aime24"), second)]


def test_rewards_and_shares() -> None:
    metrics = step_metrics(rich_step())
    assert metrics["reward/executor"] == pytest.approx((1.2 + 0.2 + 1.0 + 1.0) / 4)
    assert metrics["reward/designer"] == pytest.approx((0.7 + 0.0 + 1.0 + 1.0) / 4)
    assert metrics["reward/outcome"] == pytest.approx((0.9 - 0.1 + 0.7 + 0.7) / 4)
    assert metrics["reward/solution"] == pytest.approx(0.2)
    assert metrics["reward/delivery"] == pytest.approx(0.1)
    assert metrics["reward/cost"] == pytest.approx(-0.01)
    assert (metrics["solved"], metrics["solved/gsm8k"], metrics["solved/aime24"]) == (0.75, 0.5, 1.0)
    assert metrics["reward/gsm8k"] == pytest.approx(0.7)


def test_designs_and_patterns() -> None:
    metrics = step_metrics(rich_step())
    assert metrics["designs/valid"] == 0.75
    assert metrics["designs/distinct"] == 0.5  # one script of two designs, in both tasks
    assert metrics["designs/entropy"] == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))
    assert metrics["pattern/ensemble"] == pytest.approx(2 / 3)
    assert metrics["pattern/agent"] == pytest.approx(1 / 3)
    assert "pattern/none" not in metrics


def test_our_faults_are_counted_and_nothing_else_of_them() -> None:
    metrics = step_metrics(rich_step())
    assert (metrics["faults/infra"], metrics["faults/script_error"], metrics["faults/no_script"]) == (2, 1, 1)
    assert (metrics["faults/designs"], metrics["faults/executions"]) == (0.25, 0.25)
    assert (metrics["executions/count"], metrics["seconds/execution"]) == (4, 2.0)
    assert metrics["tokens/total"] == 4 * 50 + 60 + 40
    assert (metrics["tokens/per_design"], metrics["tokens/per_execution"]) == (50, 25)
    assert (metrics["calls/per_execution"], metrics["replies/cut"]) == (1.25, 1 / 9)


def test_fed_answers_are_counted_whether_they_are_paid_or_not() -> None:
    step = rich_step()
    assert step_metrics(step)["answers/fed"] == 0
    paid, unpaid, *_ = step[0].designs[0].executions
    paid.fed, unpaid.fed, unpaid.fault = "there", "there", Fault("fed", "there")
    metrics = step_metrics(step)
    assert (metrics["answers/fed"], metrics["faults/fed"]) == (0.5, 1)


def test_spreads_and_advantages() -> None:
    metrics = step_metrics(rich_step())
    assert metrics["spread/between"] == pytest.approx((0.35 + 0.0) / 2)
    assert metrics["spread/within"] == pytest.approx(0.5)  # the second task's designs have one execution each
    assert (metrics["groups/designer_flat"], metrics["groups/executor_flat"]) == (0.5, 0.5)
    assert metrics["advantage/designer_abs"] == pytest.approx(2 / 3)
    assert metrics["advantage/executor_abs"] == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    "rollouts",
    [
        [],
        [Rollout(task())],
        [Rollout(task(), [design(None, 0.0)])],
        [Rollout(task(), [Design(call(Role.DESIGNER), "a", [Execution(fault=INFRA)])])],
        [Rollout(task(), [Design(call(Role.DESIGNER), None, fault=INFRA)])],
        [Rollout(task(), [Design(call(Role.DESIGNER), "a", [Execution()])])],
    ],
)
def test_what_is_not_there_is_left_out(rollouts: list[Rollout]) -> None:
    metrics = step_metrics(rollouts)
    assert all(math.isfinite(value) for value in metrics.values())
    assert not {"reward/executor", "solved", "solved/gsm8k", "spread/between", "spread/within"} & set(metrics)
    assert metrics["faults/infra"] == sum(INFRA in (d.fault, *(e.fault for e in d.executions)) for d in _all(rollouts))


def _all(rollouts: list[Rollout]) -> list[Design]:
    return [design for rollout in rollouts for design in rollout.designs]


def test_a_source_cannot_stand_in_for_a_part_of_the_reward() -> None:
    step = [Rollout(task("cost"), [design("a", 1.0, execution(1.0))])]
    assert step_metrics(step)["reward/cost"] == -0.01


def test_measuring_changes_nothing() -> None:
    step = rich_step()
    assert step_metrics(step) == step_metrics(step)
    assert step == rich_step()


def test_the_clock_sums_phases_also_when_they_fail() -> None:
    times = iter([0.0, 1.0, 3.0, 4.0, 4.5, 5.0, 7.0, 10.0])
    clock = Clock(lambda: next(times))
    with clock.phase("rollout"):
        pass
    with clock.phase("update"):
        pass
    with pytest.raises(ValueError), clock.phase("rollout"):
        raise ValueError
    assert clock.metrics() == {"seconds/rollout": 4.0, "seconds/update": 0.5, "seconds/step": 10.0}


def test_the_documentation_names_each_metric_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    documented = re.findall(r"^\| `([^`]+)` \|", text.split("## ")[0], re.MULTILINE)
    assert len(documented) == len(set(documented))
    clock = Clock()
    with clock.phase("rollout"):
        pass
    open_names = {"gsm8k": "<source>", "aime24": "<source>", "ensemble": "<pattern>", "agent": "<pattern>"}
    open_names |= {"script_error": "<kind>", "no_script": "<kind>", "rollout": "<phase>"}
    produced = set()
    for name in [*step_metrics(rich_step()), *clock.metrics()]:
        group, slash, last = name.partition("/")
        produced.add(f"{group}{slash}{open_names.get(last, last)}")
    assert produced == set(documented)
