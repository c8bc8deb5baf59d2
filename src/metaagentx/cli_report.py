"""`metaagentx report`: a run directory in, one HTML file out."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    run: Annotated[Path, typer.Argument(help="The run's directory, such as runs/tiny.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file; report.html in the run by default.")] = None,
) -> None:
    """Write one self-contained HTML file about a run: curves, structures, example trees, evaluation."""
    from .report import write_report

    typer.echo(write_report(run, out))
