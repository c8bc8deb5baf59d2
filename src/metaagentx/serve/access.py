"""Who may ask: the names of the server, and the key."""

import hmac

from starlette.datastructures import Headers

from ..web import LOOPBACK, host_name
from .errors import APIError
from .options import ServeOptions


def check_host(headers: Headers, options: ServeOptions) -> None:
    """Refuse a Host header with a name that is not the server's: a page in a browser may have pointed its name here."""
    name = host_name(headers.get("host", ""))
    allowed = {*LOOPBACK, options.host.lower(), *(host.lower() for host in options.allowed_hosts)}
    if "*" not in allowed and name not in allowed:
        raise APIError(
            400, f'unknown host "{name[:80]}": start the server with --allowed-host for this name', code="unknown_host"
        )


def check_key(headers: Headers, options: ServeOptions) -> None:
    """Refuse a request without the right key."""
    if options.api_key is None:
        return
    scheme, _, key = headers.get("authorization", "").partition(" ")
    # In constant time: the time of a comparison must not tell how much of a key was right.
    same = hmac.compare_digest(key.strip().encode("utf-8", "surrogateescape"), options.api_key.encode())
    if scheme.lower() != "bearer" or not same:
        message = "missing or wrong API key: send it as `Authorization: Bearer KEY`"
        raise APIError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
