"""A small OpenAI-compatible server, of the standard library, in a thread of the tests."""

import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[dict[str, Any], int], Reply]


def said(content: str | None, finish: str = "stop", message: object = None, **choice: object) -> Reply:
    """A chat completion that took 7 tokens to read and 3 to write."""
    own = {"role": "assistant", "content": content, **(message if isinstance(message, dict) else {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    choices = [{"index": 0, "message": own, "finish_reason": finish, **choice}]
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    return Reply(200, json.dumps(body).encode())


def refused(status: int, message: str, **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps({"error": {"message": message, "type": "t", "code": "c"}}).encode(), names)


class Server(ThreadingHTTPServer):
    """Answers as it is told to and keeps what it was asked."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answer: Answer, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.models: list[str] = []
        """The names that /v1/models lists; empty: there is no such page."""
        self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.keys.append(self.headers["Authorization"])
            number = len(self.server.asked)
            self.server.under_way += 1
            self.server.most_under_way = max(self.server.most_under_way, self.server.under_way)
        here = self.path == "/v1/chat/completions"
        reply = self.server.answer(asked, number) if here else refused(404, "Not Found")
        with self.server.lock:
            self.server.under_way -= 1
        self._send(reply)

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.server.models]}
        here = self.path == "/v1/models" and self.server.models
        self._send(Reply(200, json.dumps(listed).encode()) if here else refused(404, "Not Found"))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(answer: Answer | Reply, port: int = 0) -> Iterator[Server]:
    with Server(answer if callable(answer) else lambda asked, number: answer, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
