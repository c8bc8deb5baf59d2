"""The application: routes, checks before each request, and one line of the log after it."""

import asyncio
import time
import uuid
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..system import Result, System, SystemUnavailable
from .access import check_host, check_key
from .body import read_body, while_connected
from .chat_request import ChatRequest, parse_chat_request
from .errors import APIError, ClientLeft
from .gate import Gate
from .log import LOGGER
from .metrics import CONTENT_TYPE, Metrics, fault_kinds
from .narration import Narration
from .options import ServeOptions
from .replies import Chunks, completion, event
from .saving import TreeStore

_LEFT = 499
_FAREWELL_SECONDS = 5.0
_PROBES = ("/healthz", "/metrics")
_ENTRY = "metaagentx.entry"


@dataclass(slots=True)
class LogEntry:
    """What the log says about a request."""

    identifier: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: int = 0
    started: float = field(default_factory=time.perf_counter)
    fields: dict[str, Any] = field(default_factory=dict)


class Service:
    """What all requests share."""

    def __init__(self, system: System, options: ServeOptions, store: TreeStore | None = None) -> None:
        self.system, self.options, self.store = system, options, store
        self.gate = Gate(options.concurrency, options.queue)
        self.metrics = Metrics()
        self.created = int(time.time())


def build_app(service: Service) -> ASGIApp:
    """Return the application of a service."""

    async def health(request: Request) -> Response:
        draining = service.gate.draining
        return JSONResponse({"status": "draining" if draining else "ok"}, 503 if draining else 200)

    async def metrics(request: Request) -> Response:
        gate = service.gate
        return PlainTextResponse(service.metrics.text(gate.in_flight, gate.waiting), media_type=CONTENT_TYPE)

    model = {"id": service.system.name, "object": "model", "created": service.created, "owned_by": "metaagentx"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        if request.path_params["name"] != service.system.name:
            raise APIError(404, "unknown model: see /v1/models", param="model", code="model_not_found")
        return JSONResponse(model)

    routes = [
        Route("/healthz", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        Route("/v1/chat/completions", ChatCompletions(service), methods=["POST"]),
    ]
    handlers: Any = {APIError: _on_api_error, HTTPException: _on_http_error, Exception: _on_error}
    return Frontdoor(Starlette(routes=routes, exception_handlers=handlers), service)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    request.scope[_ENTRY].fields["error"] = error.message
    return error.response()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return APIError(error.status_code, f"{error.detail}: {request.method} {request.url.path[:80]}").response()


async def _on_error(request: Request, error: Exception) -> Response:
    return _internal_error(request.scope[_ENTRY]).response()


def _internal_error(entry: LogEntry) -> APIError:
    return APIError(500, f"internal error: the log of the server has it under request {entry.identifier}")


class Frontdoor:
    """Checks each request, lets the application answer it, and counts and logs it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        entry = scope[_ENTRY] = LogEntry()

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = entry.identifier
                if self.service.gate.draining:
                    headers["connection"] = "close"
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, recorded)
        except APIError as error:
            entry.fields["error"] = error.message
            await error.response()(scope, receive, recorded)
        except ClientLeft:
            entry.status = _LEFT
        except Exception as error:  # noqa: BLE001  the boundary: one request must not end the server
            self.service.metrics.count_fault("internal")
            LOGGER.error({"request": entry.identifier, "error": repr(error)}, exc_info=error)
        except asyncio.CancelledError:
            entry.status = entry.status or 503
            raise
        finally:
            self._log(scope, entry)

    def _check(self, scope: Scope) -> None:
        if scope["path"] == "/healthz":
            return
        headers = Headers(scope=scope)
        check_host(headers, self.service.options)
        check_key(headers, self.service.options)
        if self.service.gate.draining and scope["path"] != "/metrics":
            message = "the server is shutting down: send the request to another one"
            raise APIError(503, message, code="shutting_down", headers={"Connection": "close", "Retry-After": "1"})

    def _log(self, scope: Scope, entry: LogEntry) -> None:
        seconds = time.perf_counter() - entry.started
        asked = scope["path"] == "/v1/chat/completions"
        self.service.metrics.count_request(entry.status, seconds if asked else None)
        if scope["path"] not in _PROBES:
            client = (scope.get("client") or ("",))[0]
            head = {"request": entry.identifier, "client": client, "method": scope["method"]}
            head |= {"path": scope["path"][:200], "status": entry.status, "seconds": round(seconds, 4)}
            LOGGER.info({**head, **entry.fields})


class ChatCompletions:
    """`POST /v1/chat/completions`: solve the question, and cancel that when the client leaves or time is up."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        service, entry = self.service, scope[_ENTRY]
        with service.gate.admit():
            seconds = service.options.request_seconds
            reply = Reply(service, entry, scope, receive, send)
            try:
                async with asyncio.timeout(seconds) as deadline:
                    body = await read_body(receive, Headers(scope=scope), service.options.body_bytes)
                    chat = parse_chat_request(body, service.system.name)
                    await while_connected(receive, reply.answer(chat))
            except ClientLeft:
                entry.status = _LEFT  # there is nobody to respond to
            except TimeoutError:
                if not deadline.expired():
                    raise
                service.metrics.count_fault("deadline")
                await reply.fail(APIError(504, f"no answer within {seconds:g} s", code="deadline_exceeded"))
            except SystemUnavailable as error:
                service.metrics.count_fault("unavailable")
                LOGGER.error({"request": entry.identifier, "error": str(error)})
                message = f"the model or the sandbox is not available: the log has it under {entry.identifier}"
                await reply.fail(APIError(503, message, code="system_unavailable", headers={"Retry-After": "5"}))
            except asyncio.CancelledError:  # a second signal: say so, as far as there is still time
                await reply.fail(APIError(503, "the server was stopped", code="shutting_down"))
            except Exception as error:
                if not reply.started:
                    raise
                # The head of the stream is sent, so the client learns of it from an event.
                service.metrics.count_fault("internal")
                LOGGER.error({"request": entry.identifier, "error": repr(error)}, exc_info=error)
                await reply.fail(_internal_error(entry))
            if reply.result is not None:
                await reply.save(reply.result)


class Reply:
    """The response to one chat completion, streamed or whole."""

    def __init__(self, service: Service, entry: LogEntry, scope: Scope, receive: Receive, send: Send) -> None:
        self._service, self._entry = service, entry
        self._scope, self._receive, self._send = scope, receive, send
        self.started = False
        """Whether the head of a stream is sent: from then on an error is an event."""
        self._complete = False
        self.result: Result | None = None

    async def answer(self, chat: ChatRequest) -> None:
        """Wait for a slot, solve the question and respond."""
        arrived = time.perf_counter()
        identifier, created, model = f"chatcmpl-{self._entry.identifier}", int(time.time()), self._service.system.name
        chunks = Chunks(identifier, created, model, chat.include_usage)
        self._entry.fields["stream"] = chat.stream
        slot: AbstractAsyncContextManager[None] = self._service.gate.running()
        if chat.stream:
            result = await self._stream(chat, chunks, slot)
            await self._body(chunks.end(result), more=False)
        else:
            narration = Narration()
            async with slot:
                self._entry.fields["waited"] = round(time.perf_counter() - arrived, 4)
                result = await self._solve(chat.question, narration)
            reasoning = narration.take(finish=True) + _note(result)
            response = JSONResponse(completion(identifier, created, model, result, reasoning))
            self._complete = True
            await response(self._scope, self._receive, self._send)
        self.result = result

    async def fail(self, error: APIError) -> None:
        """Respond with an error; a stream that has begun ends with it."""
        self._entry.fields["error"] = error.message
        if self._complete:
            return
        self._complete = True
        with suppress(TimeoutError):  # a client that does not read holds no place in the queue
            async with asyncio.timeout(_FAREWELL_SECONDS):
                if self.started:
                    await self._send({"type": "http.response.body", "body": event(error.to_json()), "more_body": False})
                else:
                    await error.response()(self._scope, self._receive, self._send)

    async def _stream(self, chat: ChatRequest, chunks: Chunks, slot: AbstractAsyncContextManager[None]) -> Result:
        """Send the work on the question as it is done, and return the result."""
        narration, news = Narration(), asyncio.Event()

        async def solve() -> Result:
            async with slot:
                return await self._solve(chat.question, narration, news)

        task = asyncio.create_task(solve())
        task.add_done_callback(lambda _: news.set())
        try:
            while not task.done():
                arrived = await _within(self._service.options.ping_seconds, news.wait())
                news.clear()
                text = narration.take()
                if text:
                    await self._body(self._first(chunks) + chunks.delta({"reasoning_content": text}))
                elif not arrived:
                    await self._body(self._first(chunks) + b": working\n\n")
            result = task.result()
            await self._body(self._first(chunks))
            rest = narration.take(finish=True) + _note(result)
            if rest:
                await self._body(chunks.delta({"reasoning_content": rest}))
            return result
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _first(self, chunks: Chunks) -> bytes:
        return b"" if self.started else chunks.delta({"role": "assistant", "content": ""})

    async def _body(self, data: bytes, more: bool = True) -> None:
        """Send a part of a stream, after its head if that is still to come: until then an error has its own status."""
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._complete = self._complete or not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _solve(self, question: str, narration: Narration, news: asyncio.Event | None = None) -> Result:
        def on_event(happened: Any) -> None:
            narration.add(happened)
            if news is not None:
                news.set()

        options = self._service.options
        result = await self._service.system.solve(
            question, designs=options.designs, attempts=options.attempts, on_event=on_event
        )
        self._service.metrics.count_result(result)
        usage = result.usage
        self._entry.fields |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        self._entry.fields |= {"calls": usage.calls, "faults": fault_kinds(result), "note": result.note}
        return result

    async def save(self, result: Result) -> None:
        """Save the tree. The client has its answer: a full disk is a matter for the log."""
        if self._service.store is None:
            return
        try:
            self._entry.fields["tree"] = await self._service.store.save(result.rollout)
        except OSError as error:
            self._service.metrics.count_fault("save")
            LOGGER.error({"request": self._entry.identifier, "error": f"the tree was not saved: {error}"})


def _note(result: Result) -> str:
    return f"\n\n[Note]\n{result.note}" if result.note else ""


async def _within(seconds: float, work: Awaitable[object]) -> bool:
    """Return whether some work is done in time."""
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return False
    return True
