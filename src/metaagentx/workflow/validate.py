"""Is a script worth running? Found before anything runs, each refusal with its place and what to do instead.

A courtesy to the Designer and no protection: the sandbox is that. The script is only read, never changed.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from . import __all__ as PUBLIC
from . import nodes
from .nodes import STRATEGIES
from .structure import CONSTRUCTORS, Structure, classify

FLOWS = ("Workflow", "ConditionalWorkflow", "LoopWorkflow", "AgentGraph")
NAMES = {"workflow": PUBLIC, "workflow.nodes": nodes.__all__}
MODULES = frozenset(
    """abc ast base64 bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal difflib enum
    fractions functools hashlib heapq html inspect io itertools json logging math numbers operator os pathlib pprint
    random re statistics string subprocess sys textwrap time traceback types typing unicodedata warnings workflow
    __future__""".split()  # noqa: SIM905
)
_REASONS = {
    "asyncio": "agents of an ensemble, a debate or a graph already run at the same time",
    "concurrent": "agents of an ensemble, a debate or a graph already run at the same time",
    "threading": "agents of an ensemble, a debate or a graph already run at the same time",
    "multiprocessing": "agents of an ensemble, a debate or a graph already run at the same time",
    "socket": "there is no network",
    "urllib": "there is no network",
    "requests": "there is no network",
    "openai": "agents reach the model through AgentNode",
    "importlib": "import modules with an import statement",
    "numpy": "only the standard library is there",
    "sympy": "only the standard library is there",
}


MAX_CALLS = 64
"""Model calls of one execution, for validator, manual and executor alike, unless a recipe sets `rollout.calls`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a script and its workflow may be."""

    characters: int = 20_000
    agents: int = 16
    turns: int = 20
    """max_turns of an agent"""
    rounds: int = 10
    """num_rounds, num_iterations, max_iterations"""
    steps: int = 100
    """max_steps of a graph"""
    calls: int = MAX_CALLS
    """model calls of one run, where the text tells how many there can be"""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason not to run a script, with its place (both counted from 1)."""

    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


def validate(script: str, limits: Limits | None = None) -> list[Problem]:
    """All problems of a script, in order of their place; none means that it may run."""
    limits = limits or Limits()
    tree = _parse(script, limits)
    if isinstance(tree, Problem):
        return [tree]
    ours = _imported(tree)
    found = [problem for node in ast.walk(tree) for problem in _check(node, ours, limits)]
    found += _check_whole(tree, ours)
    if not found:
        found += _check_size(classify(script), limits)
    return sorted(found, key=lambda problem: (problem.line, problem.column))


def _parse(script: str, limits: Limits) -> ast.Module | Problem:
    if len(script) > limits.characters:
        return Problem(1, 1, f"the script has {len(script)} characters; at most {limits.characters} are allowed")
    strange = re.search("[\0\ud800-\udfff]", script)
    if strange:
        line, column = (
            script.count("\n", 0, strange.start()) + 1,
            strange.start() - script.rfind("\n", 0, strange.start()),
        )
        return Problem(line, column, "this character cannot be in a script")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(script)
            compile(script, "<script>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return Problem(error.lineno or 1, error.offset or 1, f"this is not Python: {error.msg}")
    except (RecursionError, MemoryError):
        return Problem(1, 1, "the script is nested too deeply: write it flatter")
    except (ValueError, OverflowError) as error:
        return Problem(1, 1, f"this is not Python: {error}")
    return tree


def _at(node: ast.AST, message: str) -> Problem:
    if isinstance(node, ast.stmt | ast.expr | ast.alias):
        return Problem(node.lineno, node.col_offset + 1, message)
    return Problem(1, 1, message)


def _name(function: ast.expr) -> str:
    """`f` or `module.f` or `a.b.f`; nothing for what is not a plain name."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute) and len(parts) < 3:
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(parts)]) if isinstance(function, ast.Name) else ""


def _imported(tree: ast.Module) -> dict[str, str]:
    """What the script calls our classes, and what we call them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in NAMES:
            for alias in node.names:
                everything = {name: name for name in CONSTRUCTORS}
                found.update(everything if alias.name == "*" else {alias.asname or alias.name: alias.name})
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in NAMES:
                    found.update({f"{alias.asname or alias.name}.{name}": name for name in CONSTRUCTORS})
    return found


def _check(node: ast.AST, ours: dict[str, str], limits: Limits) -> Iterator[Problem]:
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                yield from _check_module(alias, alias.name)
        case ast.ImportFrom(level=level) if level:
            yield _at(node, "a script has no package around it: import from workflow or the standard library")
        case ast.ImportFrom(module=str(module), names=aliases):
            yield from _check_module(node, module)
            for alias in aliases:
                if module in NAMES and alias.name != "*" and alias.name not in NAMES[module]:
                    there = ", ".join(name for name in NAMES[module] if name in CONSTRUCTORS)
                    yield _at(alias, f"{module} has no {alias.name}; it has {there}")
        case ast.Call():
            cls = CONSTRUCTORS.get(ours.get(_name(node.func), ""))
            if cls:
                yield from _check_constructor(node, cls, limits)


def _check_module(node: ast.AST, module: str) -> Iterator[Problem]:
    top = module.partition(".")[0]
    if top not in MODULES:
        reason = _REASONS.get(
            top, "use workflow and the plain modules of the standard library, such as re, math or json"
        )
        yield _at(node, f"{top} cannot be imported here: {reason}")
    elif top == "workflow" and module not in NAMES:
        yield _at(node, f"there is no {module} for scripts: import from workflow or workflow.nodes")


def _check_constructor(call: ast.Call, cls: type, limits: Limits) -> Iterator[Problem]:
    unpacked = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    if unpacked:
        return
    signature = inspect.signature(cls)
    try:
        given = signature.bind(*call.args, **{str(k.arg): k.value for k in call.keywords}).arguments
    except TypeError as error:
        names = ", ".join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())
        yield _at(call, f"{cls.__name__}: {error}; its arguments are ({names})")
        return
    most = {"max_turns": limits.turns, "num_rounds": limits.rounds, "num_iterations": limits.rounds,
            "max_iterations": limits.rounds, "max_steps": limits.steps}  # fmt: skip
    for name, value in given.items():
        match value:
            case ast.Constant(value=number) if name in most:
                least = 0 if name == "num_iterations" else 1
                if type(number) is not int or not least <= number <= most[name]:
                    yield _at(value, f"{name} must be a whole number from {least} to {most[name]}")
            case ast.List(elts=[]) | ast.Tuple(elts=[]) if name in ("agents", "debaters"):
                yield _at(value, f"{cls.__name__} needs at least one agent")
            case ast.Constant(value=strategy) if name == "strategy":
                if strategy not in STRATEGIES:
                    yield _at(value, f"strategy must be one of {', '.join(STRATEGIES)}")
                elif strategy == "consensus" and "consensus_agent" not in given:
                    yield _at(value, 'strategy "consensus" needs a consensus_agent')


def _check_whole(tree: ast.Module, ours: dict[str, str]) -> Iterator[Problem]:
    """The script has to build a workflow of ours and run it."""
    built: ast.Call | None = None
    runs = False
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    subclasses = {c.name for c in classes if any(ours.get(_name(base)) in FLOWS for base in c.bases)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if ours.get(name) in FLOWS or name in subclasses:
                built = built or node
            # Of what is not a plain name, such as flows[0].run(...), the best is believed.
            run = isinstance(node.func, ast.Attribute) and node.func.attr == "run"
            runs = runs or (run and name != "subprocess.run")
    if built is None:
        yield Problem(1, 1, "no workflow is built: from workflow import Workflow, then workflow = Workflow(name=...)")
    elif not runs:
        yield _at(built, "the workflow is never run: end with result = workflow.run(question)")


def _check_size(structure: Structure, limits: Limits) -> Iterator[Problem]:
    if len(structure.agents) > limits.agents:
        yield Problem(1, 1, f"{len(structure.agents)} agents are too many; at most {limits.agents} are allowed")
    if structure.worst_case_calls is not None and structure.worst_case_calls > limits.calls:
        yield Problem(
            1, 1, f"up to {structure.worst_case_calls} model calls are too many; at most {limits.calls} are "
            "allowed: use fewer agents, rounds or turns",
        )  # fmt: skip
