"""A page over run directories, from a learning curve down to a token; and the same pages as one HTML file.

    await view(Path("runs"))                                    # serves until a signal; prints nothing itself
    write_report(Path("runs/first"))                            # runs/first/report.html, which needs no server

Everything comes from the run directories, which are only read. What the models wrote is text and never markup.
docs/viewer.md describes what is shown.
"""

from .export import write_report

__all__ = ["write_report"]
