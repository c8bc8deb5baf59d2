"""Dataclasses as JSON objects and back, by their annotations.

Reading is strict: "3" is not a number and 1 is not a truth value. The error names the field by its path. A dataclass
decides about unknown fields itself (`extra` of its `__pydantic_config__`); by default they are ignored, so that a later
version may add some.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from ..errors import MetaAgentXError

T = TypeVar("T")
_STRICT = ("str", "int", "float", "bool")
_SHOWN_CHARACTERS = 60


class Serializer(Generic[T]):
    """Writes and reads one type. Its schema is built with the first use."""

    def __init__(self, kind: type[T], exclude: Mapping[str, Any] | None = None) -> None:
        self._kind = kind
        self._exclude: Any = exclude

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self._kind)

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(_strict(self._adapter.core_schema))

    def dump(self, value: T) -> dict[str, Any]:
        """Return a value as a dictionary that `json` writes as it stands."""
        data: dict[str, Any] = self._adapter.dump_python(value, exclude=self._exclude)
        return data

    def load(self, data: object) -> T:
        """Build the value from a JSON object; raise MetaAgentXError with the field that is wrong."""
        try:
            value: T = self._validator.validate_python(data)
        except ValidationError as error:
            raise MetaAgentXError(_describe(error)) from error
        return value


def _strict(schema: Any) -> Any:
    """Return a schema in which texts, numbers and truth values are not converted into one another.

    Not strict mode as such: that also refuses the lists and objects of JSON where a tuple or a dataclass is declared.
    """
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {"strict": True} if schema.get("type") in _STRICT else {}
    return {key: _strict(part) for key, part in schema.items()} | strict


def _describe(error: ValidationError) -> str:
    """Return one line for the first problem; in a union, that of the member that fits best: the deepest."""
    problem = max(error.errors(include_url=False), key=lambda problem: len(problem["loc"]))
    path = ".".join(map(str, problem["loc"])) or "the whole object"
    value = "" if problem["type"] == "missing" else f", got {problem['input']!r:.{_SHOWN_CHARACTERS}}"
    return f"{path}: {problem['msg']}{value}"
