"""Short names of task sources."""

from collections.abc import Iterable


def short_names(sources: Iterable[str], keep_kind: bool = False) -> dict[str, str]:
    """Map sources to short names: `gym:products?min_digits=2` to `products`, or with its kind to `gym:products`.

    A source whose short name is not unique keeps its full name.
    """
    short = {source: source.partition("?")[0] for source in sources}
    if not keep_kind:
        short = {source: name.rpartition(":")[2].rpartition("/")[2] or source for source, name in short.items()}
    names = list(short.values())
    return {source: source if names.count(name) > 1 else name for source, name in short.items()}
