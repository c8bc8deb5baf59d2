"""The application: the page and its files, the JSON behind it, and the events of a run in progress. GET only."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import MetaAgentXError
from .access import Access
from .assets import asset, page
from .encoding import to_json
from .export import export_run, export_tree
from .pages import Pages

LOGGER = logging.getLogger("metaagentx.viewer")
_POLL_SECONDS = 0.7
_PING_POLLS = 20
_INTEGERS = 9
"""The most digits of a number in a request."""
_PAGES = (
    "run",
    "curves",
    "log",
    "config",
    "evaluations",
    "steps",
    "step",
    "tree",
    "execution",
    "text",
    "task",
    "facets",
)


@dataclass(slots=True)
class Service:
    """What the routes share."""

    pages: Pages
    stopping: bool = False


def build_app(service: Service, token: str, host: str, allowed_hosts: tuple[str, ...] = ()) -> Access:
    """Return the application behind its checks."""
    pages = service.pages
    routes = [
        Route("/", lambda request: Response(page(), media_type="text/html")),
        Route("/static/{name:path}", _static),
        Route("/api/runs", partial(_answer, pages, lambda request: pages.runs())),
        Route("/api/search", partial(_answer, pages, lambda request: pages.search(request.query_params))),
        *(Route(f"/api/{name}", partial(_answer, pages, partial(_call, getattr(pages, name)))) for name in _PAGES),
        Route("/api/events", partial(_events, service)),
        Route("/export", partial(_export, service)),
    ]
    handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _bug}
    return Access(Starlette(routes=routes, exception_handlers=handlers), token, host, allowed_hosts)


async def _answer(pages: Pages, make: Callable[[Request], dict[str, Any]], request: Request) -> Response:
    """Return the JSON that a function makes in a thread of its own; what a user can fix is an error with its line."""

    def answer() -> bytes:
        with pages.library.attending():
            return to_json(make(request))

    try:
        return Response(await run_in_threadpool(answer), media_type="application/json")
    except MetaAgentXError as error:
        return _problem(str(error), 404)


def _call(page_function: Callable[..., dict[str, Any]], request: Request) -> dict[str, Any]:
    """Call a page with the parameters of a request, each of the type that the page declares."""
    return page_function(**_arguments(page_function, request))


def _arguments(function: Callable[..., object], request: Request) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        text = request.query_params.get(name)
        if text is None:
            if parameter.default is parameter.empty:
                raise MetaAgentXError(f"the parameter {name} is missing")
        elif parameter.annotation in (int, "int"):
            if not (text.isascii() and text.isdecimal() and len(text) <= _INTEGERS):
                raise MetaAgentXError(f"{name}: invalid value {text[:50]!r}, expected a number")
            arguments[name] = int(text)
        else:
            arguments[name] = text
    return arguments


async def _static(request: Request) -> Response:
    found = asset(request.path_params["name"])
    if found is None:
        return PlainTextResponse("not found\n", 404)
    content, media_type = found
    return Response(content, media_type=media_type)


async def _events(service: Service, request: Request) -> Response:
    """Send an event whenever something of a run has changed."""
    name = request.query_params.get("run", "")
    try:
        run = service.pages.library.run(name)
    except MetaAgentXError as error:
        return _problem(str(error), 404)

    def look() -> tuple[object, ...]:
        return run.signature(), service.pages.library.fill(name)

    async def events() -> AsyncIterator[bytes]:
        before: object = None  # whoever begins to watch may have read before the last change
        yield b"retry: 2000\n\n"
        polls = 0
        while not service.stopping:
            await asyncio.sleep(_POLL_SECONDS)
            polls += 1
            try:
                now: Any = await run_in_threadpool(look)
            except MetaAgentXError:
                return  # the run was removed; whoever asks again is told
            if now != before:
                before = now
                done, total = now[1]
                yield b"event: change\ndata: " + to_json({"indexed": done, "files": total}) + b"\n\n"
            elif polls % _PING_POLLS == 0:
                yield b": nothing new\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def _export(service: Service, request: Request) -> Response:
    """Send a run or one tree as a file that needs no server."""
    query = request.query_params
    pages = service.pages
    try:
        if "step" in query:
            arguments = _arguments(pages.tree, request)
            content = await run_in_threadpool(lambda: export_tree(pages, **arguments))
            name = f"step-{arguments['step']}-task-{arguments['task']}"
        else:
            content = await run_in_threadpool(lambda: export_run(pages, query.get("run", "")))
            name = "run"
    except MetaAgentXError as error:
        return _problem(str(error), 404)
    disposition = {"Content-Disposition": f'attachment; filename="metaagentx-{name}.html"'}
    return Response(content, media_type="text/html", headers=disposition)


def _problem(message: str, status: int) -> Response:
    return Response(to_json({"error": message}), status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return PlainTextResponse(f"{status}\n", status)


async def _bug(request: Request, error: Exception) -> Response:
    LOGGER.error("%s failed: %r", request.url.path, error, exc_info=error)
    return _problem(f"the viewer failed: {type(error).__name__}: {error}", 500)
