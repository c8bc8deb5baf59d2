"""Serialize Python values as plain JSON and back, with types, shared references and cycles.

A parcel is {"root": node, "heap": [[kind, payload], ...]}; a node is a scalar or {"ref": index into the heap}. Only
built-in types are sent, and objects as a class name with attributes. Unpacking makes plain built-ins whatever the
parcel says, so that no returned value can be "equal" to anything by a method of its own.
"""

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

JSON: TypeAlias = Any  # as received: everything is checked where it is used
MAX_ITEMS = 200_000
MAX_DEPTH = 50
_SEQUENCES: dict[str, Callable[[list[object]], object]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "iterator": iter,
}
_MAPPINGS: dict[str, Callable[[dict[object, object]], object]] = {
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda pairs: defaultdict(lambda: None, pairs),
}
_TEXTS: dict[str, Callable[[str], object]] = {
    "text": str,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "Decimal": Decimal,
    "Fraction": Fraction,
    "float": float,
    "int": lambda text: int(text, 16),
}
_ITERATED = (Iterator, KeysView, ValuesView, ItemsView, range)


class CannotTravel(TypeError):
    """A value of a type that is not sent between runs."""


class Opaque:
    """Stands for a value that is not sent (a match, a function): equal to nothing, but true or false."""

    def __init__(self, type_name: str, truth: bool) -> None:
        self._type_name, self._truth = type_name, truth

    def __bool__(self) -> bool:
        return self._truth is True

    def __repr__(self) -> str:
        return f"<{self._type_name}>"


class Objects:
    """The objects that both sides know, by number."""

    def __init__(self, step: int) -> None:
        self._step = step  # 1 or -1, so that the two sides never assign the same number
        self._next = step
        self._numbers: dict[int, int] = {}
        self.known: dict[int, object] = {}
        self.instances: set[int] = set()
        """Numbers of the objects that the tests made of the solution's classes: only their number is sent."""
        self.classes: MutableMapping[str, type] = {}

    def number(self, value: object) -> int:
        """Return the number of an object, a new one if it has none."""
        if id(value) not in self._numbers:
            self.remember(self._next, value)
            self._next += self._step
        return self._numbers[id(value)]

    def remember(self, number: int, value: object) -> None:
        """Assign a number to an object."""
        self._numbers[id(value)] = number
        self.known[number] = value
        self.classes.setdefault(type(value).__name__, type(value))

    def add_instance(self, number: int, value: object) -> None:
        """Assign a number to an object of which only the number is sent: its state lives on one side."""
        self._numbers[id(value)] = number
        self.known[number] = value
        self.instances.add(number)

    def make_instance(self, value: object) -> int:
        """Register an instance that is new to the other side; return its number."""
        number = self._numbers.get(id(value), self._next)
        self._next += self._step
        self.add_instance(number, value)
        return number

    def instance_number(self, value: object) -> int | None:
        """Return the number of an object if only its number is sent, else None."""
        number = self._numbers.get(id(value))
        return number if number in self.instances else None

    def make(self, class_name: str) -> object:
        """Return an empty object of the class of this name that this side knows, or of a new class."""
        known: Any = self.classes.setdefault(class_name, type(class_name, (), {}))
        made: object = object.__new__(known)
        return made


class Packer:
    """Packs values into one heap."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._indices: dict[int, int] = {}
        self._alive: list[object] = []
        self.heap: list[JSON] = []

    def pack(self, value: Any) -> JSON:
        """Return the node of a value."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int and abs(value) < 1 << 64:
            return value
        if kind is float and math.isfinite(value):
            return value
        if id(value) not in self._indices:
            index = self._reserve(value)
            self.heap[index] = self._compound(value)
        return {"ref": self._indices[id(value)]}

    def _reserve(self, value: object) -> int:
        if len(self.heap) >= MAX_ITEMS:
            raise CannotTravel("a value with too many parts")
        self._indices[id(value)] = len(self.heap)
        self._alive.append(value)  # otherwise its id might be reused
        self.heap.append(None)
        return len(self.heap) - 1

    def _compound(self, value: Any) -> JSON:
        if (number := self._objects.instance_number(value)) is not None:
            return ["instance", number]
        if isinstance(value, complex | Decimal | Fraction | int | float | str):
            return _scalar(value)
        if isinstance(value, bytes | bytearray):
            return ["bytes" if isinstance(value, bytes) else "bytearray", value.hex()]
        for base in (list, tuple, set, frozenset, deque):
            if isinstance(value, base):
                return [base.__name__, [self.pack(item) for item in _bounded(iter(value))]]
        if isinstance(value, dict):
            kind = type(value).__name__
            pairs = [[self.pack(key), self.pack(item)] for key, item in _bounded(iter(value.items()))]
            return [kind if kind in _MAPPINGS else "dict", pairs]
        if isinstance(value, _ITERATED):
            return ["iterator", [self.pack(item) for item in _bounded(iter(value))]]
        return self._object(value)

    def _object(self, value: object) -> JSON:
        if callable(value) or not hasattr(value, "__dict__"):
            return ["opaque", [type(value).__name__, bool(value)]]
        number = self._objects.number(value)
        attributes = [[name, self.pack(item)] for name, item in vars(value).items()]
        return ["object", [number, type(value).__name__, attributes]]


def _scalar(value: complex | Decimal | Fraction | float | str) -> JSON:
    """Pack a number or text, perhaps of a class of the solution, as the built-in it is derived from."""
    if isinstance(value, str):
        return ["text", str.__str__(value)]
    if isinstance(value, int):
        return ["int", hex(int.__int__(value))]
    if isinstance(value, float):
        return ["float", float.__repr__(value)]
    base = next(base for base in (complex, Decimal, Fraction) if isinstance(value, base))
    return [base.__name__, base.__str__(value)]


def _bounded(items: Iterator[Any]) -> Iterator[Any]:
    for count, item in enumerate(items):
        if count >= MAX_ITEMS:
            raise CannotTravel("a value with too many parts")
        yield item


class Unpacker:
    """Makes plain values from a parcel. Anything malformed raises; the caller treats it as a wrong value."""

    def __init__(self, heap: list[JSON], objects: Objects) -> None:
        self._heap = heap
        self._objects = objects
        self._made: dict[int, object] = {}

    def unpack(self, node: JSON) -> Any:
        """Return the value of a node."""
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise CannotTravel("a list instead of a node")
            return node
        index = node["ref"]
        if type(index) is not int or index < 0:
            raise CannotTravel("not an index into the heap")
        if index not in self._made:
            kind, payload = self._heap[index]
            self._make(index, kind, payload)
        return self._made[index]

    def _make(self, index: int, kind: str, payload: JSON) -> None:
        if kind in _TEXTS:
            self._made[index] = _TEXTS[kind](payload)
        elif kind == "list":
            made: list[object] = []
            self._made[index] = made
            made.extend(self.unpack(item) for item in payload)
        elif kind in _SEQUENCES:
            self._made[index] = _SEQUENCES[kind]([self.unpack(item) for item in payload])
        elif kind == "dict" or kind in _MAPPINGS:
            mapping: dict[object, object] = {}
            self._made[index] = mapping
            mapping.update((self.unpack(key), self.unpack(value)) for key, value in payload)
            if kind in _MAPPINGS:
                self._made[index] = _MAPPINGS[kind](mapping)
        elif kind == "object":
            self._make_object(index, *payload)
        elif kind == "instance":
            if payload not in self._objects.instances:
                raise CannotTravel("no such instance")
            self._made[index] = self._objects.known[payload]
        elif kind == "opaque":
            self._made[index] = Opaque(*payload)
        else:
            raise CannotTravel("no such kind of value")

    def _make_object(self, index: int, number: JSON, class_name: JSON, attributes: JSON) -> None:
        if type(number) is not int or type(class_name) is not str:
            raise CannotTravel("not an object")
        if number not in self._objects.known:
            self._objects.remember(number, self._objects.make(class_name))
        value = self._objects.known[number]
        self._made[index] = value
        for name, node in attributes:
            if type(name) is not str or name.startswith("__"):
                raise CannotTravel("an attribute that does not travel")
            setattr(value, name, self.unpack(node))


def pack(value: object, objects: Objects) -> JSON:
    """Return a parcel with one value."""
    packer = Packer(objects)
    root = packer.pack(value)
    return {"root": root, "heap": packer.heap}


def unpack(parcel: JSON, objects: Objects) -> Any:
    """Return the value in a parcel."""
    return Unpacker(parcel["heap"], objects).unpack(parcel["root"])


def plain(value: Any, depth: int = 0) -> JSON:
    """Return a value as the JSON that function tests are written in: tuples become lists, keys become strings."""
    if depth > MAX_DEPTH:
        raise CannotTravel("a value nested too deep")
    if value is None or type(value) is bool:
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple | deque):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {str(plain(key, depth + 1)): plain(item, depth + 1) for key, item in value.items()}
    raise CannotTravel(f"a value of type {type(value).__name__} is not JSON")
