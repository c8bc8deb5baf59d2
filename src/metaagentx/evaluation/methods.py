"""What is compared: a Designer or a fixed script, with an Executor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..calls import Speaker
from ..teacher import DESIGNS
from ..types import Role

TRAINED = "metaagentx"
COLD = "cold start"
SINGLE = "single agent"
OLD_SINGLE = "old single agent"
VOTES = "self-consistency"
GRID = {
    ("old", "old"): COLD,
    ("old", "new"): "old designs new executor",
    ("new", "old"): "new designs old executor",
    ("new", "new"): TRAINED,
}
"""Whose designs and whose executor: what each of the two has learnt."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to solve tasks."""

    name: str
    executor: Speaker
    designer: Speaker | None = None
    """Writes a design for each sample; or else there is a script."""
    script: str | None = None
    """The one design for all tasks."""
    matches: str = ""
    """The method whose tokens this one may spend: its script runs that often, and the answers are put to the vote."""
    weights: str = ""
    """What its models are. A directory with results of other ones is refused."""

    def __post_init__(self) -> None:
        if (self.designer is None) == (self.script is None):
            raise ValueError(f"{self.name}: a method has either a designer or a script")
        if self.matches and self.script is None:
            raise ValueError(f"{self.name}: what is put to the vote is a script's answers")


def standard_methods(
    new: Mapping[Role, Speaker],
    old: Mapping[Role, Speaker] | None = None,
    scripts: Mapping[str, str] = DESIGNS,
    weights: tuple[str, str] = ("", ""),
) -> list[Method]:
    """The methods that a training is judged by. `old`: both roles before it; `weights`: what both are.

    The script named `single` is the single agent, whose answers self-consistency puts to the vote.
    """
    speakers = {"new": new} if old is None else {"old": old, "new": new}
    named = dict(zip(("new", "old"), weights, strict=True))
    methods = [
        Method(name, speakers[how][Role.EXECUTOR], designer=speakers[who][Role.DESIGNER],
               weights=f"{named[who]}, {named[how]}")
        for (who, how), name in reversed(GRID.items())
        if who in speakers and how in speakers
    ]  # fmt: skip
    for name, script in scripts.items():
        title = SINGLE if name == "single" else f"fixed: {name}"
        methods.append(Method(title, new[Role.EXECUTOR], script=script, weights=named["new"]))
    if "single" in scripts:
        single = scripts["single"]
        methods.append(Method(VOTES, new[Role.EXECUTOR], script=single, matches=TRAINED, weights=named["new"]))
        if old is not None:
            methods.append(Method(OLD_SINGLE, old[Role.EXECUTOR], script=single, weights=named["old"]))
    return methods


def standard_names(old: bool, scripts: Sequence[str]) -> list[str]:
    """The names of the standard methods, before any model is loaded."""
    names = list(reversed(GRID.values())) if old else [TRAINED]
    names += [SINGLE if name == "single" else f"fixed: {name}" for name in scripts]
    return [*names, VOTES, *([OLD_SINGLE] if old else [])] if "single" in scripts else names


OLD_NAMES = {name for (who, how), name in GRID.items() if "old" in (who, how)} | {OLD_SINGLE}
"""Those that need the models from before the training."""
