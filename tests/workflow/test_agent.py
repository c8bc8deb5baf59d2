import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaagentx.workflow import AgentNode, Context, Message, ToolRegistry, WorkflowError, use
from metaagentx.workflow.agent import LAST_TURN, user_prompt
from metaagentx.workflow.protocol import INSTRUCTION
from metaagentx.workflow.tools import MAX_OUTPUT_CHARACTERS, shorten
from tests.workflow.scripted import Scripted, boxed, prompts

PYTHON = "Let me compute.\n```python\nprint(6 * 7)\n```"


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def python_tools() -> ToolRegistry:
    tools = ToolRegistry()
    tools.register_python()
    return tools


def calculator() -> ToolRegistry:
    tools = ToolRegistry()
    tools.register("add", lambda a, b: a + b, "Adds.", {"a": "a number", "b": "a number"})
    tools.register("fail", lambda: 1 // 0, "Fails.")
    return tools


def test_an_agent_gets_its_prompt_the_protocol_and_the_question() -> None:
    with use(Scripted({"A": boxed(1)})) as session:
        message = AgentNode(name="A", system_prompt="Be brief.").run("What is 1?")
    (ask,) = session.asks
    assert ask.messages == (
        {"role": "system", "content": f"Be brief.\n\n{INSTRUCTION}"},
        {"role": "user", "content": "What is 1?"},
    )
    assert (message.content, message.sender, message.call) == ("\\boxed{1}", "A", 0)
    assert message.text == boxed(1)


def test_without_a_single_delivery_the_whole_reply_is_handed_on_but_not_the_thinking() -> None:
    with use(Scripted({"A": "<think>secret</think> plain words"})):
        assert AgentNode("A", "p").run("q").content == "plain words"


def test_a_python_block_is_run_and_its_output_returned() -> None:
    with use(Scripted({"A": [PYTHON, boxed(42)]})) as session:
        message = AgentNode("A", "p", python_tools()).run("q")
    assert message.answer.value == "42"
    assert prompts(session, "A") == ["q", "Output of python:\n42"]
    assert [ask.kind for ask in session.asks] == ["model", "python", "model"]
    assert session.asks[1].code == "print(6 * 7)"


def test_a_python_block_goes_to_the_scripts_own_tool_that_takes_code() -> None:
    def execute_code(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10, check=False)
        return done.stdout + done.stderr

    tools = ToolRegistry()
    tools.register("execute_code", execute_code, "Runs code.", {"type": "object", "properties": {"code": {}}})
    with use(Scripted({"A": [PYTHON, boxed(42)]})) as session:
        AgentNode("A", "p", tools).run("q")
    assert prompts(session, "A")[1] == "Output of execute_code:\n42\n"


def test_without_tools_code_is_text_and_one_reply_is_all() -> None:
    for registry in (None, ToolRegistry()):
        with use(Scripted({"A": [PYTHON + call("add"), "never asked"]})) as session:
            assert AgentNode("A", "p", registry, max_turns=5).run("q").content == PYTHON + call("add")
        assert len(session.asks) == 1
    with use(Scripted({"A": [PYTHON, "never asked"]})) as session:
        AgentNode("A", "p", calculator()).run("q")
    assert len(session.asks) == 1


def test_a_tool_call_is_answered() -> None:
    with use(Scripted({"A": [call("add", '{"a": 2, "b": 3}'), boxed(5)]})) as session:
        AgentNode("A", "p", calculator()).run("q")
    assert prompts(session, "A")[1] == "Output of add:\n5"
    assert "add(a, b): Adds." in session.asks[0].messages[0]["content"]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("<tool_call>{oops</tool_call>", "not valid JSON"),
        (call("nothing"), "there is no tool 'nothing'"),
        (call("add", '{"a": 1}'), "TypeError"),
        (call("add", '{"x": 1}'), "TypeError"),
        (call("add", "[1, 2]"), "must be a JSON object"),
        (call("fail"), "ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_in_a_tool_comes_back_as_text(reply: str, told: str) -> None:
    with use(Scripted({"A": [reply, boxed(1)]})) as session:
        AgentNode("A", "p", calculator()).run("q")
    assert told in prompts(session, "A")[1]


def test_a_tool_that_runs_out_of_budget_ends_the_run() -> None:
    helper = AgentNode("Helper", "p")
    tools = ToolRegistry()
    tools.register("consult", lambda: helper.run("q").content)
    with (
        use(Scripted({"A": call("consult"), "Helper": "x"}), max_calls=1),
        pytest.raises(WorkflowError, match="budget"),
    ):
        AgentNode("A", "p", tools).run("q")


def test_the_last_turn_is_announced_and_its_tools_are_not_run() -> None:
    with use(Scripted({"A": PYTHON})) as session:
        message = AgentNode("A", "p", python_tools(), max_turns=3).run("q")
    told = prompts(session, "A")
    assert [LAST_TURN in prompt for prompt in told] == [False, False, True]
    assert len([ask for ask in session.asks if ask.kind == "python"]) == 2
    assert message.content == PYTHON


def test_a_single_turn_has_no_use_for_tools() -> None:
    with use(Scripted({"A": PYTHON})) as session:
        AgentNode("A", "p", python_tools(), max_turns=1).run("q")
    assert "tool" not in session.asks[0].messages[0]["content"]
    assert len(session.asks) == 1


def test_a_delivery_after_code_ends_the_turns_and_code_after_a_delivery_is_run() -> None:
    with use(Scripted({"A": [f"{PYTHON}\n{boxed(1)}", "never asked"]})) as session:
        AgentNode("A", "p", python_tools()).run("q")
    assert len(session.asks) == 1
    with use(Scripted({"A": [f"{boxed(1)}\n{PYTHON}", boxed(42)]})) as session:
        assert AgentNode("A", "p", python_tools()).run("q").answer.value == "42"


def test_long_output_is_shortened() -> None:
    tools = ToolRegistry()
    tools.register("flood", lambda: "x" * 10**6)
    with use(Scripted({"A": [call("flood"), boxed(1)]})) as session:
        AgentNode("A", "p", tools).run("q")
    assert len(prompts(session, "A")[1]) < MAX_OUTPUT_CHARACTERS + 100
    assert shorten("abcdef", 4) == "ab\n... 2 characters left out ...\nef"


def test_many_tool_uses_in_one_reply_are_bounded() -> None:
    with use(Scripted({"A": [call("add", '{"a": 1, "b": 1}') * 20, boxed(2)]})) as session:
        AgentNode("A", "p", calculator()).run("q")
    told = prompts(session, "A")[1]
    assert told.count("Output of add") == 8
    assert "Only the first 8" in told


REPLIES = st.lists(
    st.sampled_from(
        [PYTHON, call("python", '{"code": "print(1)"}'), call("x"), "<tool_call>{</tool_call>", boxed(3), ""]
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(replies=REPLIES, max_turns=st.integers(1, 5))
def test_a_conversation_only_ever_grows(replies: list[str], max_turns: int) -> None:
    script = Scripted({"A": replies})
    with use(lambda ask: script(ask) if ask.kind == "model" else "1") as session:
        AgentNode("A", "p", python_tools(), max_turns).run("q")
    chats = [ask.messages for ask in session.asks if ask.kind == "model"]
    assert 1 <= len(chats) <= max_turns
    for earlier, later in pairwise(chats):
        assert later[: len(earlier)] == earlier
        assert len(later) == len(earlier) + 2


def test_earlier_deliveries_are_labeled_and_their_reasoning_is_not_shown() -> None:
    messages = [Message("seven", "A", "long reasoning <delivery>seven</delivery>", 0), Message("eight", "B")]
    context = Context("q?", [*messages, Message("nine", "A")], request="Decide.")
    assert (
        user_prompt(context) == "Question:\nq?\n\nFrom A (1):\nseven\n\nFrom B:\neight\n\nFrom A (2):\nnine\n\nDecide."
    )


def test_what_cannot_be_an_agent_says_why() -> None:
    wrong: list[dict[str, Any]] = [{"max_turns": 0}, {"max_turns": "3"}, {"max_turns": True}, {"tool_registry": []}]
    for arguments in wrong:
        with pytest.raises(WorkflowError, match=r"max_turns|tool_registry"):
            AgentNode("A", "p", **arguments)
    with pytest.raises(TypeError, match="ai_client"):
        AgentNode("A", "p", ai_client=None)  # type: ignore[call-arg]
