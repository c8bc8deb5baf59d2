"""A real `metaagentx serve` process in front of a scripted model, and what can be seen of it from outside."""

import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.chat_server import Reply, Server, said, serving
from tests.commands import COMMAND
from tests.rollout_helpers import RIGHT, SINGLE, design

QUESTION = "How many squares are there on a 3 by 3 board?"
ONE: Any = [{"role": "user", "content": QUESTION}]
BODY: Any = {"model": "m", "messages": ONE}


class Model:
    """The scripted model behind the system. Agents wait while `hold` is set."""

    def __init__(self, script: str = SINGLE, agent: str = RIGHT) -> None:
        self.script, self.agent = script, agent
        self.hold = threading.Event()
        self.release = threading.Event()
        self.agents = 0

    def answer(self, asked: dict[str, Any], number: int) -> Reply:
        first, last = asked["messages"][0]["content"], asked["messages"][-1]["content"]
        if last == "Hello":  # the check before the first question
            return said("Hello")
        if "workflow" in first.lower():
            return said(design(self.script))
        self.agents += 1
        if self.hold.is_set():
            self.release.wait(30)
        return said(self.agent)


class Serve:
    """A server process."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path, upstream: Server) -> None:
        self.process, self.url, self.log, self.upstream = process, url, log, upstream
        self.port = int(re.findall(r":(\d+)/", url)[0])

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(**{"base_url": self.url, "api_key": "none", "max_retries": 0, "timeout": 60, **options})

    def ask(self, body: object, method: str = "POST", path: str = "/v1/chat/completions", **headers: str) -> Any:
        """Return status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, {"Content-Type": "application/json", **names})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = "json" in response.headers.get("content-type", "")
            return response.status, response.headers, json.loads(text) if is_json else text
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        page = self.ask(None, "GET", "/metrics")[2]
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"metaagentx_{name}"))

    def lines(self) -> list[dict[str, Any]]:
        """The log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def children(self) -> set[int]:
        """All processes below the server."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
        below = {self.process.pid}
        while more := {child for child, parent in parents.items() if parent in below} - below:
            below |= more
        return below - {self.process.pid}

    def sampling(self) -> int:
        """How many connections to the model are open."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[3] == "01" and int(row[2].rpartition(":")[2], 16) == self.upstream.server_port for row in rows)

    def memory(self) -> int:
        """Resident bytes of the server itself."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def served(model: Model, tmp_path: Path, *options: object, env: dict[str, str] | None = None) -> Iterator[Serve]:
    """Start `metaagentx serve` on a free port, and end it with SIGTERM."""
    log = tmp_path / "serve.log"
    with serving(model.answer) as upstream, log.open("w") as stderr:
        words = ["serve", "--model", "m", "--base-url", upstream.url, "--port", "0", *map(str, options)]
        process = subprocess.Popen(
            [COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"OPENAI_API_KEY": "none"} | (env or {}),
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("http"), log.read_text()
            yield Serve(process, line.split()[0], log, upstream)
        finally:
            model.release.set()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()
            assert process.stdout is not None
            process.stdout.close()


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> float:
    """Return how long it took until something was true."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - started
