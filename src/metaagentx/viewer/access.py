"""Who may ask: the token, the names of this machine, and the origin; and the headers that every response has.

A page of another site must neither read a run nor make this server work: it does not know the token, its name is not
ours, and the browser says where it comes from. The page itself may run and fetch only what this server sends.
"""

import hmac
import ipaddress
import socket

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..web import LOOPBACK, host_name

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_TOKEN = "the token is missing or of an earlier start: open the link that `metaagentx view` printed\n"


class Access:
    """Middleware that checks every request and completes every response."""

    def __init__(self, app: ASGIApp, token: str, host: str, allowed_hosts: tuple[str, ...] = ()) -> None:
        self._app = app
        self._token = token
        self._names = {*LOOPBACK, host.lower(), *(name.lower() for name in allowed_hosts)}
        self._open = host not in LOOPBACK
        if self._open:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refuse(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the response to a request that is not answered, else None."""
        headers, query, path = Headers(scope=scope), QueryParams(scope["query_string"]), scope["path"]
        host = headers.get("host", "")
        if not self._is_ours(host_name(host)):
            return PlainTextResponse(f"unknown host {host[:80]!r}: start with --allowed-host for this name\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return PlainTextResponse("requests of other sites are refused\n", 403)
        opens_page = path == "/" and headers.get("sec-fetch-mode", "navigate") == "navigate"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not opens_page:
            return PlainTextResponse("requests of other sites are refused\n", 403)
        if path == "/" and self._knows(query.get("token")):
            # The token leaves the address bar, so that it is in no history; browsers keep the part after #.
            response = RedirectResponse("/", 303)
            response.set_cookie(_cookie_name(scope), self._token, httponly=True, samesite="strict", path="/")
            return response
        if path == "/" or path.startswith("/static/") or path == "/favicon.ico":
            return None  # the same for everybody: nothing of a run is in it
        scheme, _, key = headers.get("authorization", "").partition(" ")
        known = (_cookie(headers, _cookie_name(scope)), query.get("token"), key if scheme.lower() == "bearer" else None)
        return None if any(map(self._knows, known)) else PlainTextResponse(_NO_TOKEN, 403)

    def _is_ours(self, name: str) -> bool:
        """Return whether a Host header is for this server; by its address anybody may ask who can reach it."""
        if name in self._names or "*" in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._open

    def _knows(self, token: str | None) -> bool:
        # In constant time: the time of a comparison must not tell how much of a token was right.
        given = (token or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._token.encode())


def _cookie_name(scope: Scope) -> str:
    """Return the name of the cookie: browsers do not tell the ports of a machine apart."""
    return f"metaagentx_view_{(scope.get('server') or ('', 0))[1]}"


def _cookie(headers: Headers, name: str) -> str | None:
    # Other servers on this machine set cookies, too, and some that `http.cookies` gives up on: then ours would be lost.
    return cookie_parser(headers.get("cookie", "")).get(name)
