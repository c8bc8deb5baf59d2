"""What is compared: a Designer or a fixed script, with an Executor."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..rollout.sampling import RoleSampler
from ..types import Role
from .designs import FIXED_DESIGNS

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
"""Methods by whose designs and whose executor they use: together they show what each role has learned."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to solve tasks."""

    name: str
    executor: RoleSampler
    designer: RoleSampler | None = None
    """Writes a design for each sample. Without a designer there is a script."""
    script: str | None = None
    """The one design for all tasks."""
    token_budget_of: str = ""
    """The method whose mean number of tokens this one spends: its script runs until it has, and the answers are put to
    the vote."""
    weights_digest: str = ""
    """Identifies the weights of its models. A directory with results of other weights is rejected."""

    def __post_init__(self) -> None:
        if (self.designer is None) == (self.script is None):
            raise ValueError(f"{self.name}: a method has either a designer or a script")
        if self.token_budget_of and self.script is None:
            raise ValueError(f"{self.name}: a method with a vote needs a script")


class _Standard(NamedTuple):
    """A standard method before any model is loaded: `new` is the trained model, `old` the one from before RL."""

    name: str
    executor: Literal["old", "new"]
    designer: Literal["old", "new"] | None = None
    script: str | None = None
    token_budget_of: str = ""


def standard_methods(
    new: Mapping[Role, RoleSampler],
    old: Mapping[Role, RoleSampler] | None = None,
    scripts: Mapping[str, str] = FIXED_DESIGNS,
    weights_digests: tuple[str, str] = ("", ""),
) -> list[Method]:
    """Return the methods that a training run is judged by. The digests are those of the weights of
    `new` and of `old`.

    The script named `single` is the single agent, whose answers self-consistency puts to the vote.
    """
    samplers = {"new": new} if old is None else {"new": new, "old": old}
    digests = dict(zip(("new", "old"), weights_digests, strict=True))
    return [
        Method(
            method.name,
            samplers[method.executor][Role.EXECUTOR],
            samplers[method.designer][Role.DESIGNER] if method.designer else None,
            method.script,
            method.token_budget_of,
            ", ".join(digests[model] for model in (method.designer, method.executor) if model),
        )
        for method in _standard(scripts)
        if old is not None or method.name not in OLD_NAMES
    ]


def standard_names(old: bool, scripts: Iterable[str]) -> list[str]:
    """Return the names of the standard methods with these scripts; `old`: those of the model from before RL too."""
    names = [method.name for method in _standard(dict.fromkeys(scripts, ""))]
    return [name for name in names if old or name not in OLD_NAMES]


def _standard(scripts: Mapping[str, str]) -> list[_Standard]:
    methods = [
        _Standard(GRID[designer, executor], executor, designer)
        for designer in ("new", "old")
        for executor in ("new", "old")
    ]
    for name, script in scripts.items():
        methods.append(_Standard(SINGLE if name == "single" else f"fixed: {name}", "new", script=script))
    if "single" in scripts:
        methods.append(_Standard(VOTES, "new", script=scripts["single"], token_budget_of=TRAINED))
        methods.append(_Standard(OLD_SINGLE, "old", script=scripts["single"]))
    return methods


OLD_NAMES = {method.name for method in _standard({"single": ""}) if "old" in (method.designer, method.executor)}
"""The methods that need the model from before RL."""
