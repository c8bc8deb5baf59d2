"""What the paper reports on its six benchmarks: Qwen3-8B, solved in percent. Published, not measured by us."""

from collections.abc import Mapping, Sequence

from ..tasks.paper import PAPER_SETS

PUBLISHED: Mapping[str, Sequence[float]] = {
    "single agent": (22.8, 30.2, 15.75, 18.3, 20.9, 55.0, 27.16),
    "single agent with GRPO": (29.10,),
    "AFlow": (24.10,),
    "ADAS": (20.35,),
    "ScoreFlow": (27.65,),
    "MaAS": (32.22,),
    "MetaAgent-X": (41.0, 38.0, 17.0, 40.0, 33.33, 61.0, 38.33),
}
"""By method: a figure for each set in the order of `PAPER_SETS`, and last the mean; or the mean alone."""


def published_rows() -> list[list[str]]:
    """Return a row for each method: its name, a cell for each set, the mean. What we do not know is a dash."""
    return [
        [f"{method} (published)", *["-"] * (len(PAPER_SETS) + 1 - len(figures)), *(f"{value:.2f}" for value in figures)]
        for method, figures in PUBLISHED.items()
    ]
