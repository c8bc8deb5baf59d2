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
SELF = "self-designed"
SELF_SHORT = "self-designed short prompt"
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
    manual: bool = False
    """Give the designer the manual of the workflow language: for a model that has not learned it."""
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
    manual: bool = False


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
    methods = [method for method in _standard(scripts) if old is not None or method.name not in OLD_NAMES]
    return _build(methods, {"new": new, "old": old or new}, dict(zip(("new", "old"), weights_digests, strict=True)))


def model_methods(
    samplers: Mapping[Role, RoleSampler], scripts: Mapping[str, str] = FIXED_DESIGNS, weights_digest: str = ""
) -> list[Method]:
    """Return the methods that a model is judged by that was not trained here: it is also its own Designer."""
    return _build(_of_model(scripts), {"new": samplers}, {"new": weights_digest})


def _build(
    methods: Iterable[_Standard], samplers: Mapping[str, Mapping[Role, RoleSampler]], digests: Mapping[str, str]
) -> list[Method]:
    return [
        Method(
            method.name,
            samplers[method.executor][Role.EXECUTOR],
            samplers[method.designer][Role.DESIGNER] if method.designer else None,
            method.script,
            manual=method.manual,
            token_budget_of=method.token_budget_of,
            weights_digest=", ".join(digests[model] for model in (method.designer, method.executor) if model),
        )
        for method in methods
    ]


def standard_names(old: bool, scripts: Iterable[str]) -> list[str]:
    """Return the names of the standard methods with these scripts; `old`: those of the model from before RL too."""
    names = [method.name for method in _standard(dict.fromkeys(scripts, ""))]
    return [name for name in names if old or name not in OLD_NAMES]


def model_names(scripts: Iterable[str]) -> list[str]:
    """Return the names of the methods for a model with these scripts."""
    return [method.name for method in _of_model(dict.fromkeys(scripts, ""))]


def _of_model(scripts: Mapping[str, str]) -> list[_Standard]:
    designed = [_Standard(SELF, "new", "new", manual=True), _Standard(SELF_SHORT, "new", "new")]
    return designed + _scripted(scripts, SELF)


def _standard(scripts: Mapping[str, str]) -> list[_Standard]:
    methods = [
        _Standard(GRID[designer, executor], executor, designer)
        for designer in ("new", "old")
        for executor in ("new", "old")
    ]
    methods += _scripted(scripts, TRAINED)
    if "single" in scripts:
        methods.append(_Standard(OLD_SINGLE, "old", script=scripts["single"]))
    return methods


def _scripted(scripts: Mapping[str, str], token_budget_of: str) -> list[_Standard]:
    """Return the fixed designs, and the vote of single agents with the token budget of another method."""
    methods = [
        _Standard(SINGLE if name == "single" else f"fixed: {name}", "new", script=script)
        for name, script in scripts.items()
    ]
    if "single" in scripts:
        methods.append(_Standard(VOTES, "new", script=scripts["single"], token_budget_of=token_budget_of))
    return methods


OLD_NAMES = {method.name for method in _standard({"single": ""}) if "old" in (method.designer, method.executor)}
"""The methods that need the model from before RL."""
