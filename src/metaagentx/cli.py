"""The command line: parse, build, call. Everything heavy is imported by the command that needs it."""

import json
import sys
from typing import Annotated

import typer

from . import interrupts
from .cli_eval import evaluate_command
from .cli_grade import grade
from .cli_learn import coldstart, quickstart, sft
from .cli_model import model_app
from .cli_recipes import recipes_app
from .cli_report import report_command
from .cli_tasks import tasks_app
from .cli_train import train
from .errors import Interrupted, MetaAgentXError, path_problem

EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "peft", "safetensors", "jinja2"), "local,tasks"),
    **dict.fromkeys(("reasoning_gym", "math_verify", "latex2sympy2_extended", "sympy"), "tasks"),
    **dict.fromkeys(("datasets", "pyarrow"), "hub"),
    "openai": "openai",
}
"""The optional packages that commands import when they need them, and the extra that brings each."""

app = typer.Typer(
    help="Multi-agent systems that design themselves and learn to execute their designs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from . import __version__

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


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False) -> None:
    """Show what this machine offers, what is missing, and the command that adds it."""
    from .doctor import examine
    from .doctor_view import show

    report = examine()
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show(report)
    raise typer.Exit(0 if report.healthy else 1)


app.command()(quickstart)
app.command()(train)
app.command("eval")(evaluate_command)
app.command("report")(report_command)
app.command()(coldstart)
app.command()(sft)
app.command()(grade)
app.add_typer(model_app, name="model")
app.add_typer(recipes_app, name="recipes")
app.add_typer(tasks_app, name="tasks")


def main() -> None:
    """The entry point: what a user can mend is one line and exit code 2, and a signal one line and 130."""
    interrupts.install()
    try:
        app()
    except Interrupted as stopped:
        typer.echo(f"metaagentx: {stopped.message}", err=True)
        sys.exit(stopped.code)
    except MetaAgentXError as error:
        typer.echo(f"metaagentx: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        typer.echo(f"metaagentx: {package} is not installed: pip install 'metaagentx[{EXTRAS[package]}]'", err=True)
        sys.exit(2)
    except OSError as error:
        problem = path_problem(error)
        if problem is None:
            raise
        typer.echo(f"metaagentx: {problem}", err=True)
        sys.exit(2)
