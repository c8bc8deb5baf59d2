"""The doctor's report for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .doctor import Report


def show(report: Report) -> None:
    """Print it as a table, then what to do."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("Python", report.python)
    table.add_row("system", report.kernel)
    table.add_row("cores", str(report.cores))
    table.add_row("memory", f"{report.memory_available_gib} of {report.memory_gib} GiB free")
    table.add_row("disk", f"{report.disk_free_gib} GiB free here")
    table.add_row("device", report.device)
    for name, version in report.versions.items():
        table.add_row(name, version or "not installed")
    table.add_row("sandbox", f"{report.sandbox.tier or 'NONE'}: {'; '.join(report.sandbox.why)}")
    table.add_row("bubblewrap", ", ".join(report.sandbox.bubblewrap) or "none")
    table.add_row("Landlock", f"version {report.sandbox.landlock}" if report.sandbox.landlock else "none")
    table.add_row("cgroup", report.sandbox.cgroup)
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for problem in report.problems:
        if not problem.optional:
            console.print(f"\n[bold red]{escape(problem.what)}[/]\n  {escape(problem.fix)}")
    optional = [problem for problem in report.problems if problem.optional]
    if optional:
        console.print("\nNot needed for the quickstart:")
    for problem in optional:
        console.print(f"  {escape(problem.what)}\n    {escape(problem.fix)}")
    if len(optional) == len(report.problems):
        console.print("\nEverything that the quickstart needs is there.")
