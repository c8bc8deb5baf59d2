"""The command line: one file per command. Heavy modules are imported inside the commands, so `--help` is instant."""

import sys
from typing import Annotated

import typer

from ..errors import Interrupted, MetaAgentXError, path_problem
from . import interrupts
from .cluster import cluster_app
from .coldstart import coldstart
from .doctor import doctor
from .eval import evaluate_command
from .export import export
from .grade import grade
from .model import model_app
from .plan import plan
from .quickstart import quickstart
from .recipes import recipes_app
from .report import report_command
from .serve import serve_command
from .sft import sft
from .solve import design, run_command, solve
from .tasks import tasks_app
from .terminal_text import without_controls
from .train import train
from .view import view_command

EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "peft", "safetensors", "jinja2"), "local,tasks"),
    **dict.fromkeys(("reasoning_gym", "math_verify", "latex2sympy2_extended", "sympy"), "tasks"),
    **dict.fromkeys(("datasets", "pyarrow"), "hub"),
    "openai": "openai",
    **dict.fromkeys(("starlette", "uvicorn"), "serve,view"),
    "tinker": "tinker",
}
"""Optional packages that commands import, and the extra that installs each."""

app = typer.Typer(
    help="Multi-agent systems that design themselves and learn to execute their designs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        from .. import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Multi-agent systems that design themselves and learn to execute their designs."""


@app.command("version")
def version_command() -> None:
    """Print the version."""
    _print_version(True)


app.command()(doctor)
app.command()(quickstart)
app.command()(train)
app.command()(plan)
app.command("eval")(evaluate_command)
app.command("view")(view_command)
app.command("report")(report_command)
app.command("serve")(serve_command)
app.command()(coldstart)
app.command()(sft)
app.command()(grade)
app.command()(export)
app.command()(solve)
app.command()(design)
app.command("run")(run_command)
app.add_typer(model_app, name="model")
app.add_typer(cluster_app, name="cluster")
app.add_typer(recipes_app, name="recipes")
app.add_typer(tasks_app, name="tasks")


def main() -> None:
    """Run the command line. An error that the user can fix is one line and exit code 2, a signal one line and 130."""
    interrupts.install()
    try:
        app()
    except Interrupted as stopped:
        typer.echo(f"metaagentx: {stopped.message}", err=True)
        sys.exit(stopped.code)
    except (MetaAgentXError, ModuleNotFoundError, OSError) as error:
        message = _user_message(error)
        if message is None:
            raise
        typer.echo(f"metaagentx: {without_controls(message)}", err=True)
        sys.exit(2)


def _user_message(error: Exception) -> str | None:
    """Return one line about an error that the user can fix; None for any other error."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package)
        return f"{package} is not installed: pip install 'metaagentx[{extra}]'" if extra else None
    return path_problem(error) if isinstance(error, OSError) else str(error)
