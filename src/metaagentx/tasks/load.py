"""Tasks by the name of their source: `gsm8k`, `apps?file=mine.jsonl`, `gym:chain_sum?max_terms=4`, `jsonl:own.jsonl`.

Rows come from `file`, else from the data directory, else from the hub. The split is asked for, never guessed, and
checked against what the file's name, the rows or their ids say: a row of another split is left out, and a file of
another split refused. A row that cannot be used is named and left out.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from ..types import CustomGrader, Task
from .address import file_names, nearest, parse_query, refuse_unknown
from .code_sources import CODE_SOURCES
from .fingerprint import exact, fingerprint
from .math_sources import MATH_SOURCES
from .own import OWN_SPLITS, own_draft
from .rows import Row, RowError, Rows, TaskError, find_files, open_rows
from .source import Draft, Source, kind_of
from .taskset import Head, TaskSet, head_of

SOURCES: Mapping[str, Source] = {source.name: source for source in (*MATH_SOURCES, *CODE_SOURCES)}
DATA_DIR = Path("data")
NAMED_PROBLEMS = 5
"""So many bad rows are named in the log; `TaskSet.problems` has all."""

_SPLIT_WORD = re.compile(r"(?<![a-z])(train|test|validation|valid|val|dev)(?![a-z])")
_FILTERS = ("min_chars", "max_chars", "min_difficulty", "max_difficulty", "special_judge")
log = logging.getLogger(__name__)


def load(source: str, split: str, data_dir: Path | None = None, among: Sequence[str] = ()) -> TaskSet:
    """The tasks of a source's published split, or a TaskError that says what is missing.

    Tasks of one's own are named after their file, without its directory where no other source `among` those that are
    used together is a file of that name: a task is the same wherever the file is.
    """
    address, _, query = source.partition("?")
    settings = parse_query(source, query)
    name, _, argument = address.partition(":")
    if name == "gym":
        from .gym import gym_tasks

        return gym_tasks(argument, split, settings)
    filters = {key: settings.pop(key) for key in _FILTERS if key in settings}
    if name == "jsonl":
        refuse_unknown(source, settings, _FILTERS)
        tasks = _load_own(Path(argument), split, file_names([source, *among])[argument])
    else:
        tasks = _load_published(address, split, settings, data_dir or DATA_DIR)
    return _filtered(tasks, filters) if filters else tasks


def _load_published(name: str, split: str, settings: dict[str, str], data_dir: Path) -> TaskSet:
    if name not in SOURCES:
        raise TaskError(f"no source {name!r}: {nearest(name, [*SOURCES, 'gym:', 'jsonl:'])}")
    source = SOURCES[name]
    refuse_unknown(name, settings, ("file", *(["part"] if source.parts else []), *_FILTERS))
    if split not in source.splits:
        only = "is for testing only" if source.splits == ("test",) else f"has {', '.join(source.splits)}"
        raise TaskError(f"{name} has no split {split!r}: it {only}")
    stems = tuple(_parts(source, settings["part"]) if "part" in settings else source.parts.values()) or (split,)
    files = [Path(settings["file"])] if "file" in settings else find_files(data_dir / name, stems)
    if files:
        rows = _open_all(files, source, split)
    else:
        from .hub import hub_rows

        wanted = " and ".join(f"{data_dir / name / stem}.jsonl" for stem in stems)
        put = f"{name} ({split}) is not here: put {wanted} (or .parquet) there, with {', '.join(source.fields)}"
        rows = hub_rows(source, split, stems, put)
    return _collect(source, split, rows)


def _parts(source: Source, wanted: str) -> list[str]:
    for part in wanted.split(","):
        if part not in source.parts:
            raise TaskError(f"{source.name} has no part {part!r}: {nearest(part, list(source.parts))}")
    return [source.parts[part] for part in wanted.split(",")]


def _open_all(files: Sequence[Path], source: Source, split: str) -> list[Rows]:
    for file in files:
        if not file.is_file():
            raise TaskError(f"{source.name}: there is no file {file}")
        if "train" in source.splits and not source.ids_decide:
            check_file_split(file, split)
    return [open_rows(file, (*source.fields, *source.optional_fields)) for file in files]


def check_file_split(file: Path, split: str) -> None:
    """A file whose name says that it is of another split is refused; one that says nothing is taken at its word."""
    aliases = {"validation": "valid", "val": "valid", "dev": "valid"}
    words = {aliases.get(word, word) for word in _SPLIT_WORD.findall(file.name.lower())}
    if words and aliases.get(split, split) not in words:
        raise TaskError(f"{file} is named as a file of split {', '.join(sorted(words))}, and {split} was asked for")


def _load_own(path: Path, split: str, name: str) -> TaskSet:
    if split not in OWN_SPLITS:
        raise TaskError(f"own tasks have no split {split!r}: there is {', '.join(OWN_SPLITS)}")
    if not path.is_file():
        raise TaskError(f"jsonl: there is no file {path}")
    if path.suffix != ".jsonl":
        raise TaskError(f"{path}: own tasks are a .jsonl file")
    check_file_split(path, split)

    def draft(row: Row) -> Draft:
        made = own_draft(row)
        if isinstance(made.grading, CustomGrader):
            return replace(made, grading=replace(made.grading, file=str(path.absolute())))
        return made

    source = Source(f"jsonl:{name}", "own", draft, dict.fromkeys(OWN_SPLITS, ()), (), licence="")
    return _collect(source, split, [open_rows(path)])


class _Maker:
    """Makes the task of a row, again each time it is asked for."""

    def __init__(self, source: Source, split: str, places: Sequence[tuple[Rows, int]]) -> None:
        self._source, self._split, self._places = source, split, places

    def __call__(self, position: int, attempt: int = 0) -> tuple[Head, Task]:
        rows, number = self._places[position]
        return self.make(self._source.draft(rows[number]), position)

    def make(self, draft: Draft, position: int) -> tuple[Head, Task]:
        """A draft with what its source adds to it."""
        source, split = self._source, self._split
        task = Task(
            id=f"{source.name}/{split}/{draft.id or exact(draft.statement)}",
            kind=kind_of(draft.grading),
            question=draft.question,
            grading=draft.grading,
            source=source.name,
            split=split,
            difficulty=draft.difficulty,
            licence=draft.licence or source.licence,
        )
        return head_of(task, position, fingerprint(draft.statement)), task


def _collect(source: Source, split: str, rows: Sequence[Rows]) -> TaskSet:
    """Look at every row once: good ones get a head, bad ones a line in `problems`, those of other splits nothing."""
    places = [(part, number) for part in rows for number in range(len(part))]
    maker = _Maker(source, split, places)
    heads: list[Head] = []
    problems: list[str] = []
    others: set[str] = set()
    first_with: dict[str, str] = {}
    graders: dict[str, CustomGrader] = {}
    for position, (part, number) in enumerate(places):
        try:
            row = part[number]
            row_split = source.row_split(row) if "train" in source.splits else split
            if row_split not in ("", split):
                others.add(row_split)
                continue
            draft = source.draft(row)
            head, _ = maker.make(draft, position)
            if head.id in first_with:
                raise RowError(f"the same {'id' if draft.id else 'question'} as {first_with[head.id]}")
        except (RowError, TypeError) as error:  # TypeError: the shape of a gold, which the types themselves check
            problems.append(f"{part.where(number)}: {error}")
        else:
            first_with[head.id] = part.where(number)
            heads.append(head)
            if isinstance(draft.grading, CustomGrader):
                graders.setdefault(draft.grading.function, draft.grading)
    _report(source, split, heads, problems, others)
    return TaskSet(source.name, split, maker, heads, problems, tuple(graders.values()))


def _report(source: Source, split: str, heads: Sequence[Head], problems: Sequence[str], others: set[str]) -> None:
    if not heads and problems:
        raise TaskError(f"{source.name} ({split}): none of {len(problems)} rows can be used, the first: {problems[0]}")
    if not heads:
        found = f"all rows are of split {', '.join(sorted(others))}" if others else "the file is empty"
        raise TaskError(f"{source.name} has no row of split {split}: {found}")
    for problem in problems[:NAMED_PROBLEMS]:
        log.warning("left out: %s", problem)
    if len(problems) > NAMED_PROBLEMS:
        log.warning("left out: %d more rows of %s", len(problems) - NAMED_PROBLEMS, source.name)


def _filtered(tasks: TaskSet, filters: Mapping[str, str]) -> TaskSet:
    """The filters that a source's name carries."""

    def bound(key: str, otherwise: float) -> float:
        try:
            return float(filters.get(key, otherwise))
        except ValueError:
            raise TaskError(f"{tasks.name}: {key}={filters[key]} is not a number") from None

    judged = {"yes": True, "no": False, None: None}
    if filters.get("special_judge") not in judged:
        raise TaskError(f"{tasks.name}: special_judge is yes or no")
    chars = (bound("min_chars", 0), bound("max_chars", inf))
    difficulty = (bound("min_difficulty", 0), bound("max_difficulty", 1))
    return tasks.filtered(
        chars=chars if filters.keys() & {"min_chars", "max_chars"} else None,
        difficulty=difficulty if filters.keys() & {"min_difficulty", "max_difficulty"} else None,
        special_judge=judged[filters.get("special_judge")],
    )
