"""`metaagentx tasks`: list the sources, print their tasks, and find the questions that two of them share."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..tasks import TaskSet
    from ..types import Grading, Task

tasks_app = typer.Typer(
    help="Look at tasks: sources, single tasks, questions that two sources share.",
    no_args_is_help=True,
    add_completion=False,
)

DataDir = Annotated[Path | None, typer.Option(help="Where local files are; data/ by default.")]
Split = Annotated[str, typer.Option(help="train, test, ...; by default train where there is one, else test.")]


@tasks_app.command("list")
def list_sources() -> None:
    """The sources, with their splits, license and place on the Hugging Face hub."""
    from ..tasks import SOURCES

    rows = [("source", "kind", "splits", "license", "from")]
    for source in SOURCES.values():
        repository = next(iter(source.hub.values()))[0].repository
        rows.append((source.name, source.kind, " ".join(source.splits), source.license, repository))
    rows.append(("gym:<generator>", "gym", "train validation test", "Apache-2.0", "reasoning-gym, generated, endless"))
    rows.append(("jsonl:<path>", "own", "train validation test", "yours", "your file, see docs/tasks.md"))
    _print_table(rows)


@tasks_app.command()
def show(
    source: Annotated[str, typer.Argument(help="gsm8k, apps?file=mine.jsonl, gym:chain_sum?max_terms=4, ...")],
    count: Annotated[int, typer.Option("-n", help="How many.", min=1)] = 3,
    split: Split = "",
    seed: Annotated[int, typer.Option(help="Which ones: those a run with this seed sees first.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Print tasks with what their grader knows."""
    tasks = _load(source, split, data_dir)
    size = "endless" if tasks.endless else f"{len(tasks)} tasks"
    bad = f", {len(tasks.problems)} rows left out" if tasks.problems else ""
    typer.echo(f"{tasks.name} ({tasks.split}): {size}{bad}")
    for number in range(count if tasks.endless else min(count, len(tasks))):
        _print_task(tasks.drawn(seed, number))


@tasks_app.command()
def overlap(
    left: Annotated[str, typer.Argument(help="A source.")],
    right: Annotated[str, typer.Argument(help="Another one.")],
    left_split: Split = "",
    right_split: Split = "",
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1 when they share a question.")] = False,
    data_dir: DataDir = None,
) -> None:
    """List the questions that two sources share, by their text without case, spacing and punctuation."""
    from ..tasks import overlap as find_overlap

    sets = _load(left, left_split, data_dir), _load(right, right_split, data_dir)
    shared = find_overlap(*sets)
    for pair in shared:
        typer.echo(f"{', '.join(pair.left)}  =  {', '.join(pair.right)}")
    names = " and ".join(f"{tasks.name} ({tasks.split}, {len(tasks)} tasks)" for tasks in sets)
    typer.echo(f"{len(shared)} questions are in both {names}")
    raise typer.Exit(1 if shared and fail else 0)


def _load(source: str, split: str, data_dir: Path | None) -> "TaskSet":
    from ..tasks import SOURCES, load

    known = SOURCES.get(source.partition("?")[0])
    return load(source, split or (known.splits[0] if known else "train"), data_dir)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print a table in a terminal, else tabs between the columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))
        return
    table = Table(box=None, pad_edge=False)
    for title in rows[0]:
        table.add_column(title, overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_task(task: "Task") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    console.print()
    console.print(Text(task.id, style="bold cyan"))
    about = [task.kind, task.license]
    about += [] if task.difficulty is None else [f"difficulty {task.difficulty:.2f}"]
    console.print(Text(", ".join(filter(None, about)), style="dim"))
    console.print(Text(_printable(task.question)))
    console.print(Text(_printable(_describe(task.grading)), style="green"))


def _describe(grading: "Grading") -> str:
    """Return what the grader knows, shortened."""
    from ..types import AssertTest, CodeTests, FunctionTest, GymEntry, MathGold

    if isinstance(grading, MathGold):
        extra = f", tolerance {', '.join(map(str, grading.tolerances))}" if grading.tolerances else ""
        return f"answer: {' ; '.join(grading.answers)}{f' {grading.unit}' if grading.unit else ''}{extra}"
    if isinstance(grading, GymEntry):
        return f"answer: {_short(str(grading.entry.get('answer')))}"
    if not isinstance(grading, CodeTests):
        return f"graded by {grading.function}"
    test = grading.tests[0]
    if isinstance(test, AssertTest):
        first = _short(test.source)
    elif isinstance(test, FunctionTest):
        first = _short(f"{grading.entry_point}{test.arguments!r} == {test.expected!r}")
    else:
        first = f"{_short(test.input)!r} -> {_short(test.output)!r}"
    special = ", special judge" if grading.special_judge else ""
    count = f"{len(grading.tests)} test{'s' if len(grading.tests) > 1 else ''}"
    return f"{count}, {grading.cpu_seconds:g} s each{special}; the first: {first}"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 200 else f"{text[:200]}..."


def _printable(text: str) -> str:
    """Remove control characters: a data file must not control the terminal."""
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]", "", text)
