"""Parse how a source is written, `name[:argument][?key=value&key=value]`, and suggest what a misspelled word means."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .rows import TaskError


def parse_query(source: str, query: str) -> dict[str, str]:
    """Parse `a=1&b=2`, taken as written: a plus or a percent sign stands for itself, as in file names."""
    settings: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not value or key in settings:
            raise TaskError(f"{source}: {pair!r} is not key=value, or is given twice")
        settings[key] = value
    return settings


def file_names(sources: Sequence[str]) -> dict[str, str]:
    """Return short names for the paths of `jsonl:` sources: the file name, with the directories needed to tell files
    of one name apart.
    """
    addresses = [source.partition("?")[0] for source in sources]
    paths = {address.removeprefix("jsonl:") for address in addresses if address.startswith("jsonl:")}
    absolute = {path: Path(path).absolute() for path in paths}
    names = {}
    for path, full in absolute.items():
        tails = ("/".join(full.parts[-count:]) for count in range(1, len(full.parts)))
        others = [str(other) for other in absolute.values() if other != full]
        names[path] = next((tail for tail in tails if not any(o.endswith(f"/{tail}") for o in others)), str(full))
    return names


def refuse_unknown(source: str, settings: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise TaskError for a setting that a source does not have."""
    for key in settings:
        if key not in known:
            raise TaskError(f"{source} has no setting {key!r}: {nearest(key, known)}")


def nearest(word: str, known: Collection[str]) -> str:
    """Return a hint: the known word that was probably meant, else all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(sorted(known))}"
