"""Python values as plain JSON and back, with their types, their sharing and their cycles.

A parcel is {"root": node, "heap": [[kind, payload], ...]}; a node is a scalar or {"ref": index into the heap}. Only
built-in types travel, and objects as a class name with attributes. Unpacking makes plain built-ins whatever the parcel
says, so that no value that comes back can be "equal" to anything by a method of its own.
"""

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

JSON: TypeAlias = Any  # as it comes off the door: everything is checked where it is used
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
    """Stands for a value that stays where it is (a match, a function): equal to nothing, but true or false."""

    def __init__(self, type_name: str, truth: bool) -> None:
        self._type_name, self._truth = type_name, truth

    def __bool__(self) -> bool:
        return self._truth is True

    def __repr__(self) -> str:
        return f"<{self._type_name}>"


class Objects:
    """The objects both sides know, by number."""

    def __init__(self, step: int) -> None:
        self._step = step  # 1 or -1, so that the two sides never give the same number
        self._next = step
        self._numbers: dict[int, int] = {}
        self.known: dict[int, object] = {}
        self.instances: set[int] = set()
        """Objects that the tests have made of the solution's classes: they travel as their number and nothing else."""
        self.classes: dict[str, type] = {}

    def number(self, value: object) -> int:
        """The number of an object, new when it has none yet."""
        if id(value) not in self._numbers:
            self.remember(self._next, value)
            self._next += self._step
        return self._numbers[id(value)]

    def remember(self, number: int, value: object) -> None:
        """Both sides call this object by that number from now on."""
        self._numbers[id(value)] = number
        self.known[number] = value
        self.classes.setdefault(type(value).__name__, type(value))

    def add_instance(self, number: int, value: object) -> None:
        """From now on an object travels as its number: its state lives in one place."""
        self._numbers[id(value)] = number
        self.known[number] = value
        self.instances.add(number)

    def make_instance(self, value: object) -> int:
        """The number of an instance that is new to the other side."""
        number = self._numbers.get(id(value), self._next)
        self._next += self._step
        self.add_instance(number, value)
        return number

    def instance_number(self, value: object) -> int | None:
        """The number of an object that travels as such."""
        number = self._numbers.get(id(value))
        return number if number in self.instances else None

    def make(self, class_name: str) -> object:
        """An object of a class of this name: the one this side knows, or an empty one."""
        known: Any = self.classes.setdefault(class_name, type(class_name, (), {}))
        made: object = object.__new__(known)
        return made


class Packer:
    """Packs values into one heap."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._places: dict[int, int] = {}
        self._alive: list[object] = []
        self.heap: list[JSON] = []

    def pack(self, value: Any) -> JSON:
        """The node of a value."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int and abs(value) < 1 << 64:
            return value
        if kind is float and math.isfinite(value):
            return value
        if id(value) not in self._places:
            place = self._place(value)
            self.heap[place] = self._compound(value)
        return {"ref": self._places[id(value)]}

    def _place(self, value: object) -> int:
        if len(self.heap) >= MAX_ITEMS:
            raise CannotTravel("a value with too many parts")
        self._places[id(value)] = len(self.heap)
        self._alive.append(value)  # or its id might be given to another
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
    """A number or text, perhaps of a type of the solution's own, as the built-in it is derived from."""
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
    """Makes plain values of a parcel. Anything malformed raises; the caller treats it as a wrong value."""

    def __init__(self, heap: list[JSON], objects: Objects) -> None:
        self._heap = heap
        self._objects = objects
        self._made: dict[int, object] = {}

    def unpack(self, node: JSON) -> Any:
        """The value of a node."""
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise CannotTravel("a list where a node was due")
            return node
        place = node["ref"]
        if type(place) is not int or place < 0:
            raise CannotTravel("not a place in the heap")
        if place not in self._made:
            kind, payload = self._heap[place]
            self._make(place, kind, payload)
        return self._made[place]

    def _make(self, place: int, kind: str, payload: JSON) -> None:
        if kind in _TEXTS:
            self._made[place] = _TEXTS[kind](payload)
        elif kind == "list":
            made: list[object] = []
            self._made[place] = made
            made.extend(self.unpack(item) for item in payload)
        elif kind in _SEQUENCES:
            self._made[place] = _SEQUENCES[kind]([self.unpack(item) for item in payload])
        elif kind == "dict" or kind in _MAPPINGS:
            mapping: dict[object, object] = {}
            self._made[place] = mapping
            mapping.update((self.unpack(key), self.unpack(value)) for key, value in payload)
            if kind in _MAPPINGS:
                self._made[place] = _MAPPINGS[kind](mapping)
        elif kind == "object":
            self._make_object(place, *payload)
        elif kind == "instance":
            if payload not in self._objects.instances:
                raise CannotTravel("no such instance")
            self._made[place] = self._objects.known[payload]
        elif kind == "opaque":
            self._made[place] = Opaque(*payload)
        else:
            raise CannotTravel("no such kind of value")

    def _make_object(self, place: int, number: JSON, class_name: JSON, attributes: JSON) -> None:
        if type(number) is not int or type(class_name) is not str:
            raise CannotTravel("not an object")
        if number not in self._objects.known:
            self._objects.remember(number, self._objects.make(class_name))
        value = self._objects.known[number]
        self._made[place] = value
        for name, node in attributes:
            if type(name) is not str or name.startswith("__"):
                raise CannotTravel("an attribute that does not travel")
            setattr(value, name, self.unpack(node))


def pack(value: object, objects: Objects) -> JSON:
    """A parcel with one value."""
    packer = Packer(objects)
    root = packer.pack(value)
    return {"root": root, "heap": packer.heap}


def unpack(parcel: JSON, objects: Objects) -> Any:
    """The value in a parcel."""
    return Unpacker(parcel["heap"], objects).unpack(parcel["root"])


def plain(value: Any, depth: int = 0) -> JSON:
    """A returned value as the JSON that function tests are written in: tuples become lists, keys become strings."""
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
    raise CannotTravel(f"a value of type {type(value).__name__} is no JSON")
