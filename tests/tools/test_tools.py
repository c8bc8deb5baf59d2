"""Tools that an operator offers: what is checked before they run, what agents read of them, how servers are kept."""

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metaagentx.config import ToolsConfig
from metaagentx.errors import MetaAgentXError
from metaagentx.tools import ToolBox, ToolResult, ToolServerGone, check_tools, functions, servers
from tests.tools import own_tools

PYTHON = shlex.quote(sys.executable)  # commands are split as a shell splits them
SERVER = f"{PYTHON} -m tests.tools.mcp_server"
OWN = "tests.tools.own_tools:"


def call(config: ToolsConfig, *uses: tuple[str, object]) -> list[ToolResult]:
    """Open the tools, call them one after the other, and close them."""

    async def work() -> list[ToolResult]:
        async with ToolBox.open(config) as box:
            return [await box.call(name, text if isinstance(text, str) else json.dumps(text)) for name, text in uses]

    return asyncio.run(work())


def own(*names: str, **limits: float) -> ToolsConfig:
    return ToolsConfig.model_validate({"functions": [OWN + name for name in names], **limits})


def texts(results: list[ToolResult]) -> list[tuple[str, bool]]:
    return [(result.text, result.failed) for result in results]


# --- functions


def test_the_signature_becomes_the_schema_and_the_docstring_the_description() -> None:
    async def specs() -> tuple[object, ...]:
        async with ToolBox.open(own("search")) as box:
            return box.specs

    (spec,) = asyncio.run(specs())
    assert spec.to_json() == {  # type: ignore[attr-defined]
        "name": "search",
        "description": "Searches an encyclopedia.\n\nReturns titles, the best first.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer", "default": 3},
                "kind": {"enum": ["web", "news"], "type": "string", "default": "web"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }


def test_functions_run_with_what_their_signature_allows() -> None:
    found = call(own("search", "add"), ("search", {"query": "owl", "limit": 2}), ("add", {"first": 37, "second": 58}))
    assert texts(found) == [('["owl 0", "owl 1"]', False), ("95", False)]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": "x", "limit": "3"}, "limit: Input should be a valid integer"),
        ({"query": "x", "limit": True}, "limit: Input should be a valid integer"),
        ({"query": "x", "kind": "gossip"}, "kind: Input should be 'web' or 'news'"),
        ({"query": "x", "extra": 1}, "extra: Extra inputs are not permitted"),
        ({}, "query: Field required"),
        ({"query": None}, "query: Input should be a valid string"),
        ("[]", "not a JSON object"),
        ("{", "cannot be read"),
        ("", "cannot be read"),
        ('{"query": "x", "query": "y"}', "cannot be read"),
        ('{"query": NaN}', "cannot be read"),
        ('{"query": "\\ud800"}', "cannot be read"),
        ('{"query": ' + "[" * 5000 + "]" * 5000 + "}", "cannot be read"),
        ('{"query": "\ud800"}', "half of a character"),
        (json.dumps({"query": "x" * 20_000}), "have 20013 characters, expected at most 20000"),
    ],
)
def test_arguments_that_break_the_schema_run_nothing_and_are_explained(arguments: object, problem: str) -> None:
    own_tools.CALLED.clear()
    (result,) = call(own("search"), ("search", arguments))
    assert result.failed and problem in result.text and len(result.text) < 500, result
    assert own_tools.CALLED == []


@pytest.mark.parametrize("how", ["exit", "stop", "cancel", "interrupt", "the disk is full"])
@pytest.mark.parametrize("name", ["fail", "fail_soon"])
def test_a_function_that_fails_in_any_way_is_something_the_agent_reads(name: str, how: str) -> None:
    first, second = call(own(name, "add"), (name, {"how": how}), ("add", {"first": 1, "second": 1}))
    assert first.failed and first.text.startswith("Error: ") and second == ToolResult("2")


@pytest.mark.parametrize("name", ["hang", "stubborn"])
def test_a_function_that_hangs_ends_at_its_deadline(name: str) -> None:
    own_tools.LET_GO.clear()
    started = time.monotonic()
    try:
        (result,) = call(own(name, seconds=0.3), (name, {"seconds": 1.0}))
    finally:
        own_tools.LET_GO.set()
    assert result == ToolResult(f"Error: {name} was not done after 0.3 s.", failed=True)
    assert time.monotonic() - started < 5


def test_a_function_that_hangs_uses_up_its_own_threads_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_THREADS", 4)
    own_tools.LET_GO.clear()

    async def work() -> tuple[list[ToolResult], ToolResult, ToolResult]:
        async with ToolBox.open(own("hang", "search", seconds=0.3)) as box:
            hung = await asyncio.gather(*(box.call("hang", '{"seconds": 30}') for _ in range(9)))
            other = await box.call("search", '{"query": "x"}')
            own_tools.LET_GO.set()
            await asyncio.sleep(0.1)
            return list(hung), other, await box.call("hang", '{"seconds": 0}')

    hung, other, later = asyncio.run(work())
    assert [result.failed for result in hung] == [True] * 9 and not other.failed and later == ToolResult("done")


def test_a_long_result_is_cut_in_the_middle_and_half_a_character_is_replaced() -> None:
    long, half = call(own("long", "half", result_characters=100), ("long", {"length": 10_000_000}), ("half", {}))
    assert len(long.text) < 160 and long.text.endswith("END") and "9999900 characters left out" in long.text
    assert half.text == "a?b"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("own_tools", "expected module:function"),
        ("no_such_module:f", "cannot be imported"),
        (OWN + "nothing", "has no nothing"),
        (OWN + "undescribed", "has no docstring"),
        (OWN + "untyped", "argument x has no type hint"),
        (OWN + "variadic", "cannot be given by name"),
        (OWN + "NoFunction", "is not a function"),
        (OWN + "number", "is not a function"),
    ],
)
def test_what_is_no_tool_is_refused_in_one_line(value: str, problem: str) -> None:
    with pytest.raises(MetaAgentXError, match=problem) as error:
        check_tools(ToolsConfig(functions=[value]))
    assert "\n" not in str(error.value)


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(MetaAgentXError, match="two tools have the name 'add'"):
        check_tools(own("add", "add"))


# --- servers


@asynccontextmanager
async def server_box(**limits: float) -> AsyncIterator[tuple[ToolBox, list[int]]]:
    """The tools of the server, and the numbers of its processes, one for each start so far."""
    async with ToolBox.open(ToolsConfig.model_validate({"mcp": [SERVER], **limits})) as box:
        yield box, []


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """The processes of the server, in the order of their starts."""
    marker = tmp_path / "starts"
    monkeypatch.setenv("TEST_SERVER_STARTS", str(marker))
    return lambda: [int(line) for line in marker.read_text().split()] if marker.exists() else []


def test_a_calculator_and_a_store_on_a_real_server(starts: Callable[[], list[int]]) -> None:
    found = call(
        ToolsConfig(mcp=[SERVER]),
        ("calculate", {"expression": "37 * 58"}),
        ("put", {"key": "a", "value": "b"}),
        ("get", {"key": "a"}),
        ("get", {"key": "other"}),
        ("calculate", {"expression": 5}),
        ("calculate", {}),
    )
    assert texts(found[:3]) == [("2146", False), ("1 keys", False), ("b", False)]
    assert all(result.failed for result in found[3:])
    assert "expression: 5 is not of type 'string'" in found[4].text and "required" in found[5].text
    (process,) = starts()
    assert not Path(f"/proc/{process}").exists()


def test_a_server_that_is_killed_in_the_middle_is_started_again_and_asked_again(
    starts: Callable[[], list[int]], tmp_path: Path
) -> None:
    async def work() -> list[ToolResult]:
        async with server_box() as (box, _):
            waiting = asyncio.create_task(box.call("wait", '{"seconds": 0.4}'))
            beside = asyncio.create_task(box.call("wait", '{"seconds": 0.4}'))
            await asyncio.sleep(0.2)
            os.kill(starts()[-1], signal.SIGKILL)
            arguments = json.dumps({"when": str(tmp_path / "once")})
            return [await waiting, await beside, await box.call("crash", arguments)]

    assert texts(asyncio.run(work())) == [("waited", False), ("waited", False), ("survived", False)]
    assert len(starts()) == 3


def test_arguments_that_end_the_server_are_the_agents_matter_and_spoil_no_other_call(
    starts: Callable[[], list[int]],
) -> None:
    async def work() -> list[ToolResult]:
        async with server_box() as (box, _):
            uses = [("crash", '{"when": "always"}')] * 2 + [("wait", '{"seconds": 0.3}')] * 6
            return await asyncio.gather(*(box.call(*use) for use in uses))

    results = texts(asyncio.run(work()))
    assert results[:2] == [("Error: crash ended its server, twice.", True)] * 2
    assert results[2:] == [("waited", False)] * 6


def test_a_server_that_cannot_be_started_again_is_gone(starts: Callable[[], list[int]], tmp_path: Path) -> None:
    async def work() -> list[BaseException | ToolResult]:
        async with server_box() as (box, _):
            (tmp_path / "starts.forbidden").touch()
            os.kill(starts()[-1], signal.SIGKILL)
            uses = (box.call("calculate", '{"expression": "1 + 1"}') for _ in range(20))
            found = await asyncio.gather(*uses, return_exceptions=True)
            (tmp_path / "starts.forbidden").unlink()
            return [*found, await box.call("calculate", '{"expression": "1 + 1"}')]

    *gone, back = asyncio.run(work())
    assert {type(error) for error in gone} == {ToolServerGone}
    assert {str(error) for error in gone} == {f"the server {SERVER!r} did not start (the license has expired)"}
    assert back == ToolResult("2") and len(starts()) <= 6  # callers share a start, and its failure


def test_a_server_that_hangs_as_a_whole_is_replaced(
    starts: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_PING_SECONDS", 0.3)

    async def work() -> list[ToolResult]:
        async with server_box(seconds=1.0) as (box, _):
            frozen = await box.call("freeze", '{"seconds": 60}')
            after = await box.call("calculate", '{"expression": "1 + 1"}')
            os.kill(starts()[-1], signal.SIGSTOP)
            big = '{"expression": "' + "1+" * 9000 + '1"}'
            stopped = await asyncio.gather(*(box.call("calculate", big) for _ in range(8)))  # more than a pipe holds
            return [frozen, after, *stopped, await box.call("calculate", '{"expression": "1 + 1"}')]

    frozen, after, *stopped, last = asyncio.run(work())
    assert frozen == ToolResult("Error: freeze was not done after 1 s.", failed=True) and after == ToolResult("2")
    assert all(result.failed for result in stopped) and last == ToolResult("2")
    assert not any(Path(f"/proc/{process}").exists() for process in starts())


def test_a_result_of_any_size_costs_bounded_memory_and_time() -> None:
    started = time.monotonic()
    long, short = call(
        ToolsConfig(mcp=[SERVER], result_characters=100),
        ("repeat", {"text": "abcdefgh", "times": 4_000_000}),
        ("repeat", {"text": "ab", "times": 100_000}),
    )
    assert long == ToolResult("Error: the result has more than 4 MiB", failed=True)
    assert not short.failed and len(short.text) < 160
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("no-such-program --x", "there is no program 'no-such-program'"),
        ("", "there is no program"),
        ("'unclosed", "is not a command"),
        (f"{PYTHON} -c 'import sys; sys.exit(\"no license\")'", "no license"),
        (f"{PYTHON} -c 'print(5)'", "did not start"),
        (f"{PYTHON} -c 'import time; time.sleep(60)'", "has not listed its tools after 0.5 s"),
    ],
)
def test_a_command_that_is_no_server_is_named_in_one_line(
    command: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "START_SECONDS", 0.5 if "sleep" in command else 30.0)
    with pytest.raises(MetaAgentXError, match=problem) as error:
        call(ToolsConfig.model_construct(functions=[], mcp=[command]))
    assert "\n" not in str(error.value)
