"""Checks of a script before it runs: each problem has its line, its column and what to do instead.

The checks help the Designer and protect nothing: the sandbox does that. The script is read, never changed. What only
the built workflow tells, its agents and its worst-case model calls, is checked when it runs (see `structure`).
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
from .agent import AgentNode
from .flow import ConditionalWorkflow, LoopWorkflow, Workflow
from .graph import AgentGraph
from .nodes import STRATEGIES, DebateNode, EnsembleNode, ReflectionNode, RouterNode
from .tools import ToolRegistry

FLOWS = ("Workflow", "ConditionalWorkflow", "LoopWorkflow", "AgentGraph")
NAMES = {"workflow": PUBLIC, "workflow.nodes": nodes.__all__}
MODULES = frozenset(
    """abc ast base64 bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal difflib enum
    fractions functools hashlib heapq html inspect io itertools json logging math numbers operator os pathlib pprint
    random re statistics string subprocess sys textwrap time traceback types typing unicodedata warnings workflow
    __future__""".split()  # noqa: SIM905
)
_CONCURRENT = "agents of an ensemble, a debate or a graph already run at the same time"
_REASONS = {
    **dict.fromkeys(("asyncio", "concurrent", "threading", "multiprocessing"), _CONCURRENT),
    **dict.fromkeys(("socket", "urllib", "requests"), "there is no network"),
    **dict.fromkeys(("numpy", "sympy"), "only the standard library is there"),
    "openai": "agents reach the model through AgentNode",
    "importlib": "import modules with an import statement",
}

CONSTRUCTORS: dict[str, type] = {
    cls.__name__: cls
    for cls in (AgentNode, EnsembleNode, ReflectionNode, DebateNode, RouterNode, ToolRegistry, Workflow,
                ConditionalWorkflow, LoopWorkflow, AgentGraph)
}  # fmt: skip
"""The classes that scripts build workflows from."""

MAX_CHARACTERS = 20_000
MAX_TURNS = 20
"""`max_turns` of an agent."""
MAX_ROUNDS = 10
"""`num_rounds`, `num_iterations`, `max_iterations`."""
MAX_STEPS = 100
"""`max_steps` of a graph."""
_MOST = {"max_turns": MAX_TURNS, "num_rounds": MAX_ROUNDS, "num_iterations": MAX_ROUNDS, "max_iterations": MAX_ROUNDS,
         "max_steps": MAX_STEPS}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScriptProblem:
    """One reason not to run a script, with its line and column (both counted from 1)."""

    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


def validate(script: str, lenient: bool = False, tools: bool = True) -> list[ScriptProblem]:
    """Return all problems of a script, ordered by line and column; none means that it may run.

    In the lenient dialect, unknown keyword arguments are no problem: the runtime ignores them. `tools` says whether the
    operator offers any: `from workflow import tools` is a problem where there are none.
    """
    tree = _parse(script)
    if isinstance(tree, ScriptProblem):
        return [tree]
    ours = _imported(tree)
    problems = [problem for node in ast.walk(tree) for problem in _check(node, ours, lenient, tools)]
    problems += _check_whole(tree, ours)
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _parse(script: str) -> ast.Module | ScriptProblem:
    if len(script) > MAX_CHARACTERS:
        return ScriptProblem(1, 1, f"the script has {len(script)} characters; at most {MAX_CHARACTERS} are allowed")
    if invalid := re.search("[\0\ud800-\udfff]", script):
        before = script[: invalid.start()]
        column = len(before) - before.rfind("\n")
        return ScriptProblem(before.count("\n") + 1, column, "this character cannot be in a script")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(script)
            compile(script, "<script>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return ScriptProblem(error.lineno or 1, error.offset or 1, f"this is not Python: {error.msg}")
    except (RecursionError, MemoryError):
        return ScriptProblem(1, 1, "the script is nested too deeply: write it flatter")
    except (ValueError, OverflowError) as error:
        return ScriptProblem(1, 1, f"this is not Python: {error}")
    return tree


def _at(node: ast.AST, message: str) -> ScriptProblem:
    if isinstance(node, ast.stmt | ast.expr | ast.alias):
        return ScriptProblem(node.lineno, node.col_offset + 1, message)
    return ScriptProblem(1, 1, message)


def _name(function: ast.expr) -> str:
    """Return `f` or `module.f` or `a.b.f`; nothing for what is not a plain name."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute) and len(parts) < 3:
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(parts)]) if isinstance(function, ast.Name) else ""


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the names under which the script imports our classes, each with the class's own name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in NAMES:
            for alias in node.names:
                every = {name: name for name in CONSTRUCTORS}
                names.update(every if alias.name == "*" else {alias.asname or alias.name: alias.name})
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in NAMES:
                    names.update({f"{alias.asname or alias.name}.{name}": name for name in CONSTRUCTORS})
    return names


def _check(node: ast.AST, ours: dict[str, str], lenient: bool, tools: bool) -> Iterator[ScriptProblem]:
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                yield from _check_module(alias, alias.name)
        case ast.ImportFrom(level=level) if level:
            yield _at(node, "a script has no package around it: import from workflow or the standard library")
        case ast.ImportFrom(module=str(module), names=aliases):
            yield from _check_module(node, module)
            for alias in aliases:
                known = alias.name == "*" or (tools and (module, alias.name) == ("workflow", "tools"))
                if module in NAMES and not known and alias.name not in NAMES[module]:
                    available = ", ".join(name for name in NAMES[module] if name in CONSTRUCTORS)
                    yield _at(alias, f"{module} has no {alias.name}; it has {available}")
        case ast.Call():
            cls = CONSTRUCTORS.get(ours.get(_name(node.func), ""))
            if cls:
                yield from _check_constructor(node, cls, lenient)


def _check_module(node: ast.AST, module: str) -> Iterator[ScriptProblem]:
    top = module.partition(".")[0]
    if top not in MODULES:
        reason = _REASONS.get(
            top, "use workflow and the plain modules of the standard library, such as re, math or json"
        )
        yield _at(node, f"{top} cannot be imported here: {reason}")
    elif top == "workflow" and module not in NAMES:
        yield _at(node, f"there is no {module} for scripts: import from workflow or workflow.nodes")


def _check_constructor(call: ast.Call, cls: type, lenient: bool) -> Iterator[ScriptProblem]:
    unpacked = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    if unpacked:
        return
    signature = inspect.signature(cls)
    keywords = {str(k.arg): k.value for k in call.keywords if not lenient or k.arg in signature.parameters}
    try:
        given = signature.bind(*call.args, **keywords).arguments
    except TypeError as error:
        names = ", ".join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())
        yield _at(call, f"{cls.__name__}: {error}; its arguments are ({names})")
        return
    for name, value in given.items():
        match value:
            case ast.Constant(value=number) if name in _MOST:
                least = 0 if name == "num_iterations" else 1
                if type(number) is not int or not least <= number <= _MOST[name]:
                    yield _at(value, f"{name} must be a whole number from {least} to {_MOST[name]}")
            case ast.List(elts=[]) | ast.Tuple(elts=[]) if name in ("agents", "debaters"):
                yield _at(value, f"{cls.__name__} needs at least one agent")
            case ast.Constant(value=strategy) if name == "strategy":
                if strategy not in STRATEGIES:
                    yield _at(value, f"strategy must be one of {', '.join(STRATEGIES)}")
                elif strategy == "consensus" and "consensus_agent" not in given:
                    yield _at(value, 'strategy "consensus" needs a consensus_agent')


def _check_whole(tree: ast.Module, ours: dict[str, str]) -> Iterator[ScriptProblem]:
    """Check that the script builds a workflow of ours and runs it."""
    built: ast.Call | None = None
    runs = False
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    subclasses = {c.name for c in classes if any(ours.get(_name(base)) in FLOWS for base in c.bases)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if ours.get(name) in FLOWS or name in subclasses:
                built = built or node
            # What is not a plain name, such as flows[0].run(...), counts as a workflow.
            run = isinstance(node.func, ast.Attribute) and node.func.attr == "run"
            runs = runs or (run and name != "subprocess.run")
    if built is None:
        yield ScriptProblem(
            1, 1, "no workflow is built: from workflow import Workflow, then workflow = Workflow(name=...)"
        )
    elif not runs:
        yield _at(built, "the workflow is never run: end with result = workflow.run(question)")
