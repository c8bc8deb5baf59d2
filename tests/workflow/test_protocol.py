import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.workflow import protocol
from metaagentx.workflow.protocol import (
    INSTRUCTION,
    Answer,
    critic_decision,
    deliveries,
    delivery,
    last_boxed,
    last_solution,
    parse_answer,
    pending_tool_uses,
    reply_answer,
    visible,
)


def well_formed_delivery(text: str, prompt: str = "") -> bool:
    return delivery(text, prompt) is not None


def test_defect_7_repeated_boxes_are_not_dropped() -> None:
    assert last_boxed(r"\boxed{5} or \boxed{7}, no: \boxed{5}") == "5"
    assert last_boxed(r"\boxed{5} or \boxed{5}, no: \boxed{7}") == "7"
    assert reply_answer(r"\boxed{5}, \boxed{7}, <delivery>so \boxed{5}</delivery>") == Answer("boxed", "5")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"so \boxed {x}", "x"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"{ open \boxed{5}", "5"),
        (r"\boxed{5} and \boxed{7", "5"),
        (r"\boxed{5} and \boxed{}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\\boxed{4}", "4"),
        (r"\boxed{", None),
        (r"\boxed5", None),
        ("<think>\\boxed{1}</think> nothing", None),
        ("<think>\\boxed{1}", None),
    ],
)
def test_last_box(text: str, value: str | None) -> None:
    assert last_boxed(text) == value


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("<solution>print(1)</solution>", "print(1)"),
        ("<solution>\n```python\nprint(1)\n```\n</solution>", "print(1)"),
        ("<SOLUTION>a</SOLUTION> then <solution>b</solution>", "b"),
        ("<solution>a</solution> <solution></solution> <solution>...</solution>", "a"),
        ("<solution>a", None),
        ("</solution>a<solution>", None),
    ],
)
def test_last_solution(text: str, source: str | None) -> None:
    assert last_solution(text) == source


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", Answer("boxed", "5")),
        ("<solution>print(r'\\boxed{1}')</solution>", Answer("solution", "print(r'\\boxed{1}')")),
        (r"<solution>\boxed{5}</solution>", Answer("boxed", "5")),
        (r"<solution>x</solution> so \boxed{5}", Answer("boxed", "5")),
        (r"\boxed{5} so <solution>x</solution>", Answer("solution", "x")),
        (" plain ", Answer("text", "plain")),
    ],
)
def test_answer(text: str, answer: Answer) -> None:
    assert parse_answer(text) == answer


def test_the_delivery_states_the_answer_before_the_reasoning_does() -> None:
    assert reply_answer(r"\boxed{1} <delivery>\boxed{2}</delivery>") == Answer("boxed", "2")
    assert reply_answer(r"\boxed{1} <delivery>the number two</delivery>") == Answer("boxed", "1")
    assert reply_answer("hm <delivery>the number two</delivery>") == Answer("text", "the number two")


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [
        ("reasoning <delivery>5</delivery>", True),
        ("<think>I need one <delivery> block</think><delivery>5</delivery>", True),
        ("<delivery>5</delivery> <delivery>6</delivery>", False),
        ("<delivery>5", False),
        ("5</delivery>", False),
        ("<delivery> first <delivery>5</delivery>", False),
        ("<delivery>5</delivery></delivery>", False),
        ("<delivery>  </delivery>", False),
        ("<delivery>...</delivery>", False),
        ("no block", False),
    ],
)
def test_well_formed_delivery(text: str, well_formed: bool) -> None:
    assert well_formed_delivery(text) is well_formed


def test_defect_8_an_echoed_instruction_is_no_delivery() -> None:
    assert not well_formed_delivery(INSTRUCTION)
    assert not well_formed_delivery(f"The instructions say: {INSTRUCTION} I will do so.")
    assert not well_formed_delivery(f"<delivery>{INSTRUCTION}</delivery>")
    assert not well_formed_delivery(f"<delivery>{INSTRUCTION[10:90]}</delivery>")
    assert parse_answer(INSTRUCTION).kind == "text"
    assert pending_tool_uses(INSTRUCTION) == []


@given(st.text("abc <>", min_size=1, max_size=60), st.integers(0, 60))
def test_no_part_of_any_instruction_is_a_delivery(instruction: str, start: int) -> None:
    assert delivery(f"<delivery>{instruction}</delivery>", instruction, instruction) is None
    part = instruction[start : start + 25]
    if len(" ".join(part.split())) >= 20:
        assert delivery(f"<delivery>{part}</delivery>", instruction, instruction) is None


def test_defect_8_an_echo_of_the_designers_own_placeholder_is_no_delivery() -> None:
    prompt = "Answer like this: <delivery>your  answer here</delivery>"
    assert not well_formed_delivery("<delivery>Your answer here</delivery>", prompt)
    assert delivery("As in <delivery>your answer here</delivery>: <delivery>12</delivery>", prompt) == "12"


def test_deliveries_lists_what_the_model_wrote() -> None:
    assert deliveries("<delivery>a</delivery> x <delivery></delivery> <Delivery>\nb\n</Delivery>") == ["a", "b"]


def test_thinking_is_private() -> None:
    assert visible("<think>a</think>b") == "b"
    assert visible("a</think>b") == "b"
    assert visible("  <think>cut off") == ""
    assert visible("the tag <think> in a sentence") == "the tag <think> in a sentence"


PYTHON = "```python\nprint(1)\n```"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"Let me see.\n{PYTHON}", [None]),
        (CALL, ["add"]),
        (f"{PYTHON}\n{CALL}\n{PYTHON}", [None, "add", None]),
        (f"{PYTHON}\nso <delivery>1</delivery>", []),
        (f"{PYTHON}\nso \\boxed{{1}}", []),
        (f"<delivery>1</delivery>\n{PYTHON}", [None]),
        (f"\\boxed{{1}} but check:\n{PYTHON}", [None]),
        (f"<delivery>\n{PYTHON}\n</delivery>", []),
        (f"<solution>\n{PYTHON}\n</solution>", []),
        (f"{PYTHON}\nand end with <delivery></delivery>", [None]),
        ("```python\nprint('\\\\boxed{1}')\n```", [None]),
        (f"```python\ntext = '''{CALL}'''\n```", [None]),
        ("```python\nprint(1)", []),
        ("``` python\nprint(1)\n```", [None]),
        ("```text\nprint(1)\n```", []),
        (f"<think>{PYTHON}</think>", []),
    ],
)
def test_pending_tool_uses(text: str, names: list[str | None]) -> None:
    assert [use.name for use in pending_tool_uses(text)] == names


def test_code_is_text_when_nothing_runs_python() -> None:
    assert pending_tool_uses(PYTHON, runs_python=False) == []
    assert [use.name for use in pending_tool_uses(CALL, runs_python=False)] == ["add"]


@pytest.mark.parametrize("inner", ["{", "[]", '{"name": 3}', '{"name": "a", "arguments": 3}', "[" * 9999, "9" * 9999])
def test_unreadable_calls_say_what_is_wrong(inner: str) -> None:
    (use,) = pending_tool_uses(f"<tool_call>{inner}</tool_call>")
    assert use.problem


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("CORRECT", True),
        ("The answer is correct.", True),
        ("I found no errors. Verdict: CORRECT", True),
        ("Step 2 looked wrong at first.\nVerdict: correct", True),
        ("entirely correct", True),
        ("INCORRECT", False),
        ("The answer is not correct", False),
        ("This isn't correct.", False),
        ("This isn’t quite correct.", False),
        ("It is never correct.", False),
        ("Step 1 is correct.\nVerdict: INCORRECT", False),
        ("partially correct", None),
        ("mostly correct", None),
        ("CORRECT or INCORRECT", None),
        ("Is it correct?", None),
        ("Correct the sign in step 2.", None),
        ("The correct answer is 7.", None),
        ("Step 1 is correct, step 2 is wrong.", None),
        ("Correct, but the last step has an error.", None),
        ("It would be correct if x were positive.", None),
        ("", None),
        ("Fine.", None),
    ],
)
def test_critic_decision(text: str, decision: bool | None) -> None:
    assert critic_decision(text) is decision


def test_defect_10_incorrect_is_not_correct() -> None:
    for text in ("INCORRECT", "incorrect.", "**INCORRECT**", "Verdict: INCORRECT", "not correct", "isn't correct"):
        assert critic_decision(text) is False


FRAGMENTS = [
    "<delivery>", "</delivery>", "<solution>", "</solution>", "<tool_call>", "</tool_call>", "<think>", "</think>",
    "\\boxed{", "\\boxed", "{", "}", "\\{", "\\", "```python\n", "```", "\n", " ", "5", "correct", "incorrect", "not",
    "verdict", '{"name":', '"', "\ud800", "\0", "é",
]  # fmt: skip
READERS: list[Callable[[str], object]] = [
    visible, deliveries, delivery, well_formed_delivery, last_boxed, last_solution, parse_answer, reply_answer,
    pending_tool_uses, critic_decision, protocol.fenced_blocks,
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5)).map("".join))
def test_no_text_makes_a_reader_raise(text: str) -> None:
    for reader in READERS:
        reader(text)
    if well_formed_delivery(text):
        assert deliveries(text) == [delivery(text)]


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="<>{}\\`", exclude_categories=["Cs"]), min_size=1))
def test_what_is_boxed_or_delivered_is_read_back(value: str) -> None:
    if value.strip(" .…") and value.strip():
        assert last_boxed(f"so \\boxed{{{value}}} indeed") == value.strip()
    if value.strip(".… ") and len(value) < 20 and value.strip():
        assert delivery(f"x <delivery>{value}</delivery>") in (value.strip(), None)


@pytest.mark.parametrize(
    "unit",
    ["\\boxed{", "<delivery>", "<delivery>5</delivery>", "```python\nx\n```\n", "<tool_call>{</tool_call>", "{", "\\",
     "<solution>x</solution>", "not correct ", "`", " ", "</think>", "<tool_call>[</tool_call>\n```py\nx\n```\n"],
)  # fmt: skip
def test_hostile_texts_take_linear_time(unit: str) -> None:
    text = unit * (150_000 // len(unit))
    start = time.process_time()
    for reader in READERS:
        reader(text)
    # About 1 s at most; anything quadratic would take minutes.
    assert time.process_time() - start < 20
