"""What every server of ours needs: the names of this machine, the name in a Host header, and a listening socket."""

import socket

from .errors import MetaAgentXError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    name = host.strip().lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket: from here on clients can connect, and an address in use is an error in one line."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, ValueError, TypeError) as error:  # the last two: a text that cannot be a name at all
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise MetaAgentXError(f"cannot listen on {host}:{port} ({reason}): choose another --host or --port") from error


def base_url(host: str, listener: socket.socket) -> str:
    """Return the URL of a listening server, without a path."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
