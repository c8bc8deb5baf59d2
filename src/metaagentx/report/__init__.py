"""One self-contained HTML file for each run, and one picture: what was learned, when, and by which role.

    write_report(Path("runs/first"))                            # runs/first/report.html
    save_picture(Path("runs/first"), Path("docs/first.svg"))

Everything comes from the run directory, nothing from the network, and the page contains no program. What the models
wrote is text in it and never markup. The page says what a run lacks. docs/report.md describes what is shown.
"""

from .page import save_picture, write_report

__all__ = ["save_picture", "write_report"]
