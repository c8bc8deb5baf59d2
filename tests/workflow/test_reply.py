import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.workflow.reply import parse_reply

SCRIPT = "from workflow import Workflow\nw = Workflow()\nw.run(question)"
REPLY = f"""Problem Type: counting
**Analysis:** small,
but easy to get wrong
- Workflow Pattern : ensemble
## Reason: second opinions
Agent Design: three solvers
flow: solvers, then vote
<code>
{SCRIPT}
</code>"""


def test_the_script_after_the_remarks_is_read() -> None:
    reply = parse_reply(REPLY)
    assert reply.script == SCRIPT
    assert reply.problem is None


@pytest.mark.parametrize(
    "text",
    [
        f"<code>{SCRIPT}</code>",
        f"<CODE>\n{SCRIPT}\n</CODE> done",
        f"<code>\n```python\n{SCRIPT}\n```\n</code>",
        f"```python\n<code>\n{SCRIPT}\n</code>\n```",
        f"First try:\n<code>\nbad\n</code>\nBetter:\n<code>\n{SCRIPT}\n</code>",
        f"I will write <code>. So:\n<code>\n{SCRIPT}\n</code>",
        f"<think>\n<code>\nbad\n</code>\n</think>\n<code>\n{SCRIPT}\n</code>",
        f"```python\nbad\n```\nor rather\n```python\n{SCRIPT}\n```",
        f"```\n{SCRIPT}\n```",
        f"<code>\n{SCRIPT}\n</code>\nAnd one more\n<code>\ncut off",
    ],
)
def test_the_script_is_found(text: str) -> None:
    assert parse_reply(text).script == SCRIPT


def test_tags_inside_the_script_are_part_of_it() -> None:
    script = 'p = "write <code>x</code> here"\nq = """```python\nx\n```"""\nw.run(question)'
    assert parse_reply(f"<code>\n{script}\n</code>").script == script


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no script"),
        ("Problem Type: x", "no script"),
        (f"<code>\n{SCRIPT}", "not closed"),
        ("<code>\n\n</code>", "empty"),
        ("</code><code>", "not closed"),
        (f"<think>\n<code>\n{SCRIPT}\n</code>", "no script"),
        ("```python\nprint(1)", "no script"),
    ],
)
def test_a_reply_without_a_script_says_why(text: str, problem: str) -> None:
    reply = parse_reply(text)
    assert reply.script is None
    assert reply.problem is not None
    assert problem in reply.problem


FRAGMENTS = [
    "<code>",
    "</code>",
    "```python",
    "```",
    "\n",
    "Flow:",
    "Reason: ",
    "**",
    "x = 1",
    " ",
    "<think>",
    "</think>",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4)).map("".join))
def test_no_reply_crashes_the_parser(text: str) -> None:
    reply = parse_reply(text)
    assert (reply.script is None) == (reply.problem is not None)
    assert reply.script is None or reply.script in text


@pytest.mark.parametrize(
    "unit", ["<code>", "<code>\n", "</code>", "Flow:", "Flow: x\n", " ", "```python\n", "*", "<code></code>"]
)
def test_hostile_replies_take_linear_time(unit: str) -> None:
    start = time.process_time()
    parse_reply(unit * (500_000 // len(unit)))
    assert time.process_time() - start < 10
