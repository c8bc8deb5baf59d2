"""`metaagentx report`: writes one HTML file about a run."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    run: Annotated[Path, typer.Argument(help="The run directory, such as runs/tiny.")],
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file. Default: RUN/report.html.")] = None,
) -> None:
    """Write one self-contained HTML file about a run: charts, evaluations, example trees."""
    from ..viewer import write_report

    typer.echo(write_report(run, out))
