"""How a source is written: `name[:argument][?key=value&key=value]`, and what to say to a misspelt word."""

import difflib
from collections.abc import Mapping, Sequence

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


def refuse_unknown(source: str, settings: Mapping[str, str], known: Sequence[str]) -> None:
    """One line that names the nearest thing there is."""
    for key in settings:
        if key not in known:
            raise TaskError(f"{source} has no setting {key!r}: {nearest(key, known)}")


def nearest(word: str, known: Sequence[str]) -> str:
    """What a person may have meant."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(sorted(known))}"
