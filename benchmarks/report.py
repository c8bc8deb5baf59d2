"""How every benchmark shows its figures: one JSON line, or a table against the demands."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """What a figure must be at the most, or at the least."""

    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether the figure meets it."""
        return value >= self.limit if self.at_least else value <= self.limit


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    return parser


def report(figures: Mapping[str, float], demands: Mapping[str, Demand], description: str | None) -> None:
    """Print the figures as the command line asks."""
    show(figures, demands, as_json=argument_parser(description).parse_args().json)


def show(figures: Mapping[str, float], demands: Mapping[str, Demand], *, as_json: bool) -> None:
    """Print the figures."""
    if as_json:
        print(json.dumps({key: round(value, 3) for key, value in figures.items()}))
        return
    for key, value in figures.items():
        demand = demands.get(key)
        sign = "" if demand is None else f"{'>=' if demand.at_least else '<='} {demand.limit:g}"
        verdict = "" if demand is None else "ok" if demand.holds(value) else "MISSED"
        print(f"{key:22} {value:10.3f}   {sign:8} {verdict}")
