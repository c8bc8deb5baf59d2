"""Load tasks by their source: `gsm8k`, `apps?file=mine.jsonl`, `gym:chain_sum?max_terms=4`, `jsonl:own.jsonl`.

Rows come from `file`, else from the data directory, else from the hub. The split is given, never guessed, and checked
against the file's name, the rows and their ids: a row of another split is left out, a file of another split is an
error. A row that cannot be used is named with file and line and left out.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

from ..types import CodeTests, CustomGrader, Task
from .address import file_names, nearest, parse_query, refuse_unknown
from .code_sources import CODE_SOURCES
from .fingerprint import exact, fingerprint
from .math_sources import MATH_SOURCES
from .own import OWN_SPLITS, own_draft
from .rows import Row, RowError, Rows, TaskError, find_files, open_rows
from .source import KINDS, Draft, Source
from .taskset import Head, TaskSet, head_of

SOURCES: Mapping[str, Source] = {source.name: source for source in (*MATH_SOURCES, *CODE_SOURCES)}
DATA_DIR = Path("data")
NAMED_PROBLEMS = 5
"""How many bad rows are named in the log; `TaskSet.problems` has all."""

_SPLIT_WORD = re.compile(r"(?<![a-z])(train|test|validation|valid|val|dev)(?![a-z])")
_FILTERS = ("min_chars", "max_chars", "min_difficulty", "max_difficulty", "special_judge")
log = logging.getLogger(__name__)


def load(source: str, split: str, data_dir: Path | None = None, among: Sequence[str] = ()) -> TaskSet:
    """Load the tasks of a source's published split, or raise TaskError.

    Own tasks are named after their file, so that an id does not depend on the directory. Directories are added only as
    needed to tell it from the files of the other sources, `among`, that are used together with it.
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
    own_settings = {"part": source.parts, "tests": source.test_groups, "max_tests": source.kind == "code"}
    refuse_unknown(name, settings, ("file", "rows", *(key for key, has in own_settings.items() if has), *_FILTERS))
    if split not in source.splits:
        only = "is for testing only" if source.splits == ("test",) else f"has {', '.join(source.splits)}"
        raise TaskError(f"{name} has no split {split!r}: it {only}")
    most, chosen = _count(name, "rows", settings), _with_tests(source, settings)
    stems = tuple(_parts(source, settings["part"]) if "part" in settings else source.parts.values()) or (split,)
    files = [Path(settings["file"])] if "file" in settings else find_files(data_dir / name, stems)
    if files:
        rows = _open_all(files, source, split)
    else:
        from .hub import hub_rows

        paths = " and ".join(f"{data_dir / name / stem}.jsonl" for stem in stems)
        put = f"{name} ({split}) is not here: put {paths} (or .parquet) there, with {', '.join(source.fields)}"
        rows = hub_rows(source, split, stems, put)
    return _collect(chosen, split, rows, most)


def _with_tests(source: Source, settings: Mapping[str, str]) -> Source:
    """Return a source whose tasks have the tests that the settings choose: one group, the first `max_tests`."""
    group, most = settings.get("tests"), _count(source.name, "max_tests", settings)
    if group is not None and group not in source.test_groups:
        raise TaskError(f"{source.name} has no tests {group!r}: {nearest(group, list(source.test_groups))}")
    if group is None and most is None:
        return source
    choose = source.test_groups[group] if group is not None else dict

    def draft(row: Row) -> Draft:
        made = source.draft(choose(row))
        assert isinstance(made.grading, CodeTests)
        return replace(made, grading=replace(made.grading, tests=made.grading.tests[:most]))

    return replace(source, draft=draft)


def _count(source: str, key: str, settings: Mapping[str, str]) -> int | None:
    """Return a setting that is a count, or None if it is not given."""
    if key not in settings:
        return None
    if re.fullmatch("[0-9]{1,9}", settings[key]) is None or not int(settings[key]):
        raise TaskError(f"{source}: {key}={settings[key]} is not an integer >= 1")
    return int(settings[key])


def _parts(source: Source, names: str) -> list[str]:
    for part in names.split(","):
        if part not in source.parts:
            raise TaskError(f"{source.name} has no part {part!r}: {nearest(part, list(source.parts))}")
    return [source.parts[part] for part in names.split(",")]


def _open_all(files: Sequence[Path], source: Source, split: str) -> list[Rows]:
    for file in files:
        if not file.is_file():
            raise TaskError(f"{source.name}: no file {file}")
        if "train" in source.splits and not source.ids_decide:
            check_file_split(file, split)
    return [open_rows(file, (*source.fields, *source.optional_fields)) for file in files]


def check_file_split(file: Path, split: str) -> None:
    """Raise TaskError for a file whose name says that it is of another split."""
    aliases = {"validation": "valid", "val": "valid", "dev": "valid"}
    words = {aliases.get(word, word) for word in _SPLIT_WORD.findall(file.name.lower())}
    if words and aliases.get(split, split) not in words:
        raise TaskError(
            f"{file} is named as a file of split {', '.join(sorted(words))}, but split {split} was requested"
        )


def _load_own(path: Path, split: str, name: str) -> TaskSet:
    if split not in OWN_SPLITS:
        raise TaskError(f"own tasks have no split {split!r}: there is {', '.join(OWN_SPLITS)}")
    if not path.is_file():
        raise TaskError(f"jsonl: no file {path}")
    if path.suffix != ".jsonl":
        raise TaskError(f"{path}: own tasks are a .jsonl file")
    check_file_split(path, split)

    draft = partial(own_draft, file=str(path.absolute()))
    source = Source(f"jsonl:{name}", "own", draft, dict.fromkeys(OWN_SPLITS, ()), (), license="")
    return _collect(source, split, [open_rows(path)])


def _make_task(source: Source, split: str, draft: Draft, position: int) -> tuple[Head, Task]:
    task = Task(
        id=f"{source.name}/{split}/{draft.id or exact(draft.statement)}",
        kind=KINDS[type(draft.grading)],
        question=draft.question,
        grading=draft.grading,
        source=source.name,
        split=split,
        difficulty=draft.difficulty,
        license=draft.license or source.license,
    )
    return head_of(task, position, fingerprint(draft.statement)), task


def _collect(source: Source, split: str, parts: Sequence[Rows], most: int | None = None) -> TaskSet:
    """Read every row once, or the first `most`: a usable row gets a head, a bad one an entry in `problems`, one of
    another split nothing.

    A task is made from its row again each time it is asked for.
    """
    index = [(rows, number) for rows in parts for number in range(len(rows))][:most]
    heads: list[Head] = []
    problems: list[str] = []
    other_splits: set[str] = set()
    first_with: dict[str, str] = {}
    graders: dict[str, CustomGrader] = {}
    for position, (rows, number) in enumerate(index):
        try:
            row = rows[number]
            row_split = source.row_split(row) if "train" in source.splits else split
            if row_split not in ("", split):
                other_splits.add(row_split)
                continue
            draft = source.draft(row)
            head, _ = _make_task(source, split, draft, position)
            if head.id in first_with:
                raise RowError(f"the same {'id' if draft.id else 'question'} as {first_with[head.id]}")
        except (RowError, TypeError) as error:  # TypeError: the shape of a gold, which the types themselves check
            problems.append(f"{rows.where(number)}: {error}")
        else:
            first_with[head.id] = rows.where(number)
            heads.append(head)
            if isinstance(draft.grading, CustomGrader):
                graders.setdefault(draft.grading.function, draft.grading)
    _report(source, split, heads, problems, other_splits)

    def make(position: int, attempt: int) -> tuple[Head, Task]:
        rows, number = index[position]
        return _make_task(source, split, source.draft(rows[number]), position)

    return TaskSet(source.name, split, make, heads, problems, tuple(graders.values()))


def _report(source: Source, split: str, heads: Sequence[Head], problems: Sequence[str], others: set[str]) -> None:
    if not heads and problems:
        raise TaskError(f"{source.name} ({split}): none of {len(problems)} rows can be used, the first: {problems[0]}")
    if not heads:
        detail = f"all rows are of split {', '.join(sorted(others))}" if others else "the file is empty"
        raise TaskError(f"{source.name} has no row of split {split}: {detail}")
    for problem in problems[:NAMED_PROBLEMS]:
        log.warning("left out: %s", problem)
    if len(problems) > NAMED_PROBLEMS:
        log.warning("left out: %d more rows of %s", len(problems) - NAMED_PROBLEMS, source.name)


def _filtered(tasks: TaskSet, filters: Mapping[str, str]) -> TaskSet:
    """Apply the filters that are part of a source's name."""

    def bound(key: str, otherwise: float) -> float:
        try:
            return float(filters.get(key, otherwise))
        except ValueError:
            raise TaskError(f"{tasks.name}: {key}={filters[key]} is not a number") from None

    judged = {"yes": True, "no": False, None: None}
    if filters.get("special_judge") not in judged:
        raise TaskError(f"{tasks.name}: special_judge is yes or no, not {filters['special_judge']}")
    chars = (bound("min_chars", 0), bound("max_chars", inf))
    difficulty = (bound("min_difficulty", 0), bound("max_difficulty", 1))
    return tasks.filtered(
        chars=chars if filters.keys() & {"min_chars", "max_chars"} else None,
        difficulty=difficulty if filters.keys() & {"min_difficulty", "max_difficulty"} else None,
        special_judge=judged[filters.get("special_judge")],
    )
