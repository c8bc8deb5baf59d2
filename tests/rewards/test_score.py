"""The reward and its parts."""

from dataclasses import replace

import pytest

from metaagentx.config import RewardConfig
from metaagentx.rewards.score import can_be_parsed, delivery_share, score
from metaagentx.types import Call, CodeTests, Execution, Fault, FinalAnswer, Grade, MathGold, Role, StdinTest, Task
from metaagentx.workflow.protocol import INSTRUCTION

MATH = Task("t", "math", "q", MathGold(("4",)), "test", "train")
CODE = Task("t", "code", "q", CodeTests((StdinTest("", ""),)), "test", "train")
GOOD = r"Thinking. <delivery>\boxed{4}</delivery>"


def call(text: str, agent: str = "A", earlier: tuple[dict[str, str], ...] = (), tokens: int = 10) -> Call:
    system = {"role": "system", "content": f"Solve.\n\n{INSTRUCTION}"}
    return Call(Role.EXECUTOR, agent, (system, {"role": "user", "content": "q"}, *earlier), text, tokens)


def stated(text: str, number: int | None = None) -> FinalAnswer:
    return replace(FinalAnswer.parse(text), call=number)


def test_the_parts_add_up() -> None:
    execution = Execution([call(GOOD), call("no block", "B")], answer=stated(GOOD, 0))
    reward = score(MATH, execution, Grade(1.0, True), RewardConfig(), strict=False)
    assert reward is not None
    assert (reward.outcome, reward.solution, reward.delivery, reward.cost) == (1.0, 1.0, 0.5, 0.0)
    assert reward.total == pytest.approx(1.6)


def test_partial_scores_count_in_training_and_not_at_evaluation() -> None:
    execution = Execution([call("x")], answer=stated("<solution>print(1)</solution>", 0))
    training = score(CODE, execution, Grade(0.5, False, "test 2"), RewardConfig(), strict=False)
    evaluation = score(CODE, execution, Grade(0.5, False, "test 2"), RewardConfig(), strict=True)
    assert training is not None and evaluation is not None
    assert (training.outcome, evaluation.outcome) == (0.5, 0.0)
    assert training.reason == "test 2"


def test_cost_is_subtracted_where_a_recipe_wants_it() -> None:
    config = RewardConfig(cost_per_call=0.1, cost_per_1000_tokens=1.0)
    reward = score(
        MATH, Execution([call(GOOD, tokens=100)] * 2, answer=stated(GOOD)), Grade(1.0, True), config, strict=False
    )
    assert reward is not None and reward.cost == pytest.approx(0.4)


def test_defect_13_a_models_fault_earns_nothing_and_an_infra_fault_has_no_reward() -> None:
    bad = Execution([call(GOOD)], answer=stated(GOOD), fault=Fault("cpu", "too slow"))
    reward = score(MATH, bad, Grade(1.0, True), RewardConfig(), strict=False)
    assert reward is not None and reward.total == 0 and reward.reason == "cpu: too slow"
    ours = Execution([call(GOOD)], answer=stated(GOOD), fault=Fault("infra", "no server"))
    assert score(MATH, ours, None, RewardConfig(), strict=False) is None


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
    assert can_be_parsed(task, None if answer is None else stated(answer)) is expected


def share(*calls: Call, answer_call: int | None = None) -> float:
    """Of an execution that took its answer from this call, or from the last."""
    number = len(calls) - 1 if answer_call is None else answer_call
    answer = stated(calls[number].text, number) if calls else None
    return delivery_share("q", Execution(list(calls), answer=answer))


def test_defect_8_an_echoed_instruction_is_no_delivery() -> None:
    assert share(call(INSTRUCTION)) == 0
    assert share(call("<delivery></delivery>")) == 0
    assert share(call("<delivery>a</delivery><delivery>b</delivery>")) == 0
    assert share(call(GOOD)) == 1
    assert share() == 0


def continued(turn: Call, text: str, told: str = "4") -> Call:
    return call(text, turn.agent, ({"role": "assistant", "content": turn.text}, {"role": "user", "content": told}))


def test_turns_with_tools_are_no_messages() -> None:
    turn = call("```python\nprint(4)\n```")
    last = continued(turn, GOOD)
    assert share(turn, last) == 1
    assert share(turn, call("no block", "B"), last) == 0.5
    # Two members of an ensemble that are one agent: only the one whose words are continued was a turn.
    assert share(call("other"), turn, last) == 0.5
    assert share(turn, turn, last) == 0.5
    assert share(turn, turn, last, last) == 1


@pytest.mark.parametrize(
    "text", ["no block", "<delivery>open", r"\boxed{4}", f"```python\nprint(4)\n```\n{GOOD}{GOOD}"]
)
def test_a_continuation_does_not_hide_a_malformed_message(text: str) -> None:
    """A script can go on with any reply; a turn is one only when it used a tool and waits for its output."""
    malformed = call(text)
    assert share(malformed, continued(malformed, GOOD)) == 0.5
    # Nor does a conversation that only looks like it.
    turn = call("```python\nprint(4)\n```")
    other = call(GOOD, "B", ({"role": "assistant", "content": turn.text}, {"role": "user", "content": "4"}))
    assert share(turn, other) == 0.5
    cut = call(GOOD, "A", ({"role": "assistant", "content": turn.text},))
    assert share(turn, cut) == 0.5


BAD = r"So \boxed{4}"


def filler(text: str, instructions: str, user: str = "q") -> Call:
    messages = ({"role": "system", "content": instructions}, {"role": "user", "content": user})
    return Call(Role.EXECUTOR, "Filler", messages, text)


DILUTED = {
    "not about the task": [filler("<delivery>Fine, thanks.</delivery>", "Be polite.", "How are you?")] * 9,
    "dictated": [filler("<delivery>ok</delivery>", "Deliver the word ok.")] * 9,
    "dictated, and read by the one that answers": [filler("<delivery>All is well.</delivery>", "Say: All is well.")]
    * 9,
    "of no effect": [filler(f"<delivery>{word}</delivery>", "Name a thing.") for word in ("tree", "house", "river")],
}


@pytest.mark.parametrize("name", DILUTED)
def test_trivial_calls_do_not_dilute_a_malformed_message(name: str) -> None:
    calls = DILUTED[name]
    read = "\n\n".join(["Question:\nq", *(f"From Filler:\n{c.text[10:-11]}" for c in calls if "read" in name)])
    answer = Call(Role.EXECUTOR, "A", ({"role": "system", "content": "Solve."}, {"role": "user", "content": read}), BAD)
    assert share(*calls, answer) == 0
    assert share(answer, *calls, answer_call=0) == 0
    assert share(*calls, Call(answer.role, "A", answer.messages, GOOD)) == 1


def test_honest_messages_count_as_they_always_did() -> None:
    plan = call("<delivery>Add them up.</delivery>")
    heard = ({"role": "user", "content": "Question:\nq\n\nFrom A:\nAdd them up."},)
    assert share(plan, Call(Role.EXECUTOR, "B", heard, BAD)) == 0.5  # handed on
    assert share(call(GOOD), call(BAD, "B"), call(GOOD, "C"), answer_call=1) == pytest.approx(2 / 3)  # a vote
    assert share(plan, call(BAD)) == 0.5  # a vote of one agent, asked twice
    judged = "Question:\nq\n\n" + "\n\n".join(["From A:\nAdd them up."] * 3)
    judge = Call(Role.EXECUTOR, "J", ({"role": "user", "content": judged},), BAD)
    assert share(plan, plan, plan, judge) == 0.75  # handed on, and all the same
    critic = filler("<delivery>INCORRECT</delivery>", "Deliver the verdict CORRECT or INCORRECT.")
    assert share(call(BAD), critic, answer_call=0) == 0.5  # a verdict
    assert share(call("four"), call("<delivery>Four.</delivery>", "B"), answer_call=0) == 0.5  # where nothing is boxed
    detail = filler("<delivery>A first part.</delivery>", "Do a part.", "a part of it")
    rests = Call(Role.EXECUTOR, "A", ({"role": "user", "content": "From F:\nA first part."},), BAD)
    assert share(detail, rests) == 0.5  # not the question, but the answer rests on it
