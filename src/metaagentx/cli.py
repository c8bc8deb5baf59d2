"""The command line: parse, build, call. Everything heavy is imported by the command that needs it."""

import json
import sys
from typing import Annotated

import typer

from .cli_grade import grade
from .cli_model import model_app
from .cli_tasks import tasks_app
from .cli_train import train
from .errors import MetaAgentXError

app = typer.Typer(
    help="Multi-agent systems that design themselves and learn to execute their designs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Multi-agent systems that design themselves and learn to execute their designs."""


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False) -> None:
    """Show what this machine offers, what is missing, and the command that mends it."""
    from .doctor import examine
    from .doctor_view import show

    report = examine()
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show(report)
    raise typer.Exit(0 if report.healthy else 1)


app.command()(grade)
app.command()(train)
app.add_typer(model_app, name="model")
app.add_typer(tasks_app, name="tasks")


def main() -> None:
    """The entry point: what a user can mend is one line and exit code 2."""
    try:
        app()
    except MetaAgentXError as error:
        typer.echo(f"metaagentx: {error}", err=True)
        sys.exit(2)
