"""One self-contained HTML file for each run, and one picture: what was learnt, when, by whom, and what it looks like.

    write_report(Path("runs/first"))                            # runs/first/report.html
    save_picture(Path("runs/first"), Path("docs/first.svg"))

Everything comes from the run directory, nothing from the network, and nothing in the page is a program. What the models
wrote is text in it and never markup. What a run lacks is said in its place. docs/report.md says what is shown.
"""

from .page import save_picture, write_report

__all__ = ["save_picture", "write_report"]
