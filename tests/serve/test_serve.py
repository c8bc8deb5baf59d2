"""`metaagentx serve` with the official client: a real process, a real sandbox, a scripted model."""

import asyncio
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn

from metaagentx.runs.trees import read_rollouts
from metaagentx.serve.connection import PatientProtocol
from tests.commands import command
from tests.rollout_helpers import RIGHT, VOTE
from tests.serve.serving import BODY, ONE, QUESTION, Model, Serve, served, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with served(Model(), tmp_path_factory.mktemp("serve")) as started:
        yield started


def refused(server: Serve, **fields: Any) -> dict[str, Any]:
    status, _, body = server.ask({**BODY, **fields})
    assert status == 400, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def test_models(server: Serve) -> None:
    with server.client() as client:
        assert [model.id for model in client.models.list()] == ["m"]
        assert client.models.retrieve("m").owned_by == "metaagentx"
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            client.models.retrieve("other")
        with pytest.raises(openai.NotFoundError) as error:
            client.chat.completions.create(model="other", messages=ONE)
    assert error.value.param == "model" and error.value.code == "model_not_found"


def test_an_answer_with_the_work_that_led_to_it_and_its_cost(server: Serve) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(model="m", messages=ONE)
    message = answer.choices[0].message
    assert (message.content, answer.choices[0].finish_reason) == ("14", "stop")
    reasoning = message.model_extra["reasoning_content"]  # type: ignore[index]
    assert reasoning.startswith("[Design 1]\nProblem Type: math") and f"[Solver]\n{RIGHT}" in reasoning
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (14, 6, 20)


def test_a_stream_with_its_usage(server: Serve) -> None:
    with server.client() as client:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks: list[Any] = list(client.chat.completions.create(model="m", messages=ONE, **options))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "14" and deltas[0].role == "assistant"
    reasoning = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert "[Design 1]" in reasoning and RIGHT in reasoning
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 20
    assert chunks[-2].choices[0].finish_reason == "stop" and chunks[0].usage is None


def test_the_asynchronous_client_with_fifty_requests_at_once(server: Serve) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"{number}: {QUESTION}"}]
        if number % 2:
            answer = await client.chat.completions.create(model="m", messages=messages)
            return answer.choices[0].message.content or ""
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(50)))

    assert asyncio.run(all_of_them()) == ["14"] * 50


def test_earlier_turns_are_part_of_the_question(server: Serve) -> None:
    parts = [{"type": "text", "text": "And of"}, {"type": "text", "text": "4 by 4?"}]
    echoed = {"role": "assistant", "content": "14", "refusal": None, "tool_calls": None, "reasoning_content": "..."}
    messages = [{"role": "system", "content": "Be brief."}, *ONE, echoed, {"role": "user", "content": parts}]
    assert server.ask({"model": "m", "messages": messages})[0] == 200
    asked = server.upstream.asked[-1]["messages"][-1]["content"]
    expected = f"Instructions:\nBe brief.\n\nConversation so far:\nUser: {QUESTION}\n\nAssistant: 14"
    assert f"{expected}\n\nQuestion:\nAnd of\n4 by 4?" in asked
    assert server.ask(BODY)[0] == 200
    assert "Question:\n" + QUESTION not in server.upstream.asked[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", True),
        ("tools", [{"type": "function"}]),
        ("logprobs", True),
        ("temperature", 0.2),
        ("seed", 1),
        ("max_tokens", 10),
        ("max_completion_tokens", 10),
        ("stop", "x"),
        ("response_format", {"type": "json_object"}),
        ("reasoning_effort", "high"),
        ("unheard_of", 1),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("messages", []),
        ("messages", [{"role": "assistant", "content": "I"}]),
        ("messages", "text"),
    ],
)
def test_what_cannot_be_honored_is_refused_by_name(server: Serve, name: str, value: object) -> None:
    error = refused(server, **{name: value})
    assert error["param"] == name and name in error["message"] and error["type"] == "invalid_request_error"


def test_messages_that_cannot_be_read_are_refused_by_name(server: Serve) -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"role": "user", "content": image}, "messages[0].content[0].type"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": " "}, "messages[0].content"),
        ({"role": "user", "content": "\ud800"}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "tool_calls": [1]}, "messages[0].tool_calls"),
    ]
    for message, param in cases:
        assert refused(server, messages=[message])["param"] == param


def test_defaults_ask_for_nothing(server: Serve) -> None:
    defaults: dict[str, Any] = {
        "temperature": 1,
        "n": 1,
        "top_p": None,
        "tools": [],
        "logprobs": False,
        "seed": None,
        "user": "me",
    }
    assert server.ask({**BODY, **defaults})[0] == 200


def test_requests_that_are_no_requests(server: Serve) -> None:
    assert server.ask(b"{", Content_Type="application/json")[0] == 400
    assert server.ask(b"[" * 100_000)[0] == 400
    assert server.ask([1])[2]["error"]["message"].startswith("the body is a JSON array")
    assert server.ask(b"{}", Content_Type="text/plain")[0] == 415
    assert server.ask(None, "GET")[0] == 405
    status, headers, body = server.ask(None, "GET", "/v1/nothing")
    assert status == 404 and body["error"]["type"] == "not_found_error" and headers["x-request-id"]
    assert server.ask(BODY, Host="attacker.example")[2]["error"]["code"] == "unknown_host"
    assert server.ask(None, "GET", "/healthz", Host="10.0.0.1")[2] == {"status": "ok"}


def test_a_body_without_a_stated_length_is_limited_too(server: Serve) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    pieces = (b" " * 100_000 for _ in range(60))
    connection.request("POST", "/v1/chat/completions", pieces, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 413 and json.loads(response.read())["error"]["code"] == "body_too_large"
    connection.close()
    assert server.ask(b" " * (5 << 20))[0] == 413


def test_a_client_that_leaves_frees_its_sandbox_and_its_sampling(tmp_path: Path) -> None:
    model = Model()
    with served(model, tmp_path) as server:
        assert server.ask(BODY)[0] == 200
        model.hold.set()
        for stream in (False, True):
            asked, body = model.agents, json.dumps({**BODY, "stream": stream}).encode()
            connection = socket.create_connection(("127.0.0.1", server.port))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            wait_until(lambda asked=asked: model.agents > asked)  # type: ignore[misc]
            time.sleep(0.2)  # interpreters of the sandbox are forked ahead of their use
            during = server.children()
            assert server.sampling() == 1 and server.children() == during
            connection.close()
            gone = wait_until(
                lambda during=during: (  # type: ignore[misc]
                    not server.sampling() and bool(during - server.children()) and not server.metric("requests_in_")
                )
            )
            assert gone < 1
            wait_until(lambda during=during: len(server.children()) == len(during))  # type: ignore[misc]
        assert [line["status"] for line in server.lines() if "path" in line] == [200, 499, 499]


def test_a_request_beyond_its_deadline_ends(tmp_path: Path) -> None:
    model = Model()
    model.hold.set()
    with served(model, tmp_path, "--request-seconds", "1.5") as server, server.client() as client:
        status, _, body = server.ask(BODY)
        assert status == 504 and body["error"]["code"] == "deadline_exceeded"
        with pytest.raises(openai.APIError, match="no answer within"):
            for _ in client.chat.completions.create(model="m", messages=ONE, stream=True):
                pass
        wait_until(lambda: not server.sampling(), 1)


def test_more_than_it_can_take_is_refused_with_a_time_to_wait(tmp_path: Path) -> None:
    model = Model()
    model.hold.set()
    with served(model, tmp_path, "--concurrency", 1, "--queue", 1) as server, ThreadPoolExecutor(2) as threads:
        admitted = [threads.submit(server.ask, BODY) for _ in range(2)]
        wait_until(lambda: server.metric("requests_in_flight") == 2)
        assert server.metric("requests_waiting") == 1
        status, headers, body = server.ask(BODY)
        assert status == 429 and int(headers["retry-after"]) >= 1 and body["error"]["code"] == "rate_limit_exceeded"
        model.release.set()
        assert [each.result()[0] for each in admitted] == [200, 200]


def test_a_key_is_needed_where_one_is_set(tmp_path: Path) -> None:
    with served(Model(), tmp_path, "--client-key-env", "OUR_KEY", env={"OUR_KEY": "s3cret"}) as server:
        for key in ("", "Bearer ", "Bearer s3cre", "Basic s3cret", "Bearer \xff"):
            status, headers, body = server.ask(BODY, Authorization=key)
            assert status == 401 and body["error"]["code"] == "invalid_api_key" and headers["www-authenticate"]
        with server.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with server.client(api_key="s3cret") as client:
            assert client.models.list().data
        assert server.ask(None, "GET", "/healthz")[0] == 200 and server.ask(None, "GET", "/metrics")[0] == 401
        assert "s3cre" not in server.log.read_text()


def test_other_machines_need_a_key() -> None:
    done = command("serve", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--host", "0.0.0.0")
    assert done.returncode == 2 and "--client-key-env" in done.stderr
    done = command("serve", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--client-key-env", "NOT_SET_HERE")
    assert done.returncode == 2 and "NOT_SET_HERE" in done.stderr


def test_trees_are_saved_and_the_oldest_removed(tmp_path: Path) -> None:
    trees = tmp_path / "trees"
    with served(Model(VOTE), tmp_path, "--save", trees, "--save-limit", 3) as server:
        for _ in range(5):
            assert server.ask(BODY)[0] == 200
        wait_until(lambda: len(server.lines()) >= 5)
        assert [line["tree"] for line in server.lines()] == [0, 1, 2, 3, 4]
    files = sorted((trees / "rollouts").iterdir())
    assert [file.name for file in files] == ["000002.jsonl", "000003.jsonl", "000004.jsonl"]
    (rollout,) = read_rollouts(files[0])
    assert rollout.task.question == QUESTION and len(rollout.designs[0].executions[0].calls) == 3
    done = command("report", trees)
    assert done.returncode == 0, done.stderr
    assert QUESTION in (trees / "report.html").read_text()
    with served(Model(), tmp_path, "--save", trees) as server:
        assert server.ask(BODY)[0] == 200
    assert (trees / "rollouts" / "000005.jsonl").exists()


def test_metrics_and_log_say_what_happened(tmp_path: Path) -> None:
    with served(Model("no script"), tmp_path) as server:
        status, _, body = server.ask(BODY)
        assert (
            status == 200 and "[Note]\nno design led to an answer" in body["choices"][0]["message"]["reasoning_content"]
        )
        assert server.metric("faults_total") == 3 and server.metric("single_agent_total") == 1
        assert server.metric('requests_total{status="200"}') >= 1 and server.metric("request_seconds_count") == 1
        assert server.metric('tokens_total{kind="prompt"}') == 4 * 7 and server.metric("calls_total") == 4
        (line,) = server.lines()
        assert (line["status"], line["calls"], len(line["faults"])) == (200, 4, 3)
        assert QUESTION not in server.log.read_text()


def test_five_hundred_requests_of_which_some_are_bad(tmp_path: Path) -> None:
    """Every good one is answered, memory stays flat, and nothing is left behind."""
    model = Model()
    key = {"Authorization": "Bearer k"}

    def bad(server: Serve, number: int) -> int:
        match number // 20 % 4:
            case 0:
                return int(server.ask(b"{no", **key)[0])
            case 1:
                return int(server.ask(b" " * 60_000, **key)[0])
            case 2:
                return int(server.ask(BODY, Authorization="Bearer x")[0])
        connection = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps({**BODY, "stream": True}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        time.sleep(0.01)
        connection.close()
        return 499

    def one(server: Serve, number: int) -> tuple[bool, int]:
        if number % 20 == 0:
            return True, bad(server, number)
        status, _, body = server.ask({**BODY, "user": str(number)}, **key)
        return False, status if status != 200 or body["choices"][0]["message"]["content"] == "14" else -1

    options = ("--client-key-env", "OUR_KEY", "--body-limit", 50_000)
    with served(model, tmp_path, *options, env={"OUR_KEY": "k"}) as server, ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: one(server, number), range(100)))
        wait_until(lambda: "requests_in_flight 0" in server.ask(None, "GET", "/metrics", **key)[2])
        memory, files, children = server.memory(), server.files(), len(server.children())
        results = list(threads.map(lambda number: one(server, number), range(100, 600)))
        wait_until(lambda: "requests_in_flight 0" in server.ask(None, "GET", "/metrics", **key)[2])
        wait_until(lambda: len(server.children()) <= children and server.files() <= files + 2)
        assert server.memory() < memory + (16 << 20)
    assert [status for is_bad, status in results if not is_bad] == [200] * 475
    assert {status for is_bad, status in results if is_bad} == {400, 413, 401, 499}


def test_a_signal_under_load_lets_requests_finish(tmp_path: Path) -> None:
    model = Model()
    model.hold.set()
    with served(model, tmp_path, "--concurrency", 4) as server, ThreadPoolExecutor(12) as threads:
        under_way = [threads.submit(server.ask, {**BODY, "stream": bool(n % 2)}) for n in range(12)]
        wait_until(lambda: server.metric("requests_in_flight") == 12)
        wait_until(lambda: model.agents >= 4)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.ask(None, "GET", "/healthz")[0] == 503)
        for _ in range(5):
            status, headers, body = server.ask(BODY)
            assert status == 503 and headers["connection"] == "close" and body["error"]["code"] == "shutting_down"
        threading.Timer(0.3, model.release.set).start()
        answers = [each.result() for each in under_way]
        assert [status for status, _, _ in answers] == [200] * 12
        assert all("14" in str(body) and ("[DONE]" in body or "usage" in body) for _, _, body in answers)
        assert server.process.wait(10) == 0


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    model = Model()
    model.hold.set()
    with served(model, tmp_path) as server, ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(server.ask, BODY)
        wait_until(lambda: model.agents >= 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.ask(None, "GET", "/healthz")[0] == 503)
        server.process.send_signal(signal.SIGTERM)
        assert under_way.result()[0] == 503
        assert server.process.wait(5) == 0


def test_connections_without_a_request_are_closed_and_others_are_not() -> None:
    """Silent ones, one that drips a head, one that drips a second head, and one that waits for its answer."""

    class Hasty(PatientProtocol):
        LOOK_SECONDS = 0.4

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2 if scope["path"] == "/slow" else 0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def until_closed(port: int, head: str, drip: bool) -> tuple[float, bytes]:
        started = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        seen = b""
        while time.monotonic() - started < 6:
            try:
                async with asyncio.timeout(0.1):
                    data = await reader.read(100)
                seen += data
                if not data:
                    break
            except TimeoutError:
                if drip:
                    writer.write(b"x")
            except ConnectionError:
                break
        writer.close()
        return time.monotonic() - started, seen

    async def work() -> list[tuple[float, bytes]]:
        config = uvicorn.Config(app, http=Hasty, ws="none", lifespan="off", log_config=None, timeout_keep_alive=30)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            port = listener.getsockname()[1]
            get = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            heads = [("", False), ("GET / HTTP/1.1\r\nX: ", True), (get.format("/") + "GET /", True)]
            found = await asyncio.gather(
                *(until_closed(port, *head) for head in [*heads, (get.format("/slow"), False)])
            )
            server.should_exit = True
            await serving
            return list(found)

    silent, drips, drips_again, slow = asyncio.run(work())
    assert all(seconds < 2 for seconds, _ in (silent, drips, drips_again))
    assert drips_again[1].endswith(b"ok") and slow[1].endswith(b"ok") and slow[0] > 2


def test_a_client_that_does_not_read_holds_no_place_beyond_its_deadline(tmp_path: Path) -> None:
    model = Model(agent=RIGHT + "x" * 12_000_000)
    with served(model, tmp_path, "--request-seconds", "4", "--concurrency", "1", "--queue", "0") as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        body = json.dumps({**BODY, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        wait_until(lambda: server.metric("requests_in_flight") == 1)
        wait_until(lambda: server.metric("requests_in_flight") == 0, 30)
        model.agent = RIGHT
        assert server.ask(BODY)[0] == 200
        connection.close()
