"""The reward and its parts."""

import pytest

from metaagentx.rewards.score import RewardWeights, delivery_share, parses, score
from metaagentx.types import Call, CodeTests, Execution, Fault, Grade, MathGold, Role, StdinTest, Task
from metaagentx.workflow.protocol import INSTRUCTION

MATH = Task("t", "math", "q", MathGold(("4",)), "test", "train")
CODE = Task("t", "code", "q", CodeTests((StdinTest("", ""),)), "test", "train")
GOOD = r"Thinking. <delivery>\boxed{4}</delivery>"


def call(text: str, agent: str = "A", earlier: tuple[dict[str, str], ...] = (), tokens: int = 10) -> Call:
    system = {"role": "system", "content": f"Solve.\n\n{INSTRUCTION}"}
    return Call(Role.EXECUTOR, agent, (system, {"role": "user", "content": "q"}, *earlier), text, tokens)


def test_the_parts_add_up() -> None:
    execution = Execution([call(GOOD), call("no block", "B")], answer=GOOD, answer_call=0)
    reward = score(MATH, execution, Grade(1.0, True), RewardWeights(), full=False)
    assert reward is not None
    assert (reward.outcome, reward.solution, reward.delivery, reward.cost) == (1.0, 1.0, 0.5, 0.0)
    assert reward.total == pytest.approx(1.6)


def test_partial_scores_count_in_training_and_not_at_evaluation() -> None:
    execution = Execution([call("x")], answer="<solution>print(1)</solution>", answer_call=0)
    training = score(CODE, execution, Grade(0.5, False, "test 2"), RewardWeights(), full=False)
    evaluation = score(CODE, execution, Grade(0.5, False, "test 2"), RewardWeights(), full=True)
    assert training is not None and evaluation is not None
    assert (training.outcome, evaluation.outcome) == (0.5, 0.0)
    assert training.reason == "test 2"


def test_cost_is_subtracted_where_a_recipe_wants_it() -> None:
    weights = RewardWeights(cost_per_call=0.1, cost_per_1000_tokens=1.0)
    reward = score(MATH, Execution([call(GOOD, tokens=100)] * 2, answer=GOOD), Grade(1.0, True), weights, full=False)
    assert reward is not None and reward.cost == pytest.approx(0.4)


def test_defect_13_a_models_fault_earns_nothing_and_an_infra_fault_has_no_reward() -> None:
    bad = Execution([call(GOOD)], answer=GOOD, fault=Fault("cpu", "too slow"))
    reward = score(MATH, bad, Grade(1.0, True), RewardWeights(), full=False)
    assert reward is not None and reward.total == 0 and reward.reason == "cpu: too slow"
    ours = Execution([call(GOOD)], answer=GOOD, fault=Fault("infra", "no server"))
    assert score(MATH, ours, None, RewardWeights(), full=False) is None


@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        (MATH, r"so \boxed{4}", True), (MATH, "so 4", False), (MATH, r"\boxed{}", False), (MATH, None, False),
        (CODE, "<solution>\n```python\nprint(1)\n```\n</solution>", True), (CODE, "<solution>def (</solution>", False),
        (CODE, "```python\nprint(1)\n```", False), (CODE, "<solution></solution>", False),
        (CODE, "<solution>" + "(" * 100_000 + "</solution>", False),
    ],
)  # fmt: skip
def test_an_answer_parses_or_not(task: Task, answer: str | None, expected: bool) -> None:
    assert parses(task, answer) is expected


def test_defect_8_an_echoed_instruction_is_no_delivery() -> None:
    assert delivery_share([call(INSTRUCTION)]) == 0
    assert delivery_share([call("<delivery></delivery>")]) == 0
    assert delivery_share([call("<delivery>a</delivery><delivery>b</delivery>")]) == 0
    assert delivery_share([call(GOOD)]) == 1
    assert delivery_share([]) == 0


def test_turns_with_tools_are_no_messages() -> None:
    turn = call("```python\nprint(4)\n```")
    reply = {"role": "assistant", "content": turn.text}
    last = call(GOOD, earlier=(reply, {"role": "user", "content": "4"}))
    assert delivery_share([turn, last]) == 1
    assert delivery_share([turn, call("no block", "B"), last]) == 0.5
    # Two members of an ensemble that are one agent: only the one whose words are continued was a turn.
    assert delivery_share([call("other"), turn, last]) == 0.5
