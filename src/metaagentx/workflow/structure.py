"""What a script builds, told from its text: `classify` reads the script and never runs it.

The reader follows assignments, literals, loops and comprehensions over known values, and functions that the script
calls itself. Calls of our classes build our real objects, so that this says what `node.outline()` says at run time.
Whatever cannot be told is marked: `exact` is False, and the number of calls is then that of the part that could be
read, or None.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from .agent import AgentNode
from .flow import ConditionalWorkflow, LoopWorkflow, Workflow
from .graph import END, AgentGraph
from .literals import BUILTINS, MAX_ITEMS, UNKNOWN, Unknown, builtin, combine, is_unknown, joined, lookup, method_value
from .messages import WorkflowError
from .node import WorkflowNode
from .nodes import DebateNode, EnsembleNode, ReflectionNode, RouterNode
from .outline import AgentInfo, Outline, Structure, sequence_outline, structure_of
from .tools import ToolRegistry

__all__ = ["AgentInfo", "Outline", "Structure", "classify"]

MAX_STEPS = 20_000
MAX_NODES = 500
MAX_DEPTH = 20

CONSTRUCTORS: dict[str, type] = {
    cls.__name__: cls
    for cls in (AgentNode, EnsembleNode, ReflectionNode, DebateNode, RouterNode, ToolRegistry, Workflow,
                ConditionalWorkflow, LoopWorkflow, AgentGraph)
}  # fmt: skip
_METHODS: dict[type, tuple[Callable[..., object], ...]] = {
    ToolRegistry: (ToolRegistry.register, ToolRegistry.register_python),
    LoopWorkflow: (LoopWorkflow.set_loop_condition,),
    Workflow: (Workflow.add_node, Workflow.add_nodes),
    AgentGraph: (AgentGraph.add_node, AgentGraph.add_edge, AgentGraph.add_conditional_edges,
                 AgentGraph.set_entry_point, AgentGraph.set_finish_point),
}  # fmt: skip
_NAMES: dict[str, object] = {**CONSTRUCTORS, "END": END}
_NODE_PARAMETERS = ("agent", "critic_agent", "consensus_agent", "judge", "node")
_NODE_LISTS = ("agents", "debaters", "nodes")

Scope: TypeAlias = "dict[str, Any]"


class _Function(Unknown):
    """A function of the script; `used` once the reader has followed a call of it."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda, scope: Scope) -> None:
        self.node, self.scope, self.used = node, scope, False


class _Return(Exception):
    def __init__(self, value: object) -> None:
        self.value = value


class _TooLong(Exception):
    pass


def classify(script: str) -> Structure:
    """The structure of a script's workflow. Any text is fine: one that cannot be read gives an empty, inexact one."""
    reader = _Reader()
    try:
        reader.execute(ast.parse(script).body, reader.scope)
        reader.check_functions()
    except (SyntaxError, ValueError, RecursionError, MemoryError, _TooLong, _Return):
        reader.exact = False
    outlines = reader.runs or [reader.outline(node) for node in reader.flows()]
    tree = outlines[0] if len(outlines) == 1 else sequence_outline("script", outlines)
    if reader.unbounded:
        tree = replace(tree, calls=None)
    return structure_of(tree, exact=reader.exact and bool(reader.runs))


class _Reader:
    """Follows a script with values that are known or `UNKNOWN`."""

    def __init__(self) -> None:
        self.scope: Scope = {"__name__": "__main__"}
        self.runs: list[Outline] = []
        self.exact = True
        self.unbounded = False
        self._functions: list[_Function] = []
        self._steps = 0
        self._built_count = 0
        self._depth = 0

    def flows(self) -> list[WorkflowNode]:
        """The workflows a script leaves behind without running them."""
        found: list[WorkflowNode] = [v for v in self.scope.values() if isinstance(v, Workflow | AgentGraph)]
        return found[-1:]

    def outline(self, node: WorkflowNode) -> Outline:
        try:
            return node.outline()
        except (WorkflowError, RecursionError):
            self.exact = False
            return Outline("custom", node.name, None)

    def check_functions(self) -> None:
        """Tools, conditions and routing functions that run agents make calls that nobody can count."""
        for function in self._functions:
            parts = [] if function.used else ast.walk(function.node)
            if any(isinstance(self._receiver(part, function.scope), WorkflowNode) for part in parts):
                self.unbounded = True

    def execute(self, statements: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self._tick()
            self._statement(statement, scope)

    def _tick(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _TooLong

    def _statement(self, statement: ast.stmt, scope: Scope) -> None:
        match statement:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "workflow":
                for alias in names:
                    known = {alias.asname or alias.name: _NAMES.get(alias.name, UNKNOWN)}
                    scope.update(_NAMES if alias.name == "*" else known)
            case ast.Import(names=names):
                for alias in names:
                    module = alias.name.partition(".")[0]
                    scope[alias.asname or module] = CONSTRUCTORS if module == "workflow" else UNKNOWN
            case ast.Assign(targets=targets, value=value):
                assigned = self.value(value, scope)
                for target in targets:
                    self._assign(target, assigned, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
                scope[name] = combine(operator, scope.get(name, UNKNOWN), self.value(value, scope))
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.FunctionDef(name=name):
                scope[name] = self._function(statement, scope)
            case ast.Return(value=value):
                raise _Return(self.value(value, scope) if value else None)
            case ast.For() | ast.While() | ast.If() | ast.Try() | ast.With():
                self._compound(statement, scope)
            case ast.ClassDef(name=name):
                scope[name] = UNKNOWN

    def _compound(self, statement: ast.For | ast.While | ast.If | ast.Try | ast.With, scope: Scope) -> None:
        match statement:
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                for item in self._items(self.value(iterable, scope)):
                    self._assign(target, item, scope)
                    self.execute(body, scope)
                self.execute(orelse, scope)
            case ast.While(body=body):
                for _ in self._items(UNKNOWN):
                    self.execute(body, scope)
            case ast.If(test=test, body=body, orelse=orelse):
                decided = self.value(test, scope)
                self.exact = self.exact and not is_unknown(decided)
                self.execute(body if is_unknown(decided) or decided else [], scope)
                self.execute(orelse if is_unknown(decided) or not decided else [], scope)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self.execute([*body, *orelse], scope)
                self.exact = self.exact and not handlers
                for handler in handlers:
                    self.execute(handler.body, scope)
                self.execute(final, scope)
            case ast.With(body=body):
                self.execute(body, scope)

    def _items(self, value: object) -> Iterator[object]:
        """What to loop over; once, with nothing known, when that cannot be told."""
        if isinstance(value, list | tuple | dict | range) and len(value) <= MAX_ITEMS:
            yield from list(value)
        else:
            runs = len(self.runs)
            yield UNKNOWN
            self.exact = False
            self.unbounded = self.unbounded or len(self.runs) > runs

    def _assign(self, target: ast.expr, value: object, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                known = isinstance(value, list | tuple) and len(value) == len(elements)
                values = list(value) if known and isinstance(value, list | tuple) else [UNKNOWN] * len(elements)
                for element, item in zip(elements, values, strict=True):
                    self._assign(element, item, scope)
            case ast.Subscript(value=container, slice=key):
                holder, index = self.value(container, scope), self.value(key, scope)
                if isinstance(holder, dict) and isinstance(index, str | int):
                    holder[index] = value

    def value(self, expression: ast.expr, scope: Scope) -> Any:
        """The value of an expression, or UNKNOWN."""
        self._tick()
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return scope.get(name, self.scope.get(name, UNKNOWN))
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                items = self._elements(elements, scope)
                return tuple(items) if isinstance(expression, ast.Tuple) else items
            case ast.Dict(keys=keys, values=values) if all(keys):
                pairs = [(self.value(k, scope), self.value(v, scope)) for k, v in zip(keys, values, strict=True) if k]
                return {k: v for k, v in pairs if isinstance(k, str | int)}
            case ast.JoinedStr(values=parts):
                return joined("", [self._formatted(part, scope) for part in parts])
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(expression, scope)
            case ast.BinOp(left=left, op=operator, right=right):
                return combine(operator, self.value(left, scope), self.value(right, scope))
            case ast.Lambda():
                return self._function(expression, scope)
            case ast.Call():
                return self._call(expression, scope)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                sides = self.value(left, scope), self.value(right, scope)
                plain = all(isinstance(side, str | int | float) for side in sides)
                return sides[0] == sides[1] if plain else UNKNOWN
            case ast.Subscript(value=container, slice=key):
                return lookup(self.value(container, scope), self.value(key, scope))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if scope.get(name) is CONSTRUCTORS:
                return CONSTRUCTORS.get(attribute, UNKNOWN)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                decided = self.value(test, scope)
                self.exact = self.exact and not is_unknown(decided)
                return self.value(orelse if not is_unknown(decided) and not decided else body, scope)
        return UNKNOWN

    def _elements(self, elements: Iterable[ast.expr], scope: Scope) -> list[object]:
        items: list[object] = []
        for element in elements:
            if isinstance(element, ast.Starred):
                items.extend(self._items(self.value(element.value, scope)))
            else:
                items.append(self.value(element, scope))
        return items

    def _formatted(self, part: ast.expr, scope: Scope) -> object:
        match part:
            case ast.Constant(value=str(text)):
                return text
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                known = self.value(value, scope)
                return str(known) if isinstance(known, str | int | float) else UNKNOWN
        return UNKNOWN

    def _comprehension(self, expression: ast.ListComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> object:
        inner = dict(scope)
        pairs: dict[Any, object] = {}
        items: list[object] = []

        def collect(generators: Sequence[ast.comprehension]) -> None:
            if not generators:
                if isinstance(expression, ast.DictComp):
                    key = self.value(expression.key, inner)
                    pairs[key if isinstance(key, str | int) else "?"] = self.value(expression.value, inner)
                else:
                    items.append(self.value(expression.elt, inner))
                return
            for item in self._items(self.value(generators[0].iter, inner)):
                self._assign(generators[0].target, item, inner)
                tests = [self.value(test, inner) for test in generators[0].ifs]
                self.exact = self.exact and not any(map(is_unknown, tests))
                if all(is_unknown(test) or test for test in tests):
                    collect(generators[1:])

        collect(expression.generators)
        return pairs if isinstance(expression, ast.DictComp) else items

    def _function(self, node: ast.FunctionDef | ast.Lambda, scope: Scope) -> _Function:
        function = _Function(node, scope)
        self._functions.append(function)
        return function

    def _receiver(self, part: ast.AST, scope: Scope) -> object:
        """Of a call `x.run(...)`, the value of x."""
        match part:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="run")):
                return scope.get(name, self.scope.get(name))
        return None

    def _call(self, call: ast.Call, scope: Scope) -> object:
        arguments = self._elements(call.args, scope)
        named: dict[str, object] = {}
        for keyword in call.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named.update({str(key): item for key, item in value.items()})
            else:
                self.exact = False
        match call.func:
            case ast.Attribute(value=target, attr=method) if not isinstance(self.value(call.func, scope), type):
                return self._method(self.value(target, scope), method, arguments, named)
            case ast.Name(id=name) if name in BUILTINS and name not in scope:
                return builtin(name, arguments)
        function = self.value(call.func, scope)
        if isinstance(function, type):
            return self._built(function, arguments, named)
        return self._follow(function, arguments, named) if isinstance(function, _Function) else UNKNOWN

    def _method(self, target: object, method: str, arguments: list[object], named: dict[str, object]) -> object:
        if method == "run" and isinstance(target, WorkflowNode):
            self.runs.append(self.outline(target))
            return UNKNOWN
        for kind, functions in _METHODS.items():
            for function in functions:
                if isinstance(target, kind) and function.__name__ == method:
                    return self._built(function, [target, *arguments], named)
        return method_value(target, method, arguments)

    def _built(self, function: Callable[..., object], arguments: list[object], named: dict[str, object]) -> object:
        """Call something of ours, with placeholders for what is not known."""
        self._built_count += 1
        if self._built_count > MAX_NODES:
            raise _TooLong
        try:
            bound = inspect.signature(function).bind(*arguments, **named)
            for name, value in list(bound.arguments.items()):
                bound.arguments[name] = self._known(name, value)
            bound.arguments = {k: v for k, v in bound.arguments.items() if v is not UNKNOWN}
            return function(*bound.args, **bound.kwargs)
        except (TypeError, ValueError, AttributeError, WorkflowError):
            self.exact = False
            return UNKNOWN

    def _known(self, parameter: str, value: object) -> object:
        if parameter in _NODE_LISTS:
            nodes = value if isinstance(value, list | tuple) else [value]
            return [self._known("node", node) for node in nodes]
        if parameter == "routes" and isinstance(value, Mapping):
            return {key: self._known("node", node) for key, node in value.items()}
        if not is_unknown(value):
            return value
        if parameter in _NODE_PARAMETERS:
            return WorkflowNode("?")
        if parameter in ("name", "node_name", "source", "target"):
            self.exact = False
            return "?"
        if parameter in ("max_turns", "num_rounds", "num_iterations", "max_iterations", "max_steps", "strategy"):
            self.exact = False
            return UNKNOWN
        if parameter in ("condition", "routing_func", "func"):
            return value if value is not UNKNOWN else Unknown()
        return "" if parameter in ("system_prompt", "description") else value

    def _follow(self, function: _Function, arguments: list[object], named: dict[str, object]) -> object:
        if self._depth >= MAX_DEPTH:
            self.exact = False
            return UNKNOWN
        function.used = True
        parameters = function.node.args
        names = [parameter.arg for parameter in [*parameters.posonlyargs, *parameters.args]]
        scope = dict(function.scope)
        for parameter, default in zip(reversed(names), reversed(parameters.defaults), strict=False):
            scope[parameter] = self.value(default, function.scope)
        scope.update(dict(zip(names, arguments, strict=False)) | named)
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scope)
            self.execute(function.node.body, scope)
        except _Return as returned:
            return returned.value
        finally:
            self._depth -= 1
        return None
