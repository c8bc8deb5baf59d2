import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.workflow import EnsembleNode, Message, use
from metaagentx.workflow.agent import AgentNode
from metaagentx.workflow.runtime import run_to_end
from metaagentx.workflow.voting import group_by_answer, normalize
from tests.workflow.scripted import Scripted, boxed, program, run_here


@pytest.mark.parametrize(
    "ways",
    [
        ["1/2", "0.5", r"\frac{1}{2}", r"\dfrac{1}{2}", r"\tfrac 1 2", ".50", "$0.5$"],
        ["5", "5.0", "05", " 5 ", "5.", "+5", "x = 5", r"\text{5}"],
        ["1,234,567", "1234567", "1234567.00"],
        ["-3/4", r"-\frac{3}{4}", r"\frac{-3}{4}", "-0.75"],
        [r"\left(1, 2\right)", "(1,2)", r"(1,\,2)"],
    ],
)
def test_one_value_written_in_several_ways(ways: list[str]) -> None:
    assert len({normalize(way) for way in ways}) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("5", "-5"), ("1,2", "12"), ("(1,2)", "(2,1)"), ("5", "5.01"), ("1/0", "0"), ("x", "y")]
)
def test_different_values_stay_different(one: str, other: str) -> None:
    assert normalize(one) != normalize(other)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"[-+.,/0-9\\frac{}x= ]{0,200}", fullmatch=True))
def test_normalise_takes_any_text(value: str) -> None:
    assert isinstance(normalize(value), str)


def group(question: str, *texts: str) -> list[list[int]]:
    messages = [Message.from_reply(f"A{i}", text, i) for i, text in enumerate(texts)]
    with use(Scripted({})):
        return run_to_end(group_by_answer(question, [message.answer for message in messages]))


def test_a_missing_answer_does_not_vote() -> None:
    assert group("q", boxed(1), "I do not know", boxed("1.0"), boxed(2)) == [[0, 2], [3]]


def test_plain_texts_vote_when_there_is_nothing_else() -> None:
    assert group("q", "<delivery>Paris</delivery>", "paris ", "Rome") == [[0, 1], [2]]


LOOP = "def double(x):\n    total = 0\n    for _ in range(2):\n        total += x\n    return total"
SHORT = "def double(x):\n    return 2 * x"
WRONG = "def double(x):\n    return x ** 2"
BROKEN = "def double(x):\n    return y"


def test_defect_12_code_votes_by_behaviour_and_not_by_text() -> None:
    question = "Write double(x).\n>>> double(2)\n4\n>>> double(5)\n10\n"
    assert group(question, program(WRONG), program(LOOP), program(SHORT)) == [[0], [1, 2]]
    agents = [AgentNode(name, "p") for name in "WLS"]
    with use(Scripted({"W": program(WRONG), "L": program(LOOP), "S": program(SHORT)})) as session:
        winner = EnsembleNode("vote", agents).run(question)
    assert winner.sender == "L"
    python = [ask for ask in session.asks if ask.kind == "python"]
    assert len(python) == 3
    assert session.asks.index(python[2]) - session.asks.index(python[0]) == 2


def test_asserts_in_the_question_are_inputs_too() -> None:
    assert group("assert double(3) == 6", program(SHORT), program(WRONG), program(LOOP)) == [[0, 2], [1]]


def test_without_examples_functions_are_called_with_general_arguments() -> None:
    assert group("Write double.", program(SHORT), program(WRONG), program(LOOP)) == [[0, 2], [1]]
    leetcode = "class Solution:\n    def add(self, a, b):\n        return {}"
    results = group(
        "Add.", *(program(leetcode.format(sum_)) for sum_ in ("a + b", "b + a if a == b else a + b", "a - b"))
    )
    assert results == [[0, 1], [2]]


def test_a_program_that_fails_everywhere_loses() -> None:
    assert group("Write double.", program(BROKEN), program(BROKEN + "\n"), program(SHORT)) == [[2]]


def test_programs_that_read_input_are_run_on_the_examples() -> None:
    question = (
        "Add.\n\nInput\nTwo numbers on one line, read them both.\n\nSample Input 1\n\n3 4\n\nSample Output 1\n\n7\n"
    )
    one = "a, b = map(int, input().split())\nprint(a + b)"
    two = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"
    three = "a, b = map(int, input().split())\nprint(a * b)"
    assert group(question, program(one), program(three), program(two)) == [[0, 2], [1]]
    messages = [Message.from_reply("A", program(p), 0) for p in (one, two)]
    with use(run_here) as session:
        run_to_end(group_by_answer(question, [message.answer for message in messages]))
    assert {ask.stdin for ask in session.asks} == {"3 4\n"}


def test_sets_and_rounding_do_not_make_a_difference() -> None:
    one = "def f(x):\n    return {'abc', 'def', 'ghi'}, 0.1 + 0.2"
    two = "def f(x):\n    print('noise')\n    return {'ghi', 'def', 'abc'}, 0.3"
    assert group(">>> f(1)", program(one), program(two)) == [[0, 1]]


def test_an_endless_program_is_a_failing_one() -> None:
    endless = "def double(x):\n    while True: pass"
    with use(lambda ask: run_here(type(ask)("python", code=ask.code, stdin=ask.stdin, timeout=0.5))):
        messages = [Message.from_reply("A", program(p), 0) for p in (endless, SHORT)]
        assert run_to_end(group_by_answer(">>> double(1)", [message.answer for message in messages])) == [[1]]


def test_where_no_program_works_the_syntax_decides() -> None:
    same = "def double(x):\n    return    y  # a remark"
    assert group("q", program(BROKEN), program(same), program("import nothing")) == [[0, 1], [2]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["1", "2", "1.0", "3"]), min_size=1, max_size=6))
def test_groups_part_the_members(values: list[str]) -> None:
    groups = group("q", *(boxed(value) for value in values))
    assert sorted(i for members in groups for i in members) == list(range(len(values)))
    assert [members[0] for members in groups] == sorted(members[0] for members in groups)
