"""A real viewer in a thread, and what asks it."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from metaagentx.viewer.server import ViewServer, view

HOSTILE = "</pre></script><img src=x onerror=alert(1)><script>alert(2)</script>\x00\ud800"


@dataclass
class Viewer:
    """A viewer that listens."""

    url: str
    """The link, with the token."""

    @property
    def base(self) -> str:
        return self.url.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request as it is, without a token."""
        connection = http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=30)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def ask(self, name: str, **parameters: object) -> Any:
        """Return the JSON of a page, or its error."""
        query = urlencode({key: str(value) for key, value in parameters.items()})
        status, _, body = self.get(f"/api/{name}?{query}", {"Authorization": f"Bearer {self.token}"})
        answer = json.loads(body)
        assert (status == 200) == ("error" not in answer), (status, answer)
        return answer


@contextmanager
def viewing(root: Path) -> Iterator[Viewer]:
    """Run a viewer while the block lasts."""
    started: dict[str, Any] = {}
    ready = threading.Event()

    def on_start(url: str, server: ViewServer) -> None:
        started.update(url=url, server=server)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(view(root, port=0, on_start=on_start)))
    thread.start()
    assert ready.wait(30)
    try:
        yield Viewer(started["url"])
    finally:
        started["server"].stop()
        thread.join(30)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.02)
