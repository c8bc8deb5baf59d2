"""How a source is written: `name[:argument][?key=value&key=value]`, and what to say to a misspelt word."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from .rows import TaskError


def parse_query(source: str, query: str) -> dict[str, str]:
    """`a=1&b=2`, taken as written: a plus or a percent sign is itself, as in file names."""
    settings: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not value or key in settings:
            raise TaskError(f"{source}: {pair!r} is not key=value, or comes twice")
        settings[key] = value
    return settings


def file_names(sources: Sequence[str]) -> dict[str, str]:
    """Short names for the paths of `jsonl:` sources: the file's, with as many directories as tell it from others."""
    addresses = [source.partition("?")[0] for source in sources]
    paths = {address.removeprefix("jsonl:") for address in addresses if address.startswith("jsonl:")}
    full = {path: Path(path).absolute() for path in paths}
    names = {}
    for path, own in full.items():
        tails = ("/".join(own.parts[-count:]) for count in range(1, len(own.parts)))
        others = [other for other in full.values() if other != own]
        names[path] = next((tail for tail in tails if not any(f"{o}".endswith(f"/{tail}") for o in others)), str(own))
    return names


def refuse_unknown(source: str, settings: Mapping[str, str], known: Sequence[str]) -> None:
    """One line that names the nearest thing there is."""
    for key in settings:
        if key not in known:
            raise TaskError(f"{source} has no setting {key!r}: {nearest(key, known)}")


def nearest(word: str, known: Sequence[str]) -> str:
    """What a person may have meant."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(sorted(known))}"
