"""A connection to a server of the Tinker API: deadlines, signs of life, and errors in one line.

The SDK waits for hours where a server has died, so everything here has a deadline of its own, and while it waits the
server is asked for a sign of life. A failure that may pass is a `BackendError`; one that needs the user, such as a
server that is gone or a wrong key, is a `MetaAgentXError`.
"""

import asyncio
import json
import logging
import os
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from ...atomic import atomic_write
from ...errors import MetaAgentXError
from ...options import ModelConfig
from ...policy import BackendError

T = TypeVar("T")

OLDEST, NEWEST = (0, 22, 7), (0, 24, 1)
"""The versions of the SDK that are known to work with SkyRL's server. Later ones expect protocol buffers."""
HEALTH_SECONDS = 5.0
DEAD_SECONDS = 20.0
"""A server that has not answered for this long is gone."""
_PROBE_SECONDS = 15.0
_PAUSES = (0.5, 2.0)
"""Before a request is sent again."""
_LOST = re.compile(r"(model|session|sampler)\b.*not (found|loaded)|not loaded", re.IGNORECASE)
_NO_SLOT = re.compile(r"maximum number of lora|max_loras|adapter (slots|limit)", re.IGNORECASE)


class Server:
    """One session on a server. `connect` opens it, `close` gives back its adapters."""

    def __init__(self, options: ModelConfig, record: Path | None = None) -> None:
        """Check the settings and the SDK. `record` is a file with the adapters of this run on the server."""
        assert options.base_url is not None
        self.url = options.base_url.rstrip("/")
        self.seconds = options.server_seconds
        self._key_env = options.api_key_env
        self._key = os.environ.get(options.api_key_env, "").strip()
        self._record = record
        self._adapters: list[str] = []
        self._service: Any = None
        self._checked = 0.0
        self._down_since: float | None = None
        import_sdk()

    def __str__(self) -> str:
        return f"the server at {self.url}"

    async def connect(self) -> None:
        """Open a session, and free the adapters that an earlier process of this run left on the server."""
        import tinker

        try:
            status = await asyncio.to_thread(self._probe)
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise MetaAgentXError(
                f"{self} cannot be reached ({reason}): start it (`metaagentx cluster command RECIPE` prints how), or "
                "correct model.base_url"
            ) from None
        if status == 404:
            raise MetaAgentXError(f"{self} does not serve the Tinker API: correct model.base_url")
        # The SDK wants a key in this form, and a server of your own takes any.
        key = self._key or "tml-none"
        if not key.startswith(("tml-", "eyJ")):
            raise MetaAgentXError(f"{self._key_env} does not contain a key of the Tinker API: they start with tml-")
        logging.getLogger("tinker").setLevel(logging.ERROR)  # its warnings are about what is reported here anyway
        opening = _in_daemon(lambda: tinker.ServiceClient(base_url=self.url, api_key=key))
        self._service = await self.wait("opening a session", asyncio.wrap_future(opening))
        await self._unload(self._left_over())

    async def model_name(self, wanted: str) -> str:
        """Return the name under which the server has a model; raise if it has another one."""
        capabilities = await self.wait("listing models", self._service.get_server_capabilities_async())
        names = [model.model_name for model in capabilities.supported_models if model.model_name]
        for name in names:
            if name == wanted or (Path(name).is_dir() and Path(name).resolve() == Path(wanted).resolve()):
                return str(name)
        raise MetaAgentXError(
            f"{self} has no model {wanted!r}, only {', '.join(map(repr, names)) or 'none'}: set model.base_model to "
            "the name of the same model there, or start the server with --base-model"
        )

    async def new_lora(self, base_model: str, rank: int, seed: int) -> Any:
        """Return the training client of a new LoRA."""
        creating = self._service.create_lora_training_client_async(
            base_model=base_model, rank=rank, seed=seed % 2**31, train_unembed=False
        )
        client = await self.wait("creating a LoRA", creating)
        self._adapters.append(str(client.model_id))
        self._write_record()
        return client

    async def close(self) -> None:
        """Free this session's adapters. A server that is gone has none."""
        await self._unload(self._adapters)
        self._adapters = []
        self._write_record()

    async def download(self, sampler_path: str, target: Path) -> None:
        """Write the archive of saved sampler weights to a file."""
        model, _, name = sampler_path.removeprefix("tinker://").partition("/")
        client = self._service.create_rest_client()
        answer: Any = await self.repeat(
            "asking for the weights", lambda: client.get_checkpoint_archive_url_async(model, name)
        )
        if not answer.url.startswith(("http://", "https://")):  # urllib would also open files
            raise BackendError(f"{self} named {answer.url!r} for the weights: expected an http URL")

        def fetch() -> None:
            with urllib.request.urlopen(answer.url, timeout=self.seconds) as response, target.open("wb") as file:
                shutil.copyfileobj(response, file)

        await self.wait("downloading the weights", asyncio.to_thread(fetch))

    async def repeat(self, doing: str, request: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request that may be sent again: it is, after a failure that may pass.

        All attempts together have the deadline of one. Updates are not repeated here: the server may have made them.
        """
        deadline = time.monotonic() + self.seconds
        for pause in (*_PAUSES, None):
            try:
                return await self.wait(doing, request(), max(0.001, deadline - time.monotonic()))
            except BackendError:
                if pause is None or time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError

    async def wait(self, doing: str, work: Awaitable[T], seconds: float | None = None) -> T:
        """Return the result of a request; raise when it fails, is late, or the server is gone."""
        task = asyncio.ensure_future(work)
        limit = seconds or self.seconds
        deadline = time.monotonic() + limit
        try:
            while not task.done():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BackendError(f"{self} did not finish {doing} within model.server_seconds = {self.seconds:g}")
                await asyncio.wait({task}, timeout=min(HEALTH_SECONDS, left))
                if not task.done():
                    await self._check_alive(doing)
            return await task
        except (MetaAgentXError, BackendError, asyncio.CancelledError):
            raise
        except Exception as error:  # the SDK raises its own, httpx's and built-in exceptions
            raise self._translate(error, doing) from error
        finally:
            task.cancel()

    async def _check_alive(self, doing: str) -> None:
        """Raise if the server has given no sign of life for a while. One waiter asks, and all learn."""
        now = time.monotonic()
        if now - self._checked >= HEALTH_SECONDS:
            self._checked = now
            try:
                await asyncio.to_thread(self._probe)
                self._down_since = None
            except OSError:
                self._down_since = self._down_since or now
        if self._down_since is not None and time.monotonic() - self._down_since > DEAD_SECONDS:
            raise MetaAgentXError(f"{self} stopped answering while {doing}: see its log, and start it again")

    def _probe(self) -> int:
        """Return the status of the server's health check; raise where nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=_PROBE_SECONDS) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    async def _unload(self, adapters: Sequence[str]) -> None:
        """Ask the server to free adapters. It does so before it creates others; unknown ones do not matter."""

        def post(adapter: str) -> None:
            body = json.dumps({"model_id": adapter, "type": "unload_model"}).encode()
            headers = {"Content-Type": "application/json", "X-API-Key": self._key}
            request = urllib.request.Request(f"{self.url}/api/v1/unload_model", body, headers)
            try:
                urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
            except OSError:
                pass

        for adapter in adapters:
            await asyncio.to_thread(post, adapter)

    def _left_over(self) -> list[str]:
        """Return the adapters of a process of this run that was killed."""
        if self._record is None or not self._record.exists():
            return []
        try:
            record = json.loads(self._record.read_text())
            return [str(name) for name in record["adapters"]] if record["url"] == self.url else []
        except (ValueError, KeyError, TypeError):
            return []

    def _write_record(self) -> None:
        if self._record is not None:
            record = {"url": self.url, "adapters": self._adapters}
            atomic_write(self._record, f"{json.dumps(record)}\n".encode())

    def _translate(self, error: Exception, doing: str) -> Exception:
        message = " ".join(str(error).split())
        message = (message.replace(self._key, "***") if self._key else message)[:300] or type(error).__name__
        status = getattr(error, "status_code", None)
        if status in (401, 403) or "status 401" in message or "status 403" in message:
            key = f"the key in {self._key_env}" if self._key else f"no key; put one in {self._key_env}"
            return MetaAgentXError(f"{self} refuses access with {key}")
        if _NO_SLOT.search(message):
            return MetaAgentXError(
                f"{self} has no free adapter for this run: start it with a larger max_lora_adapters, stop another "
                "run, or wait six minutes for the adapters of one that was killed"
            )
        if "LoRA rank" in message:
            return MetaAgentXError(
                f"{self} does not take model.lora_rank: {message}; start it with a larger max_lora_rank, or lower it"
            )
        if _LOST.search(message):
            return MetaAgentXError(f"{self} has lost the LoRAs of this run, as after a restart ({message})")
        return BackendError(f"{self} failed while {doing}: {message}")


def _in_daemon(function: Callable[[], Any]) -> "Future[Any]":
    """Run a function in a thread that does not keep the process alive: nothing can stop the SDK from trying."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001  the caller gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def import_sdk() -> None:
    """Raise where the SDK is missing, or of a version that is known not to work."""
    try:
        import tinker
    except ImportError:
        raise MetaAgentXError("the tinker backend needs: pip install 'metaagentx[tinker]'") from None
    found = tuple(int(part) for part in re.findall(r"\d+", tinker.__version__)[:3])
    if not OLDEST <= found <= NEWEST:
        bounds = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))
        raise MetaAgentXError(
            f"tinker {tinker.__version__} does not work with these servers, only {bounds}: "
            "pip install 'metaagentx[tinker]'"
        )
