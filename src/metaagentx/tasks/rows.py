"""Rows of a data file, by number: JSON Lines and Parquet.

A file is indexed once, and a row is read again when it is asked for, so that a set with gigabytes of tests need not fit
into memory. `where` names a row as an editor does: `file.jsonl:17`. A line that is not a JSON object raises RowError
when it is read; other lines stay readable.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ..errors import MetaAgentXError

Row: TypeAlias = Mapping[str, object]


class TaskError(MetaAgentXError):
    """Tasks cannot be loaded: one line that says why and what to do."""


class RowError(Exception):
    """A row cannot be used. It becomes a problem of the set; the other rows are kept."""


class Rows(Protocol):
    """Rows by number."""

    def __len__(self) -> int:
        """Return the number of rows, usable or not."""

    def __getitem__(self, number: int, /) -> Row:
        """Return a row, or raise RowError."""

    def where(self, number: int) -> str:
        """Return file and line of a row, for messages."""


class JsonlRows:
    """One JSON object per line; blank lines count as lines but not as rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[tuple[int, int]] = []  # line number, byte offset
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._lines.append((number, offset))
                offset += len(line)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int, /) -> Row:
        with self._path.open("rb") as file:
            file.seek(self._lines[number][1])
            return parse_object(file.readline())

    def where(self, number: int) -> str:
        """Return `file.jsonl:17`."""
        return f"{self._path}:{self._lines[number][0]}"


class TableRows:
    """Rows that another library holds: a Parquet table or a data set of the hub."""

    def __init__(self, name: str, size: int, get: Callable[[int], dict[str, Any]]) -> None:
        self._name, self._size, self._get = name, size, get

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int, /) -> Row:
        return self._get(number)

    def where(self, number: int) -> str:
        """Return `file.parquet:17`, counted from 1 like lines."""
        return f"{self._name}:{number + 1}"


def parse_object(line: bytes) -> Row:
    """Parse the JSON object of a line, or raise RowError."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
        if b"\\ud" in line.lower():
            # An escaped half of a surrogate pair is valid JSON but not valid text: it would fail later, far from here.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise RowError("not valid UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise RowError("not JSON that can be parsed: a number too long or nested too deeply") from None
    if not isinstance(value, dict):
        raise RowError(f"not a JSON object but {type(value).__name__}")
    return value


def open_rows(path: Path, fields: Sequence[str] = ()) -> Rows:
    """Open a file by its ending. Of a Parquet file only `fields` are read, if given."""
    if path.suffix == ".jsonl":
        return JsonlRows(path)
    if path.suffix == ".parquet":
        return _parquet_rows(path, fields)
    raise TaskError(f"{path}: neither .jsonl nor .parquet")


def _parquet_rows(path: Path, fields: Sequence[str]) -> Rows:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise TaskError(f"{path}: reading Parquet needs: pip install 'metaagentx[hub]'") from None
    try:
        # CodeContests has many solutions for each problem, which are not needed here.
        columns = [name for name in parquet.read_schema(path).names if not fields or name in fields]
        table = parquet.read_table(path, columns=columns)
    except (OSError, ArrowException) as error:
        raise TaskError(f"{path}: not a Parquet file that can be read: {first_line(error)}") from None
    return TableRows(str(path), table.num_rows, lambda number: table.slice(number, 1).to_pylist()[0])


def find_files(folder: Path, stems: Iterable[str]) -> list[Path]:
    """Return the files of all stems: `stem.jsonl`, else `stem.parquet`, else the hub's shards
    `stem-00000-of-00002.parquet`. Empty if any stem has none.
    """
    paths: list[Path] = []
    for stem in stems:
        single = [path for ending in ("jsonl", "parquet") if (path := folder / f"{stem}.{ending}").is_file()]
        files = single[:1] or sorted(folder.glob(f"{stem}-*-of-*.parquet"))
        if not files:
            return []
        paths += files
    return paths


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
