"""The six benchmarks of the paper, as its published code loads them for evaluation. docs/paper.md has the details."""

PAPER_SETS = {
    "livecodebench": "livecodebench?part=v6",
    "apps": "apps?rows=500",
    "codecontests": "codecontests",
    "aime24": "aime24",
    "aime25": "aime25",
    "olympiadbench": "olympiadbench",
}
"""The test set of each benchmark, as a source."""

_GROUPED = ("livecodebench", "codecontests")
"""The sets whose tests are published in groups. APPS has one list of tests, and all of them are used."""


def paper_sources(public_tests: bool = False) -> tuple[str, ...]:
    """Return the sources of the benchmarks; with `public_tests`, programs are graded by the public tests alone."""
    return tuple(
        f"{source}{'&' if '?' in source else '?'}tests=public" if public_tests and name in _GROUPED else source
        for name, source in PAPER_SETS.items()
    )
