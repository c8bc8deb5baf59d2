"""`metaagentx serve`: the OpenAI API in front of a system."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import MetaAgentXError
from . import interrupts
from .system_options import (
    BaseURLOption,
    DesignerOption,
    KeyOption,
    McpOption,
    ModelOption,
    RunOption,
    SetOption,
    SystemChoice,
    SystemOption,
    ToolOption,
)

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535)]
ClientKey = Annotated[
    str | None, typer.Option("--client-key-env", help="Variable with the API key that clients must send.")
]
NoClientKey = Annotated[bool, typer.Option("--no-client-key", help="Listen on other addresses without a key.")]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(help="Another name that clients use for this server; * for all. May be repeated."),
]
Concurrency = Annotated[int, typer.Option(help="The most questions answered at the same time.", min=1)]
Queue = Annotated[int, typer.Option(help="The most requests that wait; more get 429.", min=0)]
RequestSeconds = Annotated[float, typer.Option(help="Deadline of a request, with the time it waits.", min=0.1)]
BodyLimit = Annotated[int, typer.Option(help="The most bytes of a request.", min=1)]
Designs = Annotated[int, typer.Option(help="Designs whose answers are put to a vote.", min=1, max=64)]
Attempts = Annotated[int, typer.Option(help="How often a design that leads to no answer is drawn.", min=1, max=64)]
Save = Annotated[Path | None, typer.Option(help="Directory for the trees; `metaagentx view DIR` shows them.")]
SaveLimit = Annotated[int, typer.Option(help="The most trees to keep, the newest ones.", min=1)]
SaveMegabytes = Annotated[int, typer.Option(help="The most megabytes of trees to keep.", min=1)]


def serve_command(  # noqa: PLR0913, PLR0917  the options of a command are its parameters
    run: RunOption = None,
    system: SystemOption = None,
    model: ModelOption = None,
    designer: DesignerOption = None,
    base_url: BaseURLOption = None,
    api_key_env: KeyOption = None,
    tool: ToolOption = None,
    mcp: McpOption = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    client_key_env: ClientKey = None,
    no_client_key: NoClientKey = False,
    allowed_host: AllowedHost = None,
    concurrency: Concurrency = 8,
    queue: Queue = 64,
    request_seconds: RequestSeconds = 600.0,
    body_limit: BodyLimit = 4 << 20,
    designs: Designs = 1,
    attempts: Attempts = 3,
    save: Save = None,
    save_limit: SaveLimit = 1000,
    save_megabytes: SaveMegabytes = 1024,
    overrides: SetOption = None,
) -> None:
    """Serve a system to OpenAI clients: each request gets its own workflow. SIGTERM drains."""
    from ..serve import ServeOptions, serve

    key = _client_key(client_key_env, host, no_client_key)
    options = ServeOptions(
        host=host,
        port=port,
        api_key=key,
        allowed_hosts=tuple(allowed_host or ()),
        concurrency=concurrency,
        queue=queue,
        request_seconds=request_seconds,
        body_bytes=body_limit,
        designs=designs,
        attempts=attempts,
        save=save,
        save_trees=save_limit,
        save_bytes=save_megabytes << 20,
    )
    opened = SystemChoice(run, system, model, designer, base_url, api_key_env, tool, mcp, overrides).open()

    async def work() -> None:
        async with opened as chosen:
            await serve(chosen, options, lambda url: typer.echo(f"{url} serves {chosen.name}"))

    interrupts.run(work())


def _client_key(variable: str | None, host: str, no_client_key: bool) -> str | None:
    """Return the key that clients must send. Other machines may reach the server only with one."""
    from ..web import LOOPBACK

    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise MetaAgentXError(f"--client-key-env {variable}: the variable is not set; set it to the key")
        return key
    if host not in LOOPBACK and not no_client_key:
        raise MetaAgentXError(
            f"--host {host} is open to other machines: give --client-key-env, or --no-client-key to serve everybody"
        )
    return None
