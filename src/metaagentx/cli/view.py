"""`metaagentx view`: a local page over runs, trees and answers."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import MetaAgentXError

if TYPE_CHECKING:
    from ..viewer.server import ViewServer

Directory = Annotated[Path, typer.Argument(help="A run, or a directory with runs or saved trees below it.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[
    int | None,
    typer.Option(
        help="Port to listen on; 0: any free one. Default: the first free one from 7860 on.", min=0, max=65535
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(help="Another name that browsers use for this server; * for all. May be repeated."),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the link and open no browser.")]


def view_command(
    directory: Directory = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = None,
    allowed_host: AllowedHost = None,
    no_browser: NoBrowser = False,
) -> None:
    """Open a page over runs: curves, trees, calls and tokens, live during a run. Ctrl-C stops it."""
    import asyncio

    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise MetaAgentXError(f"{directory} {problem}: give a run, or a directory with runs below it")

    from ..viewer.server import view

    def on_start(url: str, server: "ViewServer") -> None:
        typer.echo(url)
        if not no_browser and sys.stdout.isatty() and _has_display():
            import webbrowser

            webbrowser.open(url)

    asyncio.run(view(directory, host, port, tuple(allowed_host or ()), on_start))


def _has_display() -> bool:
    """Return whether a browser would open a window: one that runs in the terminal would hide the link."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
